"""A message on its way out, and the port that takes it to the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """What a service tells the queue. `key` is the business key (MISSION I2); `delay_level` 0 is now."""

    topic: str
    tag: str
    key: str
    body: bytes
    delay_level: int = 0


class MessagePublisher(Protocol):
    """The way into the queue."""

    async def publish(self, message: OutgoingMessage) -> None:
        """Return when the queue has the message; raise PublishError when it has not, or when that is unknown."""
