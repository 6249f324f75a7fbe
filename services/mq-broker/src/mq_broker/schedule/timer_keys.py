"""The keys of waiting messages in the order of their due times: in memory, in runs, and merged."""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain

from mq_broker.schedule.timer_runs import BLOCK_KEYS, KEY, KeyRun, RunReader, TimerRuns
from mq_broker.store.durability import finish_despite_cancellation
from osenv import Disk

HEAP_KEYS = 1_024  # sorted in about 0.15 ms


@dataclass(eq=False, slots=True)
class Stretch:
    """Keys in order, read from the front."""

    keys: list[bytes]
    at: int = 0

    is_dry = False  # never: all that there is, is here

    @property
    def head(self) -> bytes | None:
        """The next key."""
        return self.keys[self.at] if self.at < len(self.keys) else None

    def pop(self) -> None:
        """Go on to the one behind it."""
        self.at += 1


class NewestKeys:
    """A heap with the interface of a stretch."""

    is_dry = False

    def __init__(self) -> None:
        self.heap: list[bytes] = []

    @property
    def head(self) -> bytes | None:
        """The smallest key."""
        return self.heap[0] if self.heap else None

    def pop(self) -> None:
        """Forget it."""
        heappop(self.heap)


class TimerMemory:
    """The keys that no run has yet: a small heap for the newest ones, and sorted stretches of those before.

    One large heap would do, but it could only be sorted in one go, for which the event loop would stand still.

    Invariants: a stretch ascends; a key that was pushed and not popped is in exactly one place.
    """

    def __init__(self, heap_keys: int = HEAP_KEYS) -> None:
        self._heap_keys = heap_keys
        self.newest = NewestKeys()
        self.stretches: list[Stretch] = []
        self._in_stretches = 0

    def __len__(self) -> int:
        """Keys that take memory; those of a stretch that were popped do, until all of it is."""
        return self._in_stretches + len(self.newest.heap)

    def push(self, key: bytes) -> bool:
        """Take a key in; whether that made a stretch of those in the heap."""
        heap = self.newest.heap
        heappush(heap, key)
        if len(heap) < self._heap_keys:
            return False
        self.settle()
        return True

    def settle(self) -> list[Stretch]:
        """All keys as stretches."""
        if heap := self.newest.heap:
            heap.sort()
            self.stretches.append(Stretch(heap))
            self._in_stretches += len(heap)
            self.newest.heap = []
        return self.stretches[:]

    def drop_spent(self) -> None:
        """Forget the stretches that were popped to their end."""
        if any(stretch.head is None for stretch in self.stretches):
            self.drop([stretch for stretch in self.stretches if stretch.head is None])

    def drop(self, stretches: Iterable[Stretch]) -> None:
        """Forget these stretches."""
        dropped = set(stretches)
        self.stretches = [stretch for stretch in self.stretches if stretch not in dropped]
        self._in_stretches = sum(len(stretch.keys) for stretch in self.stretches)

    def clear(self) -> None:
        """Forget everything."""
        self.newest.heap.clear()
        self.drop(self.stretches)


STEP_KEYS = 512  # looked at in one step of the event loop; about 0.5 ms

_Source = NewestKeys | Stretch | RunReader


class TimerKeys:
    """Memory and runs. One taker at a time.

    Invariants: a key that was added and is not done is in memory, in a run at its reader's place or behind it, or among
    what the last `take` has given and its caller has not added back yet; `next_key` is never larger than the first key
    that is not done.
    """

    def __init__(self, memory: TimerMemory, runs: TimerRuns, is_done: Callable[[int], bool]) -> None:
        self.memory, self.runs, self._is_done = memory, runs, is_done
        self.next_key: bytes | None = None
        self._taken: dict[bytes, None] = {}  # a set in order; a key that is read twice is in it once
        self._reading = asyncio.Lock()

    def add(self, key: bytes) -> bool:
        """A message waits, for the first time or again. Whether memory has a stretch more now."""
        if self.next_key is None or key < self.next_key:
            self.next_key = key
        return self.memory.push(key)

    async def take(self, end: bytes, count: int) -> list[bytes]:
        """Up to `count` keys below `end` that are not done, ascending.

        Raises DamagedRunError, OSError; then nothing was taken.
        """
        async with self._reading:
            self._taken = {}
            try:
                while (dry := self._pop(end, count)) is not None:
                    if dry:
                        await self.runs.fetch(dry)
                    else:
                        await asyncio.sleep(0)
            except BaseException:
                for key in self._taken:
                    self.memory.push(key)
                self._taken = {}
                raise
            finally:
                self.memory.drop_spent()
                self.look_ahead()
        return sorted(self._taken)

    def in_hand(self) -> list[bytes]:
        """What was taken and is not done, ascending; what was added back may be among it."""
        return sorted(key for key in self._taken if not self._is_done(offset_of(key)))

    async def exchange(self, sources: Sequence[Stretch | RunReader], by: RunReader | None) -> None:
        """From now on `by` is read in the place of these; of what they had popped it may have some once more."""
        async with self._reading:
            self.memory.drop(source for source in sources if isinstance(source, Stretch))
            self.runs.replace([source for source in sources if isinstance(source, RunReader)], by)

    async def clear(self) -> None:
        """Forget everything, and give the files back."""
        async with self._reading:
            self.memory.clear()
            self.runs.clear()
            self._taken, self.next_key = {}, None

    def look_ahead(self) -> None:
        """Find the next key."""
        self.next_key = min((head for source in self._sources() if (head := source.head) is not None), default=None)

    def _sources(self) -> list[_Source]:
        return [self.memory.newest, *self.memory.stretches, *self.runs.readers]

    def _pop(self, end: bytes, count: int) -> list[RunReader] | None:
        """Take some more of what can be had at once. None when that was all, else the readers that need a block."""
        sources = self._sources()
        heads = [(head, at) for at, one in enumerate(sources) if (head := one.head) is not None and head < end]
        heapq.heapify(heads)
        for _ in range(STEP_KEYS):
            if not heads or len(self._taken) >= count:
                return None
            key, at = heads[0]
            source = sources[at]
            if source.is_dry:
                return [one for one in self.runs.readers if one.is_dry and one.head is not None and one.head < end]
            source.pop()
            if (head := source.head) is not None and head < end:
                heapq.heapreplace(heads, (head, at))
            else:
                heapq.heappop(heads)
            if not self._is_done(offset_of(key)):
                self._taken[key] = None
        return []


def offset_of(key: bytes) -> int:
    """The queue offset in a key."""
    offset: int = KEY.unpack(key)[1]
    return offset


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
    """Many ascending sequences of keys as one, slice by slice: what is in memory becomes a run, and runs become one
    run.

    The keys of stretches or runs from where each of them is now; with `is_done`, without those that are done.

    What is popped from the inputs afterwards does not matter to the merge, nor the other way round.

    Each input has a buffer. The smallest of the buffers' last keys is the pivot: no key below it is still to be read,
    so everything up to it can be joined and sorted at once (the sorting finds the ascending stretches and merges them).

    Invariants: slices ascend, within and from one to the next, and hold no key twice; of each input at most one and a
    half parts are in memory, a part of a run being a block, and those of stretches `STRETCH_PARTS_KEYS` together.
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
            await finish_despite_cancellation(self._disk.offload(_fill_all, reading))
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
