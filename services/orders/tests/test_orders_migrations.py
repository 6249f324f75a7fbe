"""The migrations: from the empty database to the schema of the code, and back, on both kinds of database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from orders.adapters.tables import metadata
from orders.app import MIGRATIONS
from orders.domain.order import ChangeReason, StatusChange
from orders.testing import BUYER, SELLER, caller, running_orders
from servicekit.sql.database import Database
from servicekit.sql.schema import MigrationRejectedError
from servicekit.testing.databases import NewDatabaseUrl
from servicekit.testing.migrations import differences, table_names

# What the version before 0004 has left: an order in each state that it knew, and three keys.
OLD_ROWS = (
    "INSERT INTO products VALUES ('seat', 'A seat', 100, 'CNY', 6, 1, 3)",
    "INSERT INTO orders (order_id, buyer_id, status, total_minor, currency, created_at_ms, expires_at_ms, closed_at_ms,"
    " payment_id, paid_at_ms) VALUES"
    " ('pending', 'buyer-1', 'PENDING_PAYMENT', 100, 'CNY', 10, 99, NULL, NULL, NULL),"
    " ('closed', 'buyer-1', 'CLOSED', 100, 'CNY', 11, 99, 30, NULL, NULL),"
    " ('cancelled', 'buyer-2', 'CLOSED', 100, 'CNY', 12, 99, 31, NULL, NULL),"
    " ('paid', 'buyer-2', 'AWAITING_SHIPMENT', 100, 'CNY', 13, 99, NULL, 'payment-1', 20),"
    " ('shipped', 'buyer-2', 'SHIPPED', 100, 'CNY', 14, 99, NULL, 'payment-2', 21),"
    " ('completed', 'buyer-2', 'COMPLETED', 100, 'CNY', 15, 99, NULL, 'payment-3', 22)",
    "INSERT INTO order_lines SELECT order_id, 1, 'seat', 1, 100 FROM orders",
    "INSERT INTO order_history (order_id, old_status, new_status, reason, at_ms)"
    " SELECT order_id, NULL, 'PENDING_PAYMENT', 'placed', created_at_ms FROM orders",
    "INSERT INTO order_history (order_id, old_status, new_status, reason, at_ms) VALUES"
    " ('closed', 'PENDING_PAYMENT', 'CLOSED', 'expired', 30),"
    " ('cancelled', 'PENDING_PAYMENT', 'CLOSED', 'cancelled', 31)",
    "INSERT INTO order_history (order_id, old_status, new_status, reason, at_ms)"
    " SELECT order_id, 'PENDING_PAYMENT', 'AWAITING_SHIPMENT', 'paid', 40 FROM orders WHERE payment_id IS NOT NULL",
    "INSERT INTO order_history (order_id, old_status, new_status, reason, at_ms) VALUES"
    " ('shipped', 'AWAITING_SHIPMENT', 'SHIPPED', 'shipped', 50),"
    " ('completed', 'AWAITING_SHIPMENT', 'SHIPPED', 'shipped', 51),"
    " ('completed', 'SHIPPED', 'COMPLETED', 'received', 60)",
    "INSERT INTO idempotency_keys (idempotency_key, fingerprint, order_id, created_at_ms)"
    " SELECT 'key of ' || order_id, 'f', order_id, created_at_ms FROM orders",
)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        await database.dispose()


async def execute(database: Database, *statements: str) -> None:
    async with database.writing() as connection:
        for statement in statements:
            await connection.execute(text(statement))
        await connection.commit()


async def rows(database: Database, query: str) -> list[tuple[object, ...]]:
    async with database.snapshot() as connection:
        return [tuple(row) for row in await connection.execute(text(query))]


@pytest.mark.mechanism("U10")
async def test_migrations_lead_to_the_schema_of_the_code_and_back_to_nothing(new_database_url: NewDatabaseUrl) -> None:
    async with opened(new_database_url("orders")) as database:
        await MIGRATIONS.upgrade(database)
        assert await differences(database, metadata) == []
        await MIGRATIONS.upgrade(database)  # nothing left to do
        await MIGRATIONS.downgrade(database, "base")
        assert await table_names(database) == {"alembic_version"}
        await MIGRATIONS.upgrade(database)
        assert await differences(database, metadata) == []


async def test_old_orders_get_versions_and_times_and_old_changes_their_actors(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("orders")
    async with opened(url) as database:
        await MIGRATIONS.upgrade(database, "0003")
        await execute(database, *OLD_ROWS)
    async with running_orders(url) as orders:  # reads what the migration has made, with all the checks of the domain
        found = {name: await orders.order(name) for name in ("pending", "closed", "paid", "shipped", "completed")}
        assert {name: order.version for name, order in found.items()} == {
            "pending": 1,
            "closed": 2,
            "paid": 2,
            "shipped": 3,
            "completed": 4,
        }
        assert (found["completed"].shipped_at_ms, found["completed"].completed_at_ms) == (51, 60)
        assert [change.actor for change in await orders.history("completed")] == [
            "buyer-2",
            "order-payment-handler",
            "unknown",
            "buyer-2",
        ]
        assert [change.actor for change in await orders.history("closed")] == ["buyer-1", "order-timeout-handler"]
        assert (await orders.history("closed"))[-1] == StatusChange(
            "closed",
            found["pending"].status,
            found["closed"].status,
            ChangeReason.EXPIRED,
            30,
            "order-timeout-handler",
            None,
        )
        assert await differences(orders.database, metadata) == []
        keys = await rows(
            orders.database, "SELECT subject, idempotency_key FROM idempotency_keys ORDER BY created_at_ms"
        )
        assert keys[0] == ("buyer-1", "key of pending")
        assert keys[-1] == ("buyer-2", "key of completed")
        assert (await orders.cancel("paid", SELLER)).payment_id == "payment-1"
        assert (await orders.application.use_cases.confirm_receipt("shipped", caller("buyer", "buyer-2"))).version == 4


async def test_what_this_version_has_written_is_left_in_the_words_of_the_version_before(
    new_database_url: NewDatabaseUrl,
) -> None:
    url = new_database_url("orders")
    async with running_orders(url) as orders:
        await orders.add_product()
        paid_and_closed = await orders.place("same key")
        await orders.pay(paid_and_closed, "payment-1")
        await orders.cancel(paid_and_closed.order_id, SELLER)
        await orders.clock.advance(1)
        completed = await orders.place("same key", buyer_id="buyer-2")
        await orders.pay_and_ship(completed, "payment-2")
        await orders.pass_completion_window()
        await orders.application.complete_order.fire(completed.order_id)
        await MIGRATIONS.downgrade(orders.database, "0003")
        assert await rows(
            orders.database,
            "SELECT order_id, status, payment_id, paid_at_ms IS NULL FROM orders ORDER BY created_at_ms",
        ) == [
            (paid_and_closed.order_id, "CLOSED", None, True),
            (completed.order_id, "COMPLETED", "payment-2", False),
        ]
        reasons = await rows(orders.database, "SELECT reason FROM order_history ORDER BY change_id")
        assert [reason for (reason,) in reasons] == [
            "placed",
            "paid",
            "cancelled",
            "placed",
            "paid",
            "shipped",
            "received",
        ]
        keys = await rows(orders.database, "SELECT idempotency_key, order_id FROM idempotency_keys")
        assert keys == [("same key", paid_and_closed.order_id)]
        await MIGRATIONS.upgrade(orders.database)
        assert (await orders.order(completed.order_id)).version == 4
        assert (await orders.order(paid_and_closed.order_id)).payment_id is None
        assert (await orders.place("new key", buyer_id=BUYER.subject)).version == 1
        await MIGRATIONS.downgrade(orders.database, "base")  # with rows in all tables, in one transaction


def order(status: str, **members: str) -> str:
    """The statement that adds an order in this state; `members` are in SQL."""
    columns = {
        "order_id": "'o'",
        "buyer_id": "'b'",
        "status": f"'{status}'",
        "total_minor": "1",
        "currency": "'CNY'",
        "created_at_ms": "1",
        "expires_at_ms": "2",
    } | members
    return f"INSERT INTO orders ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"


def product(*numbers: int) -> str:
    """The statement that adds a product with this price, and these units available, reserved and sold."""
    columns = "product_id, name, currency, price_minor, available, reserved, sold"
    return f"INSERT INTO products ({columns}) VALUES ('p', 'n', 'CNY', {', '.join(map(str, numbers))})"


@pytest.mark.parametrize(
    "statement",
    [
        product(1, 1, 0, 0),  # as the version before 0007 writes it
        order("PENDING_PAYMENT"),
        order("CLOSED", closed_at_ms="4"),
        order("CLOSED", closed_at_ms="4", payment_id="'p'", paid_at_ms="3"),
        order("COMPLETED", payment_id="'p'", paid_at_ms="3", shipped_at_ms="4", completed_at_ms="5", version="4"),
    ],
)
async def test_the_schema_takes_what_may_be(new_database_url: NewDatabaseUrl, statement: str) -> None:
    async with opened(new_database_url("orders")) as database:
        await MIGRATIONS.upgrade(database)
        await execute(database, statement)


@pytest.mark.parametrize(
    "statement",
    [
        product(-1, 1, 0, 0),
        product(1, -1, 0, 0),
        product(1, 1, -1, 0),
        product(1, 1, 0, -1),
        order("LOST"),
        order("CLOSED"),
        order("PENDING_PAYMENT", closed_at_ms="3"),
        order("SHIPPED"),
        order("SHIPPED", payment_id="'p'", shipped_at_ms="4"),
        order("SHIPPED", payment_id="'p'", paid_at_ms="3"),
        order("AWAITING_SHIPMENT", payment_id="'p'", paid_at_ms="3", shipped_at_ms="4"),
        order("COMPLETED", payment_id="'p'", paid_at_ms="3", shipped_at_ms="4"),
        order("CLOSED", closed_at_ms="4", payment_id="'p'"),
        order("PENDING_PAYMENT", payment_id="'p'", paid_at_ms="3"),
        order("PENDING_PAYMENT", version="0"),
        "INSERT INTO refund_requests VALUES ('p', 'unknown', 1, 'CNY', 'order-closed', 1)",
        "INSERT INTO mq_transaction VALUES ('t', 'MAYBE', 1)",
        "INSERT INTO order_lines VALUES ('unknown', 1, 'nothing', 1, 1)",
        "INSERT INTO order_history VALUES (1, 'unknown', NULL, 'SHIPPED', 'paid', 1, 'actor', NULL)",
    ],
)
async def test_the_schema_itself_rejects_what_must_never_be(new_database_url: NewDatabaseUrl, statement: str) -> None:
    async with opened(new_database_url("orders")) as database:
        await MIGRATIONS.upgrade(database)
        with pytest.raises(IntegrityError):
            await execute(database, statement)


async def test_an_outbox_with_unpublished_messages_is_not_thrown_away(new_database_url: NewDatabaseUrl) -> None:
    async with opened(new_database_url("orders")) as database:
        await MIGRATIONS.upgrade(database, "0001")
        await execute(database, "INSERT INTO outbox VALUES (1, 'order-events', 'created', 'o', '{}', 1, NULL)")
        with pytest.raises(MigrationRejectedError, match="1 messages in the outbox are not published"):
            await MIGRATIONS.upgrade(database)
        assert "outbox" in await table_names(database)
        await execute(database, "UPDATE outbox SET published_at_ms = 2")
        await MIGRATIONS.upgrade(database)
        assert await differences(database, metadata) == []


async def test_what_is_there_and_what_the_version_before_writes_is_counted(new_database_url: NewDatabaseUrl) -> None:
    """The version before counts nothing itself: its statements are those of SQL by hand."""
    counts = "SELECT name, SUM(value) FROM counters GROUP BY name HAVING SUM(value) <> 0 ORDER BY name"
    refund = "INSERT INTO refund_requests VALUES ('{}', 'o', 1, 'CNY', 'order-closed', 1)"
    async with opened(new_database_url("orders")) as database:
        await MIGRATIONS.upgrade(database, "0007")
        paid = {"payment_id": "'p'", "paid_at_ms": "3"}
        await execute(database, order("PENDING_PAYMENT"), order("AWAITING_SHIPMENT", order_id="'paid'", **paid))
        await execute(database, refund.format("one"))
        await MIGRATIONS.upgrade(database)
        there = [("orders/AWAITING_SHIPMENT", 1), ("orders/PENDING_PAYMENT", 1), ("paid-orders", 1)]
        assert await rows(database, counts) == [*there, ("refund-requests", 1)]
        await execute(database, "UPDATE orders SET status = 'CLOSED', closed_at_ms = 4, buyer_id = 'c'")
        await execute(database, "UPDATE orders SET payment_id = 'q', paid_at_ms = 3 WHERE order_id = 'o'")
        await execute(database, order("PENDING_PAYMENT", order_id="'new'"), refund.format("two"))
        closed = [("orders/CLOSED", 2), ("orders/PENDING_PAYMENT", 1), ("paid-orders", 2)]
        assert await rows(database, counts) == [*closed, ("refund-requests", 2)]
        await execute(database, "DELETE FROM refund_requests", "DELETE FROM orders WHERE order_id <> 'paid'")
        assert await rows(database, counts) == [("orders/CLOSED", 1), ("paid-orders", 1)]
        await MIGRATIONS.downgrade(database, "0007")
        await execute(database, order("PENDING_PAYMENT"))
