"""Transactional messages: what every TransactionalQueue does, and what publisher and database make of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import Column, MetaData, String, Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from mqclient.sqlalchemy import TransactionTable
from mqclient.testing import FakeCluster
from osenv import SimClock
from servicekit.errors import PublishError, StorageUnavailableError, TransactionGivenUpError
from servicekit.message import OutgoingMessage
from servicekit.process.queue import MqPublisher
from servicekit.sql.database import Database
from servicekit.sql.tables import SqlTransactionRows
from servicekit.sql.units import LocalOutcome, TransactionalPublisher, TransactionalQueue
from servicekit.testing import ProcessDeathError, RecordingPublisher, die
from servicekit.testing.databases import NewDatabaseUrl

MESSAGE = OutgoingMessage("things", "made", "thing-1", b"{}")

metadata = MetaData()
things = Table("things", metadata, Column("name", String, primary_key=True))
table = TransactionTable(metadata)


class Unit:
    """A unit of work with one table."""

    def __init__(self, connection: AsyncConnection, units: Units) -> None:
        self._connection = connection
        self._units = units
        self.transactions = SqlTransactionRows(table, connection)

    async def add(self, name: str) -> str:
        await self._connection.execute(insert(things).values(name=name))
        return name.upper()

    async def commit(self) -> None:
        await self._connection.commit()
        if self._units.is_commit_answer_lost:
            raise StorageUnavailableError("the answer of the commit was lost")


class Units:
    """Units of work on a database of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_commit_answer_lost = False

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Unit]:
        async with self._database.writing() as connection:
            yield Unit(connection, self)

    async def count(self) -> int:
        async with self._database.snapshot() as connection:
            return (await connection.execute(select(func.count()).select_from(things))).scalar_one()


@dataclass(frozen=True, slots=True)
class Rig:
    """A publisher over a queue in memory."""

    units: Units
    queue: RecordingPublisher
    publisher: TransactionalPublisher[Unit]

    async def publish(self) -> str:
        return await self.publisher.publish(MESSAGE, lambda unit: unit.add("thing"))


@asynccontextmanager
async def rig(new_database_url: NewDatabaseUrl) -> AsyncIterator[Rig]:
    database = Database(new_database_url("x"))
    try:
        async with database.writing() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.commit()
        units, queue = Units(database), RecordingPublisher()
        yield Rig(units, queue, TransactionalPublisher(units, queue, SimClock()))
    finally:
        await database.dispose()


async def test_result_and_message_come_after_the_commit(new_database_url: NewDatabaseUrl) -> None:
    async with rig(new_database_url) as it:
        assert await it.publish() == "THING"
        assert (it.queue.messages, it.queue.halves, await it.units.count()) == ([MESSAGE], {}, 1)


async def test_an_error_rolls_back_and_comes_out_and_the_message_is_not_delivered(
    new_database_url: NewDatabaseUrl,
) -> None:
    async def fail(unit: Unit) -> str:
        await unit.add("thing")
        raise ZeroDivisionError

    async with rig(new_database_url) as it:
        with pytest.raises(ZeroDivisionError):
            await it.publisher.publish(MESSAGE, fail)
        assert (it.queue.messages, it.queue.halves, await it.units.count()) == ([], {}, 0)


async def test_without_the_queue_nothing_is_written(new_database_url: NewDatabaseUrl) -> None:
    async with rig(new_database_url) as it:
        it.queue.is_down = True
        with pytest.raises(PublishError):
            await it.publish()
        assert await it.units.count() == 0


