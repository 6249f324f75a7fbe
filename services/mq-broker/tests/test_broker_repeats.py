"""A repeated send is stored once: in one run, across restarts, and when a crash tore the first try.

Mechanism P5, ADR 15.
"""

from __future__ import annotations

import pytest

from mq_broker.core.producer_sequences import BatchSequence
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import BatchOutcome, IncomingBatch, StoredStretch
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import (
    STORE_ROOT,
    half,
    incoming,
    numbered,
    produce,
    producer_record,
    read_all,
    running_broker,
    store_options,
)
from mqproto.codes import ResponseCode
from mqproto.names import HALF_TOPIC, SCHEDULE_TOPIC
from mqproto.properties import PRODUCER_SEQUENCE, WAIT, decode_properties
from osenv import SeededRng, SimClock, SimDisk, replace_file
from osenv.disk import read_file

LAZY = store_options(flush=FlushDiskType.ASYNC_FLUSH)
BODIES = [b"one", b"two", b"three"]
PRODUCER = 0xFEED


def batch_sequence(base: int = 1, *, epoch: int = 1, first_unanswered: int = 1) -> BatchSequence:
    return BatchSequence(PRODUCER, epoch, base, first_unanswered)


def batch(base: int = 1, bodies: list[bytes] = BODIES, *, epoch: int = 1, delay_level: int = 0) -> IncomingBatch:
    return numbered("t", bodies, batch_sequence(base, epoch=epoch), delay_level=delay_level)


async def bodies(broker: Broker, topic: str = "t") -> list[bytes]:
    return [record.body for record in await read_all(broker, topic)]


def place(outcome: BatchOutcome) -> tuple[int, int]:
    assert outcome.code is ResponseCode.SUCCESS, outcome.remark
    return outcome.base_queue_offset, outcome.base_log_offset


