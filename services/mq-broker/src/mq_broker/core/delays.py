"""Delays: the table of levels, which waiting records are done, and how late deliveries are (mechanisms D1, D6)."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mq_broker.core import documents as tables
from mq_broker.core.topics import CARRIED
from mqproto.properties import DELAY_MS_MAX


class DelayProgress:
    """The done queue offsets of each queue of waiting records.

    Invariant: what is done stays done. It is kept in delayOffset.json, and each record that ends a wait says in the log
    which one, so that whatever the file has lost is found again.
    """

    def __init__(self) -> None:
        self._done: dict[int, OffsetSet] = {}
        self.data_version = 0

    def next_offset(self, level: int) -> int:
        """The first offset of the queue that is not done."""
        return self._done[level].next if level in self._done else 0

    def done_ahead(self, level: int) -> int:
        """How many records behind that one are done."""
        return self._done[level].count_ahead if level in self._done else 0

    def is_done(self, level: int, offset: int) -> bool:
        """Whether the record at `offset` of the queue is done."""
        return level in self._done and offset in self._done[level]

    def done(self, level: int, offset: int) -> None:
        """Mark the record at `offset` of the queue as done."""
        self.data_version += self._done.setdefault(level, OffsetSet()).add(offset)

    def done_below(self, level: int, offset: int) -> None:
        """Nothing before `offset` of the queue waits any more, or is left in the log."""
        self.data_version += self._done.setdefault(level, OffsetSet()).add_below(offset)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's delayOffset.json, with what it has no place for beside its table."""
        table = {str(level): done.next for level, done in sorted(self._done.items()) if level > CARRIED}
        others = {str(level): done.next for level, done in sorted(self._done.items()) if level <= CARRIED}
        ahead = {str(level): done.to_json() for level, done in sorted(self._done.items()) if done.count_ahead}
        return {
            "dataVersion": {"counter": self.data_version},
            "offsetTable": table,
            "otherOffsets": others,
            "doneAhead": ahead,
        }

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what delayOffset.json says. Raises KeyError, TypeError or ValueError if not of that form."""
        version = int(tables.table(document, "dataVersion")["counter"])
        self._done = done_of(document)
        self.data_version = version


def done_of(document: dict[str, Any]) -> dict[int, OffsetSet]:
    """What the document says is done, by the number of the queue. Raises KeyError, TypeError or ValueError."""
    following = dict(tables.table(document, "offsetTable"))
    if "otherOffsets" in document:
        following |= tables.table(document, "otherOffsets")
    ahead = dict(tables.table(document, "doneAhead")) if "doneAhead" in document else {}
    done = {
        int(level): OffsetSet.from_json(int(following.get(level, 0)), ahead.get(level, {}))
        for level in following.keys() | ahead.keys()
    }
    if "carried" in document:  # as earlier versions wrote it
        carried = tables.table(document, "carried")
        done[CARRIED] = OffsetSet(int(carried["next"]))
        for offset in carried["ahead"]:
            done[CARRIED].add(int(offset))
    return done


DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ITEM = re.compile(r"(\d+)([smhd])")


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """Delays in milliseconds; level 1 is the first one. Not necessarily rising."""

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> DelayLevels:
        """From RocketMQ's messageDelayLevel: numbers with s, m, h or d. Raises ValueError with what is allowed."""
        delays = []
        for item in text.split():
            match = _ITEM.fullmatch(item)
            if match is None:
                raise ValueError(f"messageDelayLevel: {item!r} is not a number followed by s, m, h or d")
            delay_ms = int(match[1]) * _UNIT_MS[match[2]]
            if not 0 < delay_ms <= DELAY_MS_MAX:
                raise ValueError(f"messageDelayLevel: {item!r} is not above 0 and at most 40 days")
            delays.append(delay_ms)
        if not delays:
            raise ValueError("messageDelayLevel names no level")
        return cls(tuple(delays))

    @property
    def highest(self) -> int:
        """The last level's number."""
        return len(self.delays_ms)

    def effective(self, level: int) -> int:
        """The level that a message with this one gets: above the highest means the highest, as in RocketMQ."""
        return min(level, self.highest)

    def delay_ms(self, level: int) -> int:
        """The delay of `level`, from 1 to `highest`."""
        return self.delays_ms[level - 1]

    def due_ms(self, level: int, store_ms: int, due_then_ms: int) -> int:
        """When a record is due that was stored at `store_ms` and was then due at `due_then_ms` (mechanism D4).

        A table that has become shorter since then brings it forward; one that has become longer changes nothing.
        """
        if level > self.highest:  # the table has lost this level: the promise made then stands
            return due_then_ms
        return min(due_then_ms, store_ms + self.delay_ms(level))


BLOCK_OFFSETS = 65_536
_BLOCK_BYTES = BLOCK_OFFSETS // 8
_FULL = b"\xff" * _BLOCK_BYTES
_LISTED_MAX = 512  # offsets of a block that are written one by one; more are written as bits
_FULL_TEXT = "full"


class OffsetSet:
    """A set of queue offsets that grows: all below `next`, and beyond it one bit for each offset.

    Ten million offsets in any order take little more than a megabyte: bits stand in blocks, which exist from their
    first offset on and shrink to a marker when they are full.

    Invariants: `next` is not in the set, everything below is; `count_ahead` of the offsets above are.
    """

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


_SPLIT_BITS = 3  # classes to a doubling, as a power of two


class Lateness:
    """The lateness of deliveries: a histogram whose classes grow with the lateness.

    Milliseconds of what was counted; nothing is forgotten.

    Eight classes to each doubling, so a quantile is at most an eighth above the true one; up to 15 ms each millisecond
    has a class of its own.
    """

    def __init__(self) -> None:
        self.count = 0
        self.max_ms = 0
        self._counts: list[int] = []

    def add(self, lateness_ms: Iterable[int]) -> None:
        """Count these; a negative one counts as 0."""
        for value in lateness_ms:
            number = _class_of(max(0, value))
            if number >= len(self._counts):
                self._counts += [0] * (number + 1 - len(self._counts))
            self._counts[number] += 1
            self.count += 1
            self.max_ms = max(self.max_ms, value)

    def quantile_ms(self, share: float) -> int:
        """The lateness that `share` (0 to 1) of what was counted does not exceed; 0 when nothing was counted."""
        wanted, seen = share * self.count, 0
        for number, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_upper_bound(number), self.max_ms)
        return 0


def _class_of(value: int) -> int:
    shift = max(0, value.bit_length() - _SPLIT_BITS - 1)
    return (shift << _SPLIT_BITS) + (value >> shift)


def _upper_bound(number: int) -> int:
    shift = max(0, (number >> _SPLIT_BITS) - 1)
    return ((number - (shift << _SPLIT_BITS) + 1) << shift) - 1
