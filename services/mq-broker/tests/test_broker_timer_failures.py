"""The order of due times when its files are lost or damaged, and when the disk rejects or fails."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.schedule import timer_runs
from mq_broker.schedule.timer_index import RETRY_AFTER_ERROR_S
from mq_broker.schedule.timer_runs import BLOCK_BYTES, BLOCK_KEYS, MANIFEST_NAME, DamagedRunError
from mq_broker.store.errors import StoreFencedError
from mq_broker.store.state_files import encode_document
from mq_broker.testing_closely import FOLDER, FOREVER_MS, ThreadedDisk, Waiting
from osenv import SimDisk, SyncError
from osenv.disk import read_file, replace_file
from osenv.sim_clock import settle

COUNT = 4 * BLOCK_KEYS
MANIFEST = FOLDER / MANIFEST_NAME
FIRST_RUN = FOLDER / "0000000001"
FULL = OSError(errno.ENOSPC, "no space left")


async def stopped(disk: SimDisk | None = None) -> Waiting:
    """Four blocks in one run, which is not open."""
    world = Waiting(disk, keys_in_memory=COUNT)
    world.add(*range(COUNT))
    await world.index.close()
    return world


def fail(disk: SimDisk, error: OSError, call: str, wanted: Callable[[Path], bool] = lambda _: True) -> None:
    def before(name: str, path: Path) -> None:
        if name == call and wanted(path):
            raise error

    disk.before = before


def heal(disk: SimDisk) -> None:
    disk.before = lambda _call, _path: None


def flip(disk: SimDisk, path: Path, at: int) -> None:
    file = disk.open(path)
    file.pwrite(bytes([file.pread(1, at)[0] ^ 0x10]), at)
    file.close()


def rewrite(disk: SimDisk, **fields: object) -> None:
    document = json.loads(read_file(disk, MANIFEST)) | fields
    for name in ("logOffset", "formatVersion", "crc32"):
        del document[name]
    replace_file(disk, MANIFEST, encode_document(document, 0), keep_previous=False)


LOSSES: dict[str, Callable[[SimDisk], None]] = {
    "no manifest": lambda disk: disk.unlink(MANIFEST),
    "damaged manifest": lambda disk: flip(disk, MANIFEST, 20),
    "manifest without runs": lambda disk: rewrite(disk, runs=None),
    "manifest with a text": lambda disk: rewrite(disk, queueOffset="7"),
    "manifest with a number below 0": lambda disk: rewrite(disk, queueOffset=-1),
    "a block behind the last": lambda disk: rewrite(disk, runs=[{"number": 1, "blocks": 4, "fromBlock": 4}]),
    "a run twice": lambda disk: rewrite(disk, runs=[{"number": 1, "blocks": 4, "fromBlock": 0}] * 2),
    "more messages than were stored": lambda disk: rewrite(disk, queueOffset=COUNT + 1),
    "no run": lambda disk: disk.unlink(FIRST_RUN),
    "a run that was cut": lambda disk: disk.open(FIRST_RUN).truncate(3 * BLOCK_BYTES),
    "a run that grew": lambda disk: disk.open(FIRST_RUN).truncate(5 * BLOCK_BYTES),
    "a first block that is damaged": lambda disk: flip(disk, FIRST_RUN, 77),
}


class TestLost:
    @pytest.mark.parametrize("loss", LOSSES)
    async def test_what_was_lost_is_told_again(self, loss: str) -> None:
        world = await stopped()
        LOSSES[loss](world.disk)
        index = world.index = world._make()
        assert index.open(COUNT) == 0
        assert index.next_due_ms is None
        assert world.disk.list_dir(FOLDER) == []
        world.add_again(0)
        assert await world.drain(100) == [(at, at) for at in range(COUNT)]
        await index.close()
        assert world.open() == COUNT

    async def test_a_later_block_that_is_damaged_is_told_when_it_is_read(self) -> None:
        world = await stopped()
        flip(world.disk, FIRST_RUN, 2 * BLOCK_BYTES + 99)
        assert world.open() == COUNT
        with pytest.raises(DamagedRunError, match="0000000001, block 2"):
            await world.index.take_due(FOREVER_MS, COUNT)
        await world.index.reset()
        assert world.index.covered == 0
        assert world.index.next_due_ms is None
        assert world.disk.list_dir(FOLDER) == []
        world.add_again(0)
        assert await world.drain(100) == [(at, at) for at in range(COUNT)]

    async def test_what_comes_before_a_damaged_block_is_not_lost(self) -> None:
        world = await stopped()
        flip(world.disk, FIRST_RUN, 2 * BLOCK_BYTES + 99)
        world.open()
        with pytest.raises(DamagedRunError):
            await world.index.take_due(FOREVER_MS, COUNT)
        assert await world.index.take_due(FOREVER_MS, 2 * BLOCK_KEYS) == [(at, at) for at in range(2 * BLOCK_KEYS)]

    async def test_a_merge_that_meets_damage_ends_the_writer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer_runs, "FAN_IN", 2)
        world = await stopped()
        flip(world.disk, FIRST_RUN, 3 * BLOCK_BYTES + 99)
        world.open()
        world.add(*range(COUNT))
        await world.index.flush()
        with pytest.raises(DamagedRunError, match="block 3"):
            await asyncio.wait_for(world.index.run(), 10)
        await world.index.reset()
        world.add_again(0)
        assert await world.drain(500) == sorted((at % COUNT, at) for at in range(2 * COUNT))

    async def test_a_reset_does_not_wait_for_the_end_of_a_merge(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer_runs, "FAN_IN", 2)
        world = Waiting(ThreadedDisk(), keys_in_memory=10 * COUNT)
        for _ in range(2):
            world.add(*range(10 * COUNT))
            await world.index.flush()
        merging = asyncio.create_task(world.index.maintain())
        for _ in range(8):
            await asyncio.sleep(0)
        reads: list[Path] = []
        world.disk.before = lambda call, path: reads.append(path) if call == "pread" else None
        await world.index.reset()
        assert merging.done()
        assert 0 < len(reads) < 20  # of eighty blocks
        assert world.disk.list_dir(FOLDER) == []
        world.add_again(0)
        assert len(await world.drain(5_000)) == 20 * COUNT


class TestRejected:
    @pytest.mark.parametrize("call", ["make_dirs", "open", "pwrite", "replace"])
    async def test_what_cannot_be_written_stays_in_memory(self, call: str, caplog: pytest.LogCaptureFixture) -> None:
        world = Waiting(keys_in_memory=10)
        fail(world.disk, FULL, call)
        world.add(*range(100))
        assert not await world.index.maintain()
        assert len(caplog.records) == 1
        assert "no space left" in caplog.text
        assert world.index.keys_in_memory == 100 or call == "replace"
        heal(world.disk)
        assert await world.index.take_due(FOREVER_MS, 1_000) == [(at, at) for at in range(100)]
        assert await world.index.flush()
        world.kill()
        assert world.open() == 100
        assert await world.drain() == [(at, at) for at in range(100)]

    async def test_a_rejected_run_takes_no_room(self) -> None:
        world = Waiting(keys_in_memory=COUNT)
        world.add(*range(5 * COUNT))
        writes: list[Path] = []

        def before(call: str, path: Path) -> None:
            if call == "pwrite":
                writes.append(path)
                if len(writes) > 1:
                    raise FULL

        world.disk.before = before
        assert not await world.index.flush()
        assert world.disk.list_dir(FOLDER) == []

    async def test_it_is_tried_again_after_a_while(self) -> None:
        world = Waiting(ThreadedDisk(), keys_in_memory=10)
        fail(world.disk, FULL, "pwrite")
        running = asyncio.create_task(world.index.run())
        world.add(*range(100))
        await settle()
        assert world.disk.list_dir(FOLDER) == []
        await world.index.wait_room()  # for there will not be any soon
        heal(world.disk)
        world.add(*range(100))
        await world.clock.advance(RETRY_AFTER_ERROR_S - 1)
        assert world.disk.list_dir(FOLDER) == []
        await world.clock.advance(1)
        assert MANIFEST_NAME in world.disk.list_dir(FOLDER)
        assert world.index.keys_in_memory == 0
        running.cancel()

    async def test_a_merge_that_is_rejected_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timer_runs, "FAN_IN", 2)
        world = Waiting(keys_in_memory=COUNT)
        for _ in range(2):
            world.add(*range(COUNT))
            await world.index.flush()
        before = world.disk.list_dir(FOLDER)
        fail(world.disk, FULL, "pwrite")
        assert not await world.index.maintain()
        heal(world.disk)
        assert world.disk.list_dir(FOLDER) == before
        assert await world.drain(1_000) == sorted((at % COUNT, at) for at in range(2 * COUNT))

    async def test_a_read_that_is_rejected_takes_nothing(self) -> None:
        world = await stopped()
        world.open()
        fail(world.disk, OSError(errno.ENOMEM, "no memory"), "pread")
        with pytest.raises(OSError, match="no memory"):
            await world.index.take_due(FOREVER_MS, COUNT)
        heal(world.disk)
        assert await world.drain(100) == [(at, at) for at in range(COUNT)]

    async def test_a_file_that_cannot_be_deleted_is_left_to_the_next_start(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        world = await stopped()
        world.open()
        await world.drain(500)
        fail(world.disk, OSError(errno.EACCES, "not allowed"), "unlink")
        assert await world.index.flush()
        heal(world.disk)
        assert "0000000001 could not be deleted" in caplog.text
        assert FIRST_RUN.name in world.disk.list_dir(FOLDER)
        world.index.release()
        assert world.open() == COUNT
        assert world.disk.list_dir(FOLDER) == [MANIFEST_NAME]


class TestFailed:
    @pytest.mark.parametrize("call", ["sync_data", "sync_dir"])
    async def test_a_sync_that_fails_ends_the_writer(self, call: str) -> None:
        world = Waiting(ThreadedDisk(), keys_in_memory=10)
        running = asyncio.create_task(world.index.run())
        fail(world.disk, OSError(errno.EIO, "gone"), call)
        world.add(*range(100))
        with pytest.raises(SyncError):
            await running
        await world.index.wait_room()  # there is nothing to wait for any more

    async def test_a_log_that_is_fenced_ends_the_writer_before_anything_is_named(self) -> None:
        world = Waiting(keys_in_memory=10)

        async def fenced() -> int:
            raise StoreFencedError("the disk has failed")

        world.log_durable = fenced  # type: ignore[method-assign]
        world.index = world._make()
        world.add(*range(100))
        with pytest.raises(StoreFencedError):
            await world.index.maintain()
        assert MANIFEST_NAME not in world.disk.list_dir(FOLDER)

    async def test_closing_gives_the_files_back_in_any_case(self) -> None:
        world = await stopped()
        world.open()
        (reader,) = world.index._runs.readers
        world.add(1)
        fail(world.disk, OSError(errno.EIO, "gone"), "sync_data")
        with pytest.raises(SyncError):
            await world.index.close()
        heal(world.disk)
        with pytest.raises(OSError, match="closed"):
            reader.run.read(0)
