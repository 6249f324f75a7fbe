"""Docstrings are plain prose, and become reStructuredText that means the same."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

EXTENSION = Path(__file__).parents[2] / "docs/reference/extensions/plain_docstrings.py"

Restructured = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
def restructured() -> Restructured:
    spec = importlib.util.spec_from_file_location("plain_docstrings", EXTENSION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Restructured = module.restructured
    return function


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("Sends `message` once.", "Sends ``message`` once."),
        ("`a b` may\nbe `broken\nover` lines", "``a b`` may\nbe ``broken over`` lines"),
        ("See x_ and *args, a | b, C:\\x.", "See x\\_ and \\*args, a \\| b, C:\\\\x."),
        ("So:\n\n    f()\n\n    x = 1\n\nDone.", "So:\n\n.. code-block:: python\n\n   f()\n\n   x = 1\n\nDone."),
        ("    one -> two", ".. code-block:: text\n\n   one -> two"),
        ("Two things:\n- one\n- two", "Two things:\n\n- one\n- two"),
        ("", ""),
    ],
)
def test_plain_prose_becomes_restructured_text(restructured: Restructured, plain: str, expected: str) -> None:
    assert "\n".join(restructured(plain.splitlines())).rstrip("\n") == expected
