"""Money that went back: an order that has none left is not shipped any more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orders.domain.errors import PaymentNotHeardOfError, UnknownOrderError
from orders.domain.order import ChangeReason, Order, OrderStatus
from orders.domain.product import Product
from orders.service.events import read_refunded
from orders.service.payments import PaymentOutcome
from orders.testing import SELLER, RunningOrders, running_orders
from servicekit.message import OutgoingMessage
from servicekit.testing.databases import NewDatabaseUrl


def stock(product: Product) -> tuple[int, int, int]:
    return product.available, product.reserved, product.sold


def refunded(order: Order, amount_minor: int | None = None, **changes: Any) -> OutgoingMessage:
    """`payment-events`/`refunded` of the order's payment, whole unless an amount is given."""
    amount_minor = order.total_minor if amount_minor is None else amount_minor
    members = {
        "version": 1,
        "payment_id": "payment-1",
        "order_id": order.order_id,
        "amount_minor": amount_minor,
        "currency": order.currency,
        "refund_id": "refund-1",
        "reason": "the seat did not recline",
        "refunded_at_ms": order.created_at_ms + 9,
        "refunded_minor": amount_minor,
    }
    return OutgoingMessage("payment-events", "refunded", order.order_id, json.dumps(members | changes).encode())


async def paid_order(orders: RunningOrders) -> Order:
    await orders.add_product()
    order = await orders.place("k", quantity=2)
    await orders.pay(order)
    orders.publisher.messages.clear()
    return await orders.order(order.order_id)


async def tell(orders: RunningOrders, message: OutgoingMessage) -> None:
    orders.publisher.messages.append(message)
    await orders.deliver()


async def test_an_order_whose_money_went_back_in_full_cannot_be_shipped(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await paid_order(orders)
        await tell(orders, refunded(order))
        answer = await orders.http.post(f"/orders/{order.order_id}/ship", headers=orders.headers("seller", "seller-1"))
        assert (answer.status_code, answer.json()["order_status"]) == (409, "CLOSED")
        closed = await orders.order(order.order_id)
        assert (closed.status, closed.payment_id, closed.version) == (OrderStatus.CLOSED, "payment-1", 3)
        assert (await orders.history(order.order_id))[-1].reason is ChangeReason.REFUNDED
        assert stock(await orders.product()) == (10, 0, 0)
        # The money is back: it is not asked for, and the payment that comes again changes nothing.
        (told,) = orders.publisher.messages
        assert (told.tag, json.loads(told.body)["reason"]) == ("closed", "refunded")
        await tell(orders, refunded(order))
        assert await orders.pay(order) is PaymentOutcome.PAID_BEFORE
        assert (await orders.order(order.order_id)).version == 3


async def test_the_last_of_several_refunds_closes_the_order_in_whatever_order_they_come(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await paid_order(orders)
        await tell(orders, refunded(order, 100))
        assert (await orders.order(order.order_id)).status is OrderStatus.AWAITING_SHIPMENT
        await tell(orders, refunded(order, order.total_minor - 150, refunded_minor=order.total_minor))
        assert (await orders.order(order.order_id)).status is OrderStatus.CLOSED
        await tell(orders, refunded(order, 50, refunded_minor=150))
        assert (await orders.order(order.order_id)).version == 3


async def test_a_refund_changes_nothing_of_an_order_that_is_on_its_way_or_paid_by_another_payment(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await paid_order(orders)
        await tell(orders, refunded(order, payment_id="payment-2"))
        shipped = await orders.application.use_cases.ship_order(order.order_id, SELLER)
        await tell(orders, refunded(order))
        assert await orders.order(order.order_id) == shipped
        assert stock(await orders.product()) == (8, 0, 2)


async def test_a_refund_that_overtakes_its_payment_comes_again(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        with pytest.raises(PaymentNotHeardOfError):
            await tell(orders, refunded(order))
        await orders.pay(order)
        await tell(orders, refunded(order))
        assert (await orders.order(order.order_id)).status is OrderStatus.CLOSED
        with pytest.raises(UnknownOrderError):
            await tell(orders, refunded(order, order_id="ghost"))


async def test_the_refund_of_a_payment_that_orders_has_sent_back_is_ignored(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        assert await orders.pay(order, amount_minor=1) is PaymentOutcome.REFUND_REQUESTED
        await tell(orders, refunded(order, 1))
        assert await orders.order(order.order_id) == order


async def test_shipping_and_refunding_at_once_have_one_winner(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await paid_order(orders)
        go_on = orders.publisher.before_local

        async def ship_meanwhile(_transaction_id: str) -> None:
            orders.publisher.before_local = go_on
            await orders.application.use_cases.ship_order(order.order_id, SELLER)

        orders.publisher.before_local = ship_meanwhile
        await tell(orders, refunded(order))
        assert (await orders.order(order.order_id)).status is OrderStatus.SHIPPED
        assert stock(await orders.product()) == (8, 0, 2)


def test_a_refund_that_an_older_version_tells_of_is_the_sum_itself() -> None:
    body = b'{"version":1,"payment_id":"p","order_id":"o","amount_minor":7}'
    assert read_refunded(body).refunded_minor == 7
