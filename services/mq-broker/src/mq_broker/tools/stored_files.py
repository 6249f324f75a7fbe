"""Files of a store, opened to be read and nothing else, whatever state they are in: log, consume queues, index."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.store.commit_log import NAME_DIGITS, SegmentFiles
from mq_broker.store.index import ENTRY, HEAD, SLOT, IndexHead, IndexSize
from mq_broker.store.layout import CONSUME_QUEUE_FILE_ENTRIES
from mq_broker.store.log_scan import Blank, Damage, explain, scan_log, scan_whole
from mqproto.record import (
    MESSAGE_MAGIC,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    decode_record,
    is_sealed,
)
from osenv import Disk, DiskFile

OPEN_FILES_MAX = 4


class StoredFiles:
    """Byte offsets onto files that are named after the offset of their first byte in 20 digits.

    `SegmentFiles` makes a run right before it uses it; a tool that looks must not. Here a file that is missing is
    reported in `faults` and one that has lost its end in `short`, and both read as zeros. A short file is no fault: a
    crash may come before the length reaches the disk, the next start gives it back, and what was lost with it is missed
    itself.

    Invariants: nothing is ever written; `read` gives exactly what was asked for, within `begin` to `capacity_end`.
    """

    def __init__(self, disk: Disk, folder: Path, usual_bytes: int) -> None:
        """`usual_bytes` is the length of a file where the files themselves do not tell. Raises OSError."""
        self._disk, self._folder, self._usual_bytes = disk, folder, usual_bytes
        self._open: OrderedDict[int, DiskFile] = OrderedDict()
        self.faults: list[str] = []
        self.short: list[str] = []
        self._sizes: dict[int, int] = {}
        names = names_in(disk, folder)
        if names is None:
            self.faults.append(f"{folder}: a file, where a folder of files belongs")
        for name in names or []:
            if name.isascii() and name.isdigit() and len(name) == NAME_DIGITS:
                self._sizes[int(name)] = self._size_of(folder / name)
            else:
                self.faults.append(f"{folder / name}: not the name of a file of this run")
        self.file_bytes = self._length_of_all()
        self._set_strangers_aside()
        starts = sorted(self._sizes)
        self.begin = starts[0] if starts else 0
        self.capacity_end = starts[-1] + self.file_bytes if starts else 0
        self.data_end = starts[-1] + self._sizes[starts[-1]] if starts else 0  # behind it there is nothing to be read
        self.missing = self._find_missing(starts)

    @property
    def file_count(self) -> int:
        """Files that are there."""
        return len(self._sizes)

    def room(self, offset: int) -> int:
        """Bytes from `offset` to the end of its file."""
        return self.file_bytes - offset % self.file_bytes

    def read(self, length: int, offset: int) -> bytes:
        """Exactly `length` bytes, zeros where the disk has none. Raises ValueError outside the run, OSError."""
        if offset < self.begin or offset + length > self.capacity_end:
            raise ValueError(f"{self._folder}: {length} bytes at {offset} are not between the first and the last file")
        parts = []
        while length > 0:
            count = min(length, self.room(offset))
            start = offset - offset % self.file_bytes
            part = self._file(start).pread(count, offset - start) if start in self._sizes else b""
            parts.append(part if len(part) == count else part + bytes(count - len(part)))
            offset += count
            length -= count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def is_missing(self, offset: int) -> bool:
        """Whether the file that would hold `offset` is not there."""
        return any(start <= offset < end for start, end in self.missing)

    def close(self) -> None:
        """Give the files back."""
        while self._open:
            self._open.popitem()[1].close()

    def _file(self, start: int) -> DiskFile:
        file = self._open.get(start)
        if file is None:
            file = self._open[start] = self._disk.open(self._path(start), read_only=True)
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(start)
        return file

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:0{NAME_DIGITS}d}"

    def _size_of(self, path: Path) -> int:
        file = self._disk.open(path, read_only=True)
        try:
            return file.size()
        finally:
            file.close()

    def _length_of_all(self) -> int:
        """The length that every file has, of which single ones may have lost a part. It divides every name."""
        starts = sorted(self._sizes)
        lengths = Counter(size for size in self._sizes.values() if size)
        fitting = [size for size in lengths if all(start % size == 0 for start in starts)]
        if fitting:
            return max(fitting, key=lambda size: (lengths[size], size))
        if len(starts) > 1:
            return min(after - before for before, after in pairwise(starts))
        return self._length_of_lone(*self._sizes.items()) if starts else 0

    def _length_of_lone(self, file: tuple[int, int]) -> int:
        start, size = file
        if start % self._usual_bytes == 0:
            return self._usual_bytes
        return min(start // parts for parts in range(1, start // max(size, 1) + 1) if start % parts == 0)

    def _set_strangers_aside(self) -> None:
        for start, size in sorted(self._sizes.items()):
            if size > self.file_bytes or start % self.file_bytes:
                self.faults.append(f"{self._path(start)}: {size} bytes, and no file of {self.file_bytes} begins there")
                del self._sizes[start]
            elif size < self.file_bytes:
                self.short.append(f"{self._path(start)}: only {size} bytes long")

    def _find_missing(self, starts: list[int]) -> list[tuple[int, int]]:
        gaps = [
            (before + self.file_bytes, after) for before, after in pairwise(starts) if after - before > self.file_bytes
        ]
        self.faults += [f"{self._folder}: no file holds offsets {begin} to {end - 1}" for begin, end in gaps]
        return gaps


def names_in(disk: Disk, folder: Path) -> list[str] | None:
    """The names in the folder, None when it is a file. Raises OSError."""
    try:
        return disk.list_dir(folder)
    except NotADirectoryError:
        return None


# The commit log from its first file to its last, damage and the torn end included.
#
# Invariants: what is found covers the log without a gap, in order; the last thing found is the Tail, and nothing else
# is one. The log ends where the Tail begins. No more than a few blocks of the log are in memory.

READ_BYTES = 4 * 1024 * 1024
_ZEROS = memoryview(bytes(READ_BYTES))


@dataclass(frozen=True, slots=True)
class Tail:
    """What lies behind the log's end: `written` bytes that are not whole records of the log, then zeros."""

    log_offset: int
    written: int
    reason: str


