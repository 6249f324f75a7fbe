"""A consume queue on disk, read entry by entry.

Invariants: at most one block of entries is in memory, and no descriptor stays open between two blocks, so that a store
of many thousand queues can be read side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.store.layout import CONSUME_QUEUE_FILE_ENTRIES
from mq_broker.tools.stored_files import StoredFiles
from osenv import Disk

BLOCK_ENTRIES = 1_024
SKIP_BYTES = 1024 * 1024
Entry = tuple[int, int, int]  # log offset, size, tag hash or due time
NEVER_WRITTEN: Entry = (0, 0, 0)


class QueueReader:
    """Entries by queue offset; those that the files do not have read as never written."""

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
