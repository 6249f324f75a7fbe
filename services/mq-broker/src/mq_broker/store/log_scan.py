"""Scans of the commit log past damage, and copies of the damage.

See docs/reference/faults.md#store, bit flips.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mq_broker.core.limits import COLD_READS_AT_ONCE_MAX
from mq_broker.store.commit_log import NAME_DIGITS, SegmentFiles
from mqproto.record import (
    BLANK_MAGIC,
    CRC_BYTES,
    CRC_MASK,
    CRC_PREFIX,
    MESSAGE_MAGIC,
    OFFSETS,
    OFFSETS_AT,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    decode_record,
    is_sealed,
)
from osenv import Disk, Lane, SyncError
from osenv.disk import make_durable_dirs

# A record counts only when all of it is right: size, magic, its own physical offset and both CRCs. After bytes that are
# neither a record nor a blank, reading goes on at the next place where one stands; a body that looks like a record does
# not, because it would have to name the offset at which it lies. A sealed frame at its place that this version cannot
# take apart was written whole: it is damage of exactly its size, and never the torn end of the log.
#
# Invariant: what is found covers the range without a gap and without overlap, in order.

log = logging.getLogger(__name__)

READ_BYTES = 4 * 1024 * 1024
_MAGICS = tuple((magic & 0xFFFF_FFFF).to_bytes(4, "big") for magic in (MESSAGE_MAGIC, BLANK_MAGIC))
_MAGIC_AT = 4


@dataclass(frozen=True, slots=True)
class Blank:
    """The rest of a file, closed because the next record did not fit."""

    log_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the log that are neither record nor blank."""

    log_offset: int
    size: int
    reason: str

    @property
    def end(self) -> int:
        return self.log_offset + self.size


Found = Record | Blank | Damage


def scan_log(files: SegmentFiles, start: int, end: int) -> Iterator[Found]:
    """Everything from `start` to `end`, which both are the beginning of a record, a blank or damage.

    `end` is where the log is known to end; without such knowledge it is the end of the files, and the last thing found
    is a Damage: what was torn, or never written.
    """
    at = start
    while at < end:
        for found in scan_whole(files, at, end):
            yield found
            at = found.log_offset + found.size
        if at < end:
            go_on = min(resynchronise(files, at, end) or end, end)
            yield Damage(at, go_on - at, explain(files, at))
            at = go_on


def scan_whole(files: SegmentFiles, start: int, end: int) -> Iterator[Found]:
    """Records, blanks and sealed frames that cannot be read, from `start` on; ends at `end`, or at other bytes."""
    at = start
    while at < end:
        room = files.room(at)
        block = files.read(min(READ_BYTES, room), at)
        used = 0
        while at + used < end and (found := _whole(block, used, at + used, room - used)) is not None:
            yield found
            used += found.size
            if isinstance(found, Blank):
                break
        if used == 0:
            # Nothing whole at the beginning of the block: broken, or one record larger than a block.
            large = _whole(_stretch(files, block, at), 0, at, room)
            if large is None:
                return
            yield large
            used = large.size
        at += used


def resynchronise(files: SegmentFiles, broken: int, end: int) -> int | None:
    """Where the next record or blank after the broken one at `broken` begins, or None when there is none."""
    head = files.read(min(SEGMENT_HEAD.size, files.room(broken)), broken)
    if len(head) == SEGMENT_HEAD.size:
        size: int = SEGMENT_HEAD.unpack(head)[0]
        if RECORD_BYTES_MIN <= size < files.room(broken) and _stands_at(files, broken + size):
            return broken + size  # only its content is broken, not its length
    at = broken + 1
    while at < end:
        block = files.read(min(READ_BYTES, files.room(at)), at)
        for place in _magics_in(block):
            if place >= _MAGIC_AT and _stands_at(files, at + place - _MAGIC_AT):
                return at + place - _MAGIC_AT
        if len(block) == files.room(at):
            at += len(block)
            if at < end and _stands_at(files, at):
                return at
        else:
            at += len(block) - SEGMENT_HEAD.size  # a magic may lie across the end of the block
    return None


def explain(files: SegmentFiles, at: int) -> str:
    """Why nothing whole stands at `at`."""
    room = files.room(at)
    head = files.read(min(SEGMENT_HEAD.size, room), at)
    if len(head) < SEGMENT_HEAD.size:
        return "no room for a record"
    size, magic = SEGMENT_HEAD.unpack(head)
    if size == magic == 0:
        return "never written"
    if magic == BLANK_MAGIC:
        return f"a blank of {size} bytes where the file has {room} left"
    if magic != MESSAGE_MAGIC:
        return f"bad magic 0x{magic & 0xFFFF_FFFF:08X}"
    if not RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, room):
        return f"impossible length {size}"
    data = files.read(size, at)
    if not is_sealed(data, 0, size):
        return "CRC mismatch"
    try:
        record = decode_record(data)
    except RecordError as error:
        return str(error)
    return f"a record of offset {record.log_offset}"


