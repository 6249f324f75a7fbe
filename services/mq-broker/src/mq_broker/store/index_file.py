"""One index file: hash slots with linked entries (MISSION S4). FORMAT.md says each byte; the layout is RocketMQ's.

The slots of the file that is being written are kept in memory and go to disk page by page when it is saved, after the
entries that they point to. So no file is ever mapped writable, and a full or failing disk is an exception.

Invariants: entries are numbered from 1; an entry names only entries with smaller numbers; a slot on disk names only
entries that were durable before the slot was written.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from osenv import Disk
from osenv.process import zeroed_memory

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
        """The length of every file: 410,157 KB with RocketMQ's numbers (MISSION S4)."""
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
    """Adds keys and finds them. Written by one thread; found from any."""

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
        self._saving: set[int] = set()  # pages on their way to the disk, or refused there
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
