"""Payments that arrive: paid once, refunded once."""

from __future__ import annotations

import asyncio
import json

import pytest

from orders.domain.errors import UnknownOrderError
from orders.domain.order import Order, OrderStatus, Payment
from orders.domain.product import Product
from orders.service.events import read_payment
from orders.service.payments import PaymentOutcome
from orders.testing import SELLER, RunningOrders, running_orders
from servicekit.errors import MalformedMessageError
from servicekit.message import OutgoingMessage
from servicekit.testing.databases import NewDatabaseUrl

PAID, PAID_BEFORE = PaymentOutcome.PAID, PaymentOutcome.PAID_BEFORE
REFUND, REFUND_BEFORE = PaymentOutcome.REFUND_REQUESTED, PaymentOutcome.REFUND_REQUESTED_BEFORE


def stock(product: Product) -> tuple[int, int, int]:
    return product.available, product.reserved, product.sold


def succeeded(order: Order, **changes: object) -> OutgoingMessage:
    members = {
        "version": 1,
        "payment_id": "payment-1",
        "order_id": order.order_id,
        "amount_minor": order.total_minor,
        "currency": order.currency,
        "paid_at_ms": order.created_at_ms + 5,
    }
    return OutgoingMessage("payment-events", "succeeded", order.order_id, json.dumps(members | changes).encode())


def refunds(orders: RunningOrders) -> list[dict[str, object]]:
    return [json.loads(message.body) for message in orders.publisher.taken("order-events", "refund-requested")]


async def test_a_payment_event_pays_the_order_and_sells_its_units(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k", quantity=3)
        orders.publisher.messages[:] = [succeeded(order)]
        await orders.deliver()
        paid = await orders.order(order.order_id)
        assert (paid.status, paid.payment_id) == (OrderStatus.AWAITING_SHIPMENT, "payment-1")
        assert paid.paid_at_ms == order.created_at_ms + 5
        assert stock(await orders.product()) == (7, 0, 3)
        (message,) = orders.publisher.messages
        assert (message.topic, message.tag, message.key) == ("order-events", "paid", order.order_id)
        body = json.loads(message.body)
        assert (body["version"], body["order_id"], body["payment_id"]) == (1, order.order_id, "payment-1")
        assert (body["total_minor"], body["currency"]) == (order.total_minor, order.currency)


@pytest.mark.mechanism("I2")
async def test_a_payment_that_comes_again_is_ignored(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        assert [await orders.pay(order) for _ in range(3)] == [PAID, PAID_BEFORE, PAID_BEFORE]
        assert stock(await orders.product()) == (9, 0, 1)
        assert len(orders.publisher.taken("order-events", "paid")) == 1


@pytest.mark.mechanism("I2")
async def test_a_payment_of_a_closed_order_goes_back_once_however_often_it_comes(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.cancel(order.order_id)
        assert [await orders.pay(order) for _ in range(3)] == [REFUND, REFUND_BEFORE, REFUND_BEFORE]
        assert refunds(orders) == [
            {
                "version": 1,
                "order_id": order.order_id,
                "payment_id": "payment-1",
                "amount_minor": order.total_minor,
                "currency": order.currency,
                "reason": "order-closed",
            }
        ]
        assert stock(await orders.product()) == (10, 0, 0)


async def test_one_payment_delivered_many_times_at_once_goes_back_once(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.cancel(order.order_id)
        outcomes = await asyncio.gather(*(orders.pay(order) for _ in range(8)))
        assert outcomes.count(REFUND) == 1
        assert {REFUND_BEFORE, PaymentOutcome.CONSUMED_BEFORE} >= {one for one in outcomes if one is not REFUND}
        assert len(refunds(orders)) == 1
        assert orders.publisher.halves == {}


async def test_a_second_payment_goes_back_and_the_first_stays(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        assert await orders.pay(order, "payment-1") is PAID
        assert await orders.pay(order, "payment-2") is REFUND
        assert await orders.pay(order, "payment-1") is PAID_BEFORE
        assert [(one["payment_id"], one["reason"]) for one in refunds(orders)] == [("payment-2", "already-paid")]
        assert (await orders.order(order.order_id)).payment_id == "payment-1"


@pytest.mark.parametrize("changes", [{"amount_minor": 15799}, {"amount_minor": 15801}, {"currency": "EUR"}])
async def test_a_wrong_amount_goes_back_as_it_came_and_the_order_still_waits(
    new_database_url: NewDatabaseUrl, changes: dict[str, object]
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        assert await orders.pay(order, "payment-1", **changes) is REFUND
        (refund,) = refunds(orders)
        assert refund["reason"] == "wrong-amount"
        assert {name: refund[name] for name in changes} == changes
        assert await orders.order(order.order_id) == order
        assert await orders.pay(order, "payment-2") is PAID


async def test_a_payment_of_an_order_that_is_not_visible_yet_comes_again(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        with pytest.raises(UnknownOrderError):
            await orders.application.accept_payment(Payment("payment-1", "ghost", 1, "CNY", 1))
        assert orders.publisher.attempts == 0


async def test_a_payment_after_expires_at_of_an_order_that_is_still_open_pays_it(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.pass_payment_window()
        assert await orders.pay(order) is PAID


async def test_the_payment_of_an_order_that_its_seller_cancelled_does_not_pay_again_nor_go_back_twice(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.pay(order, "payment-1")
        await orders.cancel(order.order_id, SELLER)
        assert await orders.pay(order, "payment-1") is PAID_BEFORE
        assert await orders.pay(order, "payment-2") is REFUND
        assert [(one["payment_id"], one["reason"]) for one in refunds(orders)] == [
            ("payment-1", "order-cancelled"),
            ("payment-2", "order-closed"),
        ]


GOOD = {"payment_id": "p", "order_id": "o", "amount_minor": 1, "currency": "CNY", "paid_at_ms": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        *(
            json.dumps(GOOD | one).encode()
            for one in (
                {"payment_id": None},
                {"payment_id": ""},
                {"order_id": 7},
                {"amount_minor": "1"},
                {"amount_minor": 1.0},
                {"amount_minor": True},
                {"currency": None},
                {"paid_at_ms": None},
            )
        ),
    ],
)
def test_a_malformed_payment_is_rejected(body: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        read_payment(body)
