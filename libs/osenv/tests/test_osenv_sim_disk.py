"""The simulated disk's power cuts: what was synced survives always, the rest in any subset."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from osenv import SeededRng, SimDisk
from osenv.disk import read_file
from osenv.sim_files import SECTOR_BYTES

ROOT = Path("/store")
LOG = ROOT / "log"
SEEDS = range(300)


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(ROOT)
    disk.sync_dir(ROOT.parent)
    return disk


def put(disk: SimDisk, path: Path, content: bytes, *, at: int = 0, sync: bool = True) -> None:
    file = disk.open(path, create=True)
    file.pwrite(content, at)
    if sync:
        file.sync_data()
    file.close()


def sectors(content: bytes) -> list[bytes]:
    return [content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES)]


@pytest.mark.parametrize("seed", range(20))
def test_synced_content_under_a_synced_name_survives(seed: int) -> None:
    disk = new_disk()
    put(disk, LOG, b"x" * 5000)
    disk.sync_dir(ROOT)
    disk.crash(SeededRng(seed))
    assert read_file(disk, LOG) == b"x" * 5000


def test_unsynced_sectors_survive_in_every_subset() -> None:
    seen = set()
    for seed in SEEDS:
        disk = new_disk()
        put(disk, LOG, b"o" * SECTOR_BYTES * 3)
        disk.sync_dir(ROOT)
        put(disk, LOG, b"n" * SECTOR_BYTES * 3, sync=False)
        disk.crash(SeededRng(seed))
        content = read_file(disk, LOG)
        assert len(content) == SECTOR_BYTES * 3
        assert all(sector in {b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES} for sector in sectors(content))
        seen.add("".join(chr(sector[0]) for sector in sectors(content)))
    assert len(seen) == 8


def test_sectors_that_were_not_written_never_change() -> None:
    for seed in SEEDS:
        disk = new_disk()
        put(disk, LOG, b"o" * SECTOR_BYTES * 4)
        disk.sync_dir(ROOT)
        put(disk, LOG, b"n" * 10, at=SECTOR_BYTES + 5, sync=False)
        disk.crash(SeededRng(seed))
        first, second, *rest = sectors(read_file(disk, LOG))
        assert first == rest[0] == rest[1] == b"o" * SECTOR_BYTES
        assert second.count(b"n") in {0, 10}


def test_unsynced_append_may_lose_its_length_or_its_bytes() -> None:
    lengths, contents = set(), set()
    for seed in SEEDS:
        disk = new_disk()
        put(disk, LOG, b"o" * 100)
        disk.sync_dir(ROOT)
        put(disk, LOG, b"n" * 2000, at=100, sync=False)
        disk.crash(SeededRng(seed))
        content = read_file(disk, LOG)
        assert content[:100] == b"o" * 100
        lengths.add(len(content))
        contents.add(content)
    assert lengths == {100, 2100}
    assert b"o" * 100 + b"n" * 2000 in contents
    assert any(0 in content for content in contents)  # the length without all of the bytes


def test_unsynced_truncation_may_come_back() -> None:
    lengths = set()
    for seed in SEEDS:
        disk = new_disk()
        put(disk, LOG, b"o" * 2000)
        disk.sync_dir(ROOT)
        disk.open(LOG).truncate(700)
        disk.crash(SeededRng(seed))
        lengths.add(len(read_file(disk, LOG)))
        assert read_file(disk, LOG)[:700] == b"o" * 700
    assert lengths == {700, 2000}


def test_second_crash_changes_nothing_more() -> None:
    for seed in range(50):
        disk = new_disk()
        put(disk, LOG, b"o" * 3000, sync=False)
        put(disk, ROOT / "other", b"x")
        disk.crash(SeededRng(seed))
        names = disk.list_dir(ROOT)
        contents = [read_file(disk, ROOT / name) for name in names]
        disk.crash(SeededRng(seed + 1))
        assert disk.list_dir(ROOT) == names
        assert [read_file(disk, ROOT / name) for name in names] == contents


def test_name_without_sync_dir_may_go_and_with_it_never() -> None:
    unsynced = set()
    for seed in SEEDS:
        disk = new_disk()
        put(disk, LOG, b"x")
        disk.sync_dir(ROOT)
        put(disk, ROOT / "young", b"y")
        disk.crash(SeededRng(seed))
        assert disk.exists(LOG)
        unsynced.add(disk.exists(ROOT / "young"))
    assert unsynced == {True, False}


def test_unlink_without_sync_dir_may_come_back() -> None:
    seen = set()
    for seed in SEEDS:
        disk = new_disk()
        put(disk, LOG, b"x")
        disk.sync_dir(ROOT)
        disk.unlink(LOG)
        disk.crash(SeededRng(seed))
        seen.add(disk.exists(LOG))
    assert seen == {True, False}


def test_rename_is_atomic_through_a_crash() -> None:
    seen = set()
    for seed in SEEDS:
        disk = new_disk()
        put(disk, LOG, b"old")
        put(disk, ROOT / "log.tmp", b"new")
        disk.sync_dir(ROOT)
        disk.replace(ROOT / "log.tmp", LOG)
        disk.crash(SeededRng(seed))
        seen.add((read_file(disk, LOG), disk.exists(ROOT / "log.tmp")))
    assert seen == {(b"old", True), (b"new", False)}


def test_sync_dir_covers_its_own_folder_only() -> None:
    seen = set()
    other = Path("/other")
    for seed in SEEDS:
        disk = new_disk()
        disk.make_dirs(other)
        disk.sync_dir(other.parent)
        put(disk, LOG, b"x")
        put(disk, other / "file", b"y")
        disk.sync_dir(ROOT)
        disk.crash(SeededRng(seed))
        assert disk.exists(LOG)
        seen.add(disk.exists(other / "file"))
    assert seen == {True, False}


def test_crash_is_repeatable_from_its_seed() -> None:
    def run(seed: int) -> bytes:
        disk = new_disk()
        put(disk, LOG, b"o" * 20_000, sync=False)
        disk.sync_dir(ROOT)
        disk.crash(SeededRng(seed))
        return read_file(disk, LOG)

    assert run(7) == run(7)
    assert len({run(seed) for seed in range(10)}) > 5


def test_killed_process_loses_its_handles_and_locks_but_no_bytes() -> None:
    disk = new_disk()
    file = disk.open(LOG, create=True)
    lock = disk.lock(ROOT / "lock")
    file.pwrite(b"in the page cache", 0)
    disk.kill()
    with pytest.raises(OSError) as caught:
        file.pread(1, 0)
    assert caught.value.errno == errno.EBADF
    assert read_file(disk, LOG) == b"in the page cache"

    disk.lock(ROOT / "lock")
    lock.release()  # of the dead process: the new holder keeps the lock
    with pytest.raises(BlockingIOError):
        disk.lock(ROOT / "lock")


def test_fault_raised_before_a_call_leaves_the_file_alone() -> None:
    disk = new_disk()
    put(disk, LOG, b"kept")
    calls: list[tuple[str, Path]] = []

    def fail(call: str, path: Path) -> None:
        calls.append((call, path))
        if call == "pwrite":
            raise OSError(errno.ENOSPC, "full")

    disk.before = fail
    file = disk.open(LOG)
    with pytest.raises(OSError) as caught:
        file.pwrite(b"lost", 0)
    assert caught.value.errno == errno.ENOSPC
    assert file.pread(4, 0) == b"kept"
    assert calls == [("open", LOG), ("pwrite", LOG), ("pread", LOG)]


def test_removed_tree_never_comes_back() -> None:
    for seed in range(50):
        disk = new_disk()
        disk.make_dirs(ROOT / "queue" / "0")
        put(disk, LOG, b"x")
        put(disk, ROOT / "queue" / "0" / "synced", b"x")
        disk.sync_dir(ROOT / "queue" / "0")
        put(disk, ROOT / "queue" / "0" / "young", b"x")
        disk.sync_dir(ROOT)
        disk.remove_tree(ROOT / "queue")
        disk.crash(SeededRng(seed))
        assert disk.list_dir(ROOT) == ["log"]
        assert not disk.exists(ROOT / "queue" / "0" / "young")


def test_fault_raised_after_a_call_comes_too_late_to_undo_it() -> None:
    disk = new_disk()
    put(disk, LOG, b"old")

    def fail(call: str, path: Path) -> None:
        if call == "pwrite":
            raise OSError(errno.EIO, f"after {call}")

    disk.after = fail
    with pytest.raises(OSError, match="after pwrite"):
        put(disk, LOG, b"new")
    assert read_file(disk, LOG) == b"new"
