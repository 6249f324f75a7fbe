"""The log on its way to replicas: reads from any offset, and the checks on arrival."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from struct import Struct
from typing import NamedTuple

from mq_broker.core.rewrite import entry_tags_code
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.errors import CopyError
from mq_broker.store.log_scan import Blank, ColdReads, Damage, Quarantine, explain, resynchronise, scan_log
from mqproto.names import check_topic
from mqproto.properties import PropertiesError
from mqproto.record import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    decode_record,
    encode_blank,
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
    """Reads for replicas. `fence` is told of a sync that has failed.

    What the hot tail has comes from memory; all else is read in a thread, and proves itself before it goes out. A
    stretch that turns out to be damaged is put into quarantine, as by any other reader, and travels as it is.

    Invariants: what is returned are whole records, heads of blanks and pieces of damaged stretches; bytes of a deleted
    file are never sent.
    """

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


# The log on its way from a master to a replica: which bytes travel, and what they have to prove on arrival.
#
# Whole records travel as they stand in the log. A blank travels as its 8 bytes of head, however long it is: what
# follows them is not looked at, and is zeros in the copy. A damaged stretch travels as it is, so that the copy has
# every byte at its place, in pieces with a head each: total size (4), magic 0x48474450 (4), log offset (8) and size (8)
# of the whole stretch, CRC-32, unsigned, of both numbers and the piece (4). Those heads are in no log.
#
# Invariants: pieces follow each other without a gap; nothing is taken from bytes of which anything is wrong.

DAMAGE_MAGIC = 0x4847_4450
_DAMAGE_HEAD, _STRETCH = Struct(">iiqqI"), Struct(">qq")
_NO_RECORDS = frozenset({BLANK_MAGIC, DAMAGE_MAGIC})


@dataclass(slots=True)
class CopiedRun:
    """Records that lie end to end in one file, and what the third field of their consume-queue entries is."""

    log_offset: int
    data: bytes
    records: list[Record] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class CopiedDamage:
    """A piece of a damaged stretch."""

    log_offset: int
    data: bytes
    stretch: Damage

    @property
    def size(self) -> int:
        return len(self.data)


Copied = CopiedRun | Blank | CopiedDamage


def encode_damage(piece: bytes, stretch: Damage) -> bytes:
    """A piece of a damaged stretch with the head that it travels with."""
    size = _DAMAGE_HEAD.size + len(piece)
    head = _DAMAGE_HEAD.pack(size, DAMAGE_MAGIC, stretch.log_offset, stretch.size, _damage_crc(piece, stretch))
    return head + piece


def encode_travelling_blank(blank: Blank) -> bytes:
    """The blank as it travels."""
    return encode_blank(blank.size)


def take_apart(data: bytes, log_offset: int, file_bytes: int) -> list[Copied]:
    """What `data` holds, which belongs at `log_offset` of a log with files of this size. Raises CopyError."""
    return list(_pieces(data, log_offset, file_bytes))


def _pieces(data: bytes, log_offset: int, file_bytes: int) -> Iterator[Copied]:
    at, end = 0, len(data)
    while at < end:
        if end - at < SEGMENT_HEAD.size:
            raise CopyError(f"{end - at} bytes are left for log offset {log_offset}: no record is that short")
        size, magic = SEGMENT_HEAD.unpack_from(data, at)
        room = file_bytes - log_offset % file_bytes
        piece: Copied
        if magic == BLANK_MAGIC:
            if size != room:
                raise CopyError(f"a blank of {size} bytes at log offset {log_offset}, where the file has {room} left")
            piece, used = Blank(log_offset, size), SEGMENT_HEAD.size
        elif magic == DAMAGE_MAGIC:
            piece, used = _damage(data, at, log_offset), size
        else:
            piece = _run(data, at, log_offset, room)
            used = piece.size
        yield piece
        at += used
        log_offset += piece.size


def _run(data: bytes, at: int, log_offset: int, room: int) -> CopiedRun:
    """The records from `at` on, up to the end of their file or to what is no record."""
    begin, end, begin_offset = at, len(data), log_offset
    records: list[Record] = []
    codes: list[int] = []
    while end - at >= SEGMENT_HEAD.size and room:
        size, magic = SEGMENT_HEAD.unpack_from(data, at)
        if magic in _NO_RECORDS and records:
            break
        record = _record(data, at, log_offset, room)
        records.append(record)
        codes.append(_code(record))
        at += size
        log_offset += size
        room -= size
    return CopiedRun(begin_offset, data[begin:at], records, codes)


def _record(data: bytes, at: int, log_offset: int, room: int) -> Record:
    size, magic = SEGMENT_HEAD.unpack_from(data, at)
    if magic != MESSAGE_MAGIC:
        raise CopyError(f"no record, no blank for log offset {log_offset}: the magic is 0x{magic & 0xFFFF_FFFF:08X}")
    if not RECORD_BYTES_MIN <= size <= len(data) - at:
        raise CopyError(f"the record for log offset {log_offset} says {size} bytes; {len(data) - at} have come")
    if size > room:
        raise CopyError(f"the record for log offset {log_offset} takes {size} bytes, and its file has {room} left")
    if not is_sealed(data, at, size):
        raise CopyError(f"the record for log offset {log_offset} does not match its CRC")
    try:
        record = decode_record(data, at)
        _require_queue(record.topic, record.queue_id, record.queue_offset)
    except (RecordError, ValueError) as error:
        raise CopyError(f"the record for log offset {log_offset}: {error}") from None
    if record.log_offset != log_offset:
        raise CopyError(f"the record for log offset {log_offset} says that it stands at {record.log_offset}")
    return record


def _require_queue(topic: str, queue_id: int, queue_offset: int) -> None:
    """The name of a folder is made of them. Raises ValueError."""
    _require_topic(topic)
    if queue_id < 0 or queue_offset < 0:
        raise ValueError(f"it says number {queue_offset} of queue {queue_id}; neither may be negative")


@lru_cache(maxsize=4_096)
def _require_topic(topic: str) -> None:
    check_topic(topic)


def _code(record: Record) -> int:
    try:
        return entry_tags_code(record)
    except (PropertiesError, ValueError) as error:
        raise CopyError(f"the record for log offset {record.log_offset}: {error}") from None


def _damage(data: bytes, at: int, log_offset: int) -> CopiedDamage:
    left = len(data) - at
    if left < _DAMAGE_HEAD.size:
        raise CopyError(f"{left} bytes are left for log offset {log_offset}: the head of a damaged stretch is longer")
    size, _, begin, stretch_size, crc = _DAMAGE_HEAD.unpack_from(data, at)
    if not _DAMAGE_HEAD.size < size <= left:
        raise CopyError(f"the damaged bytes for log offset {log_offset} say {size}; {left} have come")
    piece = data[at + _DAMAGE_HEAD.size : at + size]
    stretch = Damage(begin, stretch_size, "damaged in the master's log")
    if _damage_crc(piece, stretch) != crc:
        raise CopyError(f"the damaged bytes for log offset {log_offset} do not match their CRC")
    if not 0 <= begin <= log_offset <= log_offset + len(piece) <= stretch.end:
        raise CopyError(f"{len(piece)} damaged bytes for log offset {log_offset} are not of {stretch_size} at {begin}")
    return CopiedDamage(log_offset, piece, stretch)


def _damage_crc(piece: bytes, stretch: Damage) -> int:
    return zlib.crc32(piece, zlib.crc32(_STRETCH.pack(stretch.log_offset, stretch.size)))
