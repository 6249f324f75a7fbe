"""Delay levels at work: exact, in order, never early, never forgotten."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.delays import DEFAULT_DELAY_LEVELS
from mq_broker.core.rewrite import single_record_batch
from mq_broker.processor.broker import Broker
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import (
    STORE_ROOT,
    broker_options,
    incoming,
    produce,
    producer_record,
    read_all,
    running_broker,
    store_options,
    timed,
)
from mqproto.names import SCHEDULE_TOPIC, TIMER_TOPIC
from mqproto.properties import DELAY, REAL_QID, REAL_TOPIC, SCHEDULE_POSITION, TAGS, UNIQ_KEY, WAIT, decode_properties
from osenv import SimClock, SimDisk

LEVEL_16 = 16
HALF_AN_HOUR_S = 30 * 60


async def bodies(broker: Broker, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in await read_all(broker, topic, queue_id)]


@pytest.mark.mechanism("D1", "D3", "D5")
async def test_a_level_16_message_arrives_after_exactly_30_minutes() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        await produce(broker, incoming("t", [b"close it"], queue_id=2, tag="timeout", delay_level=LEVEL_16))
        await clock.advance(HALF_AN_HOUR_S - 0.001)
        assert await bodies(broker, queue_id=2) == []
        await clock.advance(0.001)
        (record,) = await read_all(broker, "t", 2, "timeout")
        properties = decode_properties(record.properties)
        assert (record.body, record.reconsume_times, properties[UNIQ_KEY]) == (b"close it", 0, "id-")
        assert properties[TAGS] == "timeout"
        assert properties[WAIT] == "false"
        assert properties[SCHEDULE_POSITION] == "16:0"
        assert not {DELAY, REAL_TOPIC} & properties.keys()
        assert record.born_timestamp_ms == 1


async def test_no_fraction_of_a_millisecond_is_missing_from_a_delay() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        await clock.advance(0.0009)
        await produce(broker, incoming("t", [b"x"], delay_level=1))
        await clock.advance(0.9999)
        assert await bodies(broker) == []
        await clock.advance(0.0002)
        assert await bodies(broker) == [b"x"]


@pytest.mark.mechanism("D3")
async def test_nothing_polls_while_a_message_waits() -> None:
    clock, disk = SimClock(), SimDisk()
    async with running_broker(disk, clock) as broker:
        await produce(broker, incoming("t", [b"x"], delay_level=LEVEL_16))
        await clock.advance(30)  # checkpoints and the like have been made
        reads: list[str] = []
        disk.before = lambda call, path: reads.append(call)
        await clock.advance(HALF_AN_HOUR_S - 60)
        assert set(reads) == {"usage"}  # the cleaner asks how full the disk is
        assert broker.delay.waiting(LEVEL_16) == 1


@pytest.mark.mechanism("D2")
async def test_waiting_messages_stand_in_the_level_s_queue_with_their_due_time() -> None:
    clock = SimClock(wall_ms=1_000_000)
    async with running_broker(SimDisk(), clock) as broker:
        (outcome,) = await produce(broker, incoming("t", [b"x"], delay_level=3))
        queue = broker.store.queue(SCHEDULE_TOPIC, 2)
        assert queue is not None
        _, _, due_ms = CQ_ENTRY.unpack(queue.read_hot(0, 1) or b"")
        assert due_ms == 1_010_000
        assert outcome.base_log_offset == queue.entry(0)[0]


@pytest.mark.mechanism("D3")
async def test_each_level_keeps_its_order_and_levels_do_not_wait_for_each_other() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        await produce(broker, incoming("t", [b"late"], delay_level=3))
        await produce(broker, incoming("t", [b"%d" % k for k in range(200)], delay_level=2))
        await clock.advance(4)
        await produce(broker, incoming("t", [b"soon"], delay_level=1))
        await clock.advance(1)
        assert sorted(await bodies(broker)) == sorted([b"%d" % k for k in range(200)] + [b"soon"])
        in_order = [body for body in await bodies(broker) if body != b"soon"]
        assert in_order == [b"%d" % k for k in range(200)]
        await clock.advance(5)
        assert (await bodies(broker))[-1] == b"late"
        assert broker.delay.delivery.lateness(2).count == 200
        assert broker.delay.delivery.lateness(2).max_ms == 0


@pytest.mark.mechanism("D4")
async def test_a_wall_clock_that_jumps_a_day_delivers_neither_early_nor_late() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        for jump_ms in (86_400_000, -2 * 86_400_000):
            before = len(await bodies(broker))
            await produce(broker, incoming("t", [b"x"], delay_level=2))
            clock.set_wall_ms(clock.wall_ms() + jump_ms)
            await clock.advance(4.999)
            assert len(await bodies(broker)) == before
            await clock.advance(0.001)
            assert len(await bodies(broker)) == before + 1


@pytest.mark.mechanism("D6")
@pytest.mark.parametrize("clean_stop", [True, False])
async def test_a_restart_delivers_what_waited_once_and_what_came_due_meanwhile_at_once(clean_stop: bool) -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, clean_stop=clean_stop) as broker:
        await produce(broker, incoming("t", [b"before"], delay_level=1))
        await produce(broker, incoming("t", [b"while down"], delay_level=2))
        await produce(broker, incoming("t", [b"after"], delay_level=4))
        await clock.advance(1)
        assert await bodies(broker) == [b"before"]
    disk.kill()
    await clock.advance(10)
    async with running_broker(disk, clock) as broker:
        await clock.advance(0)
        assert await bodies(broker) == [b"before", b"while down"]
        await clock.advance(19)
        assert await bodies(broker) == [b"before", b"while down", b"after"]


@pytest.mark.mechanism("D6")
async def test_a_start_writes_no_progress_before_it_knows_all_of_it() -> None:
    """RocketMQ #6881: a start that takes long, and a timer that writes what has not been read yet."""
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock) as broker:
        await produce(broker, incoming("t", [b"%d" % k for k in range(5)], delay_level=1))
        await clock.advance(1)
    path = StoreLayout(STORE_ROOT).config / "delayOffset.json"
    written: list[int] = []

    def note(call: str, changed: Path) -> None:
        if call == "replace" and changed == path:
            written.append(json.loads(disk.contents()[path])["offsetTable"]["1"])

    disk.after = note
    async with running_broker(disk, clock) as broker:
        await broker.store.checkpoint()
    assert set(written) == {5}


