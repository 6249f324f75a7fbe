"""The order of due times: what comes out and when, what memory holds, and what a start finds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq_broker.schedule import timer_index, timer_keys, timer_runs
from mq_broker.schedule.timer_keys import SLICE_KEYS, KeyMerge, Stretch
from mq_broker.schedule.timer_runs import BLOCK_BYTES, BLOCK_KEYS, KEY, MANIFEST_NAME, KeyRun, RunReader, RunWriter
from mq_broker.testing_closely import FOLDER, FOREVER_MS, ThreadedDisk, Waiting
from osenv import SeededRng, SimDisk
from osenv.sim_clock import settle

RNG = SeededRng(1)


def blocks_on(disk: SimDisk) -> int:
    """Of all runs together."""
    return sum(len(data) for path, data in disk.contents().items() if path.name.isdigit()) // BLOCK_BYTES


@contextmanager
def counted(disk: SimDisk, call: str) -> Iterator[list[Path]]:
    """The paths of this call."""
    made: list[Path] = []

    def before(name: str, path: Path) -> None:
        if name == call:
            made.append(path)

    disk.before = before
    yield made
    disk.before = lambda _call, _path: None


class TestTaking:
    async def test_what_is_due_comes_in_order_and_the_rest_waits(self) -> None:
        world = Waiting()
        world.add(300, 100, 200, 100, 201)
        assert world.index.next_due_ms == 100
        assert await world.index.take_due(99, 10) == []
        assert await world.drain(2, now_ms=200) == [(100, 1), (100, 3), (200, 2)]
        assert world.index.next_due_ms == 201
        assert await world.drain(9) == [(201, 4), (300, 0)]
        assert world.index.next_due_ms is None

    @pytest.mark.parametrize("flushed", [False, True])
    async def test_messages_due_together_come_in_the_order_in_which_they_were_stored(self, flushed: bool) -> None:
        world = Waiting(keys_in_memory=64)
        world.add(*[5] * 3_000)
        if flushed:
            await world.index.flush()
        assert await world.drain(100) == [(5, at) for at in range(3_000)]

    async def test_what_is_done_does_not_come(self) -> None:
        world = Waiting()
        world.add(1, 2, 3, 4)
        await world.index.flush()
        world.add(5, 6)
        world.done |= {0, 2, 5}
        assert await world.index.take_due(FOREVER_MS, 9) == [(2, 1), (4, 3), (5, 4)]

    async def test_what_is_put_back_comes_again_once(self) -> None:
        world = Waiting()
        world.add(1, 2, 3)
        assert await world.index.take_due(2, 9) == [(1, 0), (2, 1)]
        await world.index.flush()  # has both of them written: their outcome is open
        world.index.add(1, 0)
        world.done.add(1)
        assert await world.drain(2) == [(1, 0), (3, 2)]

    async def test_a_message_that_comes_later_and_is_due_earlier_comes_first(self) -> None:
        world = Waiting()
        world.add(100, 200)
        await world.index.flush()
        world.add(50)
        assert world.index.next_due_ms == 50
        assert await world.drain() == [(50, 2), (100, 0), (200, 1)]

    async def test_a_take_that_is_cancelled_loses_nothing(self) -> None:
        world = Waiting(ThreadedDisk(), keys_in_memory=64)
        world.add(*range(3 * BLOCK_KEYS))
        await world.index.flush()
        for rounds in (3, 5):
            taking = asyncio.create_task(world.index.take_due(FOREVER_MS, 3 * BLOCK_KEYS))
            for _ in range(rounds):
                await asyncio.sleep(0)
            assert taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        assert await world.drain(100) == [(at, at) for at in range(3 * BLOCK_KEYS)]

    async def test_many_done_keys_are_passed_in_steps(self) -> None:
        world = Waiting()
        world.add(*range(5_000))
        world.done = set(range(4_999))
        taking = asyncio.create_task(world.index.take_due(FOREVER_MS, 1))
        rounds = 0
        while not taking.done():
            await asyncio.sleep(0)
            rounds += 1
        assert await taking == [(4_999, 4_999)]
        assert rounds > 5_000 // timer_keys.STEP_KEYS

    async def test_a_taker_does_not_wait_for_a_merge(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer_runs, "FAN_IN", 3)
        world = Waiting(ThreadedDisk(), keys_in_memory=2_000)
        world.add(*[RNG.randrange(0, 10**6) for _ in range(6_000)])
        for _ in range(3):
            await world.index.flush()
            world.add(*[RNG.randrange(0, 10**6) for _ in range(6_000)])
        expected = world.due()
        running = asyncio.create_task(world.index.maintain())
        found = []
        while not running.done():
            taken = await world.index.take_due(FOREVER_MS, 3)
            found += taken
            world.finish(taken)
            await asyncio.sleep(0)
        assert await running
        assert 100 < len(found) < len(expected)
        assert found + await world.drain(500) == expected


class TestMemory:
    async def test_keys_beyond_the_limit_go_to_disk(self) -> None:
        world = Waiting(ThreadedDisk(), keys_in_memory=1_000)
        running = asyncio.create_task(world.index.run())
        most = 0
        for _ in range(200):
            world.add(*[RNG.randrange(0, 10**9) for _ in range(100)])
            await world.index.wait_room()
            most = max(most, world.index.keys_in_memory)
        assert 1_000 < most <= 2_000
        assert await world.drain(300) == sorted((due_ms, at) for at, due_ms in enumerate(world.dues))
        running.cancel()

    async def test_a_loader_waits_for_merges_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer_index, "RUNS_MAX", 4)
        monkeypatch.setattr(timer_runs, "FAN_IN", 3)
        world = Waiting(ThreadedDisk())
        for _ in range(12):
            world.add(1)
            await world.index.flush()
        await world.index.wait_room()  # no merge runs: it does not wait
        running = asyncio.create_task(world.index.run())
        await asyncio.sleep(0)
        await world.index.wait_room()
        assert len([name for name in world.disk.list_dir(FOLDER) if name.isdigit()]) < 12
        running.cancel()

    async def test_without_a_writer_there_is_no_wait(self) -> None:
        world = Waiting()
        world.add(*range(100))
        await world.index.wait_room()

    async def test_one_step_handles_a_bounded_number_of_keys(self) -> None:
        disk = SimDisk()
        disk.make_dirs(FOLDER)
        readers = []
        for number in range(8):
            writer = RunWriter(disk, FOLDER, number)
            await writer.write(sorted(KEY.pack(RNG.randrange(0, 10**9), at) for at in range(10_000)))
            run = await writer.finish()
            assert isinstance(run, KeyRun)
            readers.append(RunReader.open(run, 0))
        stretches = [Stretch(sorted(KEY.pack(RNG.randrange(0, 10**9), at) for at in range(1_000))) for _ in range(64)]
        for sources, buffers_max in ((readers, 8 * 2 * BLOCK_KEYS), (stretches, 2 * timer_keys.STRETCH_PARTS_KEYS)):
            merge = KeyMerge(disk, sources)
            found = []
            while (keys := await merge.next_slice()) is not None:
                assert len(keys) <= SLICE_KEYS
                assert len(merge._merged) + sum(len(one.buffer) for one in merge._inputs) <= buffers_max
                found += keys
            assert found == sorted({key for source in sources for key in _all_keys(source)})

    async def test_merges_keep_the_runs_few_and_leave_out_what_is_done(self) -> None:
        world = Waiting(keys_in_memory=BLOCK_KEYS)
        for _ in range(100):
            world.add(*[RNG.randrange(0, 10**9) for _ in range(BLOCK_KEYS)])
            await world.index.flush()
        world.done = set(range(0, len(world.dues), 2))
        expected = world.due()
        assert await world.index.maintain()
        assert len([name for name in world.disk.list_dir(FOLDER) if name.isdigit()]) < 2 * timer_runs.FAN_IN
        assert blocks_on(world.disk) < 70
        assert await world.drain(99) == expected


class TestStart:
    async def test_after_a_clean_stop_nothing_is_read_again(self) -> None:
        world = Waiting()
        world.add(30, 10, 20)
        await world.index.close()
        assert world.open() == 3
        before = world.disk.fingerprint()
        await world.index.close()  # and nothing is written when nothing has changed
        assert world.disk.fingerprint() == before
        world.open()
        assert world.index.next_due_ms == 10
        assert await world.drain() == [(10, 1), (20, 2), (30, 0)]

    async def test_nothing_is_made_before_something_waits(self) -> None:
        world = Waiting()
        assert world.open() == 0
        await world.index.close()
        assert world.disk.list_dir(Path("/")) == []

    async def test_what_needs_no_key_is_covered(self) -> None:
        world = Waiting()
        world.add(1)
        world.dues += [0, 0, 0]
        world.done |= {1, 2, 3}
        world.index.cover(4)
        world.index.cover(2)
        assert world.index.covered == 4
        await world.index.close()
        assert world.open() == 4

    async def test_a_start_does_not_walk_through_what_is_done(self) -> None:
        world = Waiting(keys_in_memory=20_000)
        world.add(*range(20_000))
        await world.index.flush()
        for _ in range(190):
            world.finish(await world.index.take_due(FOREVER_MS, 100))
        await world.index.close()
        with counted(world.disk, "pread") as read:
            assert world.open() == 20_000
            assert await world.index.take_due(FOREVER_MS, 1) == [(19_000, 19_000)]
        assert len([path for path in read if path.name.isdigit()]) == 1

    async def test_a_run_that_was_read_to_its_end_leaves(self) -> None:
        world = Waiting()
        world.add(*range(1_000))
        await world.index.flush()
        assert blocks_on(world.disk) == 4
        await world.drain(100)
        assert await world.index.flush()
        assert world.disk.list_dir(FOLDER) == [MANIFEST_NAME]
        await world.index.close()
        assert world.open() == 1_000
        assert world.index.next_due_ms is None

    async def test_takes_are_noted_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer_index, "CHANGES_MAX", 500)
        world = Waiting(ThreadedDisk(), keys_in_memory=2_000)
        world.add(*range(1_000))
        await world.index.flush()
        running = asyncio.create_task(world.index.run())
        assert len(await world.drain(50)) == 1_000
        await settle()
        assert "0000000001" not in world.disk.list_dir(FOLDER)
        running.cancel()

    async def test_files_that_the_manifest_does_not_name_are_deleted(self) -> None:
        world = Waiting()
        world.add(5)
        await world.index.close()
        for name in ("0000000099", MANIFEST_NAME + ".tmp", "notes.txt"):
            world.disk.open(FOLDER / name, create=True).close()
        assert world.open() == 1
        assert world.disk.list_dir(FOLDER) == ["0000000001", "notes.txt", MANIFEST_NAME]
        world.add(6)
        await world.index.close()
        assert world.disk.list_dir(FOLDER)[1] == "0000000100"  # a number is never given twice


def _all_keys(source: Stretch | RunReader) -> list[bytes]:
    if isinstance(source, Stretch):
        return source.keys
    return [key for block in range(source.run.blocks) for key in source.run.read(block)]
