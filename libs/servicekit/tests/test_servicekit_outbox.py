"""The outbox: what is told when the queue is there, kept when it is not, and told once, whichever process dies in
between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from sqlalchemy import Column, MetaData, String, Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from mqclient.sqlalchemy import TransactionTable
from osenv import SimClock
from servicekit.background import WakeUp
from servicekit.errors import PublishError, StorageUnavailableError
from servicekit.message import OutgoingMessage
from servicekit.sql import outbox as outbox_module
from servicekit.sql.database import Database
from servicekit.sql.outbox import BACKOFF_MAX_S, LOOK_INTERVAL_S, OutboxPublisher, OutboxRelay
from servicekit.sql.tables import OutboxTable, SqlTransactionRows
from servicekit.sql.units import TransactionalPublisher
from servicekit.testing import ProcessDeathError, RecordingPublisher, die, until
from servicekit.testing.databases import NewDatabaseUrl

metadata = MetaData()
things = Table("things", metadata, Column("name", String(20), primary_key=True))
transactions = TransactionTable(metadata)
outbox = OutboxTable(metadata)


def message_of(name: str) -> OutgoingMessage:
    return OutgoingMessage("things", "made", name, f'{{"name":"{name}","中":0}}'.encode())


class Unit:
    """A unit of work with one table."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.transactions = SqlTransactionRows(transactions, connection)
        self.outbox = outbox.of(connection)

    async def add(self, name: str) -> str:
        await self._connection.execute(insert(things).values(name=name))
        return name.upper()

    async def commit(self) -> None:
        await self._connection.commit()


