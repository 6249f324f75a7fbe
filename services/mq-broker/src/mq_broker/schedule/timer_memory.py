"""The keys that no run has yet: a small heap for the newest ones, and sorted stretches of those before.

One large heap would do, but it could only be sorted in one go, for which the event loop would stand still.

Invariants: a stretch ascends; a key that was pushed and not popped is in exactly one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

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
    """A heap with the face of a stretch."""

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
    """About 75 bytes a key."""

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
