"""A pair whose clocks differ: nothing that waits is early, whichever is the master (ADR 112)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from mq_broker.core.broker_time import HeardClocks
from mq_broker.core.replica_state import BrokerRole
from mq_broker.processor.producing import IncomingBatch
from mq_broker.testing import incoming, produce, timed
from mq_broker.testing_replication import Member, Network, WrongClock, make_pair, until
from mqproto.codes import ResponseCode
from osenv import SeededRng, SimClock

T = TypeVar("T")

HOUR_MS = 3_600_000
EARLY_S, LATE_S = 1.0, 6.5  # what docs/guides/guarantees.md allows of deliver_at; 0.1 s steps of `until`


async def result_of(clock: SimClock, call: Coroutine[Any, Any, T]) -> T:
    """What the call returns or raises after a while."""
    task = asyncio.ensure_future(call)
    await until(clock, task.done)
    return task.result()


@asynccontextmanager
async def wrong_pair(
    clock: SimClock, replica_ahead_ms: int, master_ahead_ms: int = 0
) -> AsyncIterator[tuple[Network, Member, Member]]:
    network, master, replica = make_pair(clock)
    master.clock, replica.clock = WrongClock(clock, master_ahead_ms), WrongClock(clock, replica_ahead_ms)
    await master.start()
    await replica.start()
    await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
    await clock.advance(2)  # some beats
    try:
        yield network, master, replica
    finally:
        for member in (replica, master):
            if member.broker is not None:
                await member.stop()


async def promoted(clock: SimClock, replica: Member, term: int = 2) -> None:
    await result_of(clock, replica.at_work.replication.promote(term, 0, BrokerRole.ASYNC_MASTER))
    await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)


async def send(clock: SimClock, member: Member, batch: IncomingBatch) -> None:
    (outcome,) = await result_of(clock, produce(member.at_work, batch))
    assert outcome.code is ResponseCode.SUCCESS, outcome


KINDS = ("level", "delay_ms", "deliver_at")


async def send_all(clock: SimClock, member: Member, *, ahead_ms: int = 0) -> float:
    """One message of each kind, due in 30 s by a clock that is ahead; each has a queue of its own. Returns when."""
    due = clock.monotonic() + 30
    deliver_ms = clock.wall_ms() + ahead_ms + 30_000
    await send(clock, member, incoming("t", [b"x"], delay_level=4, queue_id=0))
    await send(clock, member, timed("t", b"x", delay_ms=30_000, queue_id=1))
    await send(clock, member, timed("t", b"x", deliver_ms=deliver_ms, queue_id=2))
    return due


async def lateness(clock: SimClock, member: Member, due: float, seconds: float = 60) -> dict[str, float]:
    """By which each of them was late, or early; 1 s before it must not come and some seconds later it has."""
    found: dict[str, float] = {}
    end = clock.monotonic() + seconds
    while len(found) < len(KINDS) and clock.monotonic() < end:
        for queue_id, kind in enumerate(KINDS):
            if kind not in found and member.broker is not None and member.broker.store.queue_end("t", queue_id):
                found[kind] = clock.monotonic() - due
        await clock.advance(0.1)
    return found


def assert_on_time(found: dict[str, float]) -> None:
    assert set(found) == set(KINDS), found
    assert all(-EARLY_S <= late <= LATE_S for late in found.values()), found


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS, 3_000, -3_000])
async def test_a_promoted_replica_with_a_wrong_clock_delivers_on_time(ahead_ms: int) -> None:
    clock = SimClock()
    async with wrong_pair(clock, ahead_ms) as (network, master, replica):
        due = await send_all(clock, master)
        await clock.advance(2)
        network.cut(master)
        await promoted(clock, replica)
        assert_on_time(await lateness(clock, replica, due))


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
async def test_it_stays_on_time_when_its_process_restarts(ahead_ms: int) -> None:
    clock = SimClock()
    async with wrong_pair(clock, ahead_ms) as (network, master, replica):
        due = await send_all(clock, master)
        await clock.advance(2)
        network.cut(master)
        await replica.stop(clean=False)
        await replica.start()
        await promoted(clock, replica)
        await replica.stop(clean=False)
        await replica.start()
        assert_on_time(await lateness(clock, replica, due))


async def test_back_at_the_right_broker_everything_is_on_time_also_after_its_restart() -> None:
    clock = SimClock()
    async with wrong_pair(clock, HOUR_MS) as (_, master, replica):
        await promoted(clock, replica)
        epoch = replica.at_work.replication.epoch
        await result_of(clock, master.at_work.replication.become_replica(1, replica.name, epoch))
        await until(clock, lambda: master.broker is not None and master.at_work.replication.is_connected)
        await send(clock, replica, incoming("other", [b"stored by the wrong clock"]))
        await clock.advance(2)
        await result_of(clock, replica.at_work.replication.step_down(replica.at_work.replication.epoch))
        await promoted(clock, master, term=3)
        due = await send_all(clock, master)
        assert_on_time(await lateness(clock, master, due))
        await master.stop()
        await master.start()
        assert abs(master.at_work.time.now_ms() - clock.wall_ms()) < 2_000


async def test_a_master_that_came_back_with_another_clock_is_followed_from_its_first_beat() -> None:
    clock, behind_ms = SimClock(), 8_000
    async with wrong_pair(clock, 0) as (network, master, replica):
        await clock.advance(10)  # nothing is stored meanwhile: broker time may begin anew behind
        await master.stop(clean=False)
        master.clock = WrongClock(clock, -behind_ms)
        await master.start()
        await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
        due = await send_all(clock, master, ahead_ms=-behind_ms)
        await clock.advance(1.1)  # a beat
        network.cut(master)
        await promoted(clock, replica)
        assert_on_time(await lateness(clock, replica, due))


async def test_a_stored_time_far_in_the_future_does_not_move_deliver_at() -> None:
    """A machine that has started anew knows nothing of the clock of its lost master: it stores its own time."""
    clock = SimClock()
    _, _, replica = make_pair(clock)
    replica.clock = WrongClock(clock, HOUR_MS)
    await replica.start()
    await promoted(clock, replica)
    await send(clock, replica, incoming("other", [b"stored an hour ahead"]))
    await replica.stop()
    replica.clock = clock
    await replica.start()
    due = await send_all(clock, replica)
    assert_on_time(await lateness(clock, replica, due))
    await replica.stop()


async def test_deliver_at_follows_the_clock_of_a_promoted_replica_once_that_is_set() -> None:
    clock = SimClock()
    async with wrong_pair(clock, replica_ahead_ms=HOUR_MS, master_ahead_ms=-HOUR_MS) as (network, master, replica):
        network.cut(master)
        await promoted(clock, replica)
        assert isinstance(replica.clock, WrongClock)
        replica.clock.step_to(0)
        due = await send_all(clock, replica)
        await replica.stop(clean=False)  # and that is so after a restart, too
        await replica.start()
        assert_on_time(await lateness(clock, replica, due))


async def test_deliver_at_follows_the_promoted_replica_once_another_clock_agrees_with_its_own() -> None:
    clock = SimClock()
    async with wrong_pair(clock, replica_ahead_ms=0, master_ahead_ms=-HOUR_MS) as (_, master, replica):
        await promoted(clock, replica)
        epoch = replica.at_work.replication.epoch
        assert isinstance(master.clock, WrongClock)
        master.clock.step_to(0)
        await result_of(clock, master.at_work.replication.become_replica(1, replica.name, epoch))
        await until(clock, lambda: master.broker is not None and master.at_work.replication.is_connected)
        await clock.advance(2)
        due = await send_all(clock, replica)
        await replica.stop(clean=False)
        await replica.start()
        assert_on_time(await lateness(clock, replica, due))


def test_a_broker_that_does_not_tell_its_clock_is_neither_right_nor_wrong() -> None:
    clock = SimClock()
    clocks = HeardClocks(lambda: clock.wall_us() / 1_000, clock.monotonic)
    clocks.hear(0, clock.wall_ms() + HOUR_MS)
    assert (clocks.ahead_ms, clocks.has_news(), clocks.agrees(), clocks.master_time("boot")) == (0, False, False, None)


async def test_the_clocks_of_a_master_count_for_one_boot_of_the_machine() -> None:
    clock = SimClock()
    async with wrong_pair(clock, HOUR_MS) as (network, master, replica):
        network.cut(master)
        await promoted(clock, replica)
        assert abs(replica.at_work.time.now_ms() - clock.wall_ms()) < 1_000
        await replica.stop(clean=False)
        replica.disk.crash(SeededRng(1))
        await replica.start()
        assert abs(replica.at_work.time.now_ms() - clock.wall_ms() - HOUR_MS) < 1_000


async def test_a_slow_correction_of_the_clock_moves_nothing_until_it_is_right() -> None:
    clock = SimClock()
    async with wrong_pair(clock, 10_000) as (network, master, replica):
        network.cut(master)
        await promoted(clock, replica)
        assert isinstance(replica.clock, WrongClock)
        due = await send_all(clock, replica)
        for ahead_ms in range(9_500, -1, -500):
            replica.clock.step_to(ahead_ms)
            await clock.advance(1)
        assert_on_time(await lateness(clock, replica, due))
        assert not replica.at_work.time.follows_master_wall


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS, 0])
async def test_both_brokers_tell_how_far_the_clocks_differ(ahead_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    clock = SimClock()
    async with wrong_pair(clock, ahead_ms) as (_, master, replica):
        (seen,) = master.at_work.replication.status().replicas
        assert seen.clock_ahead_ms == pytest.approx(ahead_ms, abs=100)
        assert replica.at_work.replication.status().clock_ahead_ms == pytest.approx(ahead_ms, abs=100)
        warnings = [one.message for one in caplog.records if "clock" in one.message]
        assert len(warnings) == (2 if ahead_ms else 0), warnings
