"""The log as it is handed to slaves: from any place on, in the form in which it travels (`copied.py`).

What the hot tail has comes from memory; all else is read in a thread, and proves itself before it goes out. A stretch
that turns out to be damaged is put into quarantine, as by any other reader, and travels as it is.

Invariants: what is returned are whole records, heads of blanks and pieces of damaged stretches; nobody gets bytes of
a file that has been deleted.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import NamedTuple

from mq_broker.store.cold_reads import ColdReads
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.copied import encode_damage, encode_travelling_blank
from mq_broker.store.log_scan import Blank, Damage, explain, resynchronise, scan_log
from mq_broker.store.quarantine import Quarantine
from mqproto.record import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    decode_record,
    is_sealed,
)
from osenv import SyncError

WINDOW_BYTES = 64 * 1024
CRC_BYTES_MAX = 16 * 1024 * 1024
_PLACE = Struct(">ii20xq")  # size, magic, physical offset


class LogChunk(NamedTuple):
    """Bytes as they travel, and the log offset behind them: a blank is longer in the log than on its way."""

    data: bytes
    end: int


class LogWindow(NamedTuple):
    """Some of the log's newest records, from one boundary of a record to another; `begin` == `end`: there are none."""

    begin: int
    end: int
    crc32: int


@dataclass
class LogFeed:
    """Reads for slaves. `fence` is told of a sync that has failed."""

    log: CommitLog
    quarantine: Quarantine
    cold: ColdReads
    fence: Callable[[OSError], None]

    async def read(self, offset: int, bytes_max: int) -> LogChunk:
        """What follows from `offset` on, at most `bytes_max` bytes of it, but one record if there is one.

        Empty at the log's end. Raises ValueError when `offset` is not in the log, or not any more, or when it is not
        where a record begins; OSError.
        """
        self._require(offset)
        if offset == self.log.end:
            return LogChunk(b"", offset)
        hot = self._read_hot(offset, bytes_max)
        if hot is not None:
            return hot
        try:
            return await self.cold.read(partial(self._read_cold, offset, bytes_max, self.log.end))
        except SyncError as error:
            self.fence(error)
            raise

    async def window(self, at_most: int) -> LogWindow:
        """The last whole records that end at or below `at_most`: one at least, and about 64 KiB of them.

        Raises ValueError when `at_most` lies below the log's begin; OSError.
        """
        self._require(min(at_most, self.log.end))
        return await self.cold.read(partial(self._window, min(at_most, self.log.end)))

    async def newest(self) -> Record | None:
        """The last whole record; None in a log without one. Raises OSError."""
        window = await self.window(self.log.end)
        return await self.cold.read(partial(self._last, window))

    async def crc32(self, begin: int, end: int) -> int | None:
        """The CRC-32 of what stands between two boundaries of records, blanks counting as their heads.

        None when the log does not have all of it, or has no boundary at `end`. Raises ValueError when it is more than
        16 MiB; OSError.
        """
        if not self.log.begin <= begin <= end <= self.log.end:
            return None
        return await self.cold.read(partial(self._crc32, begin, end))

    def _require(self, offset: int) -> None:
        if not self.log.begin <= offset <= self.log.end:
            raise ValueError(f"offset {offset} is not in the log, which runs from {self.log.begin} to {self.log.end}")

    # -------------------------------------------------------------------------------------------- reading

    def _read_hot(self, offset: int, bytes_max: int) -> LogChunk | None:
        """Whole records from memory, over as many chunks as lie end to end; None when the first one is not there."""
        parts: list[bytes] = []
        at, left = offset, bytes_max
        while found := self.log.hot_chunk(at):
            chunk, begin = found
            if not parts:
                _, magic, place = _PLACE.unpack_from(chunk, begin)
                if magic != MESSAGE_MAGIC or place != offset:
                    raise ValueError(f"no record begins at log offset {offset}")
            size = _records_within(chunk, begin, left, one_at_least=not parts)
            if size:
                parts.append(bytes(memoryview(chunk)[begin : begin + size]))
            at += size
            left -= size
            if begin + size < len(chunk):
                break
        return LogChunk(parts[0] if len(parts) == 1 else b"".join(parts), at) if parts else None

    def _read_cold(self, offset: int, bytes_max: int, end: int) -> LogChunk:
        files = self.log.files
        room = files.room(offset)
        block = files.read(min(room, end - offset, max(bytes_max, SEGMENT_HEAD.size)), offset)
        used = _whole_within(block, offset)
        if used:
            return LogChunk(block[:used], offset + used)
        if len(block) >= SEGMENT_HEAD.size:
            size, magic = SEGMENT_HEAD.unpack_from(block)
            if magic == BLANK_MAGIC and size == room:
                return LogChunk(encode_travelling_blank(Blank(offset, size)), offset + size)
            if magic == MESSAGE_MAGIC and len(block) < size <= min(RECORD_BYTES_MAX, room, end - offset):
                large = files.read(size, offset)
                if _whole_within(large, offset) == size:
                    return LogChunk(large, offset + size)
        return self._read_damaged(offset, bytes_max, end)

    def _read_damaged(self, offset: int, bytes_max: int, end: int) -> LogChunk:
        """What stands at `offset` is no record: it is in quarantine before it goes out."""
        files = self.log.files
        stretch = self.quarantine.stretch_at(offset)
        if stretch is None:
            go_on = min(resynchronise(files, offset, end) or end, end)
            stretch = Damage(offset, go_on - offset, explain(files, offset))
            self.quarantine.put_aside(files, stretch)
        piece = files.read(min(max(bytes_max, 1), stretch.end - offset, end - offset), offset)
        return LogChunk(encode_damage(piece, stretch), offset + len(piece))

    # -------------------------------------------------------------------------------------------- comparing

    def _last(self, window: LogWindow) -> Record | None:
        records = (one for one in scan_log(self.log.files, window.begin, window.end) if isinstance(one, Record))
        return next(iter(deque(records, maxlen=1)), None)

    def _window(self, end: int) -> LogWindow:
        begin, look = self.log.begin, WINDOW_BYTES
        while True:
            start = max(begin, end - look)
            window = self._window_behind(start if start == begin else resynchronise(self.log.files, start, end), end)
            if window is not None:
                return LogWindow(*window, self._crc32(*window) or 0)
            if start == begin:
                return LogWindow(begin, begin, 0)
            look *= 4

    def _window_behind(self, first: int | None, end: int) -> tuple[int, int] | None:
        """From where to where the newest records go that end at or below `end`; None without one behind `first`."""
        kept: deque[tuple[int, int, bool]] = deque()  # where each begins, how long its content is, whether a record
        content, last_end, record_count = 0, 0, 0
        for found in scan_log(self.log.files, first, end) if first is not None and first < end else ():
            found_end = found.log_offset + found.size
            if found_end > end or (isinstance(found, Damage) and found_end == end):
                break
            length = SEGMENT_HEAD.size if isinstance(found, Blank) else found.size
            kept.append((found.log_offset, length, isinstance(found, Record)))
            content, last_end, record_count = content + length, found_end, record_count + kept[-1][2]
            while content > WINDOW_BYTES and record_count > kept[0][2]:
                _, length, was_record = kept.popleft()
                content, record_count = content - length, record_count - was_record
        return (kept[0][0], last_end) if record_count else None

    def _crc32(self, begin: int, end: int) -> int | None:
        crc = taken = 0
        for part in self._content(begin, end):
            if part is None:
                return None
            taken += len(part)
            if taken > CRC_BYTES_MAX:
                raise ValueError(f"more than {CRC_BYTES_MAX:,} bytes from {begin} to {end}: that is too much at a time")
            crc = zlib.crc32(part, crc)
        return crc

    def _content(self, begin: int, end: int) -> Iterator[bytes | None]:
        """What stands from `begin` to `end`, piece by piece; None where something goes beyond `end`."""
        for found in scan_log(self.log.files, begin, end):
            if found.log_offset + found.size > end:
                yield None
            elif isinstance(found, Blank):
                yield encode_travelling_blank(found)
            else:
                yield self.log.files.read(min(found.size, CRC_BYTES_MAX + 1), found.log_offset)


def _records_within(chunk: bytes | bytearray, begin: int, bytes_max: int, *, one_at_least: bool) -> int:
    """How many bytes the whole records take that begin at `begin` of the chunk and fit into `bytes_max`."""
    whole = len(chunk) - begin
    if whole <= bytes_max:
        return whole
    taken = 0
    while True:
        size: int = SEGMENT_HEAD.unpack_from(chunk, begin + taken)[0]
        if taken + size > bytes_max and (taken or not one_at_least):
            return taken
        taken += size
        if taken > bytes_max:
            return taken


def _whole_within(block: bytes, log_offset: int) -> int:
    """How many bytes the whole records take that begin with the block, which stands at `log_offset`."""
    at = 0
    while len(block) - at >= RECORD_BYTES_MIN:
        size, magic = SEGMENT_HEAD.unpack_from(block, at)
        if magic != MESSAGE_MAGIC or not RECORD_BYTES_MIN <= size <= len(block) - at or not is_sealed(block, at, size):
            break
        try:
            if decode_record(block, at).log_offset != log_offset + at:
                break
        except RecordError:
            break
        at += size
    return at
