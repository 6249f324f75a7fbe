"""What holds for every test: the process's logging is afterwards what it was before."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

pytest_plugins = ["capabilities_plugin"]  # in tests/capabilities


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Services configure the logging of their whole process, and here they share one with other tests."""
    loggers = [logging.getLogger(), *(one for one in logging.root.manager.loggerDict.values() if _is_logger(one))]
    before = [(one, one.level, one.disabled, one.propagate, one.handlers[:]) for one in loggers]
    yield
    for one, level, disabled, propagate, handlers in before:
        one.level, one.disabled, one.propagate, one.handlers = level, disabled, propagate, handlers
    for one in logging.root.manager.loggerDict.values():
        if _is_logger(one) and one not in loggers:
            one.level, one.disabled, one.propagate, one.handlers = logging.NOTSET, False, True, []
    logging.getLogger().manager._clear_cache()
    structlog.reset_defaults()


def _is_logger(one: object) -> bool:
    return isinstance(one, logging.Logger)
