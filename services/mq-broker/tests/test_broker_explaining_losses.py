"""The life of a message when something of it is gone, hidden or out of date: what is left is told, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from hourglass.mq.v1 import admin_service_pb2 as pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.life import LifeEvent
from mq_broker.core.transactions import TransactionState
from mq_broker.embedded.embedded_broker import CallContext
from mq_broker.processor import querying
from mq_broker.processor.broker import Broker
from mq_broker.rpc.admin_service import AdminService
from mq_broker.testing import (
    broker_options,
    half,
    incoming,
    keyed,
    life_in_words,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mqproto.codes import LifeEventKind
from mqproto.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic
from mqproto.values import to_message
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
MINUTE_S = 60


def service(broker: Broker) -> AdminService:
    return AdminService(broker, cast(Any, None), dict)


async def explain(broker: Broker, key: str = "k", topic: str = "") -> list[LifeEvent]:
    await settle()  # the index follows
    return await broker.explaining.explain(topic, key, max_messages=0)


async def give_up(broker: Broker) -> None:
    """Group g gives up the newest message of topic t."""
    newest = (await read_all(broker, "t"))[-1]
    await broker.send_back.send_back("g", newest.log_offset, delay_level=-1, max_reconsume_times=0)


def in_words(events: list[LifeEvent]) -> list[str]:
    return life_in_words(events, START_MS)


class TestTruth:
    async def test_what_is_not_on_disk_is_not_told(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock) as broker:
            broker.producing.put([keyed()])
            assert await broker.explaining.explain("", "k", max_messages=0) == []
            assert in_words(await explain(broker)) == ["0s SENT t:0#0"]

    async def test_an_end_that_the_index_has_not_heard_of_is_told_without_its_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock) as broker:
            await produce(broker, half("t", b"x", "m"))
            await explain(broker, "m")
            await broker.transactions.end("shop", "m", TransactionState.ROLLBACK_MESSAGE, from_check=False)
            monkeypatch.setattr(broker.store.index, "find", _without(broker.store.index.find, OP_HALF_TOPIC))
            assert in_words(await explain(broker, "m"))[1:] == ["ROLLED_BACK RMQ_SYS_TRANS_HALF_TOPIC:0#0 group shop"]

    async def test_a_shorter_delay_table_changes_what_waits_and_not_what_was_delivered(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock) as broker:
            await produce(broker, keyed(delay_level=3, unique_id="m"))
            await clock.advance(10)
            await produce(broker, keyed(delay_level=4, unique_id="n"))
        async with running_broker(disk, clock, options=broker_options("1s 2s 3s 4s")) as broker:
            assert in_words(await explain(broker, "m"))[0] == "0s WAITING SCHEDULE_TOPIC_XXXX:2#0 due 10s"
            assert in_words(await explain(broker, "n")) == ["10s WAITING SCHEDULE_TOPIC_XXXX:3#0 due 14s"]

    async def test_what_a_deleted_topic_held_is_not_told(self) -> None:
        async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
            await produce(broker, keyed())
            await broker.topic_administration.delete("t")
            assert await explain(broker) == []
            await produce(broker, keyed(unique_id="anew"))
            assert [event.message_id for event in await explain(broker)] == ["anew"]

    async def test_an_op_message_tells_the_end_when_the_delivered_one_is_damaged(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock) as broker:
            await produce(broker, half("t", b"x", "m"))
            await broker.transactions.end("shop", "m", TransactionState.COMMIT_MESSAGE, from_check=False)
            (delivered,) = await read_all(broker, "t")
            await broker.send_back.send_back("g", delivered.log_offset, delay_level=1, max_reconsume_times=0)
            await clock.advance(1)
        async with running_broker(disk, SimClock(clock.wall_ms())) as broker:
            damage(broker, disk, delivered.log_offset)
            assert [event.kind.name for event in await explain(broker, "m")] == [
                *("HALF", "COMMITTED", "RETRIED", "DELIVERED", "UNCONSUMED")
            ]
            assert in_words(await explain(broker, "m"))[1] == f"0s COMMITTED {OP_HALF_TOPIC}:0#0 group shop"

    async def test_damage_leaves_the_rest_of_a_life(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock) as broker:
            await produce(broker, keyed(delay_level=3))
            await clock.advance(10)
            (waiting,) = await read_all(broker, SCHEDULE_TOPIC, 2)
        async with running_broker(disk, SimClock(clock.wall_ms())) as broker:
            damage(broker, disk, waiting.log_offset)
            assert in_words(await explain(broker, "m")) == ["10s DELIVERED t:0#0"]


def damage(broker: Broker, disk: SimDisk, log_offset: int) -> None:
    folder = broker.store.layout.commit_log
    disk.open(folder / disk.list_dir(folder)[0]).pwrite(b"\xff\xff", log_offset + 90)


def _without(find: Callable[..., object], hidden: str) -> Callable[..., object]:
    return lambda topic, *arguments: iter(()) if topic == hidden else find(topic, *arguments)


class TestRetention:
    """Files of the log that hold a few messages go; what still waits in them has been carried over."""

    async def fill(self, broker: Broker) -> None:
        """More than half a file of other messages."""
        await produce(broker, incoming("other", [bytes(500)] * 8))

    async def clean(self, clock: SimClock, disk: SimDisk) -> None:
        """All files but the newest go."""
        disk.used_share = 0.85
        await clock.advance(11)
        disk.used_share = 0.0

    async def fill_and_clean(self, broker: Broker, clock: SimClock, disk: SimDisk, below: int) -> None:
        while broker.store.log_begin < below:
            await self.fill(broker)
            await self.clean(clock, disk)

    @pytest.mark.parametrize("rounds", [1, 2])
    async def test_a_carried_message_still_waits_and_is_then_delivered(self, rounds: int) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock, store=store_options(log_file_bytes=8_192)) as broker:
            await produce(broker, keyed(delay_level=16))
            for _ in range(rounds):
                await self.fill_and_clean(broker, clock, disk, broker.store.log_end)
            carried = (await read_all(broker, TIMER_TOPIC))[-1]
            seconds = (carried.store_timestamp_ms - START_MS) / 1000
            wait = f"{seconds:g}s WAITING {TIMER_TOPIC}:0#{carried.queue_offset} due 1800s"
            assert in_words(await explain(broker)) == [wait]
            await clock.advance(30 * MINUTE_S)
            assert in_words(await explain(broker)) == [wait, "1800s DELIVERED t:0#0 due 1800s"]

    async def test_a_message_that_stands_in_the_log_twice_while_it_is_carried_waits_once(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock) as broker:
            await produce(broker, keyed(delay_level=3))
            await clock.advance(5)
            assert await broker.delay.carry_over(broker.store.log_end) == 1
            wait = f"0s WAITING {SCHEDULE_TOPIC}:2#0 due 10s"
            assert in_words(await explain(broker)) == [wait]
            await clock.advance(5)
            assert in_words(await explain(broker)) == [wait, "10s DELIVERED t:0#0 due 10s"]

    async def test_a_half_message_that_was_carried_over_keeps_its_time(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock, store=store_options(log_file_bytes=8_192)) as broker:
            await produce(broker, half("t", b"x", "m"))
            await self.fill_and_clean(broker, clock, disk, 1)
            assert in_words(await explain(broker, "m")) == [f"0s HALF {HALF_TOPIC}:0#1 group shop"]

    async def test_what_retention_has_deleted_is_not_told(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock, store=store_options(log_file_bytes=8_192)) as broker:
            await produce(broker, keyed())
            broker.offsets.commit("g", [("t", 0, Progress(1))])
            await self.fill_and_clean(broker, clock, disk, 1)
            assert await explain(broker) == []

    async def test_a_copy_outlives_its_original(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock, store=store_options(log_file_bytes=8_192)) as broker:
            await produce(broker, keyed())
            await self.fill(broker)
            await self.fill(broker)
            await give_up(broker)
            await self.clean(clock, disk)
            assert await read_all(broker, "t") == []
            (event,) = await explain(broker, topic="t")
            assert (event.kind, event.topic, event.group) == (LifeEventKind.DEAD, dlq_topic("g"), "g")


class TestBounds:
    """However many messages have the key, one question reads only so many."""

    async def test_no_more_is_read_than_was_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
            for number in range(100):
                await produce(broker, keyed(unique_id=f"m{number}"))
            read: list[int] = []
            read_proven = broker.store.reader.read_proven

            def counted(log_offset: int) -> object:
                read.append(log_offset)
                return read_proven(log_offset)

            monkeypatch.setattr(broker.store.reader, "read_proven", counted)
            assert len(await explain(broker)) == 32
            assert len(set(read)) == 32

    async def test_a_topic_is_read_up_to_its_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
            for number in range(10):
                await produce(broker, keyed(unique_id=f"m{number}"))
            size = (await read_all(broker, "t"))[-1].size
            monkeypatch.setattr(querying, "LOOK_BYTES_MAX", 3 * size)
            assert [event.message_id for event in await explain(broker)] == ["m6", "m7", "m8", "m9"]


class TestRejected:
    @pytest.mark.parametrize(
        ("request_", "sentence"),
        [
            (pb.ExplainMessageRequest(), "needs a key"),
            (pb.ExplainMessageRequest(key="k", max_messages=-1), "-1 messages; allowed are 1 to 2000"),
            (pb.ExplainMessageRequest(key="k", max_messages=2_001), "2001 messages; allowed are 1 to 2000"),
        ],
    )
    async def test_a_senseless_question_is_rejected_with_a_sentence(
        self, request_: pb.ExplainMessageRequest, sentence: str
    ) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            answer = await service(broker).ExplainMessage(request_, CallContext())
            assert answer.code == common_pb2.MESSAGE_ILLEGAL
            assert sentence in answer.remark

    async def test_without_an_index_nothing_can_be_told(self) -> None:
        options = replace(store_options(), index_enabled=False)
        async with running_broker(SimDisk(), SimClock(), store=options) as broker:
            answer = await service(broker).ExplainMessage(pb.ExplainMessageRequest(key="k"), CallContext())
            assert "messageIndexEnable" in answer.remark

    async def test_the_wire_has_what_the_broker_tells(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await produce(broker, keyed(delay_level=1))
            await clock.advance(1)
            await give_up(broker)
            broker.offsets.commit("other", [("t", 0, Progress(1))])
            told = await explain(broker, "m")
            answer = await service(broker).ExplainMessage(pb.ExplainMessageRequest(key="m"), CallContext())
            assert (answer.code, answer.remark) == (common_pb2.SUCCESS, "")
            assert list(answer.events) == [to_message(pb.LifeEvent, event) for event in told]
            assert [event.kind for event in answer.events] == [pb.LifeEventKind.Value(e.kind.name) for e in told]
