"""An index file on disk, read in the order in which its entries were added.

Invariants: nothing is written; no more than one block of entries and one of slots is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mq_broker.store.index import ENTRY, HEAD, SLOT, IndexHead, IndexSize
from osenv import Disk

NAME_DIGITS = 17  # yyyyMMddHHmmssSSS
BLOCK_ENTRIES = 8_192
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
    """One index file."""

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
        for begin in range(first, end, BLOCK_ENTRIES):
            count = min(BLOCK_ENTRIES, end - begin)
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
    return [name for name in disk.list_dir(folder) if name.isascii() and name.isdigit() and len(name) == NAME_DIGITS]


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
