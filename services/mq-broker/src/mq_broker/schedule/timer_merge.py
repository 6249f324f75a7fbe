"""Many ascending sequences of keys as one, slice by slice: what is in memory becomes a run, and runs become one run.

Each input has a buffer. The smallest of the buffers' last keys is the pivot: no key below it is still to be read, so
everything up to it can be joined and sorted at once (the sorting finds the ascending stretches and merges them).

Invariants: slices ascend, within and from one to the next, and hold no key twice; of each input at most one and a half
parts are in memory, a part of a run being a block, and those of stretches `STRETCH_PARTS_KEYS` together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from mq_broker.schedule.timer_memory import Stretch
from mq_broker.schedule.timer_reader import RunReader
from mq_broker.store.durability import uninterrupted
from mq_broker.store.key_run import BLOCK_KEYS, KEY, KeyRun
from osenv import Disk

SLICE_KEYS = 1_024  # asked whether they are done in about 0.3 ms
STRETCH_PARTS_KEYS = 2_048


class _Input:
    """What is left of one sequence; `more` gives its parts of up to `part_keys`, and may block if it `reads`."""

    def __init__(self, more: Iterator[list[bytes]], part_keys: int, *, reads: bool) -> None:
        self.reads = reads
        self._more, self._low_keys = more, part_keys // 2
        self.buffer: list[bytes] = []
        self._is_all_read = False

    @property
    def is_low(self) -> bool:
        """Whether the buffer should get another part: the fuller all of them are, the larger are the slices."""
        return len(self.buffer) <= self._low_keys and not self._is_all_read

    def fill(self) -> None:
        """Have another part in the buffer, if there is one."""
        part = next(self._more, [])
        self.buffer += part
        self._is_all_read = not part

    def take(self, pivot: bytes) -> list[bytes]:
        """The keys up to `pivot`."""
        end = bisect_right(self.buffer, pivot)
        taken = self.buffer[:end]
        del self.buffer[:end]
        return taken


class KeyMerge:
    """The keys of stretches or runs from where each of them is now; with `is_done`, without those that are done.

    What is popped from the inputs afterwards does not matter to the merge, nor the other way round.
    """

    def __init__(
        self,
        disk: Disk,
        sources: Sequence[Stretch] | Sequence[RunReader],
        is_done: Callable[[int], bool] | None = None,
    ) -> None:
        self._disk, self._is_done = disk, is_done
        self._merged: list[bytes] = []
        part = max(1, STRETCH_PARTS_KEYS // max(1, len(sources)))
        self._inputs = [
            _Input(_parts(source.keys, source.at, part), part, reads=False)
            if isinstance(source, Stretch)
            else _Input(_blocks(source.rest, source.run, source.next_block), BLOCK_KEYS, reads=True)
            for source in sources
        ]

    async def next_slice(self) -> list[bytes] | None:
        """The next keys, of which all may be done; None at the end. Raises DamagedRunError, OSError."""
        if not self._merged:
            await self._fill()
            if not self._inputs:
                return None
            self._merge()
        keys = self._merged[:SLICE_KEYS]
        del self._merged[:SLICE_KEYS]
        if self._is_done is None:
            return keys
        done = map(self._is_done, [offset for _, offset in KEY.iter_unpack(b"".join(keys))])
        return [key for key, is_done in zip(keys, done, strict=True) if not is_done]

    def _merge(self) -> None:
        pivot = min(one.buffer[-1] for one in self._inputs)
        keys = list(chain.from_iterable([one.take(pivot) for one in self._inputs]))
        keys.sort()
        self._merged = list(dict.fromkeys(keys))

    async def _fill(self) -> None:
        low = [one for one in self._inputs if one.is_low]
        for one in low:
            if not one.reads:
                one.fill()
        if reading := [one for one in low if one.reads]:
            await uninterrupted(self._disk.offload(_fill_all, reading))
        self._inputs = [one for one in self._inputs if one.buffer]


def _fill_all(inputs: Sequence[_Input]) -> None:
    for one in inputs:
        one.fill()


def _parts(keys: list[bytes], at: int, count: int) -> Iterator[list[bytes]]:
    while at < len(keys):
        yield keys[at : at + count]
        at += count


def _blocks(first: list[bytes], run: KeyRun, block: int) -> Iterator[list[bytes]]:
    if first:
        yield first
    while block < run.blocks:
        yield run.read(block)
        block += 1
