"""The keys of waiting messages in the order in which they are due: those in memory and those in runs, read together.

Invariants: a key that was added and is not done is in memory, in a run at its reader's place or behind it, or among
what the last `take` has given and nobody has added back yet; `next_key` is never larger than the first key that is not
done.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence

from mq_broker.schedule.timer_memory import NewestKeys, Stretch, TimerMemory
from mq_broker.schedule.timer_reader import RunReader
from mq_broker.schedule.timer_runs import TimerRuns
from mq_broker.store.key_run import KEY

STEP_KEYS = 512  # looked at before others have their turn; about 0.5 ms

_Source = NewestKeys | Stretch | RunReader


class TimerKeys:
    """Memory and runs. One taker at a time."""

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
