"""What a consumer group of orders reads, and what it does with each message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subscription:
    """`handle` gets a body; when it raises, the message is delivered again later. It may get a message twice."""

    group: str
    topic: str
    tags: str
    handle: Callable[[bytes], Awaitable[None]]
