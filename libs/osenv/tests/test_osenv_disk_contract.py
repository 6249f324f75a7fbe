"""The promises of `osenv.Disk`, held by the real disk and the simulated one alike."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from osenv import Disk, RealDisk, SimDisk, SyncError, replace_file
from osenv.disk import read_file


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Disk, Path]]:
    root = tmp_path / "store"
    if request.param == "real":
        disk = RealDisk(threads=2)
        disk.make_dirs(root)
        yield disk, root
        disk.close()
    else:
        simulated = SimDisk()
        simulated.make_dirs(root)
        yield simulated, root


def test_written_bytes_are_read_back(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.open(root / "log", create=True)
    file.pwrite(b"hello world", 0)
    file.pwrite(bytearray(b"W"), 6)
    file.pwrite(memoryview(b"!?")[:1], 11)
    assert file.pread(100, 0) == b"hello World!"
    assert file.pread(5, 6) == b"World"
    assert file.pread(5, 10) == b"d!"
    assert file.pread(5, 12) == file.pread(5, 1000) == file.pread(0, 0) == b""
    assert file.size() == 12
    file.close()


def test_write_past_the_end_leaves_zeros_between(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.open(root / "log", create=True)
    file.pwrite(b"x", 1000)
    assert file.pread(2000, 0) == bytes(1000) + b"x"
    file.close()


def test_truncate_cuts_and_grows(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.open(root / "log", create=True)
    file.pwrite(b"abcdef", 0)
    file.truncate(2)
    file.truncate(4)
    assert file.pread(10, 0) == b"ab\0\0"
    file.close()


def test_allocate_grows_with_zeros_and_keeps_content(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.open(root / "log", create=True)
    file.pwrite(b"abc", 0)
    file.allocate(0, 5000)
    assert file.size() == 5000
    assert file.pread(5000, 0) == b"abc" + bytes(4997)
    file.allocate(100, 10)
    assert file.size() == 5000
    file.close()


def test_two_handles_see_one_file(place: tuple[Disk, Path]) -> None:
    disk, root = place
    one, two = disk.open(root / "log", create=True), disk.open(root / "log", create=True)
    one.pwrite(b"shared", 0)
    two.sync_data()
    assert two.pread(10, 0) == b"shared"
    one.close()
    assert two.pread(10, 0) == b"shared"
    two.close()


def test_closed_file_cannot_be_used(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.open(root / "log", create=True)
    file.close()
    with pytest.raises(OSError) as caught:
        file.pwrite(b"x", 0)
    assert caught.value.errno == errno.EBADF


def test_file_that_is_open_for_reading_only_is_not_changed(place: tuple[Disk, Path]) -> None:
    disk, root = place
    with pytest.raises(FileNotFoundError):
        disk.open(root / "log", read_only=True)
    writer = disk.open(root / "log", create=True)
    writer.pwrite(b"kept", 0)
    reader = disk.open(root / "log", read_only=True)
    with pytest.raises(OSError):
        reader.pwrite(b"x", 0)
    with pytest.raises(OSError):
        reader.truncate(0)
    with pytest.raises(OSError):
        reader.allocate(0, 100)
    assert reader.pread(100, 0) == b"kept"
    assert reader.size() == 4
    reader.sync_data()
    reader.close()
    writer.close()


def test_file_is_closed_twice_without_harm(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.open(root / "log", create=True)
    file.close()
    other = disk.open(root / "other", create=True)  # a real disk gives it the number that the first one had
    file.close()
    with pytest.raises(OSError):
        file.pwrite(b"not here", 0)
    assert other.size() == 0
    other.close()


def test_usage_is_a_share(place: tuple[Disk, Path]) -> None:
    disk, root = place
    used_share, free_bytes = disk.usage(root)
    assert 0.0 <= used_share <= 1.0
    assert free_bytes >= 0
    with pytest.raises(FileNotFoundError):
        disk.usage(root / "gone")


def test_missing_files_are_file_not_found(place: tuple[Disk, Path]) -> None:
    disk, root = place
    gone = root / "gone"
    for call in (
        lambda: disk.open(gone),
        lambda: disk.open(gone / "log", create=True),
        lambda: disk.unlink(gone),
        lambda: disk.replace(gone, root / "other"),
        lambda: disk.sync_dir(gone),
        lambda: read_file(disk, gone),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert disk.list_dir(gone) == []
    assert not disk.exists(gone)


def test_rename_into_a_missing_folder_changes_nothing(place: tuple[Disk, Path]) -> None:
    disk, root = place
    disk.open(root / "log", create=True).close()
    with pytest.raises(FileNotFoundError):
        disk.replace(root / "log", root / "gone" / "log")
    assert disk.list_dir(root) == ["log"]


def test_folder_is_not_opened_as_a_file(place: tuple[Disk, Path]) -> None:
    disk, root = place
    for read_only in (False, True):
        with pytest.raises(IsADirectoryError):
            disk.open(root, read_only=read_only)
    with pytest.raises(IsADirectoryError):
        disk.open(root, create=True)
    with pytest.raises(IsADirectoryError):
        disk.unlink(root)


def test_file_is_not_taken_for_a_folder(place: tuple[Disk, Path]) -> None:
    disk, root = place
    disk.open(root / "log", create=True).close()
    for call in (
        lambda: disk.open(root / "log" / "below", create=True),
        lambda: disk.list_dir(root / "log"),
        lambda: disk.sync_dir(root / "log"),
        lambda: disk.make_dirs(root / "log" / "below"),
    ):
        with pytest.raises(NotADirectoryError):
            call()
    with pytest.raises(FileExistsError):
        disk.make_dirs(root / "log")
    assert not disk.exists(root / "log" / "below")


def test_names_are_listed_sorted_with_folders(place: tuple[Disk, Path]) -> None:
    disk, root = place
    disk.make_dirs(root / "topic" / "0")
    disk.make_dirs(root / "topic" / "0")
    for name in ("b", "a"):
        disk.open(root / name, create=True).close()
    assert disk.list_dir(root) == ["a", "b", "topic"]
    assert disk.list_dir(root / "topic") == ["0"]
    assert disk.exists(root / "topic")
    assert disk.exists(root / "a")


def test_replace_takes_the_place_of_the_target(place: tuple[Disk, Path]) -> None:
    disk, root = place
    for name, content in (("old", b"old"), ("new", b"new")):
        file = disk.open(root / name, create=True)
        file.pwrite(content, 0)
        file.close()
    disk.replace(root / "new", root / "old")
    disk.sync_dir(root)
    assert disk.list_dir(root) == ["old"]
    assert read_file(disk, root / "old") == b"new"


def test_open_file_outlives_its_name(place: tuple[Disk, Path]) -> None:
    disk, root = place
    file = disk.open(root / "log", create=True)
    file.pwrite(b"still here", 0)
    disk.unlink(root / "log")
    assert not disk.exists(root / "log")
    assert file.pread(100, 0) == b"still here"
    file.close()


def test_lock_has_one_holder(place: tuple[Disk, Path]) -> None:
    disk, root = place
    held = disk.lock(root / "lock")
    with pytest.raises(BlockingIOError):
        disk.lock(root / "lock")
    held.release()
    disk.lock(root / "lock").release()
    assert disk.exists(root / "lock")


async def test_offload_returns_the_result_or_raises(place: tuple[Disk, Path]) -> None:
    disk, root = place

    def work(value: int, *, plus: int) -> int:
        return value + plus

    assert await disk.offload(work, 1, plus=2) == 3
    with pytest.raises(FileNotFoundError):
        await disk.offload(disk.unlink, root / "gone")


def test_replace_file_keeps_the_content_before(place: tuple[Disk, Path]) -> None:
    disk, root = place
    path = root / "topics.json"
    for content in (b"first", b"second and longer", b"3rd"):
        replace_file(disk, path, content)
        assert read_file(disk, path) == content
    assert read_file(disk, root / "topics.json.bak") == b"second and longer"
    assert disk.list_dir(root) == ["topics.json", "topics.json.bak"]


async def test_real_disk_offloads_to_its_threads() -> None:
    disk = RealDisk(threads=1)
    assert (await disk.offload(threading.current_thread)).name.startswith("disk")
    disk.close()


def test_real_disk_goes_on_after_a_short_write_and_a_short_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_pwrite, real_pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, memoryview(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real_pread(fd, min(length, 3), at))
    disk = RealDisk(threads=1)
    file = disk.open(tmp_path / "log", create=True)
    file.pwrite(b"ten bytes!", 5)
    assert file.pread(10, 5) == b"ten bytes!"
    assert file.pread(100, 5) == b"ten bytes!"
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: min(len(data), 4) if at == 0 else 0)
    with pytest.raises(OSError, match="took 4 of 10 bytes and then none"):
        file.pwrite(b"ten bytes!", 0)
    file.close()
    disk.close()


def test_real_disk_tells_a_failed_sync_from_other_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "the platter is scratched")

    disk = RealDisk(threads=1)
    file = disk.open(tmp_path / "log", create=True)
    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "fsync", fail)
    for sync in (file.sync_data, lambda: disk.sync_dir(tmp_path)):
        with pytest.raises(SyncError) as caught:
            sync()
        assert (caught.value.errno, caught.value.strerror) == (errno.EIO, "the platter is scratched")
    with pytest.raises(FileNotFoundError) as missing:
        disk.sync_dir(tmp_path / "gone")
    assert not isinstance(missing.value, SyncError)
    file.close()
    disk.close()


@pytest.mark.parametrize("missing", [True, False])
def test_real_disk_allocates_by_writing_where_the_system_cannot(
    missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not on this file system")

    if missing:
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", reject)
    disk = RealDisk(threads=1)
    file = disk.open(tmp_path / "log", create=True)
    file.truncate(3 << 20)
    file.pwrite(b"kept", 100)
    blocks_before = (tmp_path / "log").stat().st_blocks
    file.allocate(0, 2 << 20)
    assert file.size() == 3 << 20
    assert file.pread(3 << 20, 0) == bytes(100) + b"kept" + bytes((3 << 20) - 104)
    assert ((tmp_path / "log").stat().st_blocks - blocks_before) * 512 > 1 << 20
    file.allocate(3 << 20, 5)
    assert file.size() == (3 << 20) + 5
    file.close()
    disk.close()


def test_real_disk_reports_what_df_would_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(threads=1)
    figures = os.statvfs(tmp_path)
    assert disk.usage(tmp_path).used_share == pytest.approx(
        1 - figures.f_bavail / (figures.f_blocks - figures.f_bfree + figures.f_bavail), abs=0.05
    )
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((1, 4096, 100, 30, 20, 0, 0, 0, 0, 0)))
    assert disk.usage(tmp_path) == (70 / 90, 20 * 4096)  # ten blocks are kept for root
    disk.close()