@pytest.mark.mechanism("D6")
async def test_progress_lost_with_its_file_is_found_again_in_the_log() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock) as broker:
        await produce(broker, incoming("t", [b"%d" % k for k in range(5)], delay_level=1))
        await clock.advance(1)
    path = StoreLayout(STORE_ROOT).config
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        disk.remove_tree(path / name)
    async with running_broker(disk, clock) as broker:
        await clock.advance(60)
        assert await bodies(broker) == [b"%d" % k for k in range(5)]


@pytest.mark.mechanism("D4")
async def test_a_table_that_became_shorter_brings_deliveries_forward_and_a_lost_level_keeps_its_promise() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, options=broker_options("1m 2m")) as broker:
        await produce(broker, incoming("t", [b"first level"], delay_level=1))
        await produce(broker, incoming("t", [b"second level"], delay_level=2))
    async with running_broker(disk, clock, options=broker_options("10s")) as broker:
        await clock.advance(10)
        assert await bodies(broker) == [b"first level"]
        await clock.advance(109.999)
        assert await bodies(broker) == [b"first level"]
        await clock.advance(0.001)
        assert await bodies(broker) == [b"first level", b"second level"]


@pytest.mark.mechanism("D4")
async def test_a_lost_level_keeps_its_promise_though_the_lost_levels_before_it_were_never_used() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, options=broker_options("1s 2s 3s 4s 1m")) as broker:
        await produce(broker, incoming("t", [b"x"], delay_level=5))
    async with running_broker(disk, clock, options=broker_options("1s 2s")) as broker:
        assert [queue.level for queue in broker.delay.queues if queue.waiting] == [5]
        await clock.advance(60)
        assert await bodies(broker) == [b"x"]


@pytest.mark.mechanism("D4")
async def test_a_consume_queue_rebuilt_under_another_table_says_the_same_due_times() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, options=broker_options("1m")) as broker:
        await produce(broker, incoming("t", [b"x"], delay_level=1))
        queue = broker.store.queue(SCHEDULE_TOPIC, 0)
        assert queue is not None
        before = queue.read(0, 1)
    disk.remove_tree(StoreLayout(STORE_ROOT).consume_queues)
    async with running_broker(disk, clock, options=broker_options("10m")) as broker:
        queue = broker.store.queue(SCHEDULE_TOPIC, 0)
        assert queue is not None
        assert queue.read(0, 1) == before
        await clock.advance(60)
        assert await bodies(broker) == [b"x"]


@pytest.mark.mechanism("D3")
async def test_a_disk_that_rejects_the_delivery_is_asked_again_after_10_s() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, options=broker_options(DEFAULT_DELAY_LEVELS)) as broker:
        await produce(broker, incoming("t", [b"x"], delay_level=1))

        def reject(call: str, path: Path) -> None:
            if call == "pwrite":
                raise OSError(errno.ENOSPC, "no space left")

        disk.before = reject
        await clock.advance(1.5)
        disk.before = lambda call, path: None
        assert await bodies(broker) == []
        await clock.advance(9.499)
        assert await bodies(broker) == []
        await clock.advance(0.001)
        assert await bodies(broker) == [b"x"]


@pytest.mark.mechanism("D1")
async def test_a_level_above_the_table_waits_as_long_as_the_highest() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock, options=broker_options("1s 2s"), store=store_options()) as broker:
        await produce(broker, incoming("t", [b"x"], delay_level=40))
        await clock.advance(1.999)
        assert await bodies(broker) == []
        await clock.advance(0.001)
        assert await bodies(broker) == [b"x"]


@pytest.mark.parametrize("waiting", [(SCHEDULE_TOPIC, 0), (TIMER_TOPIC, 0)])
@pytest.mark.parametrize("properties", [{}, {REAL_TOPIC: "t"}, {REAL_TOPIC: "t", REAL_QID: "first"}])
async def test_a_record_that_does_not_say_where_it_is_going_is_passed_over(
    waiting: tuple[str, int], properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        topic, queue_id = waiting
        data = producer_record(topic, b"foreign", queue_id=queue_id, properties=properties)
        due_ms = broker.time.now_ms() + 1_000
        broker.store.put([single_record_batch(topic, queue_id, data, due_ms)], broker.time.stamp_ms())
        await produce(broker, incoming("t", [b"own"], delay_level=1), timed("t", b"timed", delay_ms=1_000))
        await clock.advance(2)
        assert sorted(await bodies(broker)) == [b"own", b"timed"]
        assert broker.delay.waiting(1) == 0
        assert "does not say to which queue it is going" in caplog.text
