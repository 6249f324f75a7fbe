"""The checks, as they lie in the folder sql/."""

from __future__ import annotations

from importlib.resources import files

from hourglass_invariants.checks import Check, parse_check

_FOLDER = files("hourglass_invariants") / "sql"


def read_checks() -> list[Check]:
    """All checks, in the order of their numbers."""
    found = sorted((file for file in _FOLDER.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [parse_check(file.name, file.read_text(encoding="utf-8")) for file in found]