def is_unsealed_record(files: SegmentFiles, at: int) -> bool:
    """Whether a record without a CRC property stands at `at`, otherwise as it should be."""
    if at >= files.capacity_end:
        return False
    size, magic = SEGMENT_HEAD.unpack(files.read(SEGMENT_HEAD.size, at))
    if magic != MESSAGE_MAGIC or not 0 < size <= min(RECORD_BYTES_MAX, files.room(at)):
        return False
    data = files.read(size, at)
    try:
        record = decode_record(data)
    except RecordError:
        return False
    intact = record.log_offset == at and zlib.crc32(record.body) & CRC_MASK == record.body_crc
    return intact and CRC_PREFIX not in data[-CRC_BYTES:]


def _whole(block: bytes, at: int, log_offset: int, room: int) -> Found | None:
    """The record, blank or unreadable sealed frame at `at` of the block; None when there is none, or not all of it."""
    try:
        record = decode_record(block, at)
    except RecordError as error:
        return _no_record(block, at, log_offset, room, str(error))
    return record if record.log_offset == log_offset and is_sealed(block, at, record.size) else None


def _no_record(block: bytes, at: int, log_offset: int, room: int, reason: str) -> Blank | Damage | None:
    if len(block) - at < SEGMENT_HEAD.size:
        return None
    size, magic = SEGMENT_HEAD.unpack_from(block, at)
    if magic == BLANK_MAGIC and size == room:
        return Blank(log_offset, size)
    if magic != MESSAGE_MAGIC or not RECORD_BYTES_MIN <= size <= len(block) - at or not is_sealed(block, at, size):
        return None
    return Damage(log_offset, size, reason) if OFFSETS.unpack_from(block, at + OFFSETS_AT)[1] == log_offset else None


def _stretch(files: SegmentFiles, block: bytes, at: int) -> bytes:
    """The block, or more of the file when it begins with a record that is larger than a block may be."""
    if len(block) < READ_BYTES:
        return block
    size = SEGMENT_HEAD.unpack_from(block, 0)[0]
    return files.read(size, at) if READ_BYTES < size <= min(RECORD_BYTES_MAX, files.room(at)) else block


def _stands_at(files: SegmentFiles, at: int) -> bool:
    """Whether a whole record or blank begins at `at`."""
    if at >= files.capacity_end:
        return False
    room = files.room(at)
    head = files.read(min(SEGMENT_HEAD.size, room), at)
    if len(head) < SEGMENT_HEAD.size:
        return False
    size, magic = SEGMENT_HEAD.unpack(head)
    if magic == MESSAGE_MAGIC and RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, room):
        return _whole(files.read(size, at), 0, at, room) is not None
    return _whole(head, 0, at, room) is not None


def _magics_in(block: bytes) -> Iterator[int]:
    """Where the block has the magic of a record or of a blank, in order."""
    places = [block.find(magic) for magic in _MAGICS]
    while any(place >= 0 for place in places):
        place = min(place for place in places if place >= 0)
        yield place
        which = places.index(place)
        places[which] = block.find(_MAGICS[which], place + 1)


COPY_BYTES = 4 * 1024 * 1024
TEMPORARY_SUFFIX = ".tmp"  # a copy that is not whole
TAIL_SUFFIX = ".tail"  # what was cut from the log: behind a torn record, or because the master does not have it
CUT_SUFFIX = ".cut"  # a damaged stretch that was cut from the log later
_NAME = re.compile(rf"(\d{{{NAME_DIGITS}}})-(\d+)")


