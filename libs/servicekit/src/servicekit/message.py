"""Messages: what is published, how bodies are read, and the subscriptions of groups."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from servicekit.errors import MalformedMessageError


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to publish. `key` is the business key.

    It is delivered at once, or after `delay_level` (1 to 18), or at `deliver_at_ms` since 1970, 40 days from now at
    most; a moment that has passed means at once. Raises ValueError for a message that has both.
    """

    topic: str
    tag: str
    key: str
    body: bytes
    delay_level: int = 0
    deliver_at_ms: int | None = None

    def __post_init__(self) -> None:
        if self.delay_level and self.deliver_at_ms is not None:
            raise ValueError(f"{self.topic}: delay_level and deliver_at_ms together; one of the two is allowed")


class MessagePublisher(Protocol):
    """The way into the queue."""

    async def publish(self, message: OutgoingMessage) -> None:
        """Return when the queue has the message; raise PublishError when it has not, or when that is unknown."""


def encode_body(members: dict[str, Any]) -> bytes:
    """The body."""
    return json.dumps(members, separators=(",", ":")).encode()


class MessageBody:
    """A body that was read. Its methods raise MalformedMessageError for a member that is not as promised.

    Invariants: a body is a JSON object that names its version; times are wall-clock milliseconds and money is in minor
    units. Readers ignore members that they do not know, so that a version only grows.
    """

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


@dataclass(frozen=True, slots=True)
class Subscription:
    """`handle` gets a body; when it raises, the message is delivered again later.

    It may get a message twice, and carries it out once: servicekit.sql.units.

    `is_broadcasting`: every process of the service gets every message that comes after its start, and nothing of it
    outlives the process. For what only this process can do, such as telling its own clients: messages that were missed
    while it was away, or that its handler could not handle, never come again.
    """

    group: str
    topic: str
    tags: str
    handle: Callable[[bytes], Awaitable[None]]
    is_broadcasting: bool = False

    def takes(self, topic: str, tag: str) -> bool:
        """Whether a message with this tag is for this group. `tags` is `*`, or tags with `||` between them."""
        wanted = {name.strip() for name in self.tags.split("||")}
        return topic == self.topic and (wanted == {"*"} or tag in wanted)
