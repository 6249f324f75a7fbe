"""The cleaner of the queue's tables: what it deletes, when, and in which steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, async_sessionmaker

from mqclient import IllegalArgumentError
from mqclient.sqlalchemy import Expiry, InboxTable, Retention, TableCleaner, TransactionTable
from mqclient.testing.engines import open_sqlite
from osenv import SimClock
from osenv.sim_clock import settle

DAY_MS = 86_400_000
METADATA = MetaData()
INBOX = InboxTable(METADATA)
TRANSACTIONS = TransactionTable(METADATA)


class Transactions:
    """Opens them, counts them, and rejects as often as it is told to."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.opened = 0
        self.rejections = 0

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        self.opened += 1
        if self.rejections:
            self.rejections -= 1
            raise OperationalError("BEGIN", None, OSError("no database"))
        async with self._engine.begin() as connection:
            yield connection


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = open_sqlite(tmp_path / "shop.db")
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    yield engine
    await engine.dispose()


async def fill(engine: AsyncEngine, clock: SimClock, *, days_old: int, rows: int = 1) -> None:
    """Rows in both tables, so many days before now."""
    at_ms = clock.wall_ms() - days_old * DAY_MS
    async with engine.begin() as connection:
        for number in range(rows):
            await INBOX.once(connection, "accounts", f"{days_old}-{number}", at_ms)
            await TRANSACTIONS.record(connection, f"{days_old}-{number}", at_ms)


async def kept(engine: AsyncEngine) -> tuple[list[str], list[str]]:
    async with engine.connect() as connection:
        keys = await connection.scalars(select(INBOX.table.c.business_key).order_by(INBOX.table.c.consumed_at_ms))
        ids = await connection.scalars(select(TRANSACTIONS.table.c.transaction_id).order_by("created_at_ms"))
        return list(keys), list(ids)


async def passed(clock: SimClock, transactions: Transactions, opened: int) -> None:
    """Return when so many transactions were opened and the cleaner waits again."""
    async with asyncio.timeout(10):
        while transactions.opened < opened or not clock.timers:
            await settle()


async def test_each_table_has_its_own_time(engine: AsyncEngine) -> None:
    clock = SimClock()
    for days_old in (40, 20, 1):
        await fill(engine, clock, days_old=days_old)
    cleaner = TableCleaner(engine.begin, clock, [Retention(INBOX, 14), Retention(TRANSACTIONS, 30)])
    assert await cleaner.clean() == 3
    assert await kept(engine) == (["1-0"], ["20-0", "1-0"])
    assert await cleaner.clean() == 0


async def test_no_transaction_deletes_more_than_it_may(engine: AsyncEngine) -> None:
    clock = SimClock()
    await fill(engine, clock, days_old=40, rows=25)
    transactions = Transactions(engine)
    cleaner = TableCleaner(transactions.begin, clock, [Retention(INBOX, 14)], rows_max=10)
    assert await cleaner.clean() == 25
    assert transactions.opened == 3


async def test_sessions_do_as_well(engine: AsyncEngine) -> None:
    clock = SimClock()
    await fill(engine, clock, days_old=40)
    assert await TableCleaner(async_sessionmaker(engine), clock, [Retention(INBOX, 14)]).clean() == 1
    assert (await kept(engine))[0] == []


async def test_a_table_of_the_application_is_cleaned_by_its_expiry(tmp_path: Path) -> None:
    metadata, clock = MetaData(), SimClock()
    created = Column("created_at_ms", BigInteger, index=True)
    events = Table("events", metadata, Column("id", BigInteger, primary_key=True), created)
    engine = open_sqlite(tmp_path / "x.db")
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        ages = [{"id": days, "created_at_ms": clock.wall_ms() - days * DAY_MS} for days in range(5)]
        await connection.execute(events.insert(), ages)
    assert await TableCleaner(engine.begin, clock, [Retention(Expiry(events, created), 2)]).clean() == 2
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(events)) == 3
    await engine.dispose()


async def test_it_cleans_after_every_interval_and_not_at_its_start(engine: AsyncEngine) -> None:
    clock, transactions = SimClock(), Transactions(engine)
    await fill(engine, clock, days_old=40)
    cleaner = TableCleaner(transactions.begin, clock, [Retention(INBOX, 14)], interval_s=600)
    running = asyncio.create_task(cleaner.run())
    await clock.advance(599)
    assert (transactions.opened, (await kept(engine))[0]) == (0, ["40-0"])
    await clock.advance(1)
    await passed(clock, transactions, 1)
    assert (await kept(engine))[0] == []
    await fill(engine, clock, days_old=30)
    await clock.advance(600)
    await passed(clock, transactions, 2)
    assert (await kept(engine))[0] == []
    cleaner.stop()
    await running


async def test_a_pass_that_fails_is_logged_and_the_next_one_comes(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    clock, transactions = SimClock(), Transactions(engine)
    transactions.rejections = 1
    await fill(engine, clock, days_old=40)
    cleaner = TableCleaner(transactions.begin, clock, [Retention(INBOX, 14)])
    running = asyncio.create_task(cleaner.run())
    await clock.advance(600)
    await passed(clock, transactions, 1)
    assert "could not be cleaned; it is tried again in 600 s" in caplog.text
    assert (await kept(engine))[0] == ["40-0"]
    await clock.advance(600)
    await passed(clock, transactions, 2)
    assert (await kept(engine))[0] == []
    cleaner.stop()
    await running


async def test_a_stop_ends_it_after_the_transaction_in_hand(engine: AsyncEngine) -> None:
    clock = SimClock()
    await fill(engine, clock, days_old=40, rows=3)
    cleaner: TableCleaner

    @asynccontextmanager
    async def begin() -> AsyncIterator[AsyncConnection]:
        cleaner.stop()
        async with engine.begin() as connection:
            yield connection

    cleaner = TableCleaner(begin, clock, [Retention(INBOX, 14), Retention(TRANSACTIONS, 14)], rows_max=1)
    assert await cleaner.clean() == 1
    await cleaner.run()


async def test_two_cleaners_at_one_moment_delete_each_row_once(engine: AsyncEngine) -> None:
    clock = SimClock()
    await fill(engine, clock, days_old=40, rows=30)
    transactions = Transactions(engine)

    async def clean() -> int:
        while True:
            try:
                return await TableCleaner(transactions.begin, clock, [Retention(INBOX, 14)], rows_max=30).clean()
            except OperationalError:  # SQLite's one writer is the other
                await settle()

    assert sum(await asyncio.gather(clean(), clean())) == 30


@pytest.mark.parametrize("keep_days", [0, -1])
def test_a_row_is_kept_for_a_day_at_least(keep_days: int) -> None:
    with pytest.raises(IllegalArgumentError, match="at least 1 is allowed"):
        Retention(INBOX, keep_days)
