"""Reports of a consumer's progress, and offset resets from elsewhere (mechanisms C20, C21, L13)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient import ConsumeFromWhere, ConsumeStatus, MessageExt, MessageQueue
from mqclient.consumer.consume_service import ProcessQueue
from mqclient.consumer.offsets import FinishedBefore, Progress, gaps_between
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener, consumer_of
from mqproto.properties import TAGS
from osenv.sim_clock import settle

KEY = ("closers", "orders", 0)


class Stuck:
    """Consumes everything but the messages with these bodies, which wait for `release`."""

    def __init__(self, *bodies: bytes) -> None:
        self._bodies = bodies
        self.release = asyncio.Event()
        self.begun: list[bytes] = []

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.begun.extend(message.body for message in messages)
        if any(message.body in self._bodies for message in messages):
            await self.release.wait()
        return ConsumeStatus.CONSUME_SUCCESS


def put(broker: FakeBroker, count: int) -> None:
    for number in range(count):
        broker.put("orders", 0, b"%d" % number)


@pytest.mark.mechanism("C21")
async def test_of_a_hundred_only_the_unfinished_one_comes_again_after_a_crash() -> None:
    """Mechanism C21: 2101 hangs, 2102 to 2200 are finished; the member dies; its heir gets 2101, and nothing else."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    put(broker, 2_201)
    broker.offsets[KEY] = 2_101
    stuck, heir = Stuck(b"2101"), RecordingListener()
    dead = consumer_of(cluster, stuck, member="dead")
    await dead.start()
    await cluster.clock.advance(0.1)
    assert (broker.offsets[KEY], broker.progress.finished[KEY]) == (2_101, set(range(2_102, 2_201)))
    broker.break_streams()
    async with consumer_of(cluster, heir, member="heir"):
        await settle()  # before the dead one is back
        assert heir.bodies == [b"2101"]
        assert len(stuck.begun) == 100
        stuck.release.set()
        await dead.shutdown()


@pytest.mark.mechanism("C21")
async def test_progress_rides_the_poll_stream_within_100_ms_and_only_when_there_is_some() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with consumer_of(cluster, RecordingListener()):
        await cluster.clock.advance(1.0)
        assert broker.progress.reports == []
        put(broker, 3)
        await cluster.clock.advance(0.1)
        (report,) = broker.progress.reports
        assert (report.group, report.client_id) == ("closers", broker.members("closers")[0])
        assert [(one.topic, one.offset, len(one.finished)) for one in report.queues] == [("orders", 3, 0)]
        await cluster.clock.advance(4.0)
        assert len(broker.progress.reports) == 1
        assert broker.commits == []


async def test_report_that_was_lost_is_made_up_for_by_the_next_commit() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with consumer_of(cluster, RecordingListener()):
        put(broker, 3)
        await settle()
        broker.break_streams()
        await cluster.clock.advance(0.2)
        assert broker.progress.reports == []
        await cluster.clock.advance(10.0)
        assert broker.offsets[KEY] == 3


@pytest.mark.parametrize("away", [False, True])
async def test_member_that_did_not_hear_of_a_reset_goes_on_where_it_was_set(away: bool) -> None:
    """The command was lost; the answer to a commit tells of the newer version. `away`: nothing changes meanwhile."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    async with consumer_of(cluster, listener):
        put(broker, 4)
        await cluster.clock.advance(10.1)
        broker.progress.set(KEY, 1)
        if away:
            broker.break_streams()
        else:
            broker.put("orders", 0, b"4")
        await cluster.clock.advance(12.0)
        again = [b"1", b"2", b"3"] + ([] if away else [b"4"])
        assert listener.bodies == [b"0", b"1", b"2", b"3"] + ([] if away else [b"4"]) + again
        assert broker.offsets[KEY] == len(broker.queues["orders", 0])


async def test_what_was_pulled_before_a_reset_does_not_count_after_it() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    put(broker, 4)
    stuck = Stuck(b"3")
    async with consumer_of(cluster, stuck) as consumer:
        await cluster.clock.advance(0.2)
        broker.progress.set(KEY, 0)
        now = broker_pb.QueueProgress(topic="orders", queue_id=0, offset=0, version=1)
        consumer.reset_offsets("broker-a", [now])
        stuck.release.set()
        await cluster.clock.advance(0.2)
        assert stuck.begun == [b"0", b"1", b"2", b"3"] * 2
        assert broker.offsets[KEY] == 4
        consumer.reset_offsets("broker-a", [now])  # twice the same is once
        await settle()
        assert len(stuck.begun) == 8


async def test_a_report_names_each_queue_once_also_after_a_reset() -> None:
    """The listener that ran during the reset ends in the same moment as the first one after it."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    put(broker, 1)
    stuck = Stuck(b"0")
    async with consumer_of(cluster, stuck) as consumer:
        await settle()
        broker.progress.set(KEY, 0)
        consumer.reset_offsets("broker-a", [broker_pb.QueueProgress(topic="orders", queue_id=0, version=1)])
        await settle()
        assert stuck.begun == [b"0", b"0"]
        stuck.release.set()
        await cluster.clock.advance(0.1)
        (report,) = broker.progress.reports
        assert [(one.offset, one.version) for one in report.queues] == [(1, 1)]


