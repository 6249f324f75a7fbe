"""What holds for every test: logging is afterwards what it was before, what is started hears of Ctrl-C, and what was
counted is printed."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Generator, Iterator

import pytest
import structlog

# The first lies in tests/capabilities.
pytest_plugins = ["capabilities_plugin", "servicekit.testing.databases", "pyspark_mq.testing.sessions"]

YOUNG_OBJECTS_MAX = 10_000  # 700 in Python


def pytest_configure() -> None:
    """A shell starts what it runs in the background with SIGINT ignored, and all that is started there inherits it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All modules and tests stay from now on to the end, some million objects: no collection of garbage looks at them
    again, neither by itself nor where one is asked for (a second and more each time). What tests leave behind is looked
    for less often, too: most looks at young objects find nothing.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS_MAX, 20, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have counted: `record_property("figure", text)`. It travels with the reports of workers."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "figure":
                terminalreporter.write_line(str(text))


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
