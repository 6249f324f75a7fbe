"""The pull consumer on a broker with a real store in memory; offsets kept with the results (mechanisms C5, C6, C23)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, ClientConfig, Message, MessageQueue, MQClientError, Producer, PullConsumer, PullStatus
from osenv import SimClock
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
QUEUE = MessageQueue("t", "broker-a", 0)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker("pulling", clock=SimClock(START_MS)) as running, Admin(running.url) as admin:
        await admin.update_topic("t", read_queue_count=1, write_queue_count=1)
        yield running


@pytest_asyncio.fixture
async def consumer(broker: EmbeddedBroker) -> AsyncIterator[PullConsumer]:
    async with PullConsumer("readers", broker.url) as running:
        yield running


async def send(broker: EmbeddedBroker, *names: str) -> None:
    """A message a second, with its first letter as tag."""
    async with Producer("shop", broker.url) as producer:
        for name in names:
            await producer.send(Message("t", name.encode(), tag=name[0]))
            await broker.clock.advance(1)


class TestOneQueue:
    @pytest.mark.mechanism("C6")
    async def test_the_four_statuses(self, broker: EmbeddedBroker, consumer: PullConsumer) -> None:
        assert (await consumer.pull(QUEUE, 0)).status is PullStatus.NO_NEW_MSG
        await send(broker, "a0", "a1", "b2")
        found = await consumer.pull(QUEUE, 0, max_messages=2)
        assert (found.status, found.next_begin_offset, found.max_offset) == (PullStatus.FOUND, 2, 3)
        assert [message.body for message in found.messages] == [b"a0", b"a1"]
        passed_over = await consumer.pull(QUEUE, 0, expression="c")
        assert (passed_over.status, passed_over.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 3)
        (wanted,) = (await consumer.pull(QUEUE, 0, expression="b || c")).messages
        assert wanted.body == b"b2"
        outside = await consumer.pull(QUEUE, 9)
        assert (outside.status, outside.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 3)

    async def test_a_blocking_pull_ends_with_a_message_or_with_its_time(
        self, broker: EmbeddedBroker, consumer: PullConsumer
    ) -> None:
        waiting = asyncio.create_task(consumer.pull(QUEUE, 0, block_s=10))
        await broker.clock.advance(9.9)
        assert not waiting.done()
        await broker.clock.advance(0.2)
        assert (await waiting).status is PullStatus.NO_NEW_MSG
        waiting = asyncio.create_task(consumer.pull(QUEUE, 0, block_s=10))
        await settle()
        await send(broker, "a0")
        assert (await waiting).status is PullStatus.FOUND

    async def test_a_time_finds_its_place_again(self, broker: EmbeddedBroker, consumer: PullConsumer) -> None:
        await send(broker, "a0", "a1", "a2")
        assert await consumer.fetch_subscribe_message_queues("t") == [QUEUE]
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 3)
        offset = await consumer.search_offset(QUEUE, START_MS + 1_000)
        assert [message.body for message in (await consumer.pull(QUEUE, offset)).messages] == [b"a1", b"a2"]

    @pytest.mark.mechanism("C23")
    async def test_assigned_queues_are_polled_and_committed_and_gone_back_in(
        self, broker: EmbeddedBroker, consumer: PullConsumer
    ) -> None:
        await send(broker, "a0", "a1", "a2")
        consumer.assign([QUEUE], max_messages=2)
        await consumer.seek_to_begin(QUEUE)
        assert [message.body for message in await consumer.poll(60)] == [b"a0", b"a1"]
        await consumer.commit_all()
        assert await consumer.committed(QUEUE) == 2
        await consumer.seek_to_time(QUEUE, START_MS + 1_000)
        await consumer.commit_all()
        assert await consumer.committed(QUEUE) == 1
        assert [message.body for message in await consumer.poll(60)] == [b"a1", b"a2"]


class TestOffsetsAtTheBroker:
    @pytest.mark.mechanism("C5")
    async def test_they_grow_are_reset_and_survive_a_restart(self, broker: EmbeddedBroker) -> None:
        await send(broker, "a0", "a1", "a2")
        async with PullConsumer("readers", broker.url) as consumer:
            assert await consumer.committed(QUEUE) is None
            await consumer.commit(QUEUE, 3)
            await consumer.commit(QUEUE, 2)
            assert await consumer.committed(QUEUE) == 3
            await consumer.reset(QUEUE, 1)
            assert await consumer.committed(QUEUE) == 1
        await broker.stop()
        await broker.start()
        async with PullConsumer("readers", broker.url) as consumer:
            assert await consumer.committed(QUEUE) == 1

    async def test_an_operator_s_reset_is_not_undone(self, broker: EmbeddedBroker, consumer: PullConsumer) -> None:
        await send(broker, "a0", "a1", "a2")
        await consumer.commit(QUEUE, 3)
        async with Admin(broker.url) as admin:
            await admin.reset_offset_by_time("readers", "t", START_MS + 1_000)
        with pytest.raises(MQClientError, match=r"the offset of group readers in .* was reset"):
            await consumer.commit(QUEUE, 3)
        assert await consumer.committed(QUEUE) == 1
        await consumer.commit(QUEUE, 2)
        assert await consumer.committed(QUEUE) == 2

    async def test_no_group_member_and_no_session_comes_of_it(
        self, broker: EmbeddedBroker, consumer: PullConsumer
    ) -> None:
        await send(broker, "a0")
        await consumer.pull(QUEUE, 0)
        await consumer.commit(QUEUE, 1)
        async with Admin(broker.url) as admin:
            stats = await admin.consume_stats("readers")
        assert (stats.client_ids, stats.queues[0].consumer_offset) == ((), 1)


# ------------------------------------------------------------------------------ offsets in the user's own database


class Ledger:
    """The pattern: the offset is a row beside the results, written in the same transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS offsets (queue TEXT PRIMARY KEY, offset INTEGER NOT NULL)")
            db.execute("CREATE TABLE IF NOT EXISTS entries (body TEXT NOT NULL)")

    def offset(self, queue: MessageQueue) -> int:
        with closing(sqlite3.connect(self._path)) as db:
            row = db.execute("SELECT offset FROM offsets WHERE queue = ?", (str(queue),)).fetchone()
        return int(row[0]) if row else 0

    def book(self, queue: MessageQueue, bodies: list[str], next_offset: int, *, dies_before: str) -> None:
        """All of it or nothing; `dies_before` is where the process ends, as a kill would end it."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            db.execute("BEGIN")
            db.executemany("INSERT INTO entries VALUES (?)", [(body,) for body in bodies])
            die(dies_before == "offset")
            db.execute("INSERT OR REPLACE INTO offsets VALUES (?, ?)", (str(queue), next_offset))
            die(dies_before == "commit")
            db.execute("COMMIT")
        die(dies_before == "next pull")

    def entries(self) -> list[str]:
        with closing(sqlite3.connect(self._path)) as db:
            return [body for (body,) in db.execute("SELECT body FROM entries ORDER BY rowid")]


class ProcessDiedError(Exception):
    """Here the process ends."""


def die(really: bool) -> None:
    if really:
        raise ProcessDiedError


@pytest.mark.mechanism("C5")
async def test_an_offset_beside_the_results_makes_each_effect_happen_exactly_once(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    names = [f"a{number}" for number in range(12)]
    await send(broker, *names)
    deaths = iter(["offset", "never", "commit", "next pull", "offset", "commit", "next pull", *["never"] * 50])
    path, lives = tmp_path / "ledger.sqlite", 0
    while Ledger(path).offset(QUEUE) < len(names):
        lives += 1
        ledger = Ledger(path)
        try:
            async with PullConsumer(
                "bookkeepers", broker.url, client_config=ClientConfig(instance_name=f"life-{lives}")
            ) as consumer:
                while (offset := ledger.offset(QUEUE)) < len(names):
                    found = await consumer.pull(QUEUE, offset, max_messages=2)
                    bodies = [message.body.decode() for message in found.messages]
                    ledger.book(QUEUE, bodies, found.next_begin_offset, dies_before=next(deaths))
        except ProcessDiedError:
            continue
    assert lives == 7
    assert Ledger(path).entries() == names


@settings(deadline=None, max_examples=40)
@given(committed=st.lists(st.integers(0, 5), max_size=8), resets=st.dictionaries(st.integers(0, 8), st.integers(0, 5)))
async def test_the_committed_offset_is_the_largest_since_the_last_reset(
    committed: list[int], resets: dict[int, int]
) -> None:
    async with EmbeddedBroker("pulling-model", clock=SimClock(START_MS)) as broker, Admin(broker.url) as admin:
        await admin.update_topic("t", read_queue_count=1, write_queue_count=1)
        await send(broker, "a0", "a1", "a2", "a3", "a4")
        async with PullConsumer("readers", broker.url) as consumer:
            wanted: int | None = None
            for number, offset in enumerate(committed):
                if number in resets:
                    wanted = resets[number]
                    await consumer.reset(QUEUE, wanted)
                await consumer.commit(QUEUE, offset)
                wanted = max(wanted or 0, offset)
                assert await consumer.committed(QUEUE) == wanted
