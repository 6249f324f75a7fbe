"""The messages that payments reads and tells: topics, tags, groups, and the JSON in the bodies.

Invariants: the key of every message is the order's id, so that messages of one order stay together; that a payment has
succeeded, and each of its refunds, is told by exactly one message.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from payments.domain.gateway_event import PayableOrder, PayableStatus, Terms
from payments.domain.payment import Payment
from payments.domain.refund import Refund, WholeRefundRequest
from servicekit.errors import MalformedMessageError
from servicekit.message import MessageBody, OutgoingMessage, encode_body

VERSION = 1

ORDER_EVENTS_TOPIC = "order-events"
CREATED_TAG = "created"
CLOSED_TAG = "closed"
PAID_TAG = "paid"
REFUND_REQUESTED_TAG = "refund-requested"

PAYMENT_EVENTS_TOPIC = "payment-events"
SUCCEEDED_TAG = "succeeded"
REFUNDED_TAG = "refunded"

PAYABLE_ORDERS_GROUP = "payable-orders"
REFUND_HANDLER_GROUP = "refund-handler"

# The first that a body names decides: an order that closes after it was paid may name both.
_STATUS_OF_MOMENT = MappingProxyType({"closed_at_ms": PayableStatus.CLOSED, "paid_at_ms": PayableStatus.PAID})


def succeeded(payment: Payment) -> OutgoingMessage:
    """`payment-events`/`succeeded`: the money of the order is here."""
    return _message(SUCCEEDED_TAG, payment, payment.amount_minor, {"paid_at_ms": payment.captured_at_ms})


def refunded(payment: Payment, refund: Refund) -> OutgoingMessage:
    """`payment-events`/`refunded`: so much of the order's money has gone back; `refunded_minor` counts every refund."""
    members = {
        "refund_id": refund.refund_id,
        "reason": refund.reason,
        "refunded_at_ms": refund.refunded_at_ms,
        "refunded_minor": payment.refunded_minor,
    }
    return _message(REFUNDED_TAG, payment, refund.amount_minor, members)


def read_order_event(body: bytes) -> PayableOrder:
    """What `created`, `paid` and `closed` tell; which of them it is shows in the moment that the body names.

    An event that ends an order need not repeat its terms. Raises MalformedMessageError.
    """
    read = MessageBody(body)
    order_id = read.text("order_id")
    for moment, status in _STATUS_OF_MOMENT.items():
        if _has_number(read, moment):
            return PayableOrder(order_id, status, _terms_or_none(read))
    read.number("created_at_ms")
    return PayableOrder(order_id, PayableStatus.OPEN, _terms(read))


def read_refund_requested(body: bytes) -> WholeRefundRequest:
    """The refund that orders asks for. Raises MalformedMessageError."""
    read = MessageBody(body)
    return WholeRefundRequest(
        order_id=read.text("order_id"),
        payment_id=read.text("payment_id"),
        amount_minor=read.number("amount_minor"),
        currency=read.text("currency"),
        reason=read.text("reason"),
    )


def _has_number(read: MessageBody, name: str) -> bool:
    try:
        read.number(name)
    except MalformedMessageError:
        return False
    return True


def _terms_or_none(read: MessageBody) -> Terms | None:
    try:
        return _terms(read)
    except MalformedMessageError:
        return None


def _terms(read: MessageBody) -> Terms:
    return Terms(
        buyer_id=read.text("buyer_id"),
        total_minor=read.number("total_minor"),
        currency=read.text("currency"),
        expires_at_ms=read.number("expires_at_ms"),
    )


def _message(tag: str, payment: Payment, amount_minor: int, members: dict[str, Any]) -> OutgoingMessage:
    body = {
        "version": VERSION,
        "payment_id": payment.payment_id,
        "order_id": payment.order_id,
        "amount_minor": amount_minor,
        "currency": payment.currency,
    } | members
    return OutgoingMessage(PAYMENT_EVENTS_TOPIC, tag, payment.order_id, encode_body(body))
