"""What the lottery reads of an order's event; whatever else is in the body concerns others."""

from __future__ import annotations

import json
from dataclasses import dataclass

PAID, COMPLETED, CLOSED = "paid", "completed", "closed"
TAGS = (PAID, COMPLETED, CLOSED)


class MalformedEventError(Exception):
    """A body that is not the event of an order."""


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """Something happened to an order; `was_paid` tells of a closed one whether money had come before."""

    tag: str
    order_id: str
    buyer_id: str
    was_paid: bool


def read_event(tag: str | None, body: bytes) -> OrderEvent:
    """Raises MalformedEventError."""
    try:
        members = json.loads(body)
        order_id, buyer_id = members["order_id"], members["buyer_id"]
    except (ValueError, TypeError, KeyError) as error:
        raise MalformedEventError(f"this is not the event of an order: {error!r}") from error
    if tag not in TAGS or not isinstance(order_id, str) or not isinstance(buyer_id, str):
        raise MalformedEventError(f"the event {tag!r} has order_id {order_id!r} and buyer_id {buyer_id!r}")
    return OrderEvent(tag, order_id, buyer_id, tag != CLOSED or members.get("payment_id") is not None)