Found = Record | Blank | Damage | Tail


def read_log(files: StoredFiles, start: int, durable_end: int) -> Iterator[Found]:
    """Everything from `start` on.

    Below `durable_end` bytes that are no record are damage, and what follows them is read; above it they are the log's
    end, as recovery sees it. Raises OSError.
    """
    at = start
    for found in scan_log(_as_segments(files), at, min(durable_end, files.capacity_end)):
        yield _named(files, found) if isinstance(found, Damage) else found
        at = found.log_offset + found.size
    for whole in scan_whole(_as_segments(files), at, files.capacity_end):
        yield whole
        at = whole.log_offset + whole.size
    written = _written(files, at)
    yield Tail(at, written, explain(_as_segments(files), at) if written else "")


def first_from(files: StoredFiles, start: int) -> int | None:
    """Where the first record or blank at `start` or behind it begins; None when there is none. Raises OSError."""
    first = next(scan_log(_as_segments(files), start, files.data_end), None)
    if isinstance(first, Damage):
        return first.end if first.end < files.data_end else None
    return start if first is not None else None


def record_at(files: StoredFiles, log_offset: int) -> Record | None:
    """The whole record that stands there, None when there is none. Raises OSError."""
    if not files.begin <= log_offset <= files.capacity_end - SEGMENT_HEAD.size:
        return None
    size, magic = SEGMENT_HEAD.unpack(files.read(SEGMENT_HEAD.size, log_offset))
    if magic != MESSAGE_MAGIC or not RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, files.room(log_offset)):
        return None
    data = files.read(size, log_offset)
    try:
        record = decode_record(data) if is_sealed(data, 0, size) else None
    except RecordError:
        return None
    return record if record is not None and record.log_offset == log_offset else None


def _as_segments(files: StoredFiles) -> SegmentFiles:
    return cast("SegmentFiles", files)  # scanning only reads, and StoredFiles reads as SegmentFiles does


def _named(files: StoredFiles, damage: Damage) -> Damage:
    return replace(damage, reason="the file is missing") if files.is_missing(damage.log_offset) else damage


def _written(files: StoredFiles, start: int) -> int:
    """How many bytes from `start` on there are up to the last one that is not zero."""
    written = 0
    for at in range(start, files.data_end, READ_BYTES):
        block = files.read(min(READ_BYTES, files.data_end - at), at)
        if block != _ZEROS[: len(block)]:
            written = at + len(block.rstrip(b"\0")) - start
    return written


BLOCK_ENTRIES = 1_024
SKIP_BYTES = 1024 * 1024
Entry = tuple[int, int, int]  # log offset, size, tag hash or due time
NEVER_WRITTEN: Entry = (0, 0, 0)


