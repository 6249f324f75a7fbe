"""What comes over a link of replication and cannot be: rejected by the master, rejected by the replica, nothing
changed.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from mq_broker.core.replica_state import NO_EPOCH, BrokerRole, Epoch, EpochBegin, EpochHistory
from mq_broker.replication.frames import (
    Follow,
    LeaveNotice,
    LogBytes,
    MasterFrame,
    MasterHeartbeat,
    MasterHello,
    Probe,
    ProbeAnswer,
    ProgressEntries,
    Rejection,
    ReplicaFrame,
    ReplicaHello,
    Report,
    StateDocument,
)
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import LOG_FILE_BYTES, incoming, produce
from mq_broker.testing_replication import HeldDisk, Member, MemoryLink, make_pair
from osenv import SimClock

FIRST = Epoch(1, 1)
HISTORY = EpochHistory((EpochBegin(FIRST, 0),))
HELLO = ReplicaHello("DefaultCluster", "broker-a", "5" * 32, 1, "b:10911", 0, 0, EpochHistory())


@asynccontextmanager
async def master_at_work(clock: SimClock) -> AsyncIterator[tuple[Member, MemoryLink]]:
    """A master with one message, and a link to it of which the test is the replica."""
    _, master, _ = make_pair(clock)
    await master.start()
    await produce(master.at_work, incoming("t", [b"x"]))
    near, far = MemoryLink("master"), MemoryLink("replica")
    near.other, far.other = far, near
    serving = asyncio.create_task(master.at_work.replication.serve(far))
    try:
        yield master, near
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await master.stop()


async def answers(clock: SimClock, link: MemoryLink, *frames: ReplicaFrame) -> list[Any]:
    """What the master has said within a moment of simulated time."""
    for frame in frames:
        await link.send(frame)
    await clock.advance(0.1)
    found = []
    while link.arrived:
        found.append((await link.receive()).event)
    return found


def frame(event: Any, epoch: Epoch = FIRST) -> ReplicaFrame:
    return ReplicaFrame(epoch, event)


@pytest.mark.parametrize(
    ("frames", "remark"),
    [
        ([frame(Follow(0))], "has to be a hello"),
        ([frame(HELLO), frame(HELLO)], "a second hello"),
        ([frame(replace(HELLO, broker_name="other"))], "brokerName and brokerClusterName have to be the same"),
        ([frame(replace(HELLO, protocol_version=99))], "protocol version 99"),
        ([frame(HELLO), frame(Report(0, 0, 0))], "a report before it follows"),
        ([frame(HELLO), frame(Follow(1 << 40))], "the log runs from 0 to"),
        ([frame(HELLO), frame(Follow(1))], "has not shown that its log is the same up to there"),
        ([frame(HELLO), frame(Follow(0)), frame(Follow(0))], "follows already"),
        ([frame(HELLO), frame(Follow(0)), frame(Report(1 << 40, 0, 1 << 40))], "the log ends at"),
        ([frame(HELLO), frame(Follow(0)), frame(Report(10, 5, 20))], "has written up to 10"),
        ([frame(HELLO), frame(Follow(0)), frame(Report(5, 5, 5)), frame(Report(5, 5, 4))], "up to 4, after 5"),
        ([frame(HELLO), frame(Follow(0)), frame(Report(0, 0, 0), NO_EPOCH)], "a frame of epoch 0.0 in epoch 1.1"),
        ([frame(HELLO), frame(Follow(0)), frame(ProgressEntries(b"garbage"))], "progress of groups"),
    ],
)
async def test_a_master_rejects_what_cannot_be(frames: list[ReplicaFrame], remark: str) -> None:
    """Bug zoo 19 and 20: forged or over-long acknowledgements."""
    clock = SimClock()
    async with master_at_work(clock) as (master, link):
        confirmed = master.at_work.store.readable_end
        said = await answers(clock, link, *frames)
        assert isinstance(said[-1], Rejection), said
        assert remark in said[-1].remark
        assert master.at_work.store.readable_end == confirmed
        assert master.at_work.replication.status().in_sync_replicas == 1


async def test_a_master_that_hears_of_a_newer_epoch_accepts_nothing_more() -> None:
    """Bug zoo 20."""
    clock = SimClock()
    async with master_at_work(clock) as (master, link):
        said = await answers(clock, link, frame(HELLO, Epoch(7, 0)))
        assert isinstance(said[-1], Rejection)
        assert "it has seen epoch 7.0" in said[-1].remark
        assert master.at_work.store.follows
        assert master.at_work.replication.role is BrokerRole.SLAVE  # it has been opened anew


async def test_a_replica_that_says_nothing_is_given_up() -> None:
    clock = SimClock()
    async with master_at_work(clock) as (master, link):
        await answers(clock, link, frame(HELLO), frame(Follow(0)))
        assert master.at_work.replication.status().replicas[0].connected
        await clock.advance(6)
        assert not master.at_work.replication.status().replicas[0].connected


@pytest.mark.mechanism("H2")
async def test_no_more_is_on_its_way_than_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq_broker.replication.feed.WINDOW_BYTES", 5_000)
    monkeypatch.setattr("mq_broker.replication.feed.CHUNK_BYTES", 2_000)
    clock = SimClock()
    async with master_at_work(clock) as (master, link):
        await produce(master.at_work, *[incoming("t", [b"x" * 1_000]) for _ in range(20)])
        said = await answers(clock, link, frame(HELLO), frame(Follow(0)))
        sent = [one for one in said if isinstance(one, LogBytes)]
        on_its_way = sum(len(one.data) for one in sent)
        assert 5_000 <= on_its_way < 7_000
        said = await answers(clock, link, frame(Report(on_its_way, on_its_way, on_its_way)))
        assert next(one.log_offset for one in said if isinstance(one, LogBytes)) == on_its_way


async def test_probes_are_answered_by_content() -> None:
    clock = SimClock()
    async with master_at_work(clock) as (master, link):
        data = master.log_bytes
        right, wrong = zlib.crc32(data), zlib.crc32(data) ^ 1
        end = len(data)
        said = await answers(
            clock,
            link,
            frame(HELLO),
            frame(Probe(0, end, right)),
            frame(Probe(0, end, wrong)),
            frame(Probe(0, 1 << 40, 1)),
        )
        assert said[1:] == [ProbeAnswer(end, True), ProbeAnswer(end, False), ProbeAnswer(1 << 40, False)]


# ------------------------------------------------------------------------------------------------------ the replica


@asynccontextmanager
async def replica_at_work(
    clock: SimClock, *, flush: FlushDiskType = FlushDiskType.SYNC_FLUSH
) -> AsyncIterator[tuple[Member, MasterOfTest]]:
    """A replica, and a master of which the test is in charge."""
    network, _, replica = make_pair(clock, flush=flush)
    fake = MasterOfTest(clock)
    network.serve_with(fake.serve)
    await replica.start()
    try:
        yield replica, fake
    finally:
        await replica.stop()


class MasterOfTest:
    """Answers every link alike; `said` is what the replica has sent."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.epoch = Epoch(3, 0)
        self.hello = MasterHello("a" * 32, 0, 0, EpochHistory((EpochBegin(self.epoch, 0),)), True)
        self.said: list[Any] = []
        self.link: MemoryLink | None = None
        self.links = 0

    async def serve(self, link: MemoryLink) -> None:
        self.link = link
        self.links += 1
        while (received := await link.receive()) is not None:
            self.said.append(received.event)
            if isinstance(received.event, ReplicaHello):
                await link.send(MasterFrame(self.epoch, self.hello))
            if isinstance(received.event, LeaveNotice):
                return

    async def say(self, event: Any, epoch: Epoch | None = None) -> None:
        assert self.link is not None
        await self.link.send(MasterFrame(epoch or self.epoch, event))
        await self._clock.advance(0.05)


