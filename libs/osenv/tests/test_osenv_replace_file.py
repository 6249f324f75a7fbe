"""`replace_file` under kills and power cuts at each of its calls: the old content or the new, and the old one kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osenv import DiskFile, SeededRng, SimDisk, replace_file
from osenv.disk import read_file

ROOT = Path("/store/config")
PATH, BACKUP = ROOT / "topics.json", ROOT / "topics.json.bak"
OLDER, OLD, NEW = b"older" * 300, b"old" * 400, b"new" * 700


class PowerCutError(Exception):
    """The machine is off."""


class CountingDisk(SimDisk):
    """Stops at its n-th call, before or in the middle of it (half of the bytes of a write have left)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.stop_at = -1
        self.half = False

    def count(self, half: Callable[[], object] = lambda: None) -> None:
        if self.calls == self.stop_at:
            if self.half:
                half()
            raise PowerCutError
        self.calls += 1

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> Any:
        self.count()
        return CountingFile(self, super().open(path, create=create, read_only=read_only))

    def replace(self, source: Path, target: Path) -> None:
        self.count()
        super().replace(source, target)

    def sync_dir(self, path: Path) -> None:
        self.count()
        super().sync_dir(path)


class CountingFile:
    def __init__(self, disk: CountingDisk, file: DiskFile) -> None:
        self._disk, self._file = disk, file

    def pwrite(self, data: bytes, offset: int) -> None:
        self._disk.count(lambda: self._file.pwrite(data[: len(data) // 2], offset))
        self._file.pwrite(data, offset)

    def __getattr__(self, name: str) -> Any:
        if name in {"sync_data", "truncate", "close"}:
            self._disk.count()
        return getattr(self._file, name)


def disk_with(*contents: bytes) -> CountingDisk:
    disk = CountingDisk()
    disk.make_dirs(ROOT)
    for folder in ROOT.parents:
        disk.sync_dir(folder)
    for content in contents:
        replace_file(disk, PATH, content)
    disk.calls = 0
    return disk


def content_of(disk: CountingDisk, path: Path) -> bytes | None:
    disk.stop_at = -1
    return read_file(disk, path) if disk.exists(path) else None


def calls_of_one_replacement(*contents: bytes) -> int:
    disk = disk_with(*contents)
    replace_file(disk, PATH, NEW)
    return disk.calls


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("power", ["kill", "cut"])
@pytest.mark.parametrize("before", [(), (OLD,), (OLDER, OLD)])
def test_stop_at_any_call_leaves_old_or_new(before: tuple[bytes, ...], power: str, half: bool) -> None:
    total = calls_of_one_replacement(*before)
    assert total > 6
    old = before[-1] if before else None
    seen = set()
    for stop_at in range(total):
        for seed in range(30 if power == "cut" else 1):
            disk = disk_with(*before)
            disk.stop_at, disk.half = stop_at, half
            with pytest.raises(PowerCutError):
                replace_file(disk, PATH, NEW)
            if power == "cut":
                disk.crash(SeededRng(seed))
            else:
                disk.kill()
            content = content_of(disk, PATH)
            assert content in {old, NEW}, (stop_at, seed)
            assert content_of(disk, BACKUP) in {None, *before}, (stop_at, seed)
            if len(before) == 2:
                assert content_of(disk, BACKUP) in {OLDER, OLD}
            seen.add(content)
    assert seen == {old, NEW}


def test_finished_replacement_survives_every_power_cut() -> None:
    for seed in range(100):
        disk = disk_with(OLD)
        replace_file(disk, PATH, NEW)
        disk.crash(SeededRng(seed))
        assert content_of(disk, PATH) == NEW
        assert content_of(disk, BACKUP) == OLD


def test_three_power_cuts_in_a_row_leave_a_whole_content() -> None:
    total = calls_of_one_replacement(OLD)
    for seed in range(2_000):
        rng = SeededRng(seed)
        disk, allowed = disk_with(OLD), {OLD}
        for content in (NEW, OLDER, b"third" * 500):
            disk.calls, disk.half = 0, rng.random() < 0.5
            disk.stop_at = rng.randrange(0, total)
            allowed.add(content)
            with pytest.raises(PowerCutError):
                replace_file(disk, PATH, content)
            disk.crash(rng)
            found = content_of(disk, PATH)
            assert found in allowed, seed
            allowed = {found}
