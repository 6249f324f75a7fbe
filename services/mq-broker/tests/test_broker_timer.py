"""Messages with a due time of their own: to the millisecond, in order, within their limits."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.core.topics import TIMER
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.processor.recalling import NewTime
from mq_broker.schedule.delivery import AHEAD_BYTES_MAX, AHEAD_RECORDS_MAX, DELIVER_RECORDS_MAX
from mq_broker.testing import (
    bodies,
    delivering_broker,
    incoming,
    produce,
    producer_record,
    read_all,
    store_options,
    timed,
)
from mqproto.codes import ResponseCode
from mqproto.names import TIMER_TOPIC
from mqproto.properties import (
    DELAY_MS_MAX,
    DUE_TIMESTAMP,
    REAL_TOPIC,
    SCHEDULE_POSITION,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    decode_properties,
)
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
LARGE_LOG_FILES = 8 * 1024 * 1024


def asked_for(delay_ms: int, *, absolute: bool, queue_id: int = 0) -> IncomingBatch:
    if absolute:
        return timed("t", b"x", queue_id=queue_id, deliver_ms=START_MS + delay_ms)
    return timed("t", b"x", queue_id=queue_id, delay_ms=delay_ms)


def asking(properties: dict[str, str], delay_level: int = 0) -> IncomingBatch:
    return IncomingBatch("t", 0, 1, producer_record("t", b"x", delay_level=delay_level, properties=properties))


class TestDueTimes:
    @pytest.mark.mechanism("D7")
    @pytest.mark.parametrize("delay_ms", [1, 99, 100, 101, 1_234, 3_600_001, DELAY_MS_MAX])
    @pytest.mark.parametrize("absolute", [True, False])
    async def test_a_message_comes_in_its_millisecond(self, delay_ms: int, absolute: bool) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, asked_for(delay_ms, absolute=absolute, queue_id=2))
            await clock.advance((delay_ms - 1) / 1_000)
            assert (await bodies(broker, queue_id=2), broker.delay.waiting(TIMER)) == ([], 1)
            await clock.advance(0.001)
            (record,) = await read_all(broker, "t", 2)
            assert (record.body, record.store_timestamp_ms) == (b"x", START_MS + delay_ms)
            properties = decode_properties(record.properties)
            assert properties[SCHEDULE_POSITION] == f"{TIMER}:0"
            assert not {TIMER_DELAY_MS, TIMER_DELIVER_MS, DUE_TIMESTAMP, REAL_TOPIC} & properties.keys()
            assert broker.delay.waiting(TIMER) == 0
            assert broker.delay.delivery.lateness(TIMER).max_ms == 0

    @pytest.mark.parametrize(
        "past",
        [timed("t", b"x", delay_ms=0), timed("t", b"x", deliver_ms=0), timed("t", b"x", deliver_ms=START_MS - 1)],
    )
    async def test_what_is_past_comes_at_once(self, past: IncomingBatch) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, past)
            await settle()
            assert await bodies(broker) == [b"x"]
            assert broker.delay.delivery.lateness(TIMER).max_ms == 0

    async def test_a_wall_clock_that_jumps_a_day_moves_no_delay(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            for number, jump_ms in enumerate((86_400_000, -2 * 86_400_000)):
                await produce(broker, timed("t", b"x", delay_ms=5_000))
                clock.set_wall_ms(clock.wall_ms() + jump_ms)
                await clock.advance(4.999)
                assert len(await bodies(broker)) == number
                await clock.advance(0.001)
                assert len(await bodies(broker)) == number + 1

    async def test_no_fraction_of_a_millisecond_is_missing_from_a_delay(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await clock.advance(0.0009)
            await produce(broker, timed("t", b"x", delay_ms=10))
            await clock.advance(0.0100)
            assert await bodies(broker) == []
            await clock.advance(0.0001)
            assert await bodies(broker) == [b"x"]


HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


async def delivered_after(broker: Broker, clock: SimClock, seconds: float) -> bool:
    """Whether the next message comes then, to the millisecond."""
    before = len(await bodies(broker))
    await clock.advance(seconds - 0.001)
    early = len(await bodies(broker)) - before
    await clock.advance(0.001)
    return (early, len(await bodies(broker)) - before) == (0, 1)


class TestWallClock:
    """What is due at a time of the calendar follows the clock of the machine, also when that is put right."""

    @pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
    async def test_what_is_sent_after_a_step_comes_by_the_corrected_clock(self, step_ms: int) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            clock.set_wall_ms(clock.wall_ms() + step_ms)
            await produce(broker, timed("t", b"x", deliver_ms=clock.wall_ms() + 5_000))
            assert await delivered_after(broker, clock, 5)

    @pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
    async def test_what_waits_during_a_step_comes_by_the_corrected_clock(self, step_ms: int) -> None:
        """Also when the machine has slept: CLOCK_MONOTONIC stands still meanwhile."""
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, timed("t", b"x", deliver_ms=START_MS + 3 * HOUR_MS))
            await produce(broker, timed("t", b"delay", delay_ms=5 * HOUR_MS))
            clock.set_wall_ms(clock.wall_ms() + step_ms)
            left_s = (3 * HOUR_MS - step_ms) / 1_000
            assert await delivered_after(broker, clock, left_s)
            assert await delivered_after(broker, clock, 5 * HOUR_MS / 1_000 - left_s)
            assert await bodies(broker) == [b"x", b"delay"]

    async def test_after_one_start_a_year_ahead_times_of_the_calendar_are_kept_at_later_starts(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS + YEAR_MS)
        async with delivering_broker(disk, clock) as broker:
            await produce(broker, timed("other", b"x", delay_ms=0))
        clock.set_wall_ms(START_MS)
        for _ in range(2):
            async with delivering_broker(disk, clock) as broker:
                await produce(broker, timed("t", b"x", deliver_ms=clock.wall_ms() + 3 * 24 * HOUR_MS))
                await produce(broker, timed("t", b"delay", delay_ms=5_000))
                assert await delivered_after(broker, clock, 5)
            await clock.advance(24 * HOUR_MS / 1_000)  # the broker is down for a day
            async with delivering_broker(disk, clock) as broker:
                assert await delivered_after(broker, clock, 2 * 24 * HOUR_MS / 1_000 - 5)

    async def test_a_start_takes_no_order_over_that_was_made_while_the_clocks_differed(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock) as broker:
            await produce(broker, timed("t", b"delay", delay_ms=3 * HOUR_MS))
            clock.set_wall_ms(clock.wall_ms() + HOUR_MS)
            await clock.advance(2 * HOUR_MS / 1_000 + 1)
            assert await bodies(broker) == []
        async with delivering_broker(disk, clock) as broker:
            await settle()
            assert await bodies(broker) == [b"delay"]  # broker time is the wall clock again

    async def test_a_new_time_follows_the_corrected_clock(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, timed("t", b"x", delay_ms=24 * HOUR_MS, key="k"))
            clock.set_wall_ms(clock.wall_ms() + HOUR_MS)
            await broker.recalling.recall("t", "k", NewTime(deliver_ms=clock.wall_ms() + 5_000))
            assert await delivered_after(broker, clock, 5)


class TestLimits:
    @pytest.mark.mechanism("D7")
    @pytest.mark.parametrize("absolute", [True, False])
    async def test_40_days_are_allowed_and_a_millisecond_more_is_rejected_with_the_limit(self, absolute: bool) -> None:
        async with delivering_broker(SimDisk(), SimClock(START_MS)) as broker:
            outcomes = []
            for delay_ms in (DELAY_MS_MAX, DELAY_MS_MAX + 1):
                outcomes += await produce(broker, asked_for(delay_ms, absolute=absolute))
            assert [outcome.code for outcome in outcomes] == [ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL]
            assert "at most 3,456,000,000 (40 days) are allowed" in outcomes[1].remark
            assert broker.delay.waiting(TIMER) == 1

    @pytest.mark.parametrize(
        ("properties", "delay_level"),
        [
            ({TIMER_DELAY_MS: "5", TIMER_DELIVER_MS: "5"}, 0),
            ({TIMER_DELAY_MS: "5"}, 3),
            ({TIMER_DELIVER_MS: "5"}, 3),
        ],
    )
    async def test_two_ways_to_ask_for_a_delay_are_rejected(self, properties: dict[str, str], delay_level: int) -> None:
        async with delivering_broker(SimDisk(), SimClock()) as broker:
            (outcome,) = await produce(broker, asking(properties, delay_level))
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
            assert outcome.remark.endswith("one of them is allowed")

    @pytest.mark.parametrize("value", ["", "-1", "1.5", "soon", "٣", "99999999999", " 5"])
    async def test_what_is_no_number_is_rejected(self, value: str) -> None:
        async with delivering_broker(SimDisk(), SimClock()) as broker:
            (outcome,) = await produce(broker, asking({TIMER_DELAY_MS: value}))
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
            assert "is not a whole number from 0 up" in outcome.remark

    async def test_clients_cannot_send_into_the_timer_s_own_topic(self) -> None:
        async with delivering_broker(SimDisk(), SimClock()) as broker:
            (outcome,) = await produce(broker, incoming(TIMER_TOPIC, [b"x"]))
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL


class TestOrder:
    async def test_equal_due_times_come_in_the_order_of_storing(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            for number in range(300):
                await produce(broker, timed("t", b"%d" % number, deliver_ms=START_MS + 5_000))
            await clock.advance(5)
            assert await bodies(broker) == [b"%d" % number for number in range(300)]

    async def test_different_due_times_come_in_their_order(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            for number in range(100):
                await produce(broker, timed("t", b"%d" % number, deliver_ms=START_MS + 5_000 - 37 * number))
            await clock.advance(5)
            assert await bodies(broker) == [b"%d" % number for number in reversed(range(100))]

    async def test_newcomers_come_before_what_is_in_memory_already_and_due_later(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            for number in range(AHEAD_RECORDS_MAX + 10):
                await produce(broker, timed("t", b"ahead %d" % number, delay_ms=80))
            await clock.advance(0.040)  # memory is full of them
            await produce(broker, timed("t", b"sooner", delay_ms=10), timed("t", b"soonest", delay_ms=1))
            await clock.advance(0.001)
            assert await bodies(broker) == [b"soonest"]
            await clock.advance(0.009)
            assert await bodies(broker) == [b"soonest", b"sooner"]
            await produce(broker, timed("t", b"last", delay_ms=30))
            await clock.advance(0.030)
            ahead = [b"ahead %d" % number for number in range(AHEAD_RECORDS_MAX + 10)]
            assert (await bodies(broker))[2:] == [*ahead, b"last"]

    async def test_levels_and_the_timer_do_not_wait_for_each_other(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, incoming("t", [b"level"], delay_level=1), timed("t", b"time", delay_ms=999))
            await clock.advance(0.999)
            assert await bodies(broker) == [b"time"]
            await clock.advance(0.001)
            assert await bodies(broker) == [b"time", b"level"]


class TestManyAndLarge:
    async def test_far_more_than_memory_holds_come_in_one_millisecond(self) -> None:
        clock, count = SimClock(START_MS), 10 * AHEAD_RECORDS_MAX + 3
        async with delivering_broker(SimDisk(), clock) as broker:
            for number in range(count):
                await produce(broker, timed("t", b"%d" % number, deliver_ms=START_MS + 1_000))
            await clock.advance(1)
            await settle()
            assert await bodies(broker) == [b"%d" % number for number in range(count)]
            assert broker.delay.delivery.lateness(TIMER).count == count
            assert broker.delay.delivery.lateness(TIMER).max_ms == 0

    async def test_large_bodies_are_in_memory_up_to_a_bound_and_come_in_time(self) -> None:
        clock, size, count = SimClock(START_MS), 300_000, 20
        async with delivering_broker(SimDisk(), clock, store=store_options(log_file_bytes=LARGE_LOG_FILES)) as broker:
            for number in range(count):
                await produce(broker, timed("t", b"%06d" % number + bytes(size), delay_ms=1_000))
            await clock.advance(0.950)
            ready = broker.delay.timer._ahead.take_all()
            broker.delay.timer._ahead.add(ready)
            assert 3 <= len(ready) <= 1 + AHEAD_BYTES_MAX // size
            await clock.advance(0.050)
            assert [int(body[:6]) for body in await bodies(broker)] == [*range(count)]
            assert {record.store_timestamp_ms for record in await read_all(broker, "t")} == {START_MS + 1_000}

    async def test_a_body_larger_than_the_bound_comes_in_time(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock, store=store_options(log_file_bytes=LARGE_LOG_FILES)) as broker:
            for body in (b"before", bytes(3 * AHEAD_BYTES_MAX), b"after"):
                await produce(broker, timed("t", body, delay_ms=1_000))
            await clock.advance(1)
            assert [len(body) for body in await bodies(broker)] == [6, 3 * AHEAD_BYTES_MAX, 5]

    @pytest.mark.mechanism("D3")
    @pytest.mark.parametrize("kind", ["level", "timer"])
    async def test_a_producer_has_its_turn_while_thousands_come_due_in_one_millisecond(self, kind: str) -> None:
        clock, count = SimClock(START_MS), 10_000
        async with delivering_broker(SimDisk(), clock, store=store_options(log_file_bytes=1024 * 1024)) as broker:
            for _ in range(20):
                waiting = [b"x"] * (count // 20)
                await produce(broker, incoming("t", waiting, delay_level=1) if kind == "level" else _timed(waiting))
            delivered: list[int] = []

            async def send() -> None:
                while not stored(broker, "t"):  # noqa: ASYNC110 - the rounds of the event loop are what counts
                    await asyncio.sleep(0)
                await produce(broker, incoming("other", [b"meanwhile"]))
                delivered.append(stored(broker, "t"))

            sending = asyncio.create_task(send())
            await clock.advance(1)
            await sending
            assert 0 < delivered[0] < 10 * DELIVER_RECORDS_MAX
            await settle(100_000)
            assert (stored(broker, "t"), stored(broker, "other")) == (count, 1)


def _timed(bodies: list[bytes]) -> IncomingBatch:
    records = [producer_record("t", body, properties={TIMER_DELAY_MS: "1000"}) for body in bodies]
    return IncomingBatch("t", 0, len(records), b"".join(records))


def stored(broker: Broker, topic: str) -> int:
    return broker.store.queue_end(topic, 0)
