"""The index of messages by key (mechanisms M2, S4): files of hash slots with linked entries.

It follows the log, and can be rebuilt from it. FORMAT.md says each byte; the layout is RocketMQ's.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from struct import Struct

from mq_broker.core.batches import IndexKey, index_hash, index_keys, record_index_keys
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.log_scan import scan_log
from mqproto.record import Record
from osenv import Clock, Disk
from osenv.process import zeroed_memory

log = logging.getLogger(__name__)

NAME_DIGITS = 17  # yyyyMMddHHmmssSSS
# Indexed in one step of the event loop. A step ends with the record that reaches either number: records of earlier
# versions may have 16,000 keys.
STEP_RECORDS, STEP_KEYS = 256, 1_024
COLD_STEP_RECORDS, COLD_STEP_KEYS = 4_096, 8_192  # the same from disk, read in a thread
RETRY_AFTER_ERROR_S = 10


@dataclass(frozen=True, slots=True)
class IndexPoint:
    """How much of the index is durable: the file that is written (0: none yet), its next entry, the log below it."""

    file_name: int = 0
    next_number: int = 1
    log_offset: int = 0
    file_count: int = 0


class Index:
    """All index files of a store.

    Invariants: every key of every record below `indexed_end` that is still in the log is in one of the files (twice, if
    a disk that rejected something was asked again); files are in the order of the log, and only the last one is
    written.
    """

    def __init__(self, disk: Disk, clock: Clock, folder: Path, size: IndexSize, commit_log: CommitLog) -> None:
        self._disk, self._clock, self._folder, self._size, self._log = disk, clock, folder, size, commit_log
        self._files: list[IndexFile] = []
        self._unsaved: list[IndexFile] = []
        self._appended = asyncio.Event()
        self._unsynced_folders: list[Path] = []
        self._stepping = asyncio.Lock()
        self.indexed_end = 0

    # ------------------------------------------------------------------------------------------------ life

    def open(self, point: IndexPoint | None, *, clean: bool) -> None:
        """Take over the files up to `point`; what is missing is told by the log later, in `run`. Raises OSError.

        Without a point, or when the files do not fit it, the index begins anew.
        """
        names = [name for name in self._disk.list_dir(self._folder) if name.isdigit() and len(name) == NAME_DIGITS]
        try:
            self._take_over(names, point, clean=clean)
        except ValueError as error:
            if names:
                log.warning("the index is built anew: %s", error)
            self.close()
            for name in names:
                if self._disk.exists(self._folder / name):
                    self._disk.unlink(self._folder / name)
            self.indexed_end = self._log.begin
        self._unsynced_folders = [self._folder] if names else []
        self._appended.set()

    def _take_over(self, names: Sequence[str], point: IndexPoint | None, *, clean: bool) -> None:
        if point is None or not self._log.begin <= point.log_offset <= self._log.end:
            raise ValueError("the checkpoint does not say how far the index is")
        if point.file_name and f"{point.file_name:0{NAME_DIGITS}d}" not in names:
            raise ValueError(f"the file {point.file_name} is missing")
        for name in names:
            if int(name) > point.file_name:  # not durable; the log tells it again
                self._disk.unlink(self._folder / name)
            else:
                self._files.append(IndexFile(self._disk, self._folder / name, self._size))
        if any(not file.is_full for file in self._files[:-1]) or len(self._files) != point.file_count:
            raise ValueError(f"there are {len(self._files)} files; there were {point.file_count}, all but one full")
        if self._files and not clean:
            self._files[-1].recover(point.next_number)
            self._unsaved.append(self._files[-1])
        if self._files and self._files[-1].head.next_number != point.next_number:
            raise ValueError(f"{self._files[-1].path} does not end at entry {point.next_number}")
        self.indexed_end = max(point.log_offset, self._log.begin)

    async def run(self) -> None:
        """Follow the log for ever. A disk that rejects something is asked again; nothing is left out."""
        while True:
            await self._appended.wait()
            self._appended.clear()
            try:
                while self.indexed_end < self._log.end:
                    await self._step()
            except (OSError, ValueError) as error:
                log.warning("the index stays behind at offset %d: %s", self.indexed_end, error)
                await self._clock.sleep(RETRY_AFTER_ERROR_S)
                self._appended.set()

    def appended(self) -> None:
        """There is something new in the log."""
        self._appended.set()

    def close(self) -> None:
        """Give the files back."""
        for file in self._files:
            file.close()
        self._files.clear()
        self._unsaved.clear()

    # ----------------------------------------------------------------------------------------------- write

    @property
    def point(self) -> IndexPoint:
        """How far the index is; durable after `take_save`'s call, if both are taken at the same moment."""
        if not self._files:
            return IndexPoint(log_offset=self.indexed_end)
        newest = self._files[-1]
        return IndexPoint(int(newest.path.name), newest.head.next_number, self.indexed_end, len(self._files))

    @property
    def full_end_ms(self) -> int:
        """Store timestamp of the newest message in a full file; 0 without one."""
        return max((file.head.end_ms for file in self._files if file.is_full), default=0)

    async def catch_up(self) -> bool:
        """Index what is still in memory; whether nothing is left then. Raises OSError."""
        while self.indexed_end < self._log.end and self._log.is_hot_from(self.indexed_end):
            await self._step()
        return self.indexed_end == self._log.end

    def take_save(self) -> Callable[[], None]:
        """The call that makes the index as it is now durable; see `IndexFile.take_save`."""
        saves = [file.take_save() for file in self._unsaved]
        folders, unsaved = self._unsynced_folders[:], self._unsaved[:]

        def save() -> None:
            for one in saves:
                one()
            for folder in folders:
                self._disk.sync_dir(folder)
            del self._unsynced_folders[: len(folders)]
            for file in unsaved:
                if file.is_saved:
                    self._unsaved.remove(file)
                    if file.is_full:
                        file.release_slots()

        return save

    async def _step(self) -> None:
        """Index some more records. One at a time: `run` and `catch_up` may be at work together."""
        async with self._stepping:
            await self._index_some()

    async def _index_some(self) -> None:
        at = self.indexed_end
        chunk = self._log.hot_chunk(at)
        if chunk is not None:
            keys, size = index_keys(*chunk, at, records_max=STEP_RECORDS, keys_max=STEP_KEYS)
            await self._add(keys)
            self.indexed_end = at + size
            await asyncio.sleep(0)
        else:
            keys, end = await self._disk.offload(self._read_cold, at, self._log.end)
            await self._add(keys)
            self.indexed_end = max(end, self._log.begin)

    def _read_cold(self, start: int, end: int) -> tuple[list[IndexKey], int]:
        keys: list[IndexKey] = []
        at = max(start, self._log.begin)
        for found in islice(scan_log(self._log.files, at, end), COLD_STEP_RECORDS):
            if isinstance(found, Record):
                keys += record_index_keys(found)
            at = found.log_offset + found.size
            if len(keys) >= COLD_STEP_KEYS:
                break
        return keys, at

    async def _add(self, keys: Sequence[IndexKey]) -> None:
        while keys:
            if not self._files or self._files[-1].is_full:
                self._files.append(await self._disk.offload(self._create, keys[0][2]))
                self._unsaved.append(self._files[-1])
            file = self._files[-1]
            if not file.has_slots:
                await self._disk.offload(file.load_slots)
            fit = keys[: file.room]
            file.add(fit)
            if file not in self._unsaved:
                self._unsaved.append(file)
            keys = keys[len(fit) :]

    def _create(self, store_ms: int) -> IndexFile:
        """A new file, named after the time of its first message; may block."""
        self._disk.make_dirs(self._folder)
        self._unsynced_folders += [self._folder, self._folder.parent]
        name = int(datetime.fromtimestamp(store_ms / 1_000, UTC).strftime("%Y%m%d%H%M%S%f")[:NAME_DIGITS])
        if self._files:
            name = max(name, int(self._files[-1].path.name) + 1)
        return IndexFile(self._disk, self._folder / f"{name:0{NAME_DIGITS}d}", self._size, create=True)

    # ------------------------------------------------------------------------------------- find and forget

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Log offsets that may hold messages with this key, newest first; the record itself decides. May block.

        None for each entry that was visited in vain.
        """
        key_hash = index_hash(topic, key)
        for file in reversed(self._files[:]):
            if file.head.end_ms >= begin_ms and file.head.begin_ms <= end_ms:
                yield from file.find(key_hash, begin_ms, end_ms)

    async def forget_below(self, log_offset: int) -> AsyncIterator[IndexFile]:
        """Remove the files that speak only of what lies below `log_offset`; each is to be closed when no reader has it.

        Raises OSError.
        """
        while len(self._files) > 1 and self._files[0].head.end_offset < log_offset:
            await self._disk.offload(self._disk.unlink, self._files[0].path)
            file = self._files.pop(0)
            if file in self._unsaved:
                self._unsaved.remove(file)
            self._unsynced_folders.append(self._folder)
            yield file


HEAD = Struct(">qqqqii")  # begin and end store timestamp, begin and end log offset, slots in use, next entry number
SLOT = Struct(">i")
ENTRY = Struct(">iqii")  # key hash, log offset, seconds since the begin timestamp, the entry before in this slot
PAGE_BYTES = 4_096
ENTRIES_AHEAD_BYTES = 1024 * 1024
READ_BYTES = 1024 * 1024
_SLOTS_IN_PAGE = PAGE_BYTES // SLOT.size
_SECONDS_MAX = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class IndexSize:
    """How many slots a file has, and how many entries it takes; number 0 is never used."""

    slots: int = 5_000_000
    entries: int = 20_000_000

    @property
    def file_bytes(self) -> int:
        """The length of every file: 410,157 KB with RocketMQ's numbers (mechanism S4)."""
        return HEAD.size + self.slots * SLOT.size + self.entries * ENTRY.size

    def entry_at(self, number: int) -> int:
        """Where entry `number` stands in the file."""
        return HEAD.size + self.slots * SLOT.size + number * ENTRY.size


