"""What a consumer group of a service reads, and what it does with each message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subscription:
    """`handle` gets a body; when it raises, the message is delivered again later.

    It may get a message twice, and carries it out once: servicekit.inbox.
    """

    group: str
    topic: str
    tags: str
    handle: Callable[[bytes], Awaitable[None]]

    def takes(self, topic: str, tag: str) -> bool:
        """Whether a message with this tag is for this group. `tags` is `*`, or tags with `||` between them."""
        wanted = {name.strip() for name in self.tags.split("||")}
        return topic == self.topic and (wanted == {"*"} or tag in wanted)
