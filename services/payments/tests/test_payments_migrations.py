"""The migrations: from the empty database to the schema of the code, and back."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from payments.adapters.tables import metadata
from payments.app import MIGRATIONS
from payments.testing import Step, running_payments
from servicekit.sql.database import Database
from servicekit.sql.schema import MigrationRejectedError
from servicekit.testing.databases import NewDatabaseUrl
from servicekit.testing.migrations import broken_promises, checks_and_indexes, differences, table_names


@pytest.mark.mechanism("U10")
async def test_migrations_lead_to_the_schema_of_the_code_and_back_to_nothing(new_database_url: NewDatabaseUrl) -> None:
    database = Database(new_database_url("payments"))
    try:
        await MIGRATIONS.upgrade(database)
        assert await differences(database, metadata) == []
        await MIGRATIONS.upgrade(database)  # nothing left to do
        await MIGRATIONS.downgrade(database, "base")
        assert await table_names(database) == {"alembic_version"}
        await MIGRATIONS.upgrade(database)
        assert await differences(database, metadata) == []
    finally:
        await database.dispose()


async def test_migrations_keep_what_they_declare_to_work(new_database_url: NewDatabaseUrl) -> None:
    assert await broken_promises(new_database_url("payments"), MIGRATIONS) == []


async def test_migrations_make_the_checks_and_the_partial_indexes_of_the_code(new_database_url: NewDatabaseUrl) -> None:
    migrated = Database(new_database_url("migrated"))
    created = Database(new_database_url("created"))
    try:
        await MIGRATIONS.upgrade(migrated)
        async with created.writing() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.commit()
        assert await checks_and_indexes(migrated) == await checks_and_indexes(created)
    finally:
        await migrated.dispose()
        await created.dispose()


PAYMENT = (
    "INSERT INTO payments VALUES ('{id}', '{order}', 'b', {amount}, 'CNY', 'card', '{status}', 1, {rest}, {sums}, NULL,"
    " {overruled})"
)


def payment_row(
    status: str,
    rest: str,
    *,
    payment_id: str = "p",
    order_id: str = "o",
    amount_minor: int = 1,
    sums: str | None = None,
    overruled: str = "NULL",
) -> str:
    sums = sums or ("1, 1" if status == "REFUNDED" else "0, 0")
    return PAYMENT.format(
        id=payment_id, order=order_id, amount=amount_minor, status=status, rest=rest, sums=sums, overruled=overruled
    )


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO payable_orders VALUES ('o', 'LOST', 'b', 1, 'CNY', 1, NULL)",
        "INSERT INTO payable_orders VALUES ('o', 'OPEN', NULL, NULL, NULL, NULL, NULL)",
        "INSERT INTO payable_orders VALUES ('o', 'PAID', 'b', NULL, 'CNY', 1, NULL)",
        payment_row("LOST", "NULL, NULL, NULL"),
        payment_row("CREATED", "NULL, NULL, NULL", amount_minor=0),
        payment_row("CREATED", "2, NULL, NULL"),
        payment_row("CAPTURED", "NULL, NULL, NULL"),
        payment_row("CAPTURED", "2, 3, NULL"),
        payment_row("REFUNDED", "2, NULL, NULL"),
        payment_row("DECLINED", "NULL, NULL, NULL"),
        payment_row("DECLINED", "NULL, NULL, 'no'", overruled="'no'"),
        "INSERT INTO payment_history VALUES (1, 'unknown', NULL, 'CREATED', 'requested', 1)",
        payment_row("CAPTURED", "2, NULL, NULL", sums="1, 1"),
        payment_row("CAPTURED", "2, NULL, NULL", sums="2, 0"),
        payment_row("CAPTURED", "2, NULL, NULL", sums="-1, -1"),
        payment_row("CREATED", "NULL, NULL, NULL", sums="1, 0"),
        payment_row("REFUNDED", "2, 3, NULL", sums="1, 0"),
        payment_row("PARTIALLY_REFUNDED", "2, NULL, NULL", sums="0, 0"),
        payment_row("PARTIALLY_REFUNDED", "NULL, NULL, NULL", amount_minor=2, sums="1, 1"),
        "INSERT INTO refunds VALUES ('r', 'unknown', 1, 'CNY', 'why', 'who', 1, 'REQUESTED', NULL, NULL)",
        "INSERT INTO gateway_events VALUES ('e', 'charge.lost', 1, 1, 'p', NULL, 'o', 1, 'CNY', NULL, 'HANDLED', NULL)",
        "INSERT INTO gateway_events VALUES"
        " ('e', 'refund.refunded', 1, 1, 'p', NULL, 'o', 1, 'CNY', NULL, 'HANDLED', NULL)",
        "INSERT INTO gateway_events VALUES"
        " ('e', 'charge.captured', 1, 1, 'p', NULL, 'o', 1, 'CNY', NULL, 'REFUSED', NULL)",
        "INSERT INTO mq_transaction VALUES ('t', 'PERHAPS', 1)",
    ],
)
async def test_the_schema_itself_rejects_what_must_never_be(new_database_url: NewDatabaseUrl, statement: str) -> None:
    database = Database(new_database_url("payments"))
    try:
        await MIGRATIONS.upgrade(database)
        async with database.writing() as connection:
            with pytest.raises(IntegrityError):
                await connection.execute(text(statement))
    finally:
        await database.dispose()


@pytest.mark.parametrize("first", ["CREATED", "CAPTURED", "REFUNDED", "DECLINED"])
async def test_the_schema_itself_rejects_a_second_payment_of_an_order_unless_the_first_was_declined(
    new_database_url: NewDatabaseUrl, first: str
) -> None:
    rest = {"CREATED": "NULL, NULL, NULL", "CAPTURED": "2, NULL, NULL", "REFUNDED": "2, 3, NULL"}
    database = Database(new_database_url("payments"))
    second = text(payment_row("CREATED", "NULL, NULL, NULL", payment_id="p2"))
    try:
        await MIGRATIONS.upgrade(database)
        async with database.writing() as connection:
            await connection.execute(text(payment_row(first, rest.get(first, "NULL, NULL, 'no'"), payment_id="p1")))
            if first == "DECLINED":
                await connection.execute(second)
            else:
                with pytest.raises(IntegrityError):
                    await connection.execute(second)
    finally:
        await database.dispose()


async def test_a_payment_that_was_declined_and_captured_stands_beside_another_and_stops_the_way_back(
    new_database_url: NewDatabaseUrl,
) -> None:
    database = Database(new_database_url("payments"))
    late = [payment_row("CAPTURED", "2, NULL, NULL", payment_id=one, overruled="'no'") for one in ("p1", "p2")]
    try:
        await MIGRATIONS.upgrade(database)
        await execute(database, *late)
        with pytest.raises(MigrationRejectedError, match="1 orders have two payments"):
            await MIGRATIONS.downgrade(database, "0006")
        await execute(database, "DELETE FROM payments WHERE payment_id = 'p1'")
        await MIGRATIONS.downgrade(database, "0006")
        with pytest.raises(IntegrityError):  # the index of before
            await execute(
                database,
                "INSERT INTO payments SELECT 'p3', order_id, buyer_id, amount_minor, currency, method,"
                " status, created_at_ms, captured_at_ms, refunded_at_ms, decline_reason, refund_requested_minor,"
                " refunded_minor, traceparent FROM payments",
            )
        await MIGRATIONS.upgrade(database)
        assert await differences(database, metadata) == []
    finally:
        await database.dispose()


# What the version before the ledger had written: open, captured, declined, refunded, and one whose refund was begun.
OLD_ROWS = (
    "INSERT INTO payments VALUES ('p-open', 'o1', 'b1', 100, 'CNY', 'card', 'CREATED', 1, NULL, NULL, NULL)",
    "INSERT INTO payments VALUES ('p-captured', 'o2', 'b1', 200, 'CNY', 'card', 'CAPTURED', 1, 12, NULL, NULL)",
    "INSERT INTO payments VALUES ('p-declined', 'o3', 'b2', 300, 'CNY', 'card', 'DECLINED', 1, NULL, NULL, 'no')",
    "INSERT INTO payments VALUES ('p-refunded', 'o4', 'b2', 400, 'CNY', 'card', 'REFUNDED', 1, 14, 24, NULL)",
    "INSERT INTO payments VALUES ('p-begun', 'o5', 'b2', 500, 'EUR', 'card', 'CAPTURED', 1, 15, NULL, NULL)",
    "INSERT INTO payment_history VALUES (7, 'p-captured', NULL, 'CREATED', 'requested', 1)",
    "INSERT INTO payment_history VALUES (9, 'p-captured', 'CREATED', 'CAPTURED', 'captured', 12)",
    "INSERT INTO refunds VALUES ('p-refunded', 'refund-p-refunded', 400, 'CNY', 'why', 4)",
    "INSERT INTO refunds VALUES ('p-begun', 'refund-p-begun', 500, 'EUR', 'why', 5)",
    "INSERT INTO idempotency_keys VALUES ('k1', 'f', 'p-open', 1)",
    "INSERT INTO idempotency_keys VALUES ('k2', 'f', 'p-refunded', 1)",
    "INSERT INTO payable_orders VALUES ('o1', 'OPEN', 'b1', 100, 'CNY', 1)",
)


async def rows(database: Database, statement: str) -> list[tuple[object, ...]]:
    async with database.snapshot() as connection:
        return [tuple(row) for row in await connection.execute(text(statement))]


async def execute(database: Database, *statements: str) -> None:
    async with database.writing() as connection:
        for statement in statements:
            await connection.execute(text(statement))
        await connection.commit()


OLD_TABLES = (
    "SELECT * FROM payments ORDER BY payment_id",
    "SELECT payment_id, old_status, new_status, reason, at_ms FROM payment_history ORDER BY change_id",
    "SELECT * FROM refunds ORDER BY payment_id",
    "SELECT * FROM idempotency_keys ORDER BY idempotency_key",
    "SELECT * FROM payable_orders",
)


async def test_payments_from_before_the_ledger_are_booked_and_can_go_back(new_database_url: NewDatabaseUrl) -> None:
    database = Database(new_database_url("payments"))
    try:
        await MIGRATIONS.upgrade(database, "0002")
        await execute(database, *OLD_ROWS)
        before = [await rows(database, table) for table in OLD_TABLES]
        await MIGRATIONS.upgrade(database)
        assert await rows(
            database, "SELECT payment_id, refund_requested_minor, refunded_minor FROM payments ORDER BY payment_id"
        ) == [
            ("p-begun", 500, 0),
            ("p-captured", 0, 0),
            ("p-declined", 0, 0),
            ("p-open", 0, 0),
            ("p-refunded", 400, 400),
        ]
        assert await rows(
            database, "SELECT refund_id, requested_by, status, refunded_at_ms FROM refunds ORDER BY refund_id"
        ) == [
            ("refund-p-begun", "refund-handler", "REQUESTED", None),
            ("refund-p-refunded", "refund-handler", "REFUNDED", 24),
        ]
        assert await rows(
            database,
            "SELECT posting_id, account, amount_minor, currency, at_ms FROM ledger_entries"
            " ORDER BY posting_id, amount_minor",
        ) == [
            ("capture/p-begun", "buyer-funds", -500, "EUR", 15),
            ("capture/p-begun", "gateway", 500, "EUR", 15),
            ("capture/p-captured", "buyer-funds", -200, "CNY", 12),
            ("capture/p-captured", "gateway", 200, "CNY", 12),
            ("capture/p-refunded", "buyer-funds", -400, "CNY", 14),
            ("capture/p-refunded", "gateway", 400, "CNY", 14),
            ("refund/refund-p-refunded", "gateway", -400, "CNY", 24),
            ("refund/refund-p-refunded", "buyer-funds", 400, "CNY", 24),
        ]
        assert await rows(
            database, "SELECT subject, idempotency_key FROM idempotency_keys ORDER BY idempotency_key"
        ) == [("b1", "k1"), ("b2", "k2")]
        # A row that comes after those of before finds a number of its own.
        await execute(
            database,
            "INSERT INTO payment_history (payment_id, new_status, reason, at_ms) VALUES ('p-open', 'x', 'y', 1)",
        )
        await execute(database, "DELETE FROM payment_history WHERE new_status = 'x'")
        await MIGRATIONS.downgrade(database, "0002")
        assert [await rows(database, table) for table in OLD_TABLES] == before
        await MIGRATIONS.upgrade(database)
        assert len(await rows(database, "SELECT * FROM ledger_entries")) == 8
    finally:
        await database.dispose()


async def test_the_way_back_is_rejected_while_it_would_lose_money_or_messages(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payments.scripted.script = [Step.PEND]
        payment = (await payments.pay("k")).payment
        payments.queue.is_down = True
        await payments.webhook(payments.scripted.decide(payment.payment_id))
        with pytest.raises(MigrationRejectedError, match="1 messages in the outbox are not told"):
            await MIGRATIONS.downgrade(payments.database, "0002")
        payments.queue.is_down = False
        await payments.application.relay.relay()
        await payments.refund_part(payment.payment_id, "r", 800)
        with pytest.raises(MigrationRejectedError, match="1 refunds are of a part of their payment"):
            await MIGRATIONS.downgrade(payments.database, "0002")
        assert (await payments.payment(payment.payment_id)).refunded_minor == 800


async def test_of_two_buyers_with_one_key_the_way_back_keeps_one(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        for order_id, buyer_id in (("order-1", "buyer-1"), ("order-2", "buyer-2")):
            await payments.open_order(order_id, buyer_id=buyer_id)
            assert (await payments.post_payment("k", buyer_id, order_id=order_id)).status_code == 201
        await MIGRATIONS.downgrade(payments.database, "0002")
        assert await rows(payments.database, "SELECT idempotency_key FROM idempotency_keys") == [("k",)]
        await MIGRATIONS.upgrade(payments.database)
        assert await rows(payments.database, "SELECT subject FROM idempotency_keys") == [("buyer-1",)]


async def test_refunds_that_have_failed_are_asked_for_again_after_the_way_back(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        for number, step in enumerate((Step.SUCCEED, Step.REJECT)):
            await payments.open_order(f"order-{number}")
            payment = (await payments.pay(f"k{number}", f"order-{number}")).payment
            payments.scripted.script = [step]
            await payments.request_refund(payment)
        read = "SELECT status FROM refunds ORDER BY status"
        assert await rows(payments.database, read) == [("FAILED",), ("REFUNDED",)]
        await MIGRATIONS.downgrade(payments.database, "0004")
        assert await rows(payments.database, read) == [("REFUNDED",), ("REQUESTED",)]
        with pytest.raises(IntegrityError):
            await execute(payments.database, "UPDATE refunds SET status = 'FAILED' WHERE status = 'REQUESTED'")
        await MIGRATIONS.upgrade(payments.database)
        payments.scripted.script = [Step.REJECT]
        await payments.application.resumer.resume()
        assert await rows(payments.database, read) == [("FAILED",), ("REFUNDED",)]
        with pytest.raises(IntegrityError):
            await execute(payments.database, "UPDATE refunds SET failure = NULL WHERE status = 'FAILED'")
