"""Recalls of many messages, and of messages whose files of the log have gone."""

from __future__ import annotations

import pytest

from mq_broker.core.limits import RejectedError
from mq_broker.core.topics import TIMER
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.processor.recalling import RECALL_MESSAGES_MAX, NewTime
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import (
    bodies,
    clean,
    delivering_broker,
    fill,
    in_ten_seconds,
    options,
    outcomes,
    produce,
    producer_record,
    store_options,
    waiting,
)
from mqproto.codes import RecallOutcome, ResponseCode
from mqproto.properties import TIMER_DELAY_MS, UNIQ_KEY
from osenv import SimClock, SimDisk

START_MS = 1_700_000_000_000
REMOVED, RESCHEDULED, DELIVERED = RecallOutcome.REMOVED, RecallOutcome.RESCHEDULED, RecallOutcome.ALREADY_DELIVERED
LARGE = store_options(log_file_bytes=1024 * 1024)
IN_A_MINUTE = NewTime(delay_ms=60_000)


def waiting_batch(count: int, first: int = 0) -> IncomingBatch:
    """So many of them in one batch, with one key."""
    records = [
        producer_record("t", b"x", key="k", properties={UNIQ_KEY: f"m{number}", TIMER_DELAY_MS: "10000"})
        for number in range(first, first + count)
    ]
    return IncomingBatch("t", 0, count, b"".join(records))


class TestMany:
    async def test_more_than_one_request_removes_are_removed_by_several(self) -> None:
        clock, half_of_it = SimClock(START_MS), RECALL_MESSAGES_MAX // 2
        async with delivering_broker(SimDisk(), clock, store=LARGE) as broker:
            await produce(broker, waiting_batch(half_of_it), waiting_batch(half_of_it + 1))
            answer = await broker.recalling.recall("t", "k")
            assert answer.truncated
            assert sum(waiting(broker).values()) == 1
            assert set(outcomes(answer).values()) == {REMOVED}
            assert not (await broker.recalling.recall("t", "k")).truncated
            assert waiting(broker) == {}

    async def test_what_was_removed_by_several_requests_is_told_so_for_ever(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock, store=LARGE) as broker:
            await produce(broker, waiting_batch(RECALL_MESSAGES_MAX), waiting_batch(5, first=RECALL_MESSAGES_MAX))
            while waiting(broker):
                await broker.recalling.recall("t", "k")
            for _ in range(2):
                assert set(outcomes(await broker.recalling.recall("t", "k")).values()) == {REMOVED}
                await clock.advance(100)
            assert outcomes(await broker.recalling.recall("t", "m0")) == {"m0": REMOVED}

    async def test_what_was_rescheduled_and_then_removed_by_several_requests_is_told_so(self) -> None:
        async with delivering_broker(SimDisk(), SimClock(START_MS), store=LARGE) as broker:
            for first in (0, RECALL_MESSAGES_MAX // 2):
                level = [in_ten_seconds("level", f"m{first + one}") for one in range(RECALL_MESSAGES_MAX // 2)]
                await produce(broker, *level)
            await broker.recalling.recall("t", "k", IN_A_MINUTE)
            await produce(broker, waiting_batch(5, first=RECALL_MESSAGES_MAX))
            while waiting(broker):
                await broker.recalling.recall("t", "k")
            assert set(outcomes(await broker.recalling.recall("t", "k")).values()) == {REMOVED}

    async def test_more_than_one_request_reschedules_are_rejected_and_wait_as_before(self) -> None:
        async with delivering_broker(SimDisk(), SimClock(START_MS), store=LARGE) as broker:
            await produce(broker, waiting_batch(RECALL_MESSAGES_MAX), in_ten_seconds("timer"))
            with pytest.raises(RejectedError, match="2,000") as rejected:
                await broker.recalling.recall("t", "k", IN_A_MINUTE)
            assert rejected.value.code is ResponseCode.MESSAGE_ILLEGAL
            assert waiting(broker) == {TIMER: RECALL_MESSAGES_MAX + 1}

    @pytest.mark.parametrize("flush", FlushDiskType)
    async def test_notes_that_need_several_files_of_the_log_are_one_answer(self, flush: FlushDiskType) -> None:
        store = store_options(flush=flush, log_file_bytes=4_096)
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock, store=store) as broker:
            for number in range(100):
                await produce(broker, in_ten_seconds("timer", f"m{number}"))
            assert set(outcomes(await broker.recalling.recall("t", "k", IN_A_MINUTE)).values()) == {RESCHEDULED}
            assert len(outcomes(await broker.recalling.recall("t", "k"))) == 100
            await clock.advance(100)
            assert await bodies(broker) == []


class TestOldFiles:
    """Files of the log go: what waited in them was carried over, what has ended may be forgotten."""

    async def all_below_goes(self, broker: Broker, clock: SimClock, disk: SimDisk, end: int) -> None:
        while broker.store.log_begin < end:
            await fill(broker, 7, "filler")
            await clean(broker, clock, disk)

    @pytest.mark.parametrize("kind", ["level", "timer"])
    async def test_what_was_carried_over_can_be_rescheduled_and_removed(self, kind: str) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock, store=options()) as broker:
            await produce(broker, in_ten_seconds(kind))
            for new_time, outcome in ((NewTime(delay_ms=9_000_000), RESCHEDULED), (None, REMOVED)):
                await self.all_below_goes(broker, clock, disk, broker.store.log_end)
                assert outcomes(await broker.recalling.recall("t", "k", new_time)) == {"m": outcome}
            await clock.advance(10_000)
            assert await bodies(broker) == []

    @pytest.mark.parametrize(("recalls", "outcome"), [(True, REMOVED), (False, DELIVERED)])
    async def test_an_end_is_told_as_long_as_its_own_record_is_there(
        self, recalls: bool, outcome: RecallOutcome
    ) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock, store=options()) as broker:
            await produce(broker, in_ten_seconds("level"))
            waiting_end = broker.store.log_end
            await fill(broker, 7, "filler")
            if recalls:
                await broker.recalling.recall("t", "k")
            await clock.advance(10)
            ends = broker.store.log_end
            await clean(broker, clock, disk)
            assert waiting_end <= broker.store.log_begin < ends
            assert outcomes(await broker.recalling.recall("t", "k")) == {"m": outcome}
            await self.all_below_goes(broker, clock, disk, ends)
            assert outcomes(await broker.recalling.recall("t", "k")) == {}
