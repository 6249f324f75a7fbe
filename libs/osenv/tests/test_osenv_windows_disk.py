"""The disk for Windows, run on this system: everything but its lock is Python that behaves here as there.

The lock is tested against a stand-in for Windows' own module.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from osenv import RealDisk, replace_file
from osenv.disk import read_file
from osenv.windows_disk import WindowsDisk, disk_of_this_system


@pytest.fixture
def disk() -> Iterator[WindowsDisk]:
    made = WindowsDisk()
    yield made
    made.close()


@pytest.fixture
def msvcrt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks one byte as `msvcrt.locking` does, rejecting with its errno."""

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))


def test_bytes_are_written_and_read_by_position(disk: WindowsDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.pwrite(b"hello world", 0)
    file.pwrite(bytearray(b"W"), 6)
    file.pwrite(memoryview(b"!?")[:1], 11)
    file.sync_data()
    assert (file.pread(100, 0), file.pread(5, 10), file.pread(5, 12)) == (b"hello World!", b"d!", b"")
    file.truncate(2)
    file.allocate(1, 3)
    assert (file.size(), file.pread(10, 0)) == (4, b"he\0\0")
    file.close()
    file.close()


def test_threads_do_not_move_each_other_s_position(
    disk: WindowsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seek = os.lseek

    def seek_and_let_others_run(descriptor: int, position: int, how: int) -> int:
        reached = seek(descriptor, position, how)
        os.sched_yield()
        return reached

    monkeypatch.setattr(os, "lseek", seek_and_let_others_run)
    file = disk.open(tmp_path / "f", create=True)

    def work(number: int) -> bool:
        data = bytes([number]) * 100
        for _ in range(200):
            file.pwrite(data, number * 100)
            if file.pread(100, number * 100) != data:
                return False
        return True

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(4)))
    file.close()


def test_a_file_is_replaced_and_its_previous_content_kept(disk: WindowsDisk, tmp_path: Path) -> None:
    path = tmp_path / "a/b/f"
    disk.make_dirs(path.parent)
    for content in (b"old", b"new"):
        replace_file(disk, path, content)
    assert (read_file(disk, path), read_file(disk, path.with_name("f.bak"))) == (b"new", b"old")
    assert disk.list_dir(path.parent) == ["f", "f.bak"]


def test_a_missing_file_and_a_folder_are_no_files(disk: WindowsDisk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        disk.open(tmp_path)
    file = disk.open(tmp_path / "f", create=True)
    file.close()
    reader = disk.open(tmp_path / "f", read_only=True)
    with pytest.raises(OSError):
        reader.pwrite(b"x", 0)
    reader.close()


@pytest.mark.usefixtures("msvcrt")
def test_a_lock_has_one_holder(disk: WindowsDisk, tmp_path: Path) -> None:
    lock = disk.lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        disk.lock(tmp_path / "lock")
    lock.release()
    disk.lock(tmp_path / "lock").release()


def test_the_share_that_is_used_is_one(disk: WindowsDisk, tmp_path: Path) -> None:
    assert 0 < disk.usage(tmp_path).used_share < 1


async def test_calls_leave_the_event_loop(disk: WindowsDisk) -> None:
    assert await disk.offload(threading.current_thread) is not threading.current_thread()


def test_each_system_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = disk_of_this_system()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    there = disk_of_this_system()
    assert (type(here), type(there)) == (RealDisk, WindowsDisk)
    here.close()
    there.close()
