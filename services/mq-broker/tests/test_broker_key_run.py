"""Runs of keys: what was written is read, every kind of damage is noticed, and nothing is left half done."""

from __future__ import annotations

import errno
import struct
import zlib
from bisect import bisect_left
from pathlib import Path

import pytest

from mq_broker.schedule.timer_runs import (
    BLOCK_BYTES,
    BLOCK_KEYS,
    KEY,
    DamagedRunError,
    KeyRun,
    RunWriter,
    run_name,
    run_number,
)
from osenv import SeededRng, SimDisk, SyncError

FOLDER = Path("/timer")


def folder() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(FOLDER)
    disk.sync_dir(FOLDER.parent)
    return disk


async def written(disk: SimDisk, keys: list[bytes], number: int = 7) -> KeyRun:
    writer = RunWriter(disk, FOLDER, number)
    for at in range(0, len(keys), 100):
        await writer.write(keys[at : at + 100])
    run = await writer.finish()
    assert run is not None
    return run


def keys(count: int) -> list[bytes]:
    return [KEY.pack(1_000 + at // 3, at) for at in range(count)]


def fail(disk: SimDisk, call: str, error: OSError, *, after: int = 0) -> None:
    made = 0

    def before(name: str, _path: Path) -> None:
        nonlocal made
        if name == call:
            made += 1
            if made > after:
                raise error

    disk.before = before


@pytest.mark.parametrize("count", [1, BLOCK_KEYS - 1, BLOCK_KEYS, BLOCK_KEYS + 1, 10 * BLOCK_KEYS, 5_000])
async def test_what_was_written_is_read(count: int) -> None:
    disk = folder()
    run = await written(disk, keys(count))
    assert run.blocks == -(-count // BLOCK_KEYS)
    assert [key for block in range(run.blocks) for key in run.read(block)] == keys(count)
    run.close()


async def test_a_key_is_found_in_its_block() -> None:
    disk = folder()
    all_keys = [KEY.pack(2 * at, 0) for at in range(4 * BLOCK_KEYS + 3)]
    run = await written(disk, all_keys)
    for due_ms in range(2 * len(all_keys) + 2):
        at = bisect_left(all_keys, KEY.pack(due_ms, 0))
        assert run.find(KEY.pack(due_ms, 0)) == (at // BLOCK_KEYS if at < len(all_keys) else run.blocks)


async def test_a_run_without_keys_is_no_file() -> None:
    disk = folder()
    assert await RunWriter(disk, FOLDER, 1).finish() is None
    assert disk.list_dir(FOLDER) == []


async def test_every_flipped_byte_is_noticed() -> None:
    disk = folder()
    (await written(disk, keys(BLOCK_KEYS + 20))).close()
    file = disk.open(FOLDER / run_name(7))
    run = KeyRun(disk, FOLDER, 7, 2)
    for at in range(2 * BLOCK_BYTES):
        (right,) = file.pread(1, at)
        file.pwrite(bytes([right ^ 1 << at % 8]), at)
        with pytest.raises(DamagedRunError, match=rf"/timer/0000000007, block {at // BLOCK_BYTES}: the CRC"):
            run.read(at // BLOCK_BYTES)
        file.pwrite(bytes([right]), at)
    assert len(run.read(0) + run.read(1)) == BLOCK_KEYS + 20


@pytest.mark.parametrize(
    ("run", "block", "count", "fault"),
    [
        (8, 0, 255, "block 0 of run 8"),
        (7, 1, 255, "block 1 of run 7"),
        (7, 0, 254, "holds 254 keys"),
        (7, 0, 256, "holds 256 keys"),
        (7, 0, 0, "holds 0 keys"),
    ],
)
async def test_a_whole_block_in_the_wrong_place_is_noticed(run: int, block: int, count: int, fault: str) -> None:
    disk = folder()
    (await written(disk, keys(BLOCK_KEYS + 20))).close()
    content = bytes(BLOCK_BYTES - 16)
    head = struct.pack(">III", run, block, count)
    disk.open(FOLDER / run_name(7)).pwrite(head + struct.pack(">I", zlib.crc32(head + content)) + content, 0)
    with pytest.raises(DamagedRunError, match=fault):
        KeyRun(disk, FOLDER, 7, 2).read(0)


async def test_a_file_of_another_length_is_rejected() -> None:
    disk = folder()
    (await written(disk, keys(BLOCK_KEYS + 20))).close()
    with pytest.raises(DamagedRunError, match="0000000007: 8192 bytes long, not 4096"):
        KeyRun(disk, FOLDER, 7, 1)
    with pytest.raises(DamagedRunError, match="0000000009: the file is missing"):
        KeyRun(disk, FOLDER, 9, 1)


async def test_a_file_that_was_cut_while_open_is_noticed() -> None:
    disk = folder()
    run = await written(disk, keys(BLOCK_KEYS + 20))
    disk.open(FOLDER / run_name(7)).truncate(BLOCK_BYTES + 5)
    with pytest.raises(DamagedRunError, match="block 1: 5 bytes long"):
        run.read(1)


async def test_a_place_that_the_disk_cannot_read_is_damage() -> None:
    disk = folder()
    run = await written(disk, keys(20))
    fail(disk, "pread", OSError(errno.EIO, "no"))
    with pytest.raises(DamagedRunError, match="block 0: cannot be read"):
        run.read(0)
    fail(disk, "pread", OSError(errno.ENOMEM, "no"))
    with pytest.raises(OSError, match="no"):
        run.read(0)


async def test_a_finished_run_survives_a_power_cut() -> None:
    disk = folder()
    run = await written(disk, keys(5_000))
    disk.sync_dir(FOLDER)
    disk.crash(SeededRng(1))
    run = KeyRun(disk, FOLDER, 7, run.blocks)
    assert [key for block in range(run.blocks) for key in run.read(block)] == keys(5_000)


@pytest.mark.parametrize("call", ["open", "pwrite"])
async def test_a_run_that_the_disk_rejects_is_not_left_behind(call: str) -> None:
    disk = folder()
    fail(disk, call, OSError(errno.ENOSPC, "full"), after=int(call == "pwrite"))
    writer = RunWriter(disk, FOLDER, 1)
    with pytest.raises(OSError, match="full"):
        await writer.write(keys(5_000))
    await writer.discard()
    assert disk.list_dir(FOLDER) == []


async def test_a_finished_run_can_be_discarded() -> None:
    disk = folder()
    writer = RunWriter(disk, FOLDER, 1)
    await writer.write(keys(5))
    run = await writer.finish()
    await writer.discard()
    assert disk.list_dir(FOLDER) == []
    assert run is not None
    with pytest.raises(OSError, match="closed"):
        run.read(0)


async def test_a_sync_that_fails_is_told() -> None:
    disk = folder()
    fail(disk, "sync_data", OSError(errno.EIO, "gone"))
    with pytest.raises(SyncError):
        await written(disk, keys(5))


@pytest.mark.parametrize(("name", "number"), [("0000000007", 7), ("000000007", None), ("runs.json", None)])
def test_names(name: str, number: int | None) -> None:
    assert run_number(name) == number
    assert number is None or run_name(number) == name
