"""The simulated disk's faults: hooks around every call, short writes, and syncs that fail once and lie ever after."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from osenv import SeededRng, SimDisk, SyncError
from osenv.disk import read_file
from osenv.sim_disk import ShortWriteError
from osenv.sim_files import SECTOR_BYTES

ROOT = Path("/store")
LOG = ROOT / "log"


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(ROOT)
    disk.sync_dir(ROOT.parent)
    return disk


def put(disk: SimDisk, path: Path, content: bytes, *, at: int = 0) -> None:
    file = disk.open(path, create=True)
    file.pwrite(content, at)
    file.sync_data()
    file.close()


def failing(wanted: str, error: OSError) -> Callable[[str, Path], None]:
    def fail(call: str, path: Path) -> None:
        if call == wanted:
            raise error

    return fail


def test_every_call_passes_both_hooks_with_its_path() -> None:
    disk, calls = new_disk(), []
    disk.before = lambda call, path: calls.append(("before", call, path))
    disk.after = lambda call, path: calls.append(("after", call, path))
    other = ROOT / "other"
    file = disk.open(LOG, create=True)
    file.pwrite(b"x", 0)
    file.pread(1, 0)
    file.allocate(0, 10)
    file.truncate(5)
    file.size()
    file.sync_data()
    disk.exists(LOG)
    disk.list_dir(ROOT)
    disk.make_dirs(ROOT / "config")
    disk.replace(LOG, other)
    disk.sync_dir(ROOT)
    disk.unlink(other)
    disk.lock(ROOT / "lock")
    disk.usage(ROOT)
    expected = [("open", LOG)]
    expected += [(call, LOG) for call in ("pwrite", "pread", "allocate", "truncate", "size", "sync_data", "exists")]
    expected += [("list_dir", ROOT), ("make_dirs", ROOT / "config"), ("replace", other), ("sync_dir", ROOT)]
    expected += [("unlink", other), ("lock", ROOT / "lock"), ("usage", ROOT)]
    assert calls == [(when, *call) for call in expected for when in ("before", "after")]


@pytest.mark.parametrize("call", ["open", "make_dirs", "replace", "unlink", "lock", "allocate", "truncate", "pwrite"])
def test_call_that_a_hook_rejects_has_not_happened(call: str) -> None:
    disk = new_disk()
    put(disk, LOG, b"kept")
    file = disk.open(LOG)
    before = disk.contents()
    disk.before = failing(call, OSError(errno.EIO, "no"))
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open(ROOT / "new", create=True),
        "make_dirs": lambda: disk.make_dirs(ROOT / "new"),
        "replace": lambda: disk.replace(LOG, ROOT / "new"),
        "unlink": lambda: disk.unlink(LOG),
        "lock": lambda: disk.lock(ROOT / "lock"),
        "allocate": lambda: file.allocate(0, 100),
        "truncate": lambda: file.truncate(0),
        "pwrite": lambda: file.pwrite(b"lost", 0),
    }
    with pytest.raises(OSError) as caught:
        calls[call]()
    assert not isinstance(caught.value, SyncError)
    assert disk.contents() == before
    assert disk.list_dir(ROOT) == ["log"]
    assert not disk.locks


@pytest.mark.parametrize("written", [0, 3, 700])
def test_short_write_leaves_its_first_bytes(written: int) -> None:
    disk = new_disk()
    put(disk, LOG, b"o" * 1_000)
    disk.before = failing("pwrite", ShortWriteError(errno.ENOSPC, "full", written))
    with pytest.raises(OSError) as caught:
        disk.open(LOG).pwrite(b"n" * 800, 400)
    assert caught.value.errno == errno.ENOSPC
    assert read_file(disk, LOG) == (b"o" * 400 + b"n" * written).ljust(1_000, b"o")


def test_content_whose_sync_failed_is_read_until_the_power_goes() -> None:
    disk = new_disk()
    put(disk, LOG, b"o" * 100)
    disk.sync_dir(ROOT)
    disk.before = failing("sync_data", OSError(errno.EIO, "the platter is scratched"))
    file = disk.open(LOG)
    file.pwrite(b"n" * 2_000, 0)
    with pytest.raises(SyncError) as caught:
        file.sync_data()
    assert (caught.value.errno, caught.value.strerror) == (errno.EIO, "the platter is scratched")
    disk.before = lambda call, path: None
    file.sync_data()  # says that all is well
    assert read_file(disk, LOG) == b"n" * 2_000
    disk.kill()
    assert read_file(disk, LOG) == b"n" * 2_000
    assert [read_file(state, LOG) for state in disk.lost_states(SeededRng(0))] == [b"o" * 100]
    disk.crash(SeededRng(0))
    assert read_file(disk, LOG) == b"o" * 100


def test_sector_written_again_after_a_failed_sync_is_synced_with_all_its_bytes() -> None:
    disk = new_disk()
    put(disk, LOG, b"o" * SECTOR_BYTES * 3)
    disk.sync_dir(ROOT)
    file = disk.open(LOG)
    file.pwrite(b"n" * SECTOR_BYTES * 2, 0)
    disk.before = failing("sync_data", OSError(errno.EIO, "no"))
    with pytest.raises(SyncError):
        file.sync_data()
    disk.before = lambda call, path: None
    file.pwrite(b"!", 7)
    file.sync_data()
    disk.crash(SeededRng(0))
    first = b"n" * 7 + b"!" + b"n" * (SECTOR_BYTES - 8)
    assert read_file(disk, LOG) == first + b"o" * SECTOR_BYTES * 2


def test_append_after_a_failed_sync_leaves_a_hole_where_the_pages_were_dropped() -> None:
    disk = new_disk()
    put(disk, LOG, b"o" * SECTOR_BYTES)
    disk.sync_dir(ROOT)
    file = disk.open(LOG)
    file.pwrite(b"n" * SECTOR_BYTES, SECTOR_BYTES)
    disk.before = failing("sync_data", OSError(errno.EIO, "no"))
    with pytest.raises(SyncError):
        file.sync_data()
    disk.before = lambda call, path: None
    file.pwrite(b"m" * SECTOR_BYTES, 2 * SECTOR_BYTES)
    file.sync_data()
    disk.crash(SeededRng(0))
    assert read_file(disk, LOG) == b"o" * SECTOR_BYTES + bytes(SECTOR_BYTES) + b"m" * SECTOR_BYTES


def test_names_whose_sync_failed_are_lost_and_what_follows_is_kept() -> None:
    disk = new_disk()
    put(disk, LOG, b"x")
    disk.before = failing("sync_dir", OSError(errno.EIO, "no"))
    with pytest.raises(SyncError):
        disk.sync_dir(ROOT)
    disk.before = lambda call, path: None
    disk.sync_dir(ROOT)
    assert disk.exists(LOG)
    put(disk, ROOT / "later", b"y")
    disk.sync_dir(ROOT)
    disk.crash(SeededRng(0))
    assert disk.list_dir(ROOT) == ["later"]


def test_sync_that_fails_after_its_work_loses_nothing() -> None:
    disk = new_disk()
    put(disk, LOG, b"old")
    disk.sync_dir(ROOT)
    disk.after = failing("sync_data", OSError(errno.EIO, "no"))
    with pytest.raises(SyncError):
        put(disk, LOG, b"new")
    disk.crash(SeededRng(0))
    assert read_file(disk, LOG) == b"new"


def test_usage_is_what_the_test_says() -> None:
    disk = new_disk()
    disk.used_share, disk.free_bytes = 0.9, 1000
    assert disk.usage(ROOT) == disk.fork().usage(ROOT) == (0.9, 1000)
