"""More files than descriptors: which are open, and that nothing is lost with a descriptor."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from osenv import DiskFile, PooledFiles, RealDisk, SeededRng, SimDisk
from osenv.disk import read_file

ROOT = Path("/files")


class CountingDisk(SimDisk):
    """Tells which files have been opened since it was asked last, and fails to open when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.make_dirs(ROOT)
        self._opened: list[str] = []
        self.rejection: OSError | None = None
        self.before = self._see

    def opened(self) -> list[str]:
        names, self._opened = self._opened, []
        return names

    def _see(self, call: str, path: Path) -> None:
        if call == "open":
            self._opened.append(path.name)
            if self.rejection is not None:
                raise self.rejection


def pool_of(count: int, open_max: int) -> tuple[CountingDisk, PooledFiles, list[DiskFile]]:
    disk = CountingDisk()
    pool = PooledFiles(disk, open_max)
    files: list[DiskFile] = [pool.open(ROOT / str(number), create=True) for number in range(count)]
    disk.opened()
    return disk, pool, files


def test_a_file_that_was_not_used_since_the_last_time_loses_its_descriptor() -> None:
    disk, pool, files = pool_of(3, 3)
    pool.open(ROOT / "3", create=True)  # each was used: the first one goes
    files[1].size()
    pool.open(ROOT / "4", create=True)
    assert disk.opened() == ["3", "4"]
    files[1].size()
    assert disk.opened() == []
    files[2].size()
    assert disk.opened() == ["2"]


def test_a_pinned_file_keeps_its_descriptor_and_a_held_one_for_its_turn() -> None:
    disk, pool, _ = pool_of(0, 1)
    held, pinned = pool.open(ROOT / "held", create=True), pool.open(ROOT / "pinned", create=True)
    pool.hold(held)
    pinned.pin()
    disk.opened()
    pool.open(ROOT / "other", create=True)
    held.pwrite(b"x", 0)
    pinned.size()
    assert disk.opened() == ["other"]
    pool.new_turn()
    pinned.unpin()
    pool.open(ROOT / "another", create=True)
    held.pwrite(b"x", 0)
    pinned.size()
    assert disk.opened() == ["another", "held", "pinned"]


def test_what_was_written_before_a_descriptor_was_lost_is_durable_after_a_sync() -> None:
    disk, _, files = pool_of(2, 1)
    files[0].pwrite(b"x", 0)
    files[1].size()
    files[0].sync_data()
    disk.sync_dir(ROOT)
    disk.sync_dir(ROOT.parent)
    left = next(disk.lost_states(SeededRng(1), exhaustive_units_max=0))
    assert read_file(left, ROOT / "0") == b"x"


def test_a_file_that_cannot_be_opened_again_is_asked_again_at_the_next_use() -> None:
    disk, _, files = pool_of(2, 1)
    disk.rejection = OSError(errno.EMFILE, "no descriptor is left")
    with pytest.raises(OSError, match="no descriptor"):
        files[0].pread(1, 0)
    disk.rejection = None
    assert files[0].pread(1, 0) == b""
    files[1].size()
    disk.opened()
    files[0].size()
    assert disk.opened() == ["0"]  # the failed use does not keep it open


def test_a_closed_file_is_never_opened_again() -> None:
    disk, _, files = pool_of(2, 1)
    for file in files:  # without a descriptor, and with one
        file.close()
        with pytest.raises(OSError) as caught:
            file.size()
        assert caught.value.errno == errno.EBADF
    assert disk.opened() == []


def test_of_many_real_files_only_so_many_have_a_descriptor(tmp_path: Path) -> None:
    disk = RealDisk()
    pool = PooledFiles(disk, 4)
    files = [pool.open(tmp_path / str(number), create=True) for number in range(50)]
    for number, file in enumerate(files):
        file.pwrite(b"%d" % number, 0)
        file.sync_data()
    if (descriptors := Path("/proc/self/fd")).exists():
        targets = [str(link.readlink()) for link in descriptors.iterdir() if link.is_symlink()]
        assert sum(target.startswith(str(tmp_path)) for target in targets) == 4
    assert [file.pread(9, 0) for file in files] == [b"%d" % number for number in range(50)]
    disk.close()
