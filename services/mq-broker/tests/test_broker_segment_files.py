"""A thread makes the next file while the store syncs: wherever they meet, file, name and folder are synced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import mq_broker.store.commit_log
from mq_broker.store.commit_log import SegmentFiles
from mq_broker.testing_closely import OpcodeTrace
from osenv import PooledFiles, SeededRng, SimDisk
from osenv.disk import read_file

ROOT, FILE_BYTES = Path("/store"), 64
FOLDER = ROOT / "queue" / "0"
NEXT = FILE_BYTES  # where the file begins that the thread makes
CODE = mq_broker.store.commit_log.__file__


def meets(act: Callable[[], None], other: Callable[[], None], number: int) -> bool:
    """Run `act`, and all of `other` before the n-th opcode of this module in it; whether there are so many."""
    trace = OpcodeTrace(CODE, lambda _: other(), number)
    with trace.running():
        act()
    return trace.has_acted


def after_a_power_cut(disk: SimDisk) -> SimDisk:
    """Nothing is left that was not synced."""
    return next(disk.lost_states(SeededRng(1), exhaustive_units_max=0))


def opened(disk: SimDisk, *, with_a_file: bool) -> SegmentFiles:
    disk.make_dirs(ROOT)
    disk.sync_dir(ROOT.parent)
    files = SegmentFiles(PooledFiles(disk, 1), ROOT, FOLDER, FILE_BYTES)
    if with_a_file:
        write_and_sync(files, 0)
        files.write(b"y", 1)
    return files


def take_and_sync(files: SegmentFiles) -> None:
    files.take_sync()()


def write_and_sync(files: SegmentFiles, offset: int) -> None:
    files.write(b"x", offset)
    take_and_sync(files)


def everywhere(*, with_a_file: bool, thread_is_interrupted: bool) -> int:
    """Let them meet at every opcode; returns how many there are."""
    offset, number = NEXT if with_a_file else 0, 0
    while True:
        number += 1
        disk = SimDisk()
        files = opened(disk, with_a_file=with_a_file)
        thread, sync = partial(files.ensure, offset), partial(take_and_sync, files)
        act, other = (thread, sync) if thread_is_interrupted else (sync, thread)
        is_done = not meets(act, other, number)
        files.ensure(offset)
        write_and_sync(files, offset)
        left = read_file(after_a_power_cut(disk), FOLDER / f"{offset:020d}")
        assert left == b"x" + bytes(FILE_BYTES - 1), number
        if is_done:
            return number


def test_a_sync_in_which_a_file_is_made_forgets_nothing_of_it() -> None:
    assert everywhere(with_a_file=True, thread_is_interrupted=False) > 50


def test_a_sync_in_which_the_first_file_is_made_forgets_no_folder() -> None:
    assert everywhere(with_a_file=False, thread_is_interrupted=False) > 20


def test_a_file_in_whose_making_a_sync_comes_is_synced_by_the_next() -> None:
    assert everywhere(with_a_file=True, thread_is_interrupted=True) > 50
    assert everywhere(with_a_file=False, thread_is_interrupted=True) > 50


@pytest.mark.parametrize("died", [False, True])
def test_no_power_cut_leaves_a_file_without_the_ones_before_it(died: bool) -> None:
    """A consume queue whose run begins later would take its lost messages for deleted ones."""
    disk = SimDisk()
    disk.make_dirs(FOLDER)
    disk.sync_dir(FOLDER.parent)
    disk.sync_dir(ROOT)
    disk.sync_dir(ROOT.parent)
    pool = PooledFiles(disk, 1)
    files = SegmentFiles(pool, ROOT, FOLDER, FILE_BYTES, keeps_name_order=True)
    files.write(b"x", 0)
    if died:
        files.close()
        files = SegmentFiles(pool, ROOT, FOLDER, FILE_BYTES, keeps_name_order=True)
        files.distrust(0)
    files.write(b"x" * 2 * FILE_BYTES, 1)
    found = {tuple(left.list_dir(FOLDER)) for left in disk.lost_states(SeededRng(1), exhaustive_units_max=12)}
    names = tuple(f"{number * FILE_BYTES:020d}" for number in range(3))
    assert found == {names[:2], names}


def test_names_that_a_checkpoint_has_synced_cost_no_further_sync() -> None:
    disk, synced = SimDisk(), list[Path]()
    disk.make_dirs(ROOT)
    files = SegmentFiles(PooledFiles(disk, 1), ROOT, FOLDER, FILE_BYTES, keeps_name_order=True)
    write_and_sync(files, 0)
    disk.before = lambda call, path: synced.append(path) if call == "sync_dir" else None
    files.write(b"x", NEXT)
    assert synced == []
