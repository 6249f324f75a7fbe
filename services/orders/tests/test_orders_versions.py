"""Two versions of orders on one database: while the later one migrates it, side by side, and after a rollback.

The later version has one migration more, which adds a column, and it writes that column; the older one knows nothing
of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text

from orders.app import MIGRATIONS
from orders.domain.product import Product
from orders.testing import PRODUCT, RunningOrders, running_orders
from osenv import SimClock
from servicekit.testing import RecordingPublisher
from servicekit.testing.databases import NewDatabaseUrl
from servicekit.testing.migrations import broken_promises, migrate_alone, with_a_later_one

EXPAND = "ALTER TABLE orders ADD COLUMN channel VARCHAR(20) DEFAULT 'shop' NOT NULL"
LIVES = 8  # at once


async def live(placing: RunningOrders, going_on: RunningOrders, name: str) -> list[str]:
    """Orders that one version places, all at once, and the other one brings to their end; their ids."""

    async def one(number: int) -> str:
        placed = await placing.post_order(f"{name}-{number}")
        assert placed.status_code == 201, placed.text
        order = await going_on.order(placed.json()["order_id"])
        if number % 2:
            await going_on.cancel(order.order_id)
        else:
            await going_on.pay_and_ship(order, f"payment-of-{name}-{number}")
        shown = await placing.http.get(f"/orders/{order.order_id}", headers=placing.headers())
        assert shown.json()["status"] == ("CLOSED" if number % 2 else "SHIPPED")
        return order.order_id

    return list(await asyncio.gather(*map(one, range(LIVES))))


@pytest.mark.mechanism("U10")
async def test_two_versions_sell_from_one_database_and_the_later_one_can_be_rolled_back(
    new_database_url: NewDatabaseUrl, tmp_path: Path
) -> None:
    url, queue, clock = new_database_url("orders"), RecordingPublisher(), SimClock()
    migrations = with_a_later_one(MIGRATIONS, tmp_path / "later", EXPAND, oldest_code=MIGRATIONS.head)
    async with running_orders(url, publisher=queue, clock=clock, seed=1) as older:
        await older.add_product(Product("seat", "A seat", 100, "CNY", available=5 * LIVES))
        await asyncio.gather(live(older, older, "before"), migrate_alone(url, migrations))
        async with running_orders(url, publisher=queue, clock=clock, seed=2, migrations=migrations) as later:
            of_older, of_later = await asyncio.gather(live(older, later, "older"), live(later, older, "later"))
            async with later.database.writing() as connection:
                statement = text("UPDATE orders SET channel = 'gift' WHERE order_id = :id")
                await connection.execute(statement, [{"id": order_id} for order_id in of_later])
                await connection.commit()
    async with running_orders(url, publisher=queue, clock=clock, seed=3) as older:
        await live(older, older, "after")
        async with older.database.snapshot() as connection:
            gifts = (await connection.execute(text("SELECT order_id FROM orders WHERE channel = 'gift'"))).scalars()
            assert sorted(gifts) == sorted(of_later) != sorted(of_older)
        seats = await older.product(PRODUCT.product_id)
        assert (seats.available, seats.reserved, seats.sold) == (3 * LIVES, 0, 2 * LIVES)
    assert queue.halves == {}


async def test_migrations_keep_what_they_declare_to_work(new_database_url: NewDatabaseUrl) -> None:
    assert await broken_promises(new_database_url("orders"), MIGRATIONS) == []


@pytest.mark.parametrize(
    ("contract", "broken"),
    [
        ("ALTER TABLE orders DROP COLUMN hold_until_ms", "orders.hold_until_ms was BIGINT and is gone"),
        ("ALTER TABLE products ADD COLUMN a INTEGER NOT NULL", "products.a is new and asks something of every row"),
        (
            "CREATE UNIQUE INDEX one ON products (name)",
            "products.UNIQUE ['name'] is new and asks something of every row",
        ),
        (EXPAND, None),
    ],
)
async def test_a_migration_that_takes_something_from_code_that_it_declares_is_found(
    new_database_url: NewDatabaseUrl, tmp_path: Path, contract: str, broken: str | None
) -> None:
    migrations = with_a_later_one(MIGRATIONS, tmp_path / "later", contract, oldest_code=MIGRATIONS.head)
    found = await broken_promises(new_database_url("orders"), migrations)
    assert found == ([] if broken is None else [f"{migrations.head}: {broken}"])
