"""The 100-yuan debit happens once, whichever of the three sources makes a duplicate (mechanisms I1, I2, C24).

The broker is the real one, in memory, with the real client; the database is SQLite on disk. In each test the message
comes twice, which is asserted, and the account loses 100 yuan.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table, func, select, update

from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from mqclient.sqlalchemy import InboxTable
from mqclient.testing.engines import open_sqlite

METADATA = MetaData()
ACCOUNTS = Table("accounts", METADATA, Column("yuan", BigInteger, nullable=False))
INBOX = InboxTable(METADATA)

GROUP, TOPIC, KEY = "accounts", "debits", "ORDERID_100"
QUEUES = 4
OPENING_YUAN, DEBIT_YUAN = 1_000, 100


Hook = Callable[[str], Awaitable[None]]


async def _go_on(_member: str) -> None:
    """A hook that does nothing."""


class Ledger:
    """The consumer's database and its listener; `deliveries` are (member, message id) of every call."""

    def __init__(self, path: Path) -> None:
        self.engine = open_sqlite(path, lock_timeout_s=30)
        self.deliveries: list[tuple[str, str]] = []
        self.firsts: list[bool] = []
        self.before_transaction: Hook = _go_on
        self.after_commit: Hook = _go_on

    async def open(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
            await connection.execute(ACCOUNTS.insert().values(yuan=OPENING_YUAN))

    async def debit(self, member: str, message: MessageExt) -> None:
        self.deliveries.append((member, message.message_id))
        await self.before_transaction(member)
        async with self.engine.begin() as connection:
            is_first = await INBOX.once(connection, GROUP, message.keys[0], 1)
            if is_first:
                await connection.execute(update(ACCOUNTS).values(yuan=ACCOUNTS.c.yuan - DEBIT_YUAN))
        self.firsts.append(is_first)
        await self.after_commit(member)

    async def yuan(self) -> int:
        async with self.engine.connect() as connection:
            assert await connection.scalar(select(func.count()).select_from(INBOX.table)) == 1
            return int((await connection.execute(select(ACCOUNTS.c.yuan))).scalar_one())


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db")
    await ledger.open()
    yield ledger
    await ledger.engine.dispose()


def member_of(ledger: Ledger, broker: EmbeddedBroker, name: str) -> PushConsumer:
    """A member of the group as a process of its own would be: with a client instance of its own."""
    consumer = PushConsumer(
        GROUP,
        broker.url,
        client_config=ClientConfig(instance_name=name),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(TOPIC, "*")

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        for message in messages:
            await ledger.debit(name, message)
        return ConsumeStatus.CONSUME_SUCCESS

    consumer.register_message_listener(listener)
    return consumer


@pytest.fixture(autouse=True)
async def _topic(broker: EmbeddedBroker) -> None:
    async with Admin(broker.url) as admin:
        await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)


def debit_message() -> Message:
    """What the business has to say; it is said again with the same key, and another message id."""
    return Message(TOPIC, b"100 yuan", keys=[KEY])


async def send(broker: EmbeddedBroker) -> None:
    """To the last queue: the one that a second member gets."""
    queue = MessageQueue(TOPIC, "broker-a", QUEUES - 1)
    async with Producer("shop", broker.url) as producer:
        await producer.send(debit_message(), queue=queue)


def stored(broker: EmbeddedBroker) -> int:
    """How many messages the topic has."""
    bounds = [broker.broker.store.queue_bounds(TOPIC, queue_id) for queue_id in range(QUEUES)]
    return sum(end - begin for begin, end in bounds)


@asynccontextmanager
async def dying(consumer: PushConsumer) -> AsyncIterator[None]:
    """It goes without finishing and without a word about its offsets, as a process that is killed."""
    await consumer.start()
    try:
        yield
    finally:
        await consumer.shutdown(timeout_s=0.0)


@pytest.mark.mechanism("I1")
async def test_a_message_that_is_sent_again_without_an_answer_debits_once(
    broker: EmbeddedBroker, ledger: Ledger
) -> None:
    """The first source: the sender dies before it hears of its success, and its successor sends again."""
    sender = Producer("shop", broker.url, client_config=ClientConfig(instance_name="first"))
    await sender.start()
    sending = asyncio.create_task(sender.send(debit_message()))
    async with asyncio.timeout(10):
        while not stored(broker):  # noqa: ASYNC110 - the store sets no event
            await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await sender.shutdown(timeout_s=0.0)
    await send(broker)
    assert stored(broker) == 2
    async with member_of(ledger, broker, "m"):
        await broker.clock.until(lambda: len(ledger.firsts) == 2)
    assert len({message_id for _, message_id in ledger.deliveries}) == 2  # the message id tells nothing
    assert (sorted(ledger.firsts), await ledger.yuan()) == ([False, True], 900)


@pytest.mark.mechanism("I1")
async def test_a_message_whose_acknowledgement_is_lost_debits_once(broker: EmbeddedBroker, ledger: Ledger) -> None:
    """The second source: the consumer dies after its commit and before its acknowledgement."""
    committed = asyncio.Event()

    async def hang(member: str) -> None:
        if member == "first":
            committed.set()
            await asyncio.Event().wait()

    ledger.after_commit = hang
    await send(broker)
    async with dying(member_of(ledger, broker, "first")):
        async with asyncio.timeout(10):
            await committed.wait()
    async with member_of(ledger, broker, "second"):
        await broker.clock.until(lambda: len(ledger.firsts) == 2)
    assert [member for member, _ in ledger.deliveries] == ["first", "second"]
    assert len({message_id for _, message_id in ledger.deliveries}) == 1
    assert (ledger.firsts, await ledger.yuan()) == ([True, False], 900)


async def test_a_message_whose_listener_fails_after_its_commit_debits_once(
    broker: EmbeddedBroker, ledger: Ledger
) -> None:
    """The second source again, with a retry: what was committed is answered by an error."""

    async def fail_once(_member: str) -> None:
        if len(ledger.firsts) == 1:
            raise ConnectionError("the answer was lost")

    ledger.after_commit = fail_once
    await send(broker)
    async with member_of(ledger, broker, "m"):
        await broker.clock.until(lambda: len(ledger.firsts) == 2)
    assert (ledger.firsts, await ledger.yuan()) == ([True, False], 900)


@pytest.mark.mechanism("I1")
async def test_a_message_whose_queue_is_handed_over_while_it_is_consumed_debits_once(
    broker: EmbeddedBroker, ledger: Ledger
) -> None:
    """The third source: a rebalance gives the queue to a new member while the old one is at work."""
    at_work, release = asyncio.Event(), asyncio.Event()

    async def wait_for_release(member: str) -> None:
        if member == "a":
            at_work.set()
            await release.wait()

    ledger.before_transaction = wait_for_release
    await send(broker)
    old, new = member_of(ledger, broker, "a"), member_of(ledger, broker, "b")
    async with old:
        async with asyncio.timeout(10):
            await at_work.wait()
        async with new:
            await broker.clock.until(lambda: ledger.firsts)
            assert {member for member, _ in ledger.deliveries} == {"a", "b"}
            release.set()
            await broker.clock.until(lambda: len(ledger.firsts) == 2)
    assert len({message_id for _, message_id in ledger.deliveries}) == 1
    assert (ledger.firsts, await ledger.yuan()) == ([True, False], 900)
