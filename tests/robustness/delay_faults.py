"""What the histories of messages that wait do around their broker: small numbers, a crash at any call, damage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from mq_broker.schedule.timer_index import TimerIndex
from osenv import SeededRng, SimDisk

CHANGES = frozenset({"pwrite", "sync_data", "sync_dir", "replace", "unlink", "allocate", "truncate"})
# Of what a broker has room for, so that a few messages fill it: batches, what it reads ahead, the timer's memory.
SMALL = {
    "AHEAD_RECORDS_MAX": 8,
    "AHEAD_BYTES_MAX": 2_000,
    "DELIVER_RECORDS_MAX": 4,
    "LOAD_ENTRIES": 16,
    "CHANGES_MAX": 24,
    "BLOCK_KEYS": 2,
    "BLOCK_BYTES": 48,
}


@contextmanager
def small_numbers() -> Iterator[None]:
    """Every module that knows one of these numbers knows it so."""
    modules = [module for path, module in sys.modules.items() if path.startswith("mq_broker.")]
    found = [(module, name) for module in modules for name in SMALL if hasattr(module, name)]
    assert {name for _, name in found} == SMALL.keys()
    with ExitStack() as stack:
        for module, name in found:
            stack.enter_context(patch.object(module, name, SMALL[name]))
        stack.enter_context(patch.dict(TimerIndex.__init__.__kwdefaults__, keys_in_memory=6))
        yield


def damage_files(disk: SimDisk, folder: Path, rng: SeededRng, *, everything: bool) -> None:
    """A byte of one of the files is another one; or one in each block of each of them."""
    files = {path: data for path, data in disk.contents().items() if folder in path.parents and data}
    chosen = sorted(files) if everything or not files else [rng.choice(sorted(files))]
    before, disk.before = disk.before, lambda _call, _path: None  # the disk may be rejecting just now
    for path in chosen:
        data = files[path]
        block_bytes = SMALL["BLOCK_BYTES"] if everything else len(data)
        for start in range(0, len(data), block_bytes):
            at = rng.randrange(start, min(start + block_bytes, len(data)))
            disk.open(path).pwrite(bytes([data[at] ^ rng.randrange(1, 256)]), at)
    disk.before = before


class Fork:
    """A disk as it was after so many changing calls; the first one goes on as if nothing had been."""

    def __init__(self, disk: SimDisk, calls: int, certain_end: Callable[[], int]) -> None:
        self._disk, self._left, self._certain_end = disk, calls, certain_end
        self._found: tuple[SimDisk, int] | None = None
        disk.after = self._after

    @property
    def is_taken(self) -> bool:
        return self._found is not None

    def _after(self, call: str, path: Path) -> None:
        if self._found is None and call in CHANGES:
            self._left -= 1
            if self._left <= 0:
                self._found = self._disk.fork(), self._certain_end()

    def end(self) -> tuple[SimDisk, int]:
        """The disk, and what was certain then; as they are now when there were fewer calls."""
        self._disk.after = lambda _call, _path: None
        return self._found or (self._disk, self._certain_end())
