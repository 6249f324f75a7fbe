"""What a consumer group of a service reads, and what it does with each message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subscription:
    """`handle` gets a body; when it raises, the message is delivered again later.

    It may get a message twice, and carries it out once: servicekit.inbox.

    `is_broadcasting`: every process of the service gets every message that comes after its start, and nothing of it
    outlives the process. For what only this process can do, such as telling those who wait at it: what was missed while
    it was away, and what its handler could not do, never comes again.
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
