"""What members report as finished, where a group begins, and what sets it elsewhere (mechanisms C20-C23)."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from pathlib import Path

import pytest

from mq_broker.core.consumer_offsets import Progress, version_of
from mq_broker.core.limits import RANGES_PER_QUEUE_MAX, RejectedError
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.broker import Broker
from mq_broker.processor.consuming import ConsumeFromWhere
from mq_broker.processor.group_administration import QUEUE_END, OffsetChange
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import RecordingSession, client, incoming, produce, running_broker, store_options
from mqproto.codes import LifeEventKind, ResponseCode
from mqproto.names import retry_topic
from osenv import SeededRng, SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
FIRST, LAST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


class Nothing(SeededRng):
    """Of what was not synced nothing survives a power cut."""

    def randrange(self, start: int, stop: int) -> int:  # type: ignore[override]
        return start


async def fill(broker: Broker, count: int, topic: str = "t") -> None:
    await produce(broker, incoming(topic, [b"%d" % number for number in range(count)]))


async def finished_many(broker: Broker) -> None:
    """Of 2101 to 2200 everything but 2101."""
    for _ in range(23):
        await fill(broker, 100)
    broker.offsets.commit("g", [("t", 0, Progress(2_101, ((2_102, 2_201),)))])


class TestReports:
    @pytest.mark.mechanism("C21")
    async def test_after_a_power_cut_of_2101_to_2200_only_2101_is_unfinished(self) -> None:
        """Mechanism C21, without its window: what the journal has flushed is kept."""
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await finished_many(broker)
            await clock.advance(0.1)
        disk.crash(Nothing(0))
        async with running_broker(disk, SimClock()) as broker:
            assert broker.offsets.query("g", "t", 0) == Progress(2_101, ((2_102, 2_201),))

    async def test_what_was_said_of_lost_messages_does_not_count_for_those_that_take_their_numbers(self) -> None:
        """Under asynchronous flush a power cut takes messages that a member has got; it lives on, and reports them."""
        disk, clock = SimDisk(), SimClock()
        asynchronous = partial(running_broker, store=store_options(flush=FlushDiskType.ASYNC_FLUSH))
        async with asynchronous(disk, clock, clean_stop=False) as broker:
            await fill(broker, 4)
            await broker.store.flusher.flush()
            broker.offsets.commit("g", [("t", 0, Progress(2))])
            await clock.advance(0.1)
            await fill(broker, 3)
            broker.offsets.commit("g", [("t", 0, Progress(2, ((5, 7),)))])
        disk.crash(Nothing(0))
        async with asynchronous(disk, SimClock()) as broker:
            assert broker.store.queue_bounds("t", 0) == (0, 4)
            await fill(broker, 3)  # they are 4 to 6 now
            assert "reset" in broker.offsets.commit("g", [("t", 0, Progress(7))])
            assert broker.offsets.query("g", "t", 0) == Progress(2, (), version_of(1, 0))

    @pytest.mark.parametrize(
        ("flush", "clean_stop", "version"),
        [
            (FlushDiskType.SYNC_FLUSH, False, 0),
            (FlushDiskType.ASYNC_FLUSH, True, 0),
            (FlushDiskType.ASYNC_FLUSH, False, 0),  # the page cache outlives the process
        ],
    )
    async def test_reports_go_on_counting_after_a_restart_that_can_have_lost_nothing(
        self, flush: FlushDiskType, *, clean_stop: bool, version: int
    ) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), store=store_options(flush=flush), clean_stop=clean_stop) as broker:
            await fill(broker, 4)
            broker.offsets.commit("g", [("t", 0, Progress(2))])
            await broker.offset_journal.flush()
        disk.kill()
        async with running_broker(disk, SimClock(), store=store_options(flush=flush)) as broker:
            assert broker.offsets.query("g", "t", 0) == Progress(2, (), version)

    async def test_what_was_said_of_a_deleted_topic_does_not_count_for_the_new_one_after_a_power_cut(self) -> None:
        disk, clock, options = SimDisk(), SimClock(), store_options(flush=FlushDiskType.ASYNC_FLUSH)
        async with running_broker(disk, clock, store=options, clean_stop=False) as broker:
            await broker.topic_administration.update(TopicConfig("t", 1, 1))
            await clock.advance(1)
            await fill(broker, 2)
            broker.offsets.commit("g", [("t", 0, finished := Progress(2))])
        disk.crash(Nothing(0))
        async with running_broker(disk, SimClock(), store=options) as broker:
            await broker.topic_administration.delete("t")
            await broker.topic_administration.update(TopicConfig("t", 1, 1))
            await fill(broker, 2)  # others, with the numbers of those that are lost
            remark = broker.offsets.commit("g", [("t", 0, finished)])
            assert "left out" in remark
            known = broker.offsets.query("g", "t", 0)
            assert known is not None, "the member is told where to go on"
            assert known.offset == 0

    async def test_reports_are_added_whatever_their_order(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await fill(broker, 10)
            for report in (Progress(4), Progress(2, ((6, 8),)), Progress(0, ((5, 7),)), Progress(1)):
                assert broker.offsets.commit("g", [("t", 0, report)]) == ""
            assert broker.offsets.query("g", "t", 0) == Progress(4, ((5, 8),))
            broker.offsets.commit("g", [("t", 0, Progress(5))])
            assert broker.offsets.query("g", "t", 0) == Progress(8)

    @pytest.mark.parametrize(
        ("topic", "queue_id", "report", "sentence"),
        [
            ("t", 0, Progress(6), "offset 6 of queue 0 of 't'; allowed are 0 to 5"),
            ("t", 0, Progress(-1), "offset -1; allowed are 0 and more"),
            ("t", 0, Progress(2, ((3, 6),)), "the finished offset 6 is beyond the end 5 of queue 0"),
            ("t", 0, Progress(2, ((2, 3),)), "not beyond offset 2"),
            ("t", 0, Progress(0, (), -1), "version -1"),
            ("t", 4, Progress(0), "topic 't' has no queue 4; it has 0 to 3"),
            ("t", -1, Progress(0), "topic 't' has no queue -1; it has 0 to 3"),
            ("u", 0, Progress(0), "topic 'u' does not exist"),
        ],
    )
    async def test_what_makes_no_sense_is_rejected_and_the_other_queues_count(
        self, topic: str, queue_id: int, report: Progress, sentence: str
    ) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await fill(broker, 5)
            with pytest.raises(RejectedError, match=f"{sentence}.*the other queues' progress has been added"):
                broker.offsets.commit("g", [("t", 1, Progress(0)), (topic, queue_id, report), ("t", 2, Progress(0))])
            with pytest.raises(RejectedError, match="no good"):
                broker.offsets.commit("no good", [("t", 0, Progress(1))])
            assert list(broker.consumer_offsets.all()) == [("g", "t", 1, 0), ("g", "t", 2, 0)]

    async def test_a_queue_that_is_named_twice_is_reported_twice(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await fill(broker, 5)
            broker.offsets.commit("g", [("t", 0, Progress(1)), ("t", 0, Progress(0, ((2, 4),)))])
            assert broker.offsets.query("g", "t", 0) == Progress(1, ((2, 4),))

    async def test_of_ranges_that_are_too_many_together_the_last_ones_are_forgotten(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            for _ in range(45):
                await fill(broker, 200)
            every_other = tuple((at, at + 1) for at in range(2, 2 * RANGES_PER_QUEUE_MAX + 2, 2))
            broker.offsets.commit("g", [("t", 0, Progress(0, every_other))])
            broker.offsets.commit("g", [("t", 0, Progress(0, ((8_900, 8_901),)))])
            assert broker.offsets.query("g", "t", 0) == Progress(0, every_other)

    async def test_the_statistics_count_what_is_finished_beyond_the_offset(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await fill(broker, 10)
            broker.offsets.commit("g", [("t", 0, Progress(1, ((2, 5), (7, 8))))])
            assert [one.finished_beyond for one in await broker.consume_progress.stats("g", "t")] == [4, 0, 0, 0]


class TestBeginning:
    @pytest.mark.mechanism("C10")
    @pytest.mark.parametrize(("where", "offset"), [(FIRST, 0), (LAST, 5), (TIMESTAMP, 3)])
    async def test_a_group_begins_where_it_is_told_and_then_it_has_begun(
        self, where: ConsumeFromWhere, offset: int
    ) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            for _ in range(5):
                await fill(broker, 1)
                await clock.advance(1)
            time_ms = START_MS + 2_500
            assert await broker.offsets.begin("g", "t", 0, where, time_ms) == Progress(offset)
            await fill(broker, 5)
            for other in (FIRST, LAST, TIMESTAMP):
                assert await broker.offsets.begin("g", "t", 0, other, 0) == Progress(offset)
            broker.offsets.commit("g", [("t", 0, Progress(6, ((8, 9),)))])
            assert await broker.offsets.begin("g", "t", 0, where) == Progress(6, ((8, 9),))

    async def test_the_first_message_is_the_first_one_that_is_left(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await fill(broker, 5)
            queue = broker.store.queue("t", 0)
            assert queue is not None
            queue.trim(3)  # as retention does
            assert await broker.offsets.begin("g", "t", 0, FIRST) == Progress(3)

    @pytest.mark.parametrize("where", [LAST, TIMESTAMP])
    async def test_a_group_that_subscribes_begins_with_all_queues_at_once(self, where: ConsumeFromWhere) -> None:
        """Queues that the topic gets later are read from their first message, also by members that come still later."""
        clock = SimClock(START_MS)
        disk = SimDisk()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await produce(broker, incoming("t", [b"0"], queue_id=3))
            await clock.advance(1)
            whole = partial(broker.offsets.begin, "g", "t", timestamp_ms=START_MS + 500, whole_topic=True)
            assert await whole(0, where) == Progress(0)
            await produce(broker, incoming("t", [b"1"], queue_id=3))
            broker.topics.update(TopicConfig("t", 8, 8))
            await produce(broker, incoming("t", [b"2"], queue_id=4))
            assert [await whole(queue_id, where) for queue_id in (3, 4)] == [Progress(1), Progress(0)]
            assert await broker.offsets.begin("g", "t", 5, LAST) == Progress(0)
        disk.crash(Nothing(0))
        async with running_broker(disk, SimClock(START_MS)) as broker:
            assert broker.offsets.query("g", "t", 3) == Progress(1)

    @pytest.mark.parametrize("where", ConsumeFromWhere)
    async def test_retries_begin_with_the_first_one(self, where: ConsumeFromWhere) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            broker.sessions.heartbeat(RecordingSession(), client("c", "g"))
            await fill(broker, 3, retry_topic("g"))
            later_ms = START_MS + 9_000
            assert await broker.offsets.begin("g", retry_topic("g"), 0, where, later_ms) == Progress(0)

    async def test_two_members_that_ask_at_once_get_the_same_answer(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await fill(broker, 5)
            asked = [broker.offsets.begin("g", "t", 0, where, START_MS) for where in (TIMESTAMP, LAST, FIRST) * 2]
            assert len(set(await asyncio.gather(*asked))) == 1

    async def test_what_was_answered_survives_the_power_although_messages_came_since(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False, work=lambda b: b.store.run()) as broker:
            await fill(broker, 5)
            assert await broker.offsets.begin("g", "t", 0, LAST) == Progress(5)
            await fill(broker, 5)
        disk.crash(Nothing(0))
        async with running_broker(disk, SimClock()) as broker:
            assert await broker.offsets.begin("g", "t", 0, LAST) == Progress(5)

    async def test_it_is_not_answered_while_it_is_not_on_disk(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), work=lambda b: b.store.run()) as broker:
            await fill(broker, 5)

            def full(call: str, path: Path) -> None:
                if call == "pwrite":
                    raise OSError(errno.ENOSPC, "full")

            disk.before = full
            for _ in range(2):
                with pytest.raises(OSError, match="full"):
                    await broker.offsets.begin("g", "t", 0, LAST)
            disk.before = lambda call, path: None
            assert await broker.offsets.begin("g", "t", 0, LAST) == Progress(5)

    @pytest.mark.parametrize(("topic", "queue_id"), [("unknown", 0), ("t", 4)])
    async def test_a_queue_that_is_not_there_has_no_beginning(self, topic: str, queue_id: int) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await fill(broker, 1)
            with pytest.raises(RejectedError):
                await broker.offsets.begin("g", topic, queue_id, FIRST)
            assert list(broker.consumer_offsets.all()) == []


class TestSetting:
    async def consumed(self, broker: Broker) -> RecordingSession:
        """A member has finished four of five messages, and then some."""
        await fill(broker, 5)
        session = RecordingSession()
        broker.sessions.heartbeat(session, client("c", "g"))
        broker.offsets.commit("g", [("t", 0, Progress(2, ((3, 5),)))])
        return session

    @pytest.mark.parametrize("offset", [0, 2, 4, 5])
    async def test_a_consumer_goes_on_exactly_where_it_says(self, offset: int) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False, work=lambda b: b.store.run()) as broker:
            await self.consumed(broker)
            await broker.offsets.set("g", [("t", 0, offset)])
            assert broker.offsets.query("g", "t", 0) == Progress(offset, (), 1)
        disk.crash(Nothing(0))
        async with running_broker(disk, SimClock()) as broker:
            assert broker.offsets.query("g", "t", 0) == Progress(offset, (), 1)

    @pytest.mark.parametrize("wrong", [("t", 0, 6), ("t", 0, -1), ("u", 0, 0), ("t", 9, 0), ("t", 1, 0)])
    async def test_what_makes_no_sense_is_rejected_with_all_others(self, wrong: tuple[str, int, int]) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await self.consumed(broker)
            with pytest.raises(RejectedError):
                await broker.offsets.set("g", [("t", 1, 0), wrong])
            assert list(broker.consumer_offsets.all()) == [("g", "t", 0, 2)]

    @pytest.mark.mechanism("C23")
    async def test_a_member_that_has_not_heard_yet_does_not_undo_a_reset_and_who_has_goes_on(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            session = await self.consumed(broker)
            await broker.consume_progress.reset("g", "t", 0, force=True)
            assert session.resets == [("g", [("t", queue_id, Progress(0, (), 1)) for queue_id in range(4)])]
            remark = broker.offsets.commit("g", [("t", 0, Progress(5)), ("t", 1, Progress(0, (), 1))])
            assert remark == "left out, because the offsets have been reset since: 5 in queue 0 of t"
            assert broker.offsets.query("g", "t", 0) == Progress(0, (), 1)
            assert broker.offsets.commit("g", [("t", 0, Progress(3, (), 1))]) == ""
            assert broker.offsets.query("g", "t", 0) == Progress(3, (), 1)

    async def test_a_late_report_of_before_a_restart_does_not_undo_a_reset_either(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False) as broker:
            await self.consumed(broker)
            await broker.consume_progress.reset("g", "t", 0, force=True)
        disk.crash(Nothing(0))
        async with running_broker(disk, SimClock()) as broker:
            assert broker.offsets.commit("g", [("t", 0, Progress(5))]).startswith("left out")
            assert broker.offsets.query("g", "t", 0) == Progress(0, (), 1)

    async def test_who_was_away_is_not_told_when_it_comes_back(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            broker.sessions.ended(await self.consumed(broker), "c")
            assert (await broker.consume_progress.reset("g", "t", 0, force=True))[1] == []
            session = RecordingSession()
            broker.sessions.heartbeat(session, client("c", "g"))
            assert session.resets == []

    @pytest.mark.parametrize(("time_ms", "moves"), [(0, True), (START_MS + 2_000, True), (QUEUE_END, False)])
    async def test_a_reset_back_forgets_what_is_finished_beyond(self, time_ms: int, *, moves: bool) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            for _ in range(5):
                await fill(broker, 1)
                await clock.advance(1)
            before = Progress(2, ((3, 4),))
            broker.offsets.commit("g", [("t", 0, before)])
            changes, _ = await broker.consume_progress.reset("g", "t", time_ms, force=False)
            assert [change.queue_id for change in changes] == [0, 1, 2, 3]
            assert changes[0].now <= 2
            assert (broker.offsets.query("g", "t", 0) != before) == moves

    @pytest.mark.mechanism("L13")
    async def test_an_operator_sets_single_queues_forward_and_back(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            session = await self.consumed(broker)
            changes, told = await broker.consume_progress.reset_to("g", "t", [(0, 5), (2, 0)])
            assert (changes, told) == ([OffsetChange(0, 2, 5), OffsetChange(2, None, 0)], ["c"])
            assert session.resets == [("g", [("t", 0, Progress(5, (), 1)), ("t", 2, Progress(0, (), 1))])]
            await broker.consume_progress.reset_to("g", "t", [(0, 1)])
            assert broker.offsets.query("g", "t", 0) == Progress(1, (), 2)
            assert broker.offsets.query("g", "t", 1) is None

    @pytest.mark.parametrize(
        ("offsets", "sentence"),
        [
            ([(1, 0), (0, 6)], "offset 6 of queue 0 of 't'; allowed are 0 to 5"),
            ([(1, 0), (0, -1)], "offset -1 of queue 0 of 't'; allowed are 0 to 5"),
            ([(1, 0), (4, 0)], "topic 't' has no queue 4; it has 0 to 3"),
            ([(1, 0), (1, 0)], "each queue can be named once"),
        ],
    )
    async def test_an_operator_s_mistake_changes_nothing(self, offsets: list[tuple[int, int]], sentence: str) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            session = await self.consumed(broker)
            with pytest.raises(RejectedError, match=sentence) as rejected:
                await broker.consume_progress.reset_to("g", "t", offsets)
            assert rejected.value.code is ResponseCode.MESSAGE_ILLEGAL
            assert (list(broker.consumer_offsets.all()), session.resets) == ([("g", "t", 0, 2)], [])


async def test_a_message_in_a_finished_range_is_consumed_and_the_one_before_it_is_not() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        await produce(broker, incoming("t", [b"0"]))
        await produce(broker, incoming("t", [b"1"]))
        broker.offsets.commit("g", [("t", 0, Progress(0, ((1, 2),)))])
        await settle()
        events = await broker.explaining.explain("t", "id-", max_messages=0)
        now = {event.queue_offset: event.kind for event in events if event.group == "g"}
        assert now == {0: LifeEventKind.UNCONSUMED, 1: LifeEventKind.CONSUMED}