class QueueReader:
    """A consume queue on disk, read entry by entry.

    Entries that the files do not have read as never written.

    Invariants: at most one block of entries is in memory, and no descriptor stays open between two blocks, so that a
    store of many thousand queues can be read side by side.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        """Raises OSError."""
        self._files = StoredFiles(disk, folder, CONSUME_QUEUE_FILE_ENTRIES * CQ_ENTRY.size)
        self.faults, self.short = self._files.faults, self._files.short
        self._block, self._block_from = b"", 0
        self.first = -(-self._files.begin // CQ_ENTRY.size)
        self.capacity = self._files.capacity_end // CQ_ENTRY.size

    def entry(self, queue_offset: int) -> Entry:
        """The entry, from the block in memory where it can be. Raises OSError."""
        at = (queue_offset - self._block_from) * CQ_ENTRY.size
        if not 0 <= at < len(self._block):
            self._load(queue_offset)
            at = 0
        return self._unpack(at)

    def fresh_entry(self, queue_offset: int) -> Entry:
        """The entry as the disk has it now: a running broker may have written it since. Raises OSError."""
        self._load(queue_offset)
        return self._unpack(0)

    def written_from(self, queue_offset: int) -> Iterator[tuple[int, Entry]]:
        """Every entry from here on of which any byte was written, with its queue offset. Raises OSError."""
        step = SKIP_BYTES // CQ_ENTRY.size
        for first in range(max(queue_offset, self.first), self.capacity, step):
            count = min(step, self.capacity - first)
            block = self._read(first, count)
            if block.count(0) == len(block):
                continue
            for number, entry in enumerate(CQ_ENTRY.iter_unpack(block)):
                if entry != NEVER_WRITTEN:
                    yield first + number, entry

    def _load(self, queue_offset: int) -> None:
        count = min(BLOCK_ENTRIES, self.capacity - queue_offset)
        if queue_offset < self.first or count <= 0:
            self._block = bytes(CQ_ENTRY.size)
        else:
            self._block = self._read(queue_offset, count)
        self._block_from = queue_offset

    def _read(self, queue_offset: int, count: int) -> bytes:
        try:
            return self._files.read(count * CQ_ENTRY.size, queue_offset * CQ_ENTRY.size)
        finally:
            self._files.close()

    def _unpack(self, at: int) -> Entry:
        log_offset, size, code = CQ_ENTRY.unpack_from(self._block, at)
        return log_offset, size, code


INDEX_NAME_DIGITS = 17  # yyyyMMddHHmmssSSS
INDEX_BLOCK_ENTRIES = 8_192
BLOCK_SLOTS = 65_536
ENTRIES_PER_SLOT = 4  # RocketMQ's 20,000,000 to 5,000,000


class IndexLengthError(ValueError):
    """A file that is no index file of the expected number of slots; the message says why."""


class IndexEntry(NamedTuple):
    """One entry: its number, the absolute hash of its key, and where the message is."""

    number: int
    key_hash: int
    log_offset: int
    seconds: int
    before: int


class IndexReader:
    """An index file on disk, read in the order in which its entries were added.

    Invariants: nothing is written; no more than one block of entries and one of slots is in memory.
    """

    def __init__(self, disk: Disk, path: Path, *, slots: int | None = None) -> None:
        """`slots` is needed when a file has not four entries for each of them. Raises IndexLengthError, OSError."""
        self.path = path
        self._file = disk.open(path, read_only=True)
        try:
            self.size = _size_of(self._file.size(), slots)
        except IndexLengthError as error:
            self._file.close()
            raise IndexLengthError(f"{path}: {error}") from None
        self.head = IndexHead(*HEAD.unpack(self._file.pread(HEAD.size, 0)))

    @property
    def number(self) -> int:
        """The name as a number, by which the files are in order."""
        return int(self.path.name)

    def entries(self, first: int, end: int) -> Iterator[IndexEntry]:
        """Entries from `first` to `end` - 1. Raises OSError."""
        end = min(end, self.size.entries)
        for begin in range(first, end, INDEX_BLOCK_ENTRIES):
            count = min(INDEX_BLOCK_ENTRIES, end - begin)
            block = self._file.pread(count * ENTRY.size, self.size.entry_at(begin))
            for number, fields in enumerate(ENTRY.iter_unpack(block), begin):
                yield IndexEntry(number, *fields)

    def before(self, number: int) -> int:
        """The entry before `number` in its slot. Raises OSError."""
        data = self._file.pread(ENTRY.size, self.size.entry_at(number))
        return int(ENTRY.unpack(data)[3])

    def slots(self) -> Iterator[tuple[int, bytes]]:
        """All slots as blocks of bytes, each with the number of its first slot. Raises OSError."""
        for first in range(0, self.size.slots, BLOCK_SLOTS):
            count = min(BLOCK_SLOTS, self.size.slots - first)
            yield first, self._file.pread(count * SLOT.size, HEAD.size + first * SLOT.size)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def index_names(disk: Disk, folder: Path) -> list[str]:
    """Names of the index files, the oldest first."""
    return [
        name for name in disk.list_dir(folder) if name.isascii() and name.isdigit() and len(name) == INDEX_NAME_DIGITS
    ]


def _size_of(file_bytes: int, slots: int | None) -> IndexSize:
    room = file_bytes - HEAD.size
    if slots is None:
        slots, rest = divmod(room, SLOT.size + ENTRIES_PER_SLOT * ENTRY.size)
        entries = slots * ENTRIES_PER_SLOT
    else:
        entries, rest = divmod(room - slots * SLOT.size, ENTRY.size)
    if rest or slots < 1 or entries < 1:
        raise IndexLengthError(
            f"{file_bytes} bytes are not the length of an index file; --index-slots says its maxHashSlotNum"
        )
    return IndexSize(slots, entries)
