"""Messages that come again, by the inbox and by the guards behind it (mechanisms I1, I2)."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError

from orders.adapters.tables import inbox
from orders.app import MIGRATIONS
from orders.domain.order import OrderStatus, Payment
from orders.service import events
from orders.service.close_order import ExpiryOutcome
from orders.service.payments import PaymentOutcome
from orders.testing import RunningOrders, running_orders
from servicekit.errors import MalformedMessageError, PublishError
from servicekit.testing.databases import NewDatabaseUrl

PAID, PAID_BEFORE = PaymentOutcome.PAID, PaymentOutcome.PAID_BEFORE


async def consumed(orders: RunningOrders) -> list[tuple[str, str]]:
    async with orders.database.snapshot() as connection:
        rows = await connection.execute(select(inbox.table).order_by(*inbox.table.primary_key))
        return [(row.consumer_group, row.business_key) for row in rows]


async def consume_elsewhere(orders: RunningOrders, group: str, key: str) -> None:
    """Another member of the group has just committed this key."""
    async with orders.database.writing() as connection:
        assert await inbox.once(connection, group, key, 1)
        await connection.commit()


async def forget(orders: RunningOrders) -> None:
    """As the cleaning does after two weeks."""
    async with orders.database.writing() as connection:
        await connection.execute(delete(inbox.table))
        await connection.commit()


@pytest.mark.mechanism("I2")
async def test_each_handler_that_writes_takes_its_key(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        paid, closed, refunded = [await orders.place(key) for key in "pcr"]
        assert await orders.pay(paid, "payment-1") is PAID
        await orders.cancel(refunded.order_id)
        assert await orders.pay(refunded, "payment-2") is PaymentOutcome.REFUND_REQUESTED
        await orders.pass_payment_window()
        assert await orders.application.use_cases.close_order.expire(closed.order_id) is ExpiryOutcome.CLOSED
        expected = [
            (events.PAYMENT_HANDLER_GROUP, f"{paid.order_id}/payment-1"),
            (events.PAYMENT_HANDLER_GROUP, f"{refunded.order_id}/payment-2"),
            (events.TIMEOUT_HANDLER_GROUP, closed.order_id),
        ]
        assert await consumed(orders) == sorted(expected)


async def test_a_payment_that_another_member_takes_at_the_same_moment_sells_nothing_here(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await consume_elsewhere(orders, events.PAYMENT_HANDLER_GROUP, f"{order.order_id}/payment-1")
        assert await orders.pay(order) is PaymentOutcome.CONSUMED_BEFORE
        assert ((await orders.product()).reserved, (await orders.product()).sold) == (1, 0)
        assert (orders.publisher.halves, orders.publisher.taken("order-events", "paid")) == ({}, [])


async def test_a_timer_that_another_member_takes_at_the_same_moment_frees_nothing_here(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.pass_payment_window()
        await consume_elsewhere(orders, events.TIMEOUT_HANDLER_GROUP, order.order_id)
        assert await orders.application.use_cases.close_order.expire(order.order_id) is ExpiryOutcome.ALREADY_DECIDED
        assert ((await orders.product()).available, (await orders.product()).reserved) == (9, 1)
        assert orders.publisher.halves == {}


async def test_the_guards_hold_when_the_inbox_has_forgotten(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        assert await orders.pay(order) is PAID
        await forget(orders)
        assert await orders.pay(order) is PAID_BEFORE
        assert (await orders.product()).sold == 1


async def test_what_was_not_carried_out_is_not_in_the_inbox(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        orders.publisher.is_down = True
        with pytest.raises(PublishError):
            await orders.pay(order)
        assert await consumed(orders) == []
        orders.publisher.is_down = False
        assert await orders.pay(order) is PAID


async def test_a_payment_that_loses_against_the_closing_is_refunded_although_it_had_taken_its_key(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")

        async def cancel_meanwhile(_transaction_id: str) -> None:
            orders.publisher.before_local = go_on
            await orders.cancel(order.order_id)

        go_on, orders.publisher.before_local = orders.publisher.before_local, cancel_meanwhile
        assert await orders.pay(order) is PaymentOutcome.REFUND_REQUESTED
        assert (await orders.order(order.order_id)).status is OrderStatus.CLOSED
        assert await consumed(orders) == [(events.PAYMENT_HANDLER_GROUP, f"{order.order_id}/payment-1")]


async def test_one_payment_for_two_orders_is_no_repetition_and_ends_aloud(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        one, other = await orders.place("a"), await orders.place("b")
        assert await orders.pay(one, "payment-1") is PAID
        with pytest.raises(IntegrityError):
            await orders.pay(other, "payment-1")
        assert (await orders.product()).sold == 1


async def test_a_payment_id_that_no_table_keeps_is_malformed(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        endless = Payment("p" * 300, order.order_id, order.total_minor, order.currency, 1)
        with pytest.raises(MalformedMessageError, match="allowed are 1 to 255"):
            await orders.application.accept_payment(endless)
        assert (await orders.order(order.order_id)).payment_id is None


async def test_orders_from_before_the_inbox_stay_what_they_are(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        assert await orders.pay(order) is PAID
        await MIGRATIONS.downgrade(orders.database, "0002")
        await MIGRATIONS.upgrade(orders.database)
        assert await orders.pay(order) is PAID_BEFORE
        assert (await orders.place("k")).order_id == order.order_id
