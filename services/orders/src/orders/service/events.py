"""The messages of orders: topics, tags, groups, and the JSON in the bodies.

Invariant: a message's key is the order's id. What holds for every body is written in servicekit.message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orders.domain.order import Order, Payment, RefundedPayment, RefundRequest, StatusChange
from servicekit.message import MessageBody, OutgoingMessage, encode_body

VERSION = 1

ORDER_EVENTS_TOPIC = "order-events"
CREATED_TAG = "created"
CLOSED_TAG = "closed"
PAID_TAG = "paid"
REFUND_REQUESTED_TAG = "refund-requested"
SHIPPED_TAG = "shipped"
COMPLETED_TAG = "completed"

ORDER_TIMEOUTS_TOPIC = "order-timeouts"
EXPIRE_TAG = "expire"

ORDER_COMPLETIONS_TOPIC = "order-completions"
COMPLETE_TAG = "complete"

PAYMENT_EVENTS_TOPIC = "payment-events"
SUCCEEDED_TAG = "succeeded"
REFUNDED_TAG = "refunded"

TIMEOUT_SCHEDULER_GROUP = "order-timeout-scheduler"
TIMEOUT_HANDLER_GROUP = "order-timeout-handler"
PAYMENT_HANDLER_GROUP = "order-payment-handler"
REFUND_HANDLER_GROUP = "order-refund-handler"
COMPLETION_SCHEDULER_GROUP = "order-completion-scheduler"
COMPLETION_HANDLER_GROUP = "order-completion-handler"


@dataclass(frozen=True, slots=True)
class OrderDeadline:
    """What the timeout path reads from a body: which order, and until when it can be paid."""

    order_id: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class ShippedOrder:
    """What the completion path reads from a body: which order, and when it was shipped."""

    order_id: str
    shipped_at_ms: int


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
    """`order-events`/`closed`: the order is over, and its units are on sale again.

    `payment_id` is null, unless the order was paid: its seller has cancelled it, which `refund-requested` is told with,
    or its money had gone back already.
    """
    body = _order_members(order) | {
        "closed_at_ms": change.at_ms,
        "reason": change.reason.value,
        "payment_id": order.payment_id,
    }
    return _message(ORDER_EVENTS_TOPIC, CLOSED_TAG, order.order_id, body)


def paid(order: Order) -> OutgoingMessage:
    """`order-events`/`paid`: the order waits for its shipment, and its units are sold."""
    body = _order_members(order) | {"payment_id": order.payment_id, "paid_at_ms": order.paid_at_ms}
    return _message(ORDER_EVENTS_TOPIC, PAID_TAG, order.order_id, body)


def shipped(order: Order) -> OutgoingMessage:
    """`order-events`/`shipped`: the order is on its way to its buyer."""
    body = _order_members(order) | {"payment_id": order.payment_id, "shipped_at_ms": order.shipped_at_ms}
    return _message(ORDER_EVENTS_TOPIC, SHIPPED_TAG, order.order_id, body)


def completed(order: Order, change: StatusChange) -> OutgoingMessage:
    """`order-events`/`completed`: its buyer has received the order, or has had the time to say otherwise."""
    body = _order_members(order) | {
        "payment_id": order.payment_id,
        "completed_at_ms": change.at_ms,
        "reason": change.reason.value,
    }
    return _message(ORDER_EVENTS_TOPIC, COMPLETED_TAG, order.order_id, body)


def refund_requested(refund: RefundRequest) -> OutgoingMessage:
    """`order-events`/`refund-requested`: the money of this payment has to go back."""
    payment = refund.payment
    body = {
        "version": VERSION,
        "order_id": payment.order_id,
        "payment_id": payment.payment_id,
        "amount_minor": payment.amount_minor,
        "currency": payment.currency,
        "reason": refund.reason.value,
    }
    return _message(ORDER_EVENTS_TOPIC, REFUND_REQUESTED_TAG, payment.order_id, body)


def timeout(deadline: OrderDeadline, delay_level: int) -> OutgoingMessage:
    """`order-timeouts`: look at the order again after the delay."""
    body = {"version": VERSION, "order_id": deadline.order_id, "expires_at_ms": deadline.expires_at_ms}
    return _message(ORDER_TIMEOUTS_TOPIC, EXPIRE_TAG, deadline.order_id, body, delay_level)


def completion(order_id: str, shipped_at_ms: int, deliver_at_ms: int) -> OutgoingMessage:
    """`order-completions`: look at the order again at that time."""
    body = {"version": VERSION, "order_id": order_id, "shipped_at_ms": shipped_at_ms}
    return OutgoingMessage(
        ORDER_COMPLETIONS_TOPIC, COMPLETE_TAG, order_id, encode_body(body), deliver_at_ms=deliver_at_ms
    )


def read_shipped(body: bytes) -> ShippedOrder:
    """Order and time from a `shipped` or a completion body. Raises MalformedMessageError."""
    members = MessageBody(body)
    return ShippedOrder(members.text("order_id"), members.number("shipped_at_ms"))


def read_deadline(body: bytes) -> OrderDeadline:
    """Order and deadline from a `created` or a timeout body. Raises MalformedMessageError."""
    members = MessageBody(body)
    return OrderDeadline(members.text("order_id"), members.number("expires_at_ms"))


def read_payment(body: bytes) -> Payment:
    """The payment of a `payment-events`/`succeeded` body. Raises MalformedMessageError."""
    members = MessageBody(body)
    return Payment(
        payment_id=members.text("payment_id"),
        order_id=members.text("order_id"),
        amount_minor=members.number("amount_minor"),
        currency=members.text("currency"),
        paid_at_ms=members.number("paid_at_ms"),
    )


def read_refunded(body: bytes) -> RefundedPayment:
    """The payment of a `payment-events`/`refunded` body. Raises MalformedMessageError.

    Earlier versions of payments do not tell the sum: theirs is of this refund.
    """
    members = MessageBody(body)
    sum_name = "refunded_minor" if members.has("refunded_minor") else "amount_minor"
    return RefundedPayment(members.text("payment_id"), members.text("order_id"), members.number(sum_name))


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
    return OutgoingMessage(topic, tag, key, encode_body(body), delay_level)
