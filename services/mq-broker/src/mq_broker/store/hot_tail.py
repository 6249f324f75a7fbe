"""The newest bytes of the commit log, kept in memory for the consumers that follow close behind."""

from __future__ import annotations

from bisect import bisect_right

HOT_TAIL_BYTES = 16 * 1024 * 1024


class HotTail:
    """Chunks of the log by offset.

    Invariants: chunks are in the order of their offsets, do not overlap, and never change after they were added; their
    sum is at most `limit_bytes`, but for the newest one.
    """

    def __init__(self, limit_bytes: int = HOT_TAIL_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._starts: list[int] = []
        self._chunks: list[bytearray] = []
        self._first = 0  # chunks before this index are forgotten; the lists are shortened now and then
        self._size = 0

    def add(self, offset: int, chunk: bytearray) -> None:
        """Keep `chunk`, which was just written at `offset`, and forget the oldest if there are too many."""
        self._starts.append(offset)
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size > self._limit_bytes and self._first < len(self._chunks) - 1:
            self._size -= len(self._chunks[self._first])
            self._chunks[self._first] = bytearray()
            self._first += 1
        if self._first > 256 and self._first * 2 > len(self._chunks):
            del self._starts[: self._first], self._chunks[: self._first]
            self._first = 0

    def read(self, offset: int, size: int) -> bytes | None:
        """The bytes, or None when they are not all in one chunk here."""
        index = bisect_right(self._starts, offset) - 1
        if index < self._first:
            return None
        at = offset - self._starts[index]
        data = bytes(memoryview(self._chunks[index])[at : at + size])
        return data if len(data) == size else None

    def chunk(self, offset: int) -> tuple[bytearray, int] | None:
        """The chunk that has the byte at `offset`, and where in it; None when it is not here."""
        index = bisect_right(self._starts, offset) - 1
        if index < self._first or offset - self._starts[index] >= len(self._chunks[index]):
            return None
        return self._chunks[index], offset - self._starts[index]

    def clear(self) -> None:
        """Forget everything."""
        self._starts.clear()
        self._chunks.clear()
        self._first = self._size = 0
