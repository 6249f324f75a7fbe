"""A message on its way out, and the port that takes it to the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """What a service tells the queue. `key` is the business key (MISSION I2).

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