class Units:
    """Units of work on a database of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Unit]:
        async with self._database.snapshot() as connection:
            yield Unit(connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Unit]:
        async with self._database.writing() as connection:
            yield Unit(connection)


@dataclass
class Process:
    """A service that makes things and tells of them."""

    database: Database
    queue: RecordingPublisher
    clock: SimClock = field(default_factory=SimClock)
    is_known_away: bool = False

    def __post_init__(self) -> None:
        self.units = Units(self.database)
        self.transactions: TransactionalPublisher[Unit] = TransactionalPublisher(self.units, self.queue, self.clock)
        self.wake = WakeUp()
        self.publisher = OutboxPublisher(
            self.units, self.transactions, self.clock, self.wake, is_queue_there=lambda: not self.is_known_away
        )
        self.relay = OutboxRelay(self.units, self.transactions, self.clock, self.wake)

    async def make(self, name: str) -> str:
        return await self.publisher.publish(message_of(name), lambda unit: unit.add(name))

    async def kept(self) -> list[str]:
        async with self.units.snapshot() as unit:
            rows = await unit.outbox.oldest(1000)
            assert await unit.outbox.count() == len(rows)
            assert all(row.message == message_of(row.message.key) for row in rows)
            return [row.message.key for row in rows]

    async def made(self) -> int:
        async with self.database.snapshot() as connection:
            return int((await connection.execute(select(func.count()).select_from(things))).scalar_one())

    def told(self) -> list[str]:
        assert all(message == message_of(message.key) for message in self.queue.messages)
        return [message.key for message in self.queue.messages]

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.relay.run())
        try:
            yield
            self.relay.stop()
            await running
        finally:
            running.cancel()


@pytest.fixture
async def process(new_database_url: NewDatabaseUrl) -> AsyncIterator[Process]:
    database = Database(new_database_url("outbox"))
    async with database.writing() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.commit()
    yield Process(database, RecordingPublisher())
    await database.dispose()


async def test_while_the_queue_is_there_nothing_is_kept(process: Process) -> None:
    assert await process.make("a") == "A"
    assert (process.told(), await process.kept(), await process.made()) == (["a"], [], 1)
    assert process.queue.halves == {}


@pytest.mark.parametrize("is_known", [False, True])
async def test_while_the_queue_is_away_the_message_is_kept_with_what_it_tells(process: Process, is_known: bool) -> None:
    process.queue.is_down, process.is_known_away = True, is_known
    assert await process.make("a") == "A"
    assert (process.told(), await process.kept(), await process.made()) == ([], ["a"], 1)
    assert process.queue.attempts == (0 if is_known else 1)


async def test_a_transaction_that_was_given_up_too_soon_is_kept_and_not_told_twice(process: Process) -> None:
    async def ask_too_soon(_transaction_id: str) -> None:
        await process.queue.check_back(process.transactions.check)

    process.queue.before_local = ask_too_soon
    await process.make("a")
    assert (process.told(), await process.kept(), await process.made()) == ([], ["a"], 1)
    process.queue.before_local = process.queue.after_local  # which does nothing
    assert await process.relay.relay() == 1
    assert process.told() == ["a"]


async def test_what_raises_writes_and_tells_nothing_on_either_way(process: Process) -> None:
    async def fail(unit: Unit) -> None:
        await unit.add("a")
        raise StorageUnavailableError("full")

    for is_known_away in (False, True):
        process.is_known_away = is_known_away
        with pytest.raises(StorageUnavailableError, match="full"):
            await process.publisher.publish(message_of("a"), fail)
        assert (process.told(), await process.kept(), await process.made()) == ([], [], 0)
    assert process.queue.halves == {}


async def test_what_was_kept_is_told_in_its_order_once(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "BATCH_MESSAGES", 2)
    names = ["e", "a", "d", "b", "c"]
    process.is_known_away = True
    for name in names:
        await process.make(name)
    assert await process.relay.relay() == 5
    assert (process.told(), await process.kept()) == (names, [])
    assert await process.relay.relay() == 0


async def test_a_queue_that_goes_away_again_leaves_the_rest_in_its_order(process: Process) -> None:
    process.is_known_away = True
    for name in "abc":
        await process.make(name)

    async def go_away(_transaction_id: str) -> None:
        process.queue.is_down = True

    process.queue.after_local = go_away
    with pytest.raises(PublishError):
        await process.relay.relay()
    assert (process.told(), await process.kept()) == (["a"], ["b", "c"])
    process.queue.is_down, process.queue.after_local = False, process.queue.before_local
    assert await process.relay.relay() == 2
    assert process.told() == ["a", "b", "c"]


@pytest.mark.parametrize("hook", ["before_local", "after_local"])
async def test_a_relay_that_dies_on_the_way_leads_to_one_message(process: Process, hook: str) -> None:
    process.is_known_away = True
    await process.make("a")
    setattr(process.queue, hook, die)
    with pytest.raises(ProcessDeathError):
        await process.relay.relay()
    assert process.told() == []
    assert len(process.queue.halves) == 1
    # The next process relays, and the queue asks, in either order.
    again = Process(process.database, RecordingPublisher())
    again.queue.halves, again.queue.messages = process.queue.halves, process.queue.messages
    await again.relay.relay()
    await again.queue.check_back(again.transactions.check)
    assert await again.relay.relay() == 0
    assert (again.told(), await again.kept()) == (["a"], [])


async def test_processes_that_relay_at_once_tell_each_message_once(process: Process) -> None:
    process.is_known_away = True
    for number in range(6):
        await process.make(f"{number}")
    others = [Process(process.database, process.queue) for _ in range(3)]
    told = await asyncio.gather(*(one.relay.relay() for one in (process, *others)))
    assert sum(told) == 6
    assert sorted(process.told()) == [str(number) for number in range(6)]
    assert (await process.kept(), process.queue.halves) == ([], {})


async def test_a_delayed_message_is_not_kept(process: Process) -> None:
    for delayed in (
        OutgoingMessage("things", "made", "a", b"{}", delay_level=3),
        OutgoingMessage("things", "made", "a", b"{}", deliver_at_ms=1),
    ):
        with pytest.raises(ValueError, match="at once"):
            async with process.units.writing() as unit:
                await unit.outbox.add(delayed, 1)


async def test_the_relay_tells_what_an_earlier_process_left(process: Process) -> None:
    process.is_known_away = True
    await process.make("a")
    again = Process(process.database, process.queue)
    async with again.relaying():
        await until(lambda: process.told() == ["a"])


async def test_a_kept_message_wakes_the_relay(process: Process) -> None:
    async with process.relaying():
        process.is_known_away = True
        await process.make("a")
        await until(lambda: process.told() == ["a"])
        await process.make("b")
        await until(lambda: process.told() == ["a", "b"])


async def test_the_relay_finds_what_another_process_has_kept(process: Process) -> None:
    other = Process(process.database, process.queue, is_known_away=True)
    async with process.relaying():
        await other.make("a")  # rings in the other process only
        while process.told() == []:
            await process.clock.advance(LOOK_INTERVAL_S)
            await asyncio.sleep(0)


async def test_the_relay_backs_off_while_the_queue_is_away_and_stops_while_it_does(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []

    async def wait(_clock: SimClock, seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 7:
            process.queue.is_down = False

    process.queue.is_down = True
    await process.make("a")
    monkeypatch.setattr(process.relay._end, "wait", wait)
    async with process.relaying():
        await until(lambda: process.told() == ["a"])
    assert naps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, BACKOFF_MAX_S, BACKOFF_MAX_S])
    again = Process(process.database, process.queue)
    process.queue.is_down = True
    await again.make("b")
    async with again.relaying():  # stops in the middle of a nap
        await until(lambda: again.relay._is_waiting)


async def test_a_mistake_of_the_code_ends_the_relay(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    process.is_known_away = True
    await process.make("a")
    monkeypatch.delattr(RecordingPublisher, "send_in_transaction")
    with pytest.raises(AttributeError):
        await process.relay.run()