async def records(clock: SimClock, *bodies: bytes) -> bytes:
    """The log of a master that has stored these."""
    _, master, _ = make_pair(clock, role=BrokerRole.ASYNC_MASTER)
    await master.start()
    await produce(master.at_work, incoming("t", bodies))
    data = master.log_bytes
    await master.stop()
    return data


@pytest.mark.mechanism("H2")
@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_a_replica_vouches_for_what_its_flush_disk_type_says(flush: FlushDiskType) -> None:
    """Bug zoo 17: under SYNC_FLUSH the page cache is not enough."""
    clock = SimClock()
    data = await records(clock, b"x")
    async with replica_at_work(clock, flush=flush) as (replica, master):
        await clock.advance(0.1)
        assert isinstance(replica.disk, HeldDisk)
        release = replica.disk.hold()
        await master.say(LogBytes(0, data, 0))
        reports = [one for one in master.said if isinstance(one, Report)]
        release()
        acknowledged = 0 if flush is FlushDiskType.SYNC_FLUSH else len(data)
        assert reports[-1] == Report(len(data), 0, acknowledged)
        await clock.advance(0.5)
        assert [one for one in master.said if isinstance(one, Report)][-1] == Report(len(data), len(data), len(data))


async def test_a_replica_keeps_old_files_until_it_has_what_its_master_had_when_it_deleted_them() -> None:
    """What waits in them was written again at the end of the master's log before they went."""
    clock = SimClock()
    _, other, _ = make_pair(clock, role=BrokerRole.ASYNC_MASTER)
    await other.start()
    chunks, end = list[tuple[int, bytes]](), 0
    while end < 2 * LOG_FILE_BYTES:
        await produce(other.at_work, incoming("t", [bytes(16_000)]))
        begin, (data, end) = end, await other.at_work.store.log_feed.read(end, LOG_FILE_BYTES)
        chunks.append((begin, data))
    await other.stop()
    async with replica_at_work(clock) as (replica, master):
        await clock.advance(0.1)
        for begin, data in chunks[:-1]:
            await master.say(LogBytes(begin, data, begin))
        deleted_at = MasterHeartbeat(LOG_FILE_BYTES, end, end, 0, in_sync=True, in_sync_version=1)
        await master.say(deleted_at)
        await clock.advance(1)
        assert replica.at_work.store.log_begin == 0
        await master.say(LogBytes(*chunks[-1], end))
        await master.say(replace(deleted_at, log_end=end + 1_000))  # the master goes on writing
        await clock.advance(1)
        assert replica.at_work.store.log_begin == LOG_FILE_BYTES