async def test_member_that_hears_of_a_reset_when_it_leaves_just_leaves() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    consumer = consumer_of(cluster, RecordingListener())
    await consumer.start()
    put(broker, 3)
    await settle()
    broker.progress.set(KEY, 1)
    await consumer.shutdown()
    assert broker.offsets[KEY] == 1


@pytest.mark.mechanism("C10")
async def test_group_begins_at_a_time() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    put(broker, 2)
    await cluster.clock.advance(1_000.0)
    late_ms = cluster.clock.wall_ms()
    broker.put("orders", 0, b"late")
    await cluster.clock.advance(1_000.0)
    where = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    explicit, half_an_hour = RecordingListener(), RecordingListener()
    async with consumer_of(cluster, explicit, consume_from_where=where, consume_timestamp_ms=late_ms):
        await settle()
        assert explicit.bodies == [b"late"]
    async with consumer_of(cluster, half_an_hour, group="others", consume_from_where=where):
        await settle()
        assert half_an_hour.bodies == [b"late"]


async def test_filtered_messages_are_finished_and_what_is_not_holds_the_offset() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number, tag in enumerate("abababab"):
        broker.put("orders", 0, b"%d" % number, {TAGS: tag})
    stuck = Stuck(b"0", b"4")
    async with consumer_of(cluster, stuck, tags="a"):
        await cluster.clock.advance(0.1)
        assert (broker.offsets[KEY], broker.progress.finished[KEY]) == (0, {1, 2, 3, 5, 6, 7})
        stuck.release.set()
        await cluster.clock.advance(0.1)
        assert broker.offsets[KEY] == 8


def test_gaps_lie_between_what_is_not_finished() -> None:
    assert gaps_between([], 9) == ()
    assert gaps_between([4, 5, 8], 12) == ((6, 8), (9, 12))
    assert gaps_between([4, 5], 6) == ()


@given(st.sets(st.integers(0, 30)), st.integers(0, 30))
def test_a_successor_takes_over_exactly_what_is_unfinished(done: set[int], begin: int) -> None:
    """Whatever is finished, in whatever order: progress names it exactly, and FinishedBefore reads it back."""
    unfinished = [offset for offset in range(begin, 31) if offset not in done]
    finished = {offset for offset in range(begin, 31) if offset in done}
    commit_offset = unfinished[0] if unfinished else 31
    ranges = gaps_between(unfinished, 31)
    before = FinishedBefore(ranges)
    taken = [offset for offset in range(commit_offset, 31) if offset not in before]
    assert taken == unfinished
    assert {offset for low, high in ranges for offset in range(low, high)} == {
        one for one in finished if one > commit_offset
    }


def test_process_queue_does_not_take_in_what_was_finished_before() -> None:
    queue = ProcessQueue(MessageQueue("orders", "broker-a", 0), Progress(5, ((7, 9),), 3))
    assert queue.progress == Progress(5, (), 3)
    assert queue.version == 3


async def test_what_is_finished_while_its_broker_is_out_of_the_routes_does_not_come_again() -> None:
    """The member gives the queue up meanwhile; it begins with it anew when the broker has heard what is finished."""
    cluster, (broker, _) = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    put(broker, 3)
    stuck = Stuck(b"0")
    async with consumer_of(cluster, stuck):
        await cluster.clock.advance(0.1)
        broker.down = True
        broker.break_streams()
        del cluster.brokers[broker.address]
        stuck.release.set()
        await cluster.clock.advance(60.0)
        cluster.brokers[broker.address] = broker
        broker.down = False
        await cluster.clock.advance(60.0)
        broker.put("orders", 0, b"new")
        await settle()
        assert sorted(stuck.begun) == [b"0", b"1", b"2", b"new"]
        assert broker.offsets[KEY] >= 3
