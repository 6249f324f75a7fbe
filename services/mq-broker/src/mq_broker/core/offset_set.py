"""A set of queue offsets that grows: all below `next`, and beyond it one bit for each offset.

Ten million offsets in any order take little more than a megabyte: bits stand in blocks, which exist from their first
offset on and shrink to a marker when they are full.

Invariants: `next` is not in the set, everything below is; `count_ahead` of the offsets above are.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

BLOCK_OFFSETS = 65_536
_BLOCK_BYTES = BLOCK_OFFSETS // 8
_FULL = b"\xff" * _BLOCK_BYTES
_LISTED_MAX = 512  # offsets of a block that are written one by one; more are written as bits
_FULL_TEXT = "full"


class OffsetSet:
    """Offsets are 0 or more."""

    def __init__(self, next_offset: int = 0) -> None:
        self.next = next_offset
        self.count_ahead = 0
        self._blocks: dict[int, bytearray | bytes] = {}  # bits below `next` mean nothing
        self._counts: dict[int, int] = {}

    def __contains__(self, offset: int) -> bool:
        if offset < self.next:
            return True
        block = self._blocks.get(offset // BLOCK_OFFSETS)
        at = offset % BLOCK_OFFSETS
        return block is not None and bool(block[at >> 3] & 1 << (at & 7))

    @property
    def end(self) -> int:
        """The offset behind the last one that is in the set."""
        if not self.count_ahead:
            return self.next
        number = max(self._blocks)
        return number * BLOCK_OFFSETS + int.from_bytes(self._blocks[number], "little").bit_length()

    def add(self, offset: int) -> bool:
        """Whether the offset is new."""
        if offset in self:
            return False
        if offset == self.next:
            self._move_to(offset + 1)
            return True
        number, at = divmod(offset, BLOCK_OFFSETS)
        block = self._blocks.setdefault(number, bytearray(_BLOCK_BYTES))
        assert isinstance(block, bytearray)  # noqa: S101 - of a full block every offset is in the set
        block[at >> 3] |= 1 << (at & 7)
        self.count_ahead += 1
        count = self._counts[number] = self._counts.get(number, 0) + 1
        if count == BLOCK_OFFSETS:
            self._blocks[number] = _FULL
        return True

    def add_below(self, offset: int) -> bool:
        """Add everything below `offset`; whether anything of it is new."""
        if offset <= self.next:
            return False
        for number in self._blocks:
            base = number * BLOCK_OFFSETS
            if base < offset:
                bits = int.from_bytes(self._blocks[number], "little") & (1 << (offset - base)) - 1
                self.count_ahead -= (bits >> max(0, self.next - base)).bit_count()
        self._move_to(offset)
        return True

    def to_json(self) -> dict[str, Any]:
        """What lies ahead of `next`, by block: its offsets as a list when they are few, else as bits in base64."""
        return {str(number): self._block_json(number) for number in sorted(self._blocks)}

    @classmethod
    def from_json(cls, next_offset: int, ahead: Mapping[str, Any]) -> OffsetSet:
        """The set whose `next` and `to_json` these are. Raises ValueError or TypeError when they are not."""
        if next_offset < 0:
            raise ValueError(f"{next_offset} in a set of offsets; they are 0 or more")
        found = cls(next_offset)
        for text, block in ahead.items():
            number, bits = int(text), _bits_of(block)
            if number < 0:
                raise ValueError(f"block {number} of a set of offsets; they are 0 or more")
            skipped = max(0, next_offset - number * BLOCK_OFFSETS)
            value = int.from_bytes(bits, "little")
            if value >> skipped:
                found._blocks[number] = bits if bits is _FULL else bytearray(bits)
                found._counts[number] = value.bit_count()
                found.count_ahead += (value >> skipped).bit_count()
        found._follow()
        return found

    def _block_json(self, number: int) -> str | list[int]:
        block, count = self._blocks[number], self._counts[number]
        if count == BLOCK_OFFSETS:
            return _FULL_TEXT
        if count > _LISTED_MAX:
            return b64encode(block).decode()
        return [(at << 3) + bit for at, byte in enumerate(block) if byte for bit in range(8) if byte & 1 << bit]

    def _move_to(self, offset: int) -> None:
        """Everything below `offset` is in the set now, and counted no more; then what follows it."""
        before, self.next = self.next // BLOCK_OFFSETS, offset
        if offset // BLOCK_OFFSETS != before:
            for number in [number for number in self._blocks if number < offset // BLOCK_OFFSETS]:
                del self._blocks[number], self._counts[number]
        self._follow()

    def _follow(self) -> None:
        while (block := self._blocks.get(number := self.next // BLOCK_OFFSETS)) is not None:
            at, end = self.next % BLOCK_OFFSETS, BLOCK_OFFSETS if block is _FULL else 0
            if not end:
                end = at
                while end < BLOCK_OFFSETS and block[end >> 3] & 1 << (end & 7):
                    end += 1
            if end == at:
                break
            self.count_ahead -= end - at
            self.next += end - at
            if end == BLOCK_OFFSETS:
                del self._blocks[number], self._counts[number]


def _bits_of(block: object) -> bytes | bytearray:
    if block == _FULL_TEXT:
        return _FULL
    if isinstance(block, str):
        bits: bytes | bytearray = b64decode(block, validate=True)
        if len(bits) != _BLOCK_BYTES:
            raise ValueError(f"a block of a set of offsets has {len(bits)} bytes; it has {_BLOCK_BYTES}")
        return bits
    if not isinstance(block, list) or not all(type(at) is int and 0 <= at < BLOCK_OFFSETS for at in block):
        raise TypeError(f"a block of a set of offsets is a list of numbers from 0 to {BLOCK_OFFSETS - 1}, or base64")
    bits = bytearray(_BLOCK_BYTES)
    for at in block:
        bits[at >> 3] |= 1 << (at & 7)
    return bits
