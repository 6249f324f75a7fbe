"""Parts of a state's JSON document."""

from __future__ import annotations

from typing import Any


def table(document: Any, name: str) -> dict[str, Any]:
    """The table called `name`. Raises KeyError when it is missing, TypeError when one of the two is no table."""
    if not isinstance(document, dict):
        raise TypeError(f"{document!r} is no table")
    found = document[name]
    if not isinstance(found, dict):
        raise TypeError(f"{name} is {found!r}, and no table")
    return found
