"""How long GET /statistics takes with many orders, in orders and in payments, on PostgreSQL and on SQLite:

    .venv/bin/python tests/robustness/statistics_time.py [--orders 300000]

Each database is made by the migrations and filled with SQL, through the triggers that count. Then the route is asked
again and again, without a network between, and the same numbers are counted from the rows, for comparison. What the
triggers cost is measured by closing orders with and without them; PostgreSQL does not wait for its disk. What all of it
takes is reported and judges nothing; that counters and rows say the same is required.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text

from hourglass_loadtest.machine import describe_run
from orders.migrations.versions.v0008_counters import COUNTED
from orders.testing import running_orders
from payments.testing import running_payments
from servicekit.config import SQLITE_PREFIX
from servicekit.sql.database import Database
from servicekit.sql.schema import drop_counters
from servicekit.testing.postgresql import PostgresServer

EVIDENCE = Path("docs/evidence/statistics.json")
ORDERS, ASKED, CHANGED = 300_000, 50, 200
ROWS_AT_ONCE = 500  # a transaction of many thousand would change one row of the counters as often

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) "
# Of ten orders seven are completed and two are closed; one stands in one of the other states. Every tenth payment of a
# closed order is requested back.
STATUS = (
    "CASE WHEN i % 10 < 7 THEN 'COMPLETED' WHEN i % 10 < 9 THEN 'CLOSED' WHEN i % 30 = 9 THEN 'SHIPPED'"
    " WHEN i % 30 = 19 THEN 'AWAITING_SHIPMENT' ELSE 'PENDING_PAYMENT' END"
)
IS_PAID = "i % 10 < 7 OR i % 10 = 9 AND i % 30 < 20"
FILL_ORDERS = (
    "INSERT INTO orders (order_id, buyer_id, status, total_minor, currency, created_at_ms, expires_at_ms, closed_at_ms,"
    " payment_id, paid_at_ms, shipped_at_ms, completed_at_ms)"
    f" SELECT 'order-' || i, 'buyer-' || (i % 1000), {STATUS}, 100, 'CNY', i, i + 9,"
    " CASE WHEN i % 10 IN (7, 8) THEN i END,"
    f" CASE WHEN {IS_PAID} THEN 'payment-' || i END, CASE WHEN {IS_PAID} THEN i END,"
    " CASE WHEN i % 10 < 7 OR i % 30 = 9 THEN i END, CASE WHEN i % 10 < 7 THEN i END FROM n",
    "INSERT INTO refund_requests SELECT 'late-' || i, 'order-' || i, 100, 'CNY', 'order-closed', i FROM n"
    " WHERE i % 100 = 7",
)
COUNT_ORDERS = (
    "SELECT status, COUNT(*) FROM orders GROUP BY status",
    "SELECT 'paid', COUNT(*) FROM orders WHERE payment_id IS NOT NULL",
    "SELECT 'refunds', COUNT(*) FROM refund_requests",
)
FILL_PAYMENTS = (
    "INSERT INTO payments (payment_id, order_id, buyer_id, amount_minor, currency, method, status, created_at_ms,"
    " captured_at_ms, decline_reason, refund_requested_minor, refunded_minor)"
    " SELECT 'payment-' || i, 'order-' || i, 'buyer-' || (i % 1000), 100, 'CNY', 'card',"
    " CASE WHEN i % 10 < 9 THEN 'CAPTURED' ELSE 'DECLINED' END, i, CASE WHEN i % 10 < 9 THEN i END,"
    " CASE WHEN i % 10 = 9 THEN 'no money' END, 0, 0 FROM n",
    "INSERT INTO ledger_entries (posting_id, account, amount_minor, currency, at_ms, payment_id)"
    " SELECT 'capture/payment-' || i, 'gateway', 100, 'CNY', i, 'payment-' || i FROM n WHERE i % 10 < 9",
    "INSERT INTO ledger_entries (posting_id, account, amount_minor, currency, at_ms, payment_id)"
    " SELECT 'capture/payment-' || i, 'buyer-funds', -100, 'CNY', i, 'payment-' || i FROM n WHERE i % 10 < 9",
    "INSERT INTO gateway_events (event_id, kind, occurred_at_ms, received_at_ms, payment_id, order_id, amount_minor,"
    " currency, status) SELECT 'event-' || i, 'charge.captured', i, i, 'payment-' || i, 'order-' || i, 100, 'CNY',"
    " 'HANDLED' FROM n WHERE i % 10 < 9",
)
COUNT_PAYMENTS = (
    "SELECT status, COUNT(*) FROM payments GROUP BY status",
    "SELECT account, SUM(amount_minor) FROM ledger_entries GROUP BY account",
    "SELECT status, COUNT(*) FROM gateway_events GROUP BY status",
)

CLOSE = text("UPDATE orders SET status = 'CLOSED', closed_at_ms = 1 WHERE order_id = :order_id")

Counts = dict[str, int]


async def fill(database: Database, statements: tuple[str, ...], orders: int) -> None:
    """So many orders, or payments, and what belongs to them."""
    for first in range(0, orders, ROWS_AT_ONCE):
        numbers = NUMBERS.format(first=first, last=min(first + ROWS_AT_ONCE, orders) - 1)
        async with database.writing() as connection:
            for statement in statements:
                await connection.execute(text(numbers + statement))
            await connection.commit()


async def count(database: Database, queries: tuple[str, ...]) -> Counts:
    """What the rows add up to, without a counter."""
    async with database.snapshot() as connection:
        return {str(name): int(value) for query in queries for name, value in await connection.execute(text(query))}


async def timed(times: int, work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """Milliseconds of one time of many."""
    took: list[float] = []
    for _ in range(times):
        begin = time.perf_counter()
        await work()
        took.append((time.perf_counter() - begin) * 1000)
    return {
        "min_ms": round(min(took), 2),
        "median_ms": round(statistics.median(took), 2),
        "max_ms": round(max(took), 2),
        "times": times,
    }


async def time_changes(database: Database, numbers: Iterable[int]) -> dict[str, float]:
    """Of closing these pending orders, each in a transaction of its own, without its message and its stock."""
    waiting = iter(numbers)

    async def close_next() -> None:
        async with database.writing() as connection:
            await connection.execute(CLOSE, {"order_id": f"order-{next(waiting)}"})
            await connection.commit()

    return await timed(CHANGED, close_next)


async def count_no_more(database: Database) -> None:
    async with database.migrating() as connection:
        await connection.run_sync(drop_counters, COUNTED)
        await connection.commit()


async def measure_orders(url: str, orders: int) -> dict[str, Any]:
    async with running_orders(url) as running:
        await fill(running.database, FILL_ORDERS, orders)
        headers = running.headers("operator", "operator-1")

        async def ask() -> Any:
            return (await running.http.get("/statistics", headers=headers)).raise_for_status().json()

        told = await ask()
        counted = await count(running.database, COUNT_ORDERS)
        expected = {**told["orders"], "paid": told["paid_orders"], "refunds": told["refund_requests"]}
        require_equal(expected, counted)
        found = {
            "statistics": await timed(ASKED, ask),
            "counting_the_rows": await timed(3, lambda: count(running.database, COUNT_ORDERS)),
            "change_of_status": await time_changes(running.database, range(29, 30 * CHANGED, 30)),
        }
        await count_no_more(running.database)
        uncounted = await time_changes(running.database, range(30 * CHANGED + 29, 60 * CHANGED, 30))
        return found | {"change_of_status_uncounted": uncounted}


async def measure_payments(url: str, orders: int) -> dict[str, Any]:
    async with running_payments(url) as running:
        await fill(running.database, FILL_PAYMENTS, orders)

        async def ask() -> Any:
            return (await running.get("/statistics")).raise_for_status().json()

        told = await ask()
        require_equal({**told["payments"], **told["ledger"], **told["gateway_events"]}, await count_payments(running))
        return {
            "statistics": await timed(ASKED, ask),
            "counting_the_rows": await timed(3, lambda: count_payments(running)),
        }


def count_payments(running: Any) -> Awaitable[Counts]:
    return count(running.database, COUNT_PAYMENTS)


def require_equal(told: Counts, counted: Counts) -> None:
    """Numbers that are 0 have no rows."""
    found = {name: value for name, value in told.items() if value}
    if found != counted:
        raise SystemExit(f"GET /statistics says {found}, and the rows say {counted}")


@contextmanager
def databases() -> Iterator[dict[str, Callable[[str], str]]]:
    """By kind, the URL of a new database with this name."""
    with tempfile.TemporaryDirectory(prefix="hourglass-statistics-") as folder, PostgresServer() as server:
        yield {"postgresql": server.create_database, "sqlite": lambda name: f"{SQLITE_PREFIX}{folder}/{name}.db"}


async def measure(orders: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with databases() as new_database:
        for kind, new_url in new_database.items():
            found[kind] = {
                "orders": await measure_orders(new_url("orders"), orders),
                "payments": await measure_payments(new_url("payments"), orders),
            }
            print(f"{kind}: {json.dumps(found[kind])}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures GET /statistics with many orders.")
    parser.add_argument("--orders", type=int, default=ORDERS, help=f"default: {ORDERS}; {60 * CHANGED} at least")
    parser.add_argument("--out", type=Path, help=f"for the results; without it {EVIDENCE}, if the orders are {ORDERS}")
    options = parser.parse_args()
    if options.orders < 60 * CHANGED:
        parser.error(f"--orders is {options.orders}; {60 * CHANGED} are the least")
    head = describe_run()
    results = asyncio.run(measure(options.orders))
    out = options.out or (EVIDENCE if options.orders == ORDERS else None)
    if out is not None:
        out.write_text(json.dumps(head | {"orders": options.orders, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