class TestWithinOneRun:
    async def test_the_same_numbers_again_are_answered_with_the_same_place(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            (first,) = await produce(broker, batch())
            await produce(broker, incoming("t", [b"of another producer"]))
            (again,) = await produce(broker, batch(epoch=2))
            assert place(again) == place(first)
            assert again.stretches == ()
            assert await bodies(broker) == [*BODIES, b"of another producer"]

    async def test_without_numbers_the_same_bytes_are_stored_twice(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", BODIES))
            await produce(broker, incoming("t", BODIES))
            assert await bodies(broker) == BODIES * 2

    async def test_of_several_batches_each_gets_its_own_answer(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, batch(), batch(4, [b"four"]))
            outcomes = await produce(broker, batch(), batch(4, [b"four"]), batch(5, [b"five"]), incoming("t", [b"x"]))
            assert [outcome.base_queue_offset for outcome in outcomes] == [0, 3, 4, 5]
            assert await bodies(broker) == [*BODIES, b"four", b"five", b"x"]

    async def test_a_delayed_message_waits_once(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            (first,) = await produce(broker, batch(bodies=[b"later"], delay_level=1))
            (again,) = await produce(broker, batch(bodies=[b"later"], delay_level=1))
            assert place(again) == place(first)
            assert broker.store.queue_bounds(SCHEDULE_TOPIC, 0) == (0, 1)
            await clock.advance(1.5)
            (delivered,) = await read_all(broker, "t")
            assert PRODUCER_SEQUENCE not in decode_properties(delivered.properties)

    async def test_a_half_message_is_prepared_once(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            for _ in range(2):
                (outcome,) = await produce(broker, half("t", b"half", "T1", batch_sequence=batch_sequence()))
                assert outcome.code is ResponseCode.SUCCESS
            assert broker.store.queue_bounds(HALF_TOPIC, 0) == (0, 1)

    async def test_what_was_rejected_before_is_stored_by_the_repeat(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            wrong = IncomingBatch("t", 9, 1, batch().records, batch_sequence())
            (rejected,) = await produce(broker, wrong)
            assert rejected.code is ResponseCode.TOPIC_NOT_EXIST
            await produce(broker, batch())
            assert await bodies(broker) == BODIES

    @pytest.mark.parametrize(
        ("late", "sentence"),
        [
            (batch_sequence(9, epoch=1), "newer stream, with epoch 2"),
            (batch_sequence(4, epoch=2), "no answer below 5"),
            (BatchSequence(PRODUCER, 2, 9, 10), "at most the batch's"),
        ],
    )
    async def test_what_comes_too_late_or_makes_no_sense_is_rejected(self, late: BatchSequence, sentence: str) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, numbered("t", [b"five"], batch_sequence(5, epoch=2, first_unanswered=5)))
            (outcome,) = await produce(broker, numbered("t", [b"late"], late))
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
            assert sentence in outcome.remark
            assert await bodies(broker) == [b"five"]


class TestAcrossRestarts:
    @pytest.mark.parametrize("clean_stop", [True, False])
    @pytest.mark.parametrize("delay_level", [0, 3])
    async def test_a_repeat_is_recognised_after_a_stop_and_after_a_kill(
        self, clean_stop: bool, delay_level: int
    ) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=clean_stop) as broker:
            (first,) = await produce(broker, batch(delay_level=delay_level))
        if not clean_stop:
            disk.kill()
        async with running_broker(disk, SimClock()) as broker:
            (again,) = await produce(broker, batch(epoch=2, delay_level=delay_level))
            assert place(again) == place(first)
            topic, queue_id = (SCHEDULE_TOPIC, 2) if delay_level else ("t", 0)
            assert broker.store.queue_bounds(topic, queue_id) == (0, 3)

    async def test_a_producer_s_epoch_outlives_a_restart(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, batch(epoch=4))
        async with running_broker(disk, SimClock()) as broker:
            (late,) = await produce(broker, batch(4, [b"late"], epoch=3))
            assert "newer stream" in late.remark

    async def test_a_message_that_a_power_cut_took_is_stored_by_the_repeat_and_only_once(self) -> None:
        for seed in range(40):
            disk = SimDisk()
            async with running_broker(disk, SimClock(), store=LAZY, clean_stop=False) as broker:
                broker.producing.put([batch()])
            disk.crash(SeededRng(seed))
            for epoch in (2, 3):
                async with running_broker(disk, SimClock(), store=LAZY) as broker:
                    (outcome,) = await produce(broker, batch(epoch=epoch))
                    assert outcome.code is ResponseCode.SUCCESS, (seed, outcome)
                    assert await bodies(broker) == BODIES, seed

    async def test_of_a_batch_that_a_crash_tore_the_rest_is_stored_and_every_place_is_told(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False) as broker:
            await produce(broker, batch(1, [b"one", b"two"]))
            await produce(broker, incoming("t", [b"between"]))
        disk.kill()
        async with running_broker(disk, SimClock()) as broker:
            (outcome,) = await produce(broker, batch(1, [b"one", b"two", b"three", b"four"], epoch=2))
            records = await read_all(broker, "t")
            assert [record.body for record in records] == [b"one", b"two", b"between", b"three", b"four"]
            assert outcome.stretches == (
                StoredStretch(2, 0, records[0].log_offset),
                StoredStretch(2, 3, records[3].log_offset),
            )
            assert place(outcome) == (0, records[0].log_offset)

    async def test_a_store_without_the_file_starts_and_knows_what_was_stored_since_its_checkpoint(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False) as broker:
            await produce(broker, batch())
        disk.kill()
        for name in ("producerSequence.json", "producerSequence.json.bak"):
            disk.remove_tree(STORE_ROOT / "config" / name)
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, batch(epoch=2))
            assert await bodies(broker) == BODIES

    async def test_numbers_of_messages_that_the_log_does_not_have_are_forgotten(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, batch())
        earlier = disk.fork()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, batch(4, [b"four"]))
        path = STORE_ROOT / "config" / "producerSequence.json"
        replace_file(earlier, path, read_file(disk, path))
        async with running_broker(earlier, SimClock()) as broker:
            await produce(broker, batch(1, epoch=2), batch(4, [b"four"], epoch=2))
            assert await bodies(broker) == [*BODIES, b"four"]

    async def test_the_file_alone_is_enough_after_a_clean_stop(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, batch())
        for name in ("producerSequence.json", "producerSequence.json.bak"):
            disk.remove_tree(STORE_ROOT / "config" / name)
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, batch(epoch=2))
            assert await bodies(broker) == BODIES * 2  # which shows that it is this file that knows


class TestNotWaitingForTheDisk:
    @staticmethod
    def unwaiting(body: bytes) -> IncomingBatch:
        return IncomingBatch("t", 0, 1, producer_record("t", body, properties={WAIT: "false"}))

    async def test_a_message_that_need_not_wait_is_acknowledged_before_it_is_on_disk(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            outcomes = broker.producing.put([self.unwaiting(b"fast")])
            acknowledging = broker.producing.acknowledge(outcomes, broker.store.log_end)
            with pytest.raises(StopIteration):  # it ends without having waited for anything
                acknowledging.send(None)
            assert broker.store.flusher.durable_end < broker.store.log_end

    async def test_in_one_frame_with_one_that_waits_it_waits_too(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, self.unwaiting(b"fast"), incoming("t", [b"safe"]))
            assert broker.store.flusher.durable_end == broker.store.log_end

    async def test_a_batch_waits_when_one_of_its_records_does(self) -> None:
        records = producer_record("t", b"fast", properties={WAIT: "false"}) + producer_record("t", b"safe")
        async with running_broker(SimDisk(), SimClock()) as broker:
            (outcome,) = broker.producing.put([IncomingBatch("t", 0, 2, records)])
            assert outcome.waits
