"""The JSON in message bodies.

Invariants: a body is a JSON object that names its version; times are wall-clock milliseconds and money is in minor
units. Readers ignore members that they do not know, so that a version only grows.
"""

from __future__ import annotations

import json
from typing import Any

from servicekit.errors import MalformedMessageError


def encode(members: dict[str, Any]) -> bytes:
    """The body."""
    return json.dumps(members, separators=(",", ":")).encode()


class MessageBody:
    """A body that was read. Its methods raise MalformedMessageError for a member that is not as promised."""

    def __init__(self, body: bytes) -> None:
        """Raises MalformedMessageError when the body is not a JSON object."""
        try:
            members: Any = json.loads(body)
        except ValueError as error:
            raise MalformedMessageError(f"the body is not JSON: {error}") from error
        if not isinstance(members, dict):
            raise MalformedMessageError("the body is not a JSON object")
        self._members: dict[str, Any] = members

    def has(self, name: str) -> bool:
        """Whether the member is there, of whatever kind."""
        return name in self._members

    def text(self, name: str) -> str:
        """A text that is not empty."""
        found = self._members.get(name)
        if not isinstance(found, str) or not found:
            raise MalformedMessageError(f"the body needs {name}, a text")
        return found

    def number(self, name: str) -> int:
        """A whole number."""
        found = self._members.get(name)
        if type(found) is not int:  # and not isinstance: JSON's true is an int for Python
            raise MalformedMessageError(f"the body needs {name}, a whole number")
        return found
