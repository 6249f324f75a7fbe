"""What `register` says before a query can fail."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest

import pyspark_mq


def session(master: str, python: str) -> Any:
    """What `register` asks of a session."""
    return SimpleNamespace(
        _sc=SimpleNamespace(master=master, pythonExec=python),
        dataSource=SimpleNamespace(register=lambda source: None),
        conf=SimpleNamespace(set=lambda name, value: None),
    )


def test_workers_of_another_python_are_warned_of_with_what_to_set() -> None:
    with pytest.warns(UserWarning, match=f"Set PYSPARK_PYTHON={sys.executable} before the session is made"):
        pyspark_mq.register(cast("Any", session("local[2]", "python-that-is-not-there")))


@pytest.mark.parametrize(("master", "python"), [("local[2]", sys.executable), ("spark://host:7077", "python3")])
def test_workers_that_have_the_package_or_are_elsewhere_are_not_warned_of(master: str, python: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pyspark_mq.register(cast("Any", session(master, python)))