async def test_a_process_that_dies_after_its_commit_is_answered_for_by_another(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with rig(new_database_url) as it:
        it.queue.after_local = die
        with pytest.raises(ProcessDeathError):
            await it.publish()
        assert it.queue.messages == []
        await it.queue.check_back(it.publisher.check)
        assert (it.queue.messages, it.queue.halves, await it.units.count()) == ([MESSAGE], {}, 1)


async def test_a_process_that_dies_before_its_local_transaction_leaves_nothing(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with rig(new_database_url) as it:
        it.queue.before_local = die
        with pytest.raises(ProcessDeathError):
            await it.publish()
        await it.queue.check_back(it.publisher.check)
        assert (it.queue.messages, it.queue.halves, await it.units.count()) == ([], {}, 0)


async def test_a_local_transaction_that_comes_after_the_check_fails_on_the_key(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with rig(new_database_url) as it:

        async def stall(_transaction_id: str) -> None:
            await it.queue.check_back(it.publisher.check)

        it.queue.before_local = stall
        with pytest.raises(TransactionGivenUpError):
            await it.publish()
        assert (it.queue.messages, it.queue.halves, await it.units.count()) == ([], {}, 0)


async def test_a_commit_whose_answer_is_lost_is_left_to_the_check(new_database_url: NewDatabaseUrl) -> None:
    async with rig(new_database_url) as it:
        it.units.is_commit_answer_lost = True
        with pytest.raises(StorageUnavailableError):
            await it.publish()
        it.units.is_commit_answer_lost = False
        assert (it.queue.messages, len(it.queue.halves)) == ([], 1)
        await it.queue.check_back(it.publisher.check)
        assert (it.queue.messages, await it.units.count()) == ([MESSAGE], 1)


async def test_a_check_that_comes_again_gets_the_same_answer(new_database_url: NewDatabaseUrl) -> None:
    async with rig(new_database_url) as it:
        assert await it.publisher.check("made-up") is LocalOutcome.ROLLED_BACK
        assert await it.publisher.check("made-up") is LocalOutcome.ROLLED_BACK
        it.queue.after_local = die
        with pytest.raises(ProcessDeathError):
            await it.publish()
        (transaction_id,) = it.queue.halves
        for _ in range(2):
            assert await it.publisher.check(transaction_id) is LocalOutcome.COMMITTED


@pytest.mark.parametrize("round_", range(10))
async def test_of_a_check_and_a_late_local_transaction_exactly_one_wins(
    new_database_url: NewDatabaseUrl, round_: int
) -> None:
    """Two processes: the queue asks the one while the other is at work."""
    async with rig(new_database_url) as it:
        other = Database(new_database_url("x"))
        checker = TransactionalPublisher(Units(other), it.queue, SimClock())
        answers: list[asyncio.Task[LocalOutcome]] = []

        async def ask_meanwhile(transaction_id: str) -> None:
            answers.append(asyncio.create_task(checker.check(transaction_id)))
            for _ in range(round_ * 3):
                await asyncio.sleep(0)

        it.queue.before_local = ask_meanwhile
        try:
            placed = await it.publish()
        except TransactionGivenUpError:
            placed = ""
        (answer,) = await asyncio.gather(*answers)
        assert answer is (LocalOutcome.COMMITTED if placed else LocalOutcome.ROLLED_BACK)
        assert await it.units.count() == (1 if placed else 0)
        await other.dispose()


# ------------------------------------------------------------------------------- the contract of TransactionalQueue


class Answers:
    """What the queue is told when it asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.outcome = LocalOutcome.UNKNOWN
        self.is_storage_away = False

    async def __call__(self, transaction_id: str) -> LocalOutcome:
        self.asked.append(transaction_id)
        if self.is_storage_away:
            raise StorageUnavailableError("the database is away")
        return self.outcome


@dataclass(frozen=True, slots=True)
class QueueUnderTest:
    """A queue and the hands on it."""

    under_test: TransactionalQueue
    answers: Answers
    bodies: Callable[[], list[bytes]]
    ask: Callable[[], Awaitable[None]]
    go_down: Callable[[], None]


@asynccontextmanager
async def recording_queue() -> AsyncIterator[QueueUnderTest]:
    publisher, answers = RecordingPublisher(), Answers()

    async def ask() -> None:
        await publisher.check_back(answers)

    def go_down() -> None:
        publisher.is_down = True

    yield QueueUnderTest(publisher, answers, lambda: [one.body for one in publisher.messages], ask, go_down)


@asynccontextmanager
async def mq_queue() -> AsyncIterator[QueueUnderTest]:
    cluster, answers = FakeCluster("servicekit-transactions"), Answers()
    broker = cluster.add_broker("broker-a")
    broker.create_topic("things", 4)
    publisher = MqPublisher(cluster.url, "things-makers", cluster.clock)
    starting = asyncio.create_task(publisher.start(answers))
    await cluster.clock.advance(10)
    await starting

    async def ask() -> None:
        for transaction_id in list(broker.transactions.open):
            broker.check(transaction_id)
        await cluster.clock.advance(1)

    def go_down() -> None:
        broker.next_codes = [13]  # MESSAGE_ILLEGAL: rejected for good, so that the client does not wait and retry

    try:
        yield QueueUnderTest(publisher, answers, lambda: list(broker.bodies), ask, go_down)
    finally:
        await publisher.shutdown()


QUEUES = pytest.mark.parametrize("open_queue", [recording_queue, mq_queue])
OpenQueue = Callable[[], AbstractAsyncContextManager[QueueUnderTest]]


class Local:
    """A local transaction with a given outcome."""

    def __init__(self, outcome: LocalOutcome) -> None:
        self.ids: list[str] = []
        self._outcome = outcome

    async def __call__(self, transaction_id: str) -> LocalOutcome:
        self.ids.append(transaction_id)
        return self._outcome


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@QUEUES
@pytest.mark.parametrize(
    ("outcome", "bodies"),
    [(LocalOutcome.COMMITTED, [b"{}"]), (LocalOutcome.ROLLED_BACK, []), (LocalOutcome.UNKNOWN, [])],
)
async def test_the_queue_delivers_what_was_committed(
    open_queue: OpenQueue, outcome: LocalOutcome, bodies: list[bytes]
) -> None:
    async with open_queue() as queue:
        local = Local(outcome)
        await queue.under_test.send_in_transaction(MESSAGE, local)
        await settle()
        assert queue.bodies() == bodies
        await queue.under_test.send_in_transaction(MESSAGE, local)
        assert len(set(local.ids)) == 2  # each attempt has an id of its own
        assert all(0 < len(one) <= 64 for one in local.ids)


@QUEUES
async def test_the_queue_asks_until_it_knows(open_queue: OpenQueue) -> None:
    async with open_queue() as queue:
        local = Local(LocalOutcome.UNKNOWN)
        await queue.under_test.send_in_transaction(MESSAGE, local)
        await queue.ask()
        assert queue.bodies() == []
        queue.answers.outcome = LocalOutcome.COMMITTED
        await queue.ask()
        assert queue.bodies() == [b"{}"]
        await queue.ask()
        assert queue.answers.asked == local.ids * 2


@QUEUES
async def test_the_queue_forgets_what_was_rolled_back(open_queue: OpenQueue) -> None:
    async with open_queue() as queue:
        await queue.under_test.send_in_transaction(MESSAGE, Local(LocalOutcome.UNKNOWN))
        queue.answers.outcome = LocalOutcome.ROLLED_BACK
        await queue.ask()
        queue.answers.outcome = LocalOutcome.COMMITTED
        await queue.ask()
        assert queue.bodies() == []


@QUEUES
async def test_a_half_message_that_is_not_taken_runs_nothing(open_queue: OpenQueue) -> None:
    async with open_queue() as queue:
        local = Local(LocalOutcome.COMMITTED)
        queue.go_down()
        with pytest.raises(PublishError):
            await queue.under_test.send_in_transaction(MESSAGE, local)
        assert (local.ids, queue.bodies()) == ([], [])


async def test_a_check_while_the_database_is_away_is_not_answered_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with mq_queue() as queue:
        await queue.under_test.send_in_transaction(MESSAGE, Local(LocalOutcome.UNKNOWN))
        queue.answers.outcome = LocalOutcome.COMMITTED
        queue.answers.is_storage_away = True
        for _ in range(16):  # the fifteenth answer that does not know would park the message
            await queue.ask()
        assert caplog.text.count("no answer to the check of transaction") == 16
        assert queue.bodies() == []
        queue.answers.is_storage_away = False
        await queue.ask()
        assert queue.bodies() == [b"{}"]


async def test_a_half_message_that_may_not_be_on_any_disk_runs_nothing() -> None:
    cluster = FakeCluster("servicekit-unsafe")
    broker = cluster.add_broker("broker-a")
    broker.create_topic("things", 4)
    publisher = MqPublisher(cluster.url, "things-makers", cluster.clock)
    with pytest.raises(PublishError, match="not connected"):
        await publisher.send_in_transaction(MESSAGE, Local(LocalOutcome.COMMITTED))
    starting = asyncio.create_task(publisher.start(Answers()))
    await cluster.clock.advance(10)
    await starting
    local = Local(LocalOutcome.COMMITTED)
    broker.next_codes = [10]  # FLUSH_DISK_TIMEOUT
    with pytest.raises(PublishError, match="FLUSH_DISK_TIMEOUT"):
        await publisher.send_in_transaction(MESSAGE, local)
    assert local.ids == []
    await publisher.shutdown()