class Quarantine:
    """Damaged stretches of the log: a copy of each is kept for inspection.

    See docs/reference/faults.md#store.

    Files are named `<log offset>-<size>`, with their bytes.

    The log itself is left as it is. What lies behind the damage stays where it was and can be read.

    Invariant: a stretch is listed here from the moment in which it was found, also after a restart; one is never
    reported twice, and nothing that was put aside is changed again.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._known: dict[int, int] = {}
        self.uncopied = 0  # stretches that were found and could not be copied aside
        for name in disk.list_dir(folder):
            if match := _NAME.fullmatch(name):
                self._remember(int(match[1]), int(match[2]))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(log offset, size) of each stretch, by offset."""
        return iter(sorted(self._known.items()))

    def __len__(self) -> int:
        return len(self._known)

    @property
    def size(self) -> int:
        """Bytes of the log that are damaged."""
        return sum(self._known.values())

    def covers(self, log_offset: int, size: int) -> bool:
        """Whether this stretch, or a larger one from the same offset, is known."""
        return 0 < size <= self._known.get(log_offset, 0)

    def newest_between(self, begin: int, end: int) -> Damage | None:
        """Of the known stretches that begin from `begin` on and below `end` the last one."""
        offset = max((known for known in self._known if begin <= known < end), default=None)
        return None if offset is None else Damage(offset, self._known[offset], "known")

    def stretch_at(self, log_offset: int) -> Damage | None:
        """The known stretch that has this byte."""
        return next((Damage(at, size, "known") for at, size in self if at <= log_offset < at + size), None)

    def put_aside(self, files: SegmentFiles, damage: Damage) -> None:
        """Report the stretch and copy it, durably. Raises SyncError; a copy that fails otherwise is logged.

        May block.
        """
        if self.covers(damage.log_offset, damage.size):
            return
        log.error(
            "the log is damaged: %d bytes at offset %d (%s); a copy goes to %s",
            damage.size, damage.log_offset, damage.reason, self._folder,
        )  # fmt: skip
        self._remember(damage.log_offset, damage.size)
        self._copy(files, damage, f"{damage.log_offset:0{NAME_DIGITS}d}-{damage.size}")

    def keep_tail(self, files: SegmentFiles, tail: Damage) -> None:
        """Copy records that recovery has to cut, because one before them is torn; they were never durable."""
        log.warning(
            "%d bytes at offset %d are cut from the log (%s); a copy goes to %s",
            tail.size, tail.log_offset, tail.reason, self._folder,
        )  # fmt: skip
        self._copy(files, tail, f"{tail.log_offset:0{NAME_DIGITS}d}-{tail.size}{TAIL_SUFFIX}")

    def keep_cut(self, files: SegmentFiles, begin: int, end: int) -> None:
        """Copy what is going to be cut from the log, because its master does not have it, durably. Raises OSError.

        The CRC-32 in the name tells it from what was cut at the same place another time.
        """
        crc = 0
        for at in range(begin, end, COPY_BYTES):
            crc = zlib.crc32(files.read(min(COPY_BYTES, end - at), at), crc)
        name = f"{begin:0{NAME_DIGITS}d}-{end - begin}-{crc:08x}{TAIL_SUFFIX}"
        make_durable_dirs(self._disk, self._folder)
        if self._disk.exists(self._folder / name):
            self._disk.sync_dir(self._folder)
            return
        log.warning("%d bytes at offset %d are cut from the log; a copy goes to %s", end - begin, begin, self._folder)
        self._write(files, Damage(begin, end - begin, "cut"), self._folder / name)

    def forget_from(self, log_offset: int) -> None:
        """The log is cut at `log_offset`: stretches behind it are no part of it any more, durably; their copies stay.

        Raises OSError.
        """
        if not self._disk.exists(self._folder):
            return
        for name in self._disk.list_dir(self._folder):
            if (match := _NAME.fullmatch(name)) and int(match[1]) >= log_offset:
                self._disk.replace(self._folder / name, self._folder / f"{name}{CUT_SUFFIX}")
        self._disk.sync_dir(self._folder)
        self._known = {offset: size for offset, size in self._known.items() if offset < log_offset}

    def _remember(self, log_offset: int, size: int) -> None:
        self._known[log_offset] = max(size, self._known.get(log_offset, 0))

    def _copy(self, files: SegmentFiles, damage: Damage, name: str) -> None:
        try:
            make_durable_dirs(self._disk, self._folder)
            self._write(files, damage, self._folder / name)
        except SyncError:
            raise
        except OSError as error:
            self.uncopied += 1
            log.error("the bytes at offset %d could not be copied: %s", damage.log_offset, error)  # noqa: TRY400

    def _write(self, files: SegmentFiles, damage: Damage, target: Path) -> None:
        temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
        copy = self._disk.open(temporary, create=True)
        try:
            copy.truncate(0)
            for at in range(damage.log_offset, damage.end, COPY_BYTES):
                part = files.read(min(COPY_BYTES, damage.end - at), at)
                copy.pwrite(part, at - damage.log_offset)
            copy.sync_data()
        finally:
            copy.close()
        self._disk.replace(temporary, target)
        self._disk.sync_dir(self._folder)


R = TypeVar("R")


@dataclass
class ColdReads:
    """Reads that go to the disk, away from the event loop.

    Runs them, and knows how many there are: as long as there is one, no deleted file is closed (mechanism E3).

    Invariants: at most `COLD_READS_AT_ONCE_MAX` of them run; clients take turns, so that a client waits for one read of
    each other client at most, however many reads those have asked for.
    """

    disk: Disk
    running: int = 0
    _free: int = COLD_READS_AT_ONCE_MAX
    _waiting: dict[str, deque[asyncio.Future[None]]] = field(default_factory=dict)  # in the order of the clients' turns

    async def read(self, call: Callable[[], R], client: str = "") -> R:
        """What the reading `call` returns, when it is the turn of `client`; "" is the broker itself.

        Raises what `call` raises.
        """
        with self.several():
            await self._turn(client)
            try:
                return await self.disk.offload_in(Lane.READ, call)
            finally:
                self._next()

    @contextmanager
    def several(self) -> Iterator[None]:
        """For the block, which makes several reads of the same files, these files stay open."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    async def _turn(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came at the same moment
                self._next()
            raise

    def _next(self) -> None:
        """A read has ended: the client that has waited longest since its last turn has one."""
        while self._waiting:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
