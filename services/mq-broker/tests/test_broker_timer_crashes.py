"""The order of due times across power cuts at every call to the disk, and at the moments that are easy to get wrong."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count
from pathlib import Path

import pytest

from mq_broker.schedule import timer_runs
from mq_broker.schedule.timer_runs import BLOCK_KEYS, MANIFEST_NAME
from mq_broker.testing_closely import FOLDER, FOREVER_MS, ThreadedDisk, Waiting
from osenv import SeededRng, SimDisk
from osenv.disk import read_file
from osenv.sim_clock import settle


class PlugPulled(BaseException):
    """The machine has no power any more."""


class Gate:
    """Something that waits until it is told."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.opened.wait()


async def live(world: Waiting) -> None:
    """Adds, takes and put backs, with what the writer does in between; merges three runs at a time."""
    world.open()
    for round_ in range(7):
        world.add(*range(100 * round_, 100 * round_ + 40))
        await world.index.maintain()
        taken = await world.index.take_due(FOREVER_MS, 12)
        world.finish(taken[:9])
        for due_ms, offset in taken[9:]:
            world.index.add(due_ms, offset)
        world.done.add(len(world.dues) - 1)
        await world.index.flush()
    await world.index.close()


def pull_plug(disk: SimDisk, call: int) -> list[Path]:
    """Let `call` calls through; the list gets the paths of all that were tried."""
    tried: list[Path] = []

    def before(_name: str, path: Path) -> None:
        tried.append(path)
        if len(tried) > call:
            raise PlugPulled

    disk.before = before
    return tried


@pytest.mark.mechanism("D7")
async def test_a_power_cut_at_any_call_loses_nothing_and_keeps_what_was_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timer_runs, "FAN_IN", 3)
    for call in count():
        world = Waiting(keys_in_memory=30)
        tried = pull_plug(world.disk, call)
        with contextlib.suppress(PlugPulled):
            await live(world)
        if len(tried) <= call:
            break
        world.disk.before = lambda _call, _path: None
        for found in world.disk.lost_states(SeededRng(call), exhaustive_units_max=4, samples=6):
            after = world.after_crash(found, SeededRng(call))
            after.open()
            assert not caplog.records, f"call {call}: {caplog.text}"  # a manifest that is there can be used
            expected = after.due()
            assert await after.drain() == expected
            after.index.release()
    assert call > 200


class TestWhileTheManifestWaits:
    """Between the moment that a manifest tells of and the moment in which it is there, messages are taken."""

    async def test_what_was_put_back_meanwhile_is_not_lost(self) -> None:
        world, gate, flushing = await waiting_manifest()
        taken = await world.index.take_due(FOREVER_MS, 100)
        world.finish(taken[:50])
        for due_ms, offset in taken[50:]:
            world.index.add(due_ms, offset)
        gate.opened.set()
        assert await flushing
        world.crash(SeededRng(1))
        assert world.open() == len(world.dues)
        assert await world.drain() == [(at, at) for at in range(50, len(world.dues))]

    async def test_what_is_in_hand_meanwhile_is_not_lost(self) -> None:
        world, gate, flushing = await waiting_manifest()
        await world.index.take_due(FOREVER_MS, 100)
        gate.opened.set()
        assert await flushing
        world.crash(SeededRng(1))
        world.open()
        assert await world.drain() == [(at, at) for at in range(len(world.dues))]

    async def test_what_comes_meanwhile_is_told_again(self) -> None:
        world, gate, flushing = await waiting_manifest()
        world.add(7)
        gate.opened.set()
        assert await flushing
        world.kill()
        assert world.open() == len(world.dues) - 1
        assert (7, len(world.dues) - 1) in await world.drain()

    async def test_no_manifest_names_what_the_log_may_lose(self) -> None:
        world, _, flushing = await waiting_manifest()
        before = read_file(world.disk, FOLDER / MANIFEST_NAME)
        await settle()
        assert read_file(world.disk, FOLDER / MANIFEST_NAME) == before
        flushing.cancel()


@pytest.mark.parametrize("steps", range(0, 60, 2))
async def test_what_is_put_back_at_any_moment_of_a_flush_is_not_lost(steps: int) -> None:
    world = Waiting(ThreadedDisk(), keys_in_memory=2 * BLOCK_KEYS)
    world.add(*range(2 * BLOCK_KEYS))
    await world.index.flush()
    world.add(*range(40, 80))
    flushing = asyncio.create_task(world.index.flush())
    for _ in range(steps):
        await asyncio.sleep(0)
    taken = await world.index.take_due(FOREVER_MS, BLOCK_KEYS + 100)
    world.finish(taken[:50])
    for due_ms, offset in taken[50:]:
        world.index.add(due_ms, offset)
    assert await flushing
    world.crash(SeededRng(steps))
    assert world.open() == len(world.dues)
    expected = world.due()
    assert await world.drain() == expected


async def test_a_run_that_a_merge_reads_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_runs, "FAN_IN", 2)
    world = Waiting(ThreadedDisk(), keys_in_memory=60 * BLOCK_KEYS)
    for _ in range(2):
        world.add(*range(60 * BLOCK_KEYS))
        await world.index.flush()
    gate = Gate()
    world.before_sync = gate.pass_through
    merging = asyncio.create_task(world.index.maintain())
    for _ in range(8):
        await asyncio.sleep(0)
    world.add(*range(62 * BLOCK_KEYS))  # so many that the merge lets them be written first
    await gate.reached.wait()
    assert len(await world.drain(50_000)) == 182 * BLOCK_KEYS  # all runs were read to their ends
    world.add(*range(62 * BLOCK_KEYS))  # again: now a manifest leaves the runs out
    gate.opened.set()
    assert await merging
    assert len(await world.drain(50_000)) == 62 * BLOCK_KEYS
    assert await world.index.flush()
    assert world.disk.list_dir(FOLDER) == [MANIFEST_NAME]


async def waiting_manifest() -> tuple[Waiting, Gate, asyncio.Task[bool]]:
    """A flush of a run and of what is in memory that waits for the log."""
    world = Waiting(ThreadedDisk(), keys_in_memory=2 * BLOCK_KEYS)
    world.add(*range(BLOCK_KEYS))
    assert await world.index.flush()
    gate = Gate()
    world.before_sync = gate.pass_through
    world.add(*range(BLOCK_KEYS, BLOCK_KEYS + 40))
    flushing = asyncio.create_task(world.index.flush())
    await gate.reached.wait()
    return world, gate, flushing


async def test_messages_that_the_log_has_lost_do_not_come_under_their_old_due_times() -> None:
    world = Waiting()
    world.add(10, 20, 30, 40)
    await world.index.close()
    del world.dues[2:]  # against the promise of `log_durable`, or because the log was replaced by an older one
    assert world.open() == 0
    world.add(99)
    assert await world.drain() == [(10, 0), (20, 1), (99, 2)]


async def test_a_merge_under_way_does_not_take_back_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_runs, "FAN_IN", 2)
    world = Waiting(ThreadedDisk(), keys_in_memory=BLOCK_KEYS)
    for _ in range(2):
        world.add(*range(BLOCK_KEYS))
        await world.index.flush()
    taken = await world.index.take_due(FOREVER_MS, 100)  # before the merge: it does not have them
    merging = asyncio.create_task(world.index.maintain())
    await settle()
    assert merging.done()
    world.finish(taken[:40])
    world.crash(SeededRng(1))
    world.open()
    expected = world.due()
    assert len(expected) >= 2 * BLOCK_KEYS - 40
    assert await world.drain() == expected
