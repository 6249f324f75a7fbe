"""The messages of orders: topics, tags, groups, and the JSON in the bodies.

Invariants: a body names its version; its key is the order's id; times are wall-clock milliseconds and money is in minor
units. Readers ignore members that they do not know, so that a version only grows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orders.domain.order import Order, StatusChange
from orders.service.message import OutgoingMessage

VERSION = 1

ORDER_EVENTS_TOPIC = "order-events"
CREATED_TAG = "created"
CLOSED_TAG = "closed"

ORDER_TIMEOUTS_TOPIC = "order-timeouts"
EXPIRE_TAG = "expire"

TIMEOUT_SCHEDULER_GROUP = "order-timeout-scheduler"
TIMEOUT_HANDLER_GROUP = "order-timeout-handler"


class MalformedMessageError(ValueError):
    """A message body that is not what its topic promises; no retry mends it."""


@dataclass(frozen=True, slots=True)
class OrderDeadline:
    """What the timeout path reads from a body: which order, and until when it can be paid."""

    order_id: str
    expires_at_ms: int


def created(order: Order) -> OutgoingMessage:
    """`order-events`/`created`: an order waits for its payment until expires_at_ms."""
    body = _order_members(order) | {
        "created_at_ms": order.created_at_ms,
        "items": [
            {"product_id": line.product_id, "quantity": line.quantity, "unit_price_minor": line.unit_price_minor}
            for line in order.lines
        ],
    }
    return _message(ORDER_EVENTS_TOPIC, CREATED_TAG, order.order_id, body)


def closed(order: Order, change: StatusChange) -> OutgoingMessage:
    """`order-events`/`closed`: the order is over without payment, and its units are on sale again."""
    body = _order_members(order) | {"closed_at_ms": change.at_ms, "reason": change.reason.value}
    return _message(ORDER_EVENTS_TOPIC, CLOSED_TAG, order.order_id, body)


def timeout(deadline: OrderDeadline, delay_level: int) -> OutgoingMessage:
    """`order-timeouts`: look at the order again after the delay."""
    body = {"version": VERSION, "order_id": deadline.order_id, "expires_at_ms": deadline.expires_at_ms}
    return _message(ORDER_TIMEOUTS_TOPIC, EXPIRE_TAG, deadline.order_id, body, delay_level)


def read_deadline(body: bytes) -> OrderDeadline:
    """Order and deadline from a `created` or a timeout body. Raises MalformedMessageError."""
    try:
        members: Any = json.loads(body)
    except ValueError as error:
        raise MalformedMessageError(f"the body is not JSON: {error}") from error
    if not isinstance(members, dict):
        raise MalformedMessageError("the body is not a JSON object")
    order_id = members.get("order_id")
    expires_at_ms = members.get("expires_at_ms")
    # type() and not isinstance: JSON's true is an int for Python.
    if not isinstance(order_id, str) or not order_id or type(expires_at_ms) is not int:
        raise MalformedMessageError("the body needs order_id, a text, and expires_at_ms, a whole number")
    return OrderDeadline(order_id, expires_at_ms)


def _order_members(order: Order) -> dict[str, Any]:
    return {
        "version": VERSION,
        "order_id": order.order_id,
        "buyer_id": order.buyer_id,
        "total_minor": order.total_minor,
        "currency": order.currency,
        "expires_at_ms": order.expires_at_ms,
    }


def _message(topic: str, tag: str, key: str, body: dict[str, Any], delay_level: int = 0) -> OutgoingMessage:
    return OutgoingMessage(topic, tag, key, json.dumps(body, separators=(",", ":")).encode(), delay_level)