@pytest.mark.parametrize(
    ("event", "epoch", "reason"),
    [
        (LogBytes(0, b"garbage", 0), None, "the master has sent an impossible value"),
        (LogBytes(5, b"", 0), None, "the master has sent an impossible value"),
        (StateDocument("topics.json", b"{"), None, "the master has sent an impossible value"),
        (StateDocument("passwd", b"{}"), None, "the master has sent an impossible value"),
        (ProgressEntries(b"garbage"), None, "the master has sent an impossible value"),
        (ProbeAnswer(0, True), None, "a ProbeAnswer, which has no place here"),
        (MasterHeartbeat(0, 0, 0, 0, False, 0), Epoch(2, 9), "the master is in epoch 2.9, and epoch 3.0 has begun"),
        (MasterHeartbeat(0, 0, 0, 0, False, 0), Epoch(3, 1), "a frame of epoch 3.1 in epoch 3.0"),
        (Rejection("go away"), None, "the master rejects: go away"),
    ],
)
async def test_a_replica_ends_the_link_when_something_cannot_be(event: Any, epoch: Epoch | None, reason: str) -> None:
    clock = SimClock()
    async with replica_at_work(clock) as (replica, master):
        await clock.advance(0.1)
        assert replica.at_work.replication.is_connected
        await master.say(event, epoch)
        assert reason in replica.at_work.replication.status().reason
        assert replica.at_work.store.log_end == 0
        await clock.advance(3)
        assert master.links >= 2  # it tries again


async def test_a_master_of_the_past_is_not_followed() -> None:
    """Bug zoo 20."""
    clock = SimClock()
    async with replica_at_work(clock) as (replica, master):
        await clock.advance(0.1)
        assert replica.at_work.replication.epoch == Epoch(3, 0)
        master.epoch = Epoch(2, 5)
        assert master.link is not None
        master.link.break_now()
        await clock.advance(2)
        assert not replica.at_work.replication.is_connected
        assert "the master is in epoch 2.5, and epoch 3.0 has begun" in replica.at_work.replication.status().reason
        assert not [one for one in master.said[2:] if isinstance(one, Follow)][1:]


async def test_a_replica_that_hears_nothing_looks_again() -> None:
    clock = SimClock()
    async with replica_at_work(clock) as (replica, master):
        await clock.advance(0.1)
        await clock.advance(7)
        assert master.links >= 2
        assert replica.opened == 1


async def test_the_epoch_is_on_disk_before_the_replica_follows() -> None:
    clock = SimClock()
    async with replica_at_work(clock) as (replica, master):
        await clock.advance(0.1)
        assert [type(one) for one in master.said[:2]] == [ReplicaHello, Follow]
        await replica.stop(clean=False)
        master.epoch = Epoch(2, 0)
        await replica.start()
        assert replica.at_work.replication.epoch == Epoch(3, 0)
