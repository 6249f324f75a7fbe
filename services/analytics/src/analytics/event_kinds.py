"""The events that the shop tells: topics, tags, and the members of a body without which it says nothing.

What orders and payments write is in their modules service/events.py; a test holds that both agree.

Versions: a body without `version` is of version 1. A version only grows: members are added, none changes its meaning.
So members that came later are missing in old bodies and are null here, those of a later version than VERSION_KNOWN are
not looked at, and only what an event is about, its `needs`, has to be there.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION_KNOWN = 1
VERSION_WITHOUT = 1  # of a body that does not say

ORDER_EVENTS_TOPIC = "order-events"
PAYMENT_EVENTS_TOPIC = "payment-events"
ORDER_TIMEOUTS_TOPIC = "order-timeouts"
ORDER_COMPLETIONS_TOPIC = "order-completions"

CREATED = "created"
PAID = "paid"
SHIPPED = "shipped"
COMPLETED = "completed"
CLOSED = "closed"
REFUND_REQUESTED = "refund-requested"
SUCCEEDED = "succeeded"
REFUNDED = "refunded"
EXPIRE = "expire"
COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event: its topic, its tag, and the members of its body that must be there, beside order_id."""

    topic: str
    kind: str
    needs: tuple[str, ...] = ()


KINDS = (
    EventKind(ORDER_EVENTS_TOPIC, CREATED, ("created_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, PAID, ("paid_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, SHIPPED, ("shipped_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, COMPLETED, ("completed_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, CLOSED, ("closed_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, REFUND_REQUESTED, ("payment_id", "amount_minor")),
    EventKind(PAYMENT_EVENTS_TOPIC, SUCCEEDED, ("payment_id", "amount_minor", "paid_at_ms")),
    EventKind(PAYMENT_EVENTS_TOPIC, REFUNDED, ("payment_id", "refund_id", "amount_minor", "refunded_at_ms")),
    EventKind(ORDER_TIMEOUTS_TOPIC, EXPIRE, ("expires_at_ms",)),
    EventKind(ORDER_COMPLETIONS_TOPIC, COMPLETE, ("shipped_at_ms",)),
)

TOPICS = tuple(sorted({kind.topic for kind in KINDS}))
