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
        self._chunks: list[bytes | bytearray] = []
        self._first = 0  # chunks before this index are forgotten; the lists are shortened now and then
        self._size = 0
        self.begin = 0  # nothing that was added from here on has been forgotten

    def add(self, offset: int, chunk: bytes | bytearray) -> None:
        """Keep `chunk`, which was just written at `offset`, and forget the oldest if there are too many."""
        self._starts.append(offset)
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size > self._limit_bytes and self._first < len(self._chunks) - 1:
            self._size -= len(self._chunks[self._first])
            self._chunks[self._first] = b""
            self._first += 1
            self.begin = self._starts[self._first]
        if self._first > 256 and self._first * 2 > len(self._chunks):
            del self._starts[: self._first], self._chunks[: self._first]
            self._first = 0

    def read(self, offset: int, size: int) -> bytes | None:
        """The bytes, or None when they are not all here; they may reach over several chunks."""
        index = bisect_right(self._starts, offset) - 1
        if index < self._first:
            return None
        parts: list[bytes] = []
        at = offset - self._starts[index]
        while True:
            chunk = self._chunks[index]
            part = bytes(memoryview(chunk)[at : at + size])
            parts.append(part)
            size -= len(part)
            if size == 0:
                return part if len(parts) == 1 else b"".join(parts)
            index += 1
            if not part or index == len(self._starts) or self._starts[index] != self._starts[index - 1] + len(chunk):
                return None
            at = 0

    def chunk(self, offset: int) -> tuple[bytes | bytearray, int] | None:
        """The chunk that has the byte at `offset`, and where in it; None when it is not here."""
        index = bisect_right(self._starts, offset) - 1
        if index < self._first or offset - self._starts[index] >= len(self._chunks[index]):
            return None
        return self._chunks[index], offset - self._starts[index]

    def clear(self, begin: int) -> None:
        """Forget everything; what comes is at `begin` or behind it."""
        self._starts.clear()
        self._chunks.clear()
        self._first = self._size = 0
        self.begin = begin