@dataclass(slots=True)
class IndexHead:
    """The first 40 bytes."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    next_number: int = 1

    def encode(self) -> bytes:
        """The bytes."""
        return HEAD.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.next_number
        )


class IndexFile:
    """One index file: hash slots with linked entries (mechanism S4). FORMAT.md says each byte; the layout is
    RocketMQ's.

    Adds keys and finds them. Written by one thread; found from any.

    The slots of the file that is being written are kept in memory and go to disk page by page when it is saved, after
    the entries that they point to. So no file is ever mapped writable, and a full or failing disk is an exception.

    Invariants: entries are numbered from 1; an entry names only entries with smaller numbers; a slot on disk names only
    entries that were durable before the slot was written.
    """

    def __init__(self, disk: Disk, path: Path, size: IndexSize, *, create: bool = False) -> None:
        self.path, self._size = path, size
        self._file = disk.open(path, create=create)
        self._is_new = create
        if create:
            self._file.truncate(0)
            self._file.truncate(size.file_bytes)
        elif self._file.size() != size.file_bytes:
            raise ValueError(f"{path} has {self._file.size()} bytes, not {size.file_bytes}")
        self._allocated_to = 0
        self._slots: memoryview | None = None
        self._dirty_pages: set[int] = set()
        self._saving: set[int] = set()  # pages on their way to the disk, or rejected there
        self.head = IndexHead() if create else IndexHead(*HEAD.unpack(self._file.pread(HEAD.size, 0)))
        self._saved_number = 0 if create else self.head.next_number

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits."""
        return self.head.next_number >= self._size.entries

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return self._size.entries - self.head.next_number

    @property
    def has_slots(self) -> bool:
        """Whether the slots are in memory, so that `add` does not block."""
        return self._slots is not None

    def load_slots(self) -> None:
        """Read the slots into memory; may block. Raises OSError."""
        self._writable_slots()

    def add(self, keys: Sequence[tuple[int, int, int]]) -> None:
        """Add (key hash, log offset, store ms) in the order of the log; they have to fit. Raises OSError.

        After an OSError nothing has been added.
        """
        slots, head, count = self._writable_slots(), self.head, self._size.slots
        begin_ms = keys[0][2] if head.next_number == 1 else head.begin_ms
        self._reserve(len(keys))
        number, before, parts = head.next_number, dict[int, int](), []
        at_ms = seconds = -1
        for key_hash, log_offset, store_ms in keys:
            slot = key_hash % count
            if store_ms != at_ms:
                at_ms, seconds = store_ms, min(max((store_ms - begin_ms) // 1_000, 0), _SECONDS_MAX)
            parts.append(ENTRY.pack(key_hash, log_offset, seconds, before[slot] if slot in before else slots[slot]))
            before[slot] = number
            number += 1
        self._file.pwrite(b"".join(parts), self._size.entry_at(head.next_number))
        for slot, newest in before.items():
            head.slots_used += slots[slot] == 0
            slots[slot] = newest
            self._dirty_pages.add(slot // _SLOTS_IN_PAGE)
        if head.next_number == 1:
            head.begin_ms, head.begin_offset = begin_ms, keys[0][1]
        head.end_ms, head.end_offset, head.next_number = keys[-1][2], keys[-1][1], number

    def take_save(self) -> Callable[[], None]:
        """The call that makes the file as it is now durable; it may run in a thread.

        The call raises SyncError, after which the file is in doubt for ever, or OSError: then `take_save` again.
        """
        self._saving |= self._dirty_pages
        self._dirty_pages.clear()
        pages = sorted(self._saving)
        contents = [(page, self._page(page)) for page in pages]
        head, number = self.head.encode(), self.head.next_number

        def save() -> None:
            self._file.sync_data()  # the entries first: a slot must not name what a power cut can take away
            for page, content in contents:
                self._file.pwrite(content, HEAD.size + page * PAGE_BYTES)
            self._file.pwrite(head, 0)
            self._file.sync_data()
            self._saving.difference_update(pages)
            self._saved_number = number

        return save

    @property
    def is_saved(self) -> bool:
        """Whether everything that was added is durable."""
        return self._saved_number == self.head.next_number and not self._dirty_pages and not self._saving

    def recover(self, next_number: int) -> None:
        """Forget the entries from `next_number` on: they were not durable, or the log is going to tell them again.

        Raises ValueError when the file cannot be the one that had so many entries. May block.
        """
        if not 1 <= next_number <= self._size.entries or next_number > max(1, self.head.next_number):
            raise ValueError(f"{self.path} has {self.head.next_number - 1} entries, not {next_number - 1}")
        slots = self._writable_slots()
        values = array("i", slots.tobytes())
        if max(values) >= next_number:
            for slot, number in enumerate(values):
                if number >= next_number:
                    slots[slot] = values[slot] = self._newest_below(number, next_number)
                    self._dirty_pages.add(slot // _SLOTS_IN_PAGE)
        head = self.head
        head.slots_used, head.next_number = len(values) - values.count(0), next_number
        if next_number == 1:
            self.head = IndexHead()
        else:
            _, log_offset, seconds, _ = self._entry(next_number - 1)
            head.end_offset, head.end_ms = log_offset, min(head.end_ms, head.begin_ms + seconds * 1_000 + 999)

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Log offsets of messages with this key hash, newest first, stored about then: a second early at the most.

        None for each entry on the way with another key hash or time. Ends early where the chain is broken. May block.
        """
        number, newest = self._slot(key_hash % self._size.slots), self.head.next_number
        while 0 < number < newest:
            entry_hash, log_offset, seconds, before = self._entry(number)
            stored_ms = self.head.begin_ms + seconds * 1_000
            if stored_ms + 999 < begin_ms:
                return
            yield log_offset if entry_hash == key_hash and stored_ms <= end_ms else None
            newest, number = number, before

    def release_slots(self) -> None:
        """The file is full and saved: its slots are read from disk from now on."""
        self._slots, self._is_new = None, False

    def close(self) -> None:
        """Give the file back."""
        self._slots = None
        self._file.close()

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        """Entry `number`; zeros for one that the file does not have."""
        if not 0 < number < self._size.entries:
            return 0, 0, 0, 0
        key_hash, log_offset, seconds, before = ENTRY.unpack(self._file.pread(ENTRY.size, self._size.entry_at(number)))
        return key_hash, log_offset, seconds, before if before < number else 0

    def _newest_below(self, number: int, limit: int) -> int:
        while number >= limit:
            number = self._entry(number)[3]
        return number

    def _slot(self, slot: int) -> int:
        if self._slots is not None:
            return int(self._slots[slot])
        value: int = SLOT.unpack(self._file.pread(SLOT.size, HEAD.size + slot * SLOT.size))[0]
        return value

    def _reserve(self, count: int) -> None:
        end = self._size.entry_at(self.head.next_number + count)
        if end > self._allocated_to:
            begin = self._allocated_to or HEAD.size
            last = min(-(-end // ENTRIES_AHEAD_BYTES) * ENTRIES_AHEAD_BYTES, self._size.file_bytes)
            self._file.allocate(begin, last - begin)
            self._allocated_to = last

    def _writable_slots(self) -> memoryview:
        """All slots in memory, which costs as much as is in use: what was never written is read as empty pages."""
        if self._slots is None:
            size = self._size.slots * SLOT.size
            memory = zeroed_memory(size)
            for at in range(0, 0 if self._is_new else size, READ_BYTES):
                part = self._file.pread(min(READ_BYTES, size - at), HEAD.size + at)
                if part.count(0) != len(part):
                    values = array("i", part)
                    values.byteswap()
                    memory[at : at + len(part)] = values.tobytes()
            self._slots = memory.cast("i")
        return self._slots

    def _page(self, page: int) -> bytes:
        values = array("i", self._writable_slots()[page * _SLOTS_IN_PAGE : (page + 1) * _SLOTS_IN_PAGE].tobytes())
        values.byteswap()
        return values.tobytes()
