"""Messages that come again, by the inbox and by the guards behind it (mechanisms I1, I2)."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, select

from osenv import SimClock
from payments.adapters.tables import inbox
from payments.app import MIGRATIONS
from payments.domain.payment import PaymentStatus
from payments.service import events
from payments.testing import RunningPayments, ScriptedGateway, Step, order_event, running_payments
from servicekit.errors import MalformedMessageError
from servicekit.testing.databases import NewDatabaseUrl


async def consumed(payments: RunningPayments) -> list[tuple[str, str]]:
    async with payments.database.snapshot() as connection:
        rows = await connection.execute(select(inbox.table).order_by(*inbox.table.primary_key))
        return [(row.consumer_group, row.business_key) for row in rows]


async def forget(payments: RunningPayments) -> None:
    """As the cleaning does after two weeks."""
    async with payments.database.writing() as connection:
        await connection.execute(delete(inbox.table))
        await connection.commit()


async def test_each_handler_that_writes_takes_its_key(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        for _ in range(2):
            await payments.open_order()
        payment = (await payments.pay("k")).payment
        for _ in range(2):
            await payments.tell(order_event(events.PAID_TAG))
            await payments.request_refund(payment)
        expected = [
            (events.PAYABLE_ORDERS_GROUP, "order-1/OPEN"),
            (events.PAYABLE_ORDERS_GROUP, "order-1/PAID"),
            (events.REFUND_HANDLER_GROUP, payment.payment_id),
        ]
        assert await consumed(payments) == expected


@pytest.mark.mechanism("I2")
async def test_a_refund_that_is_asked_for_again_and_again_moves_money_once(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        for forgets in (False, False, True, False):
            if forgets:
                await forget(payments)
            await payments.request_refund(payment)
        assert (await payments.payment(payment.payment_id)).status is PaymentStatus.REFUNDED
        assert len(payments.told(events.REFUNDED_TAG)) == 1


async def test_a_refund_under_way_is_known_when_the_inbox_has_forgotten(new_database_url: NewDatabaseUrl) -> None:
    gateway = ScriptedGateway(SimClock())
    async with running_payments(new_database_url("payments"), gateway=gateway) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        gateway.script[:] = [Step.FAIL_BEFORE]
        await payments.request_refund(payment)
        assert (await payments.payment(payment.payment_id)).status is PaymentStatus.CAPTURED
        await forget(payments)
        await payments.request_refund(payment)
        assert (await payments.payment(payment.payment_id)).status is PaymentStatus.REFUNDED
        assert len(payments.told(events.REFUNDED_TAG)) == 1


async def test_an_order_event_that_changes_nothing_is_not_remembered(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.tell(order_event(events.CLOSED_TAG))
        await payments.open_order()
        assert await consumed(payments) == [(events.PAYABLE_ORDERS_GROUP, "order-1/CLOSED")]


async def test_an_event_that_was_consumed_changes_nothing_even_where_a_guard_would_let_it(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        async with payments.database.writing() as connection:
            assert await inbox.once(connection, events.PAYABLE_ORDERS_GROUP, "order-1/CLOSED", 1)
            await connection.commit()
        await payments.tell(order_event(events.CLOSED_TAG))
        async with payments.application.units.snapshot() as unit:
            known = await unit.payable_orders.find("order-1")
        assert known is not None
        assert known.status == "OPEN"


async def test_an_order_id_that_no_table_keeps_is_malformed(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        with pytest.raises(MalformedMessageError, match="allowed are 1 to 255"):
            await payments.open_order("o" * 300)


async def test_payments_from_before_the_inbox_stay_what_they_are(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        await payments.request_refund(payment)
        await MIGRATIONS.downgrade(payments.database, "0001")
        await MIGRATIONS.upgrade(payments.database)
        await payments.request_refund(payment)
        assert (await payments.pay("k")).payment.payment_id == payment.payment_id
        assert len(payments.told(events.REFUNDED_TAG)) == 1
