"""What analytics knows by heart of others is what they write: the services' events, the broker's names."""

from __future__ import annotations

import json
from dataclasses import replace

from analytics import events as kinds
from analytics.events import MEMBERS
from analytics.jobs import silver
from analytics.testing import BUYER, START_MS, BronzeRows
from mqproto import names, properties
from orders.domain.order import (
    ChangeReason,
    OrderLine,
    OrderStatus,
    Origin,
    Payment,
    RefundReason,
    RefundRequest,
    place,
)
from orders.service import events as order_events
from payments.domain.payment import Payment as TakenPayment
from payments.domain.payment import PaymentMethod, PaymentStatus
from payments.domain.refund import Refund
from payments.service import events as payment_events
from servicekit.message import OutgoingMessage


def real_messages() -> list[OutgoingMessage]:
    """One message of each kind, as the services write it, of an order that its seller cancels at last."""
    origin = Origin(BUYER, START_MS)
    order, _ = place("o", BUYER, (OrderLine("tea", 2, 500),), "CNY", origin, payment_window_ms=1_800_000)
    payment = Payment("p", "o", 1000, "CNY", START_MS)
    paid, _ = order.paid(payment, origin)
    shipped, _ = paid.changed(ChangeReason.SHIPPED, origin)
    taken = TakenPayment(
        "p", "o", BUYER, 1000, "CNY", PaymentMethod.CARD, PaymentStatus.CAPTURED, START_MS, captured_at_ms=START_MS
    )
    returned, _ = replace(taken, refund_requested_minor=1000).refunded(1000, START_MS)
    refund = Refund("r", "p", 1000, "CNY", "order-cancelled", "op-1", START_MS, refunded_at_ms=None)
    return [
        order_events.created(order),
        order_events.paid(paid),
        order_events.shipped(shipped),
        order_events.completed(*shipped.changed(ChangeReason.RECEIVED, origin)),
        order_events.closed(*paid.changed(ChangeReason.SELLER_CANCELLED, origin)),
        order_events.refund_requested(RefundRequest(payment, RefundReason.ORDER_CANCELLED)),
        payment_events.succeeded(taken),
        payment_events.refunded(returned, refund.refunded(START_MS)),
        order_events.timeout(order_events.OrderDeadline("o", START_MS), 16),
        order_events.completion("o", START_MS, START_MS),
    ]


def test_every_kind_of_event_that_the_services_tell_is_known() -> None:
    assert {(one.topic, one.tag) for one in real_messages()} == {(one.topic, one.kind) for one in kinds.KINDS}
    assert order_events.VERSION == payment_events.VERSION == kinds.VERSION_KNOWN


def test_real_bodies_have_what_their_kind_needs_and_no_member_that_is_not_read() -> None:
    needs = {one.kind: {"version", "order_id", *one.needs} for one in kinds.KINDS}
    for message in real_messages():
        members = set(json.loads(message.body))
        assert needs[message.tag] <= members <= set(MEMBERS.names), message.tag


def test_the_builder_of_bronze_rows_writes_what_the_services_write() -> None:
    told = BronzeRows()
    told.created("o", [("tea", 2, 500)])
    told.paid("o", "p", at_ms=START_MS)
    told.shipped("o", "p", at_ms=START_MS)
    told.completed("o", "p", at_ms=START_MS)
    told.closed("o", "seller-cancelled", "p", at_ms=START_MS)
    told.refund_requested("o", "p", 1000, "order-cancelled")
    told.succeeded("o", "p", 1000, at_ms=START_MS)
    told.refunded("o", "p", "r", 1000, "order-cancelled", at_ms=START_MS)
    real = real_messages()
    assert [row["tag"] for row in told.rows] == [message.tag for message in real[:8]]
    for row, message in zip(told.rows, real, strict=False):
        assert (row["topic"], row["key"]) == (message.topic, message.key)
        assert json.loads(row["body"]) == json.loads(message.body)


def test_silver_has_the_statuses_of_orders() -> None:
    assert set(silver.STATUS_OF.values()) == {str(status) for status in OrderStatus}


def test_the_timers_read_what_the_broker_writes() -> None:
    assert set(silver.WAITING_TOPICS) == names.WAITING_TOPICS
    assert (silver.SCHEDULE_TOPIC, silver.TIMER_TOPIC) == (names.SCHEDULE_TOPIC, names.TIMER_TOPIC)
    assert silver.SCHEDULE_POSITION == properties.SCHEDULE_POSITION
    assert silver.DUE_TIMESTAMP == properties.DUE_TIMESTAMP
