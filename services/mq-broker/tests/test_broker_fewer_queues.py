"""An operator reduces a topic's queues: no message becomes unreadable, and the answered reduction stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.core.limits import RejectedError
from mq_broker.core.topics import TopicConfig
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.store.message_store import StoreOptions
from mq_broker.testing import STORE_ROOT, half, incoming, produce, read_all, running_broker, store_options
from mqproto.codes import ResponseCode
from osenv import SimClock, SimDisk

EIGHT = TopicConfig("t", 8, 8)
FOUR_OFFERED = TopicConfig("t", 8, 4)
FOUR = TopicConfig("t", 4, 4)


async def bodies(broker: Broker, queue_id: int) -> list[bytes]:
    return [record.body for record in await read_all(broker, "t", queue_id)]


async def killed(broker: Broker, disk: SimDisk, *, checkpoint: bool) -> None:
    disk.kill()
    if not checkpoint:
        disk.unlink(STORE_ROOT / "checkpoint")


async def test_a_producer_that_does_not_know_yet_still_reaches_a_queue_that_can_be_read() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await broker.topic_administration.update(EIGHT)
        await broker.topic_administration.update(FOUR_OFFERED)
        (outcome,) = await produce(broker, incoming("t", [b"x"], queue_id=7))
        assert outcome.code is ResponseCode.SUCCESS, outcome.remark
        assert await bodies(broker, 7) == [b"x"]


async def test_a_delayed_message_for_a_queue_that_cannot_be_read_comes_into_one_that_can() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        await broker.topic_administration.update(EIGHT)
        await produce(broker, incoming("t", [b"x"], queue_id=7, delay_level=1))
        await broker.topic_administration.update(TopicConfig("t", 2, 8))
        await clock.advance(2)
        assert await bodies(broker, 1) == [b"x"]


async def test_a_queue_that_holds_messages_stays_readable_and_the_answer_says_what_to_do() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await broker.topic_administration.update(EIGHT)
        await produce(broker, incoming("t", [b"0", b"1"], queue_id=5), incoming("t", [b"2"], queue_id=2))
        with pytest.raises(RejectedError, match="queues 5 hold 2 messages; keep 6 read queues") as rejected:
            await broker.topic_administration.update(FOUR)
        assert rejected.value.code is ResponseCode.MESSAGE_ILLEGAL
        assert broker.topics.get("t") == EIGHT
        await broker.topic_administration.update(TopicConfig("t", 6, 4))
        assert await bodies(broker, 5) == [b"0", b"1"]


async def test_read_queues_can_go_when_retention_has_emptied_them() -> None:
    disk, clock, small = SimDisk(), SimClock(1_700_000_000_000), store_options(log_file_bytes=4_096)
    async with running_broker(disk, clock, store=small) as broker:
        await broker.topic_administration.update(EIGHT)
        await produce(broker, incoming("t", [b"old"], queue_id=7))
        for _ in range(20):
            await produce(broker, incoming("u", [bytes(400)]))
        disk.used_share = 0.85
        await clock.advance(15)
        await broker.topic_administration.update(FOUR)
        disk.used_share = 0.0
        (outcome,) = await produce(broker, incoming("t", [b"late"], queue_id=7))
        assert (outcome.code, outcome.remark) == (
            ResponseCode.TOPIC_NOT_EXIST,
            "topic 't' has no queue 7; it has 0 to 3: refresh the route",
        )
    async with running_broker(disk, clock, store=small) as broker:
        assert broker.topics.get("t") == FOUR


@pytest.mark.parametrize("checkpoint", [True, False], ids=["with a checkpoint", "from the log alone"])
@pytest.mark.parametrize("reduced", [FOUR_OFFERED, replace(FOUR, read_queue_count=6)])
async def test_a_reduction_that_was_answered_survives_a_kill(reduced: TopicConfig, *, checkpoint: bool) -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, clean_stop=False) as broker:
        await broker.topic_administration.update(EIGHT)
        await produce(broker, incoming("t", [b"x"], queue_id=5), incoming("t", [b"y"], queue_id=7, delay_level=5))
        await broker.topic_administration.update(reduced)
        await killed(broker, disk, checkpoint=checkpoint)
    async with running_broker(disk, clock) as broker:
        assert broker.topics.get("t") == reduced
        assert await bodies(broker, 5) == [b"x"]


async def test_messages_that_waited_for_a_removed_queue_come_into_another_one() -> None:
    disk, clock = SimDisk(), SimClock()
    store: StoreOptions = store_options()
    async with running_broker(disk, clock, store=store) as broker:
        await broker.topic_administration.update(EIGHT)
        await produce(
            broker, incoming("t", [b"delayed"], queue_id=7, delay_level=3), half("t", b"half", "tx-1", queue_id=6)
        )
        await broker.topic_administration.update(FOUR)
        await clock.advance(11)
        await broker.transactions.end("shop", "tx-1", TransactionState.COMMIT_MESSAGE, from_check=False)
        assert (await bodies(broker, 3), await bodies(broker, 2)) == ([b"delayed"], [b"half"])
        (record,) = await read_all(broker, "t", 3)
        assert record.queue_id == 3
    async with running_broker(disk, clock, store=store) as broker:
        assert broker.topics.get("t") == FOUR
