"""The port to the shop's dead letters: messages that a group could not carry out. Each is an incident, and nothing is
lost: an operator mends the cause and has the letter delivered again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orders.service import events

# The groups of this service and of payments: the shop's money and stock hang on them. Those of payments stand here as
# the text that they are on the queue, because services know each other's messages and not each other's code.
SHOP_GROUPS = (
    events.TIMEOUT_SCHEDULER_GROUP,
    events.TIMEOUT_HANDLER_GROUP,
    events.PAYMENT_HANDLER_GROUP,
    events.REFUND_HANDLER_GROUP,
    events.COMPLETION_SCHEDULER_GROUP,
    events.COMPLETION_HANDLER_GROUP,
    "payable-orders",
    "refund-handler",
)


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter that nobody has dealt with; `keys` are ids of orders."""

    group: str
    letter_id: str
    topic: str
    tag: str
    keys: tuple[str, ...]
    body: str
    dead_since_ms: int


@dataclass(frozen=True, slots=True)
class DeadLettersOfGroup:
    """The oldest open letters of one consumer group; `has_more` when there are more than a page shows."""

    group: str
    letters: tuple[DeadLetterView, ...]
    has_more: bool


class DeadLetters(Protocol):
    """Both methods raise QueueUnreachableError."""

    async def open_letters(self) -> tuple[DeadLettersOfGroup, ...]:
        """Of each group of the shop, in a fixed order."""

    async def replay(self, group: str, letter_id: str) -> None:
        """Deliver the letter to its group again. Raises UnknownDeadLetterError if it is not open."""
