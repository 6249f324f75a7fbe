"""The entries of all index files in the order of the log, with each file's slots and chains checked on the way.

Invariants: an entry must name the entry before it in its slot, and at the end of a file each slot its newest entry; so
an entry that is there and in its chain can be found. One table of slots is in memory, 20 MB at RocketMQ's numbers.

What may differ in the last file of a store that was not stopped cleanly: it may have been saved after the checkpoint,
so that slots and head already speak of entries that the checkpoint does not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from mq_broker.store.index import SLOT
from mq_broker.tools.findings import INDEX, Findings
from mq_broker.tools.index_reader import IndexEntry, IndexReader

RECOVERED_END_MS = 1_000  # recovery knows the end timestamp to the second only, and takes the later one


class FileChains:
    """One index file up to entry `end` - 1. `is_open` says that it may have been saved after the checkpoint."""

    def __init__(self, reader: IndexReader, end: int, findings: Findings, *, is_open: bool) -> None:
        self.reader, self.name, self._end, self._is_open = reader, reader.path.name, end, is_open
        self._findings = findings
        self._newest = array("i", bytes(reader.size.slots * SLOT.size))
        self._used = 0
        self._first_offset = self._last_offset = 0
        # As the head says, until the records of the first and the last entry are seen, which decide.
        self.begin_ms, self.end_ms = reader.head.begin_ms, reader.head.end_ms

    @property
    def is_full(self) -> bool:
        """Whether the file was full at the checkpoint."""
        return self._end >= self.reader.size.entries

    def entries(self) -> Iterator[IndexEntry]:
        """Every entry; its chain has been checked. Raises OSError."""
        newest, slots = self._newest, self.reader.size.slots
        for entry in self.reader.entries(1, self._end):
            slot = entry.key_hash % slots  # of a negative hash, which is damage, too
            if entry.before != newest[slot]:
                self.differ(f"entry {entry.number} names {entry.before} before it; slot {slot} has {newest[slot]}")
            self._used += newest[slot] == 0
            newest[slot] = entry.number
            self._last_offset = entry.log_offset
            if entry.number == 1:
                self._first_offset = entry.log_offset
            yield entry
        self._check_slots()
        self._newest = array("i")

    def finish(self) -> None:
        """All entries were seen, and their records: compare the head, and give the file back."""
        head, last = self.reader.head, self._end - 1
        is_newer = head.next_number > self._end  # then its end is not the checkpoint's
        if head.next_number != self._end and not (is_newer and self._is_open):
            self.differ(f"the head says that entry {head.next_number} is next; {self._end} is")
        if last:
            self._compare("begin timestamp", head.begin_ms, self.begin_ms)
            self._compare("begin offset", head.begin_offset, self._first_offset)
        if last and not is_newer:
            self._compare("end offset", head.end_offset, self._last_offset)
            self._compare("count of slots in use", head.slots_used, self._used)
            if not self.end_ms <= head.end_ms < self.end_ms + RECOVERED_END_MS:
                self._compare("end timestamp", head.end_ms, self.end_ms)
        self.reader.close()

    def differ(self, text: str) -> None:
        """Something in this file is not as it has to be."""
        self._findings.difference(INDEX, f"{self.name}: {text}")

    def _compare(self, name: str, found: int, wanted: int) -> None:
        if found != wanted:
            self.differ(f"the head has {name} {found}; entries and messages have {wanted}")

    def _check_slots(self) -> None:
        for first, block in self.reader.slots():
            wanted = self._newest[first : first + len(block) // SLOT.size]
            found = array("i", block)
            found.byteswap()
            if found != wanted:
                for number, (have, want) in enumerate(zip(found, wanted, strict=True), first):
                    if have != want and self._below_end(have) != want:
                        self.differ(f"slot {number} names entry {have}; its newest is {want}")

    def _below_end(self, number: int) -> int:
        """The entry that a slot of a file saved too late had named at the checkpoint."""
        while self._is_open and self._end <= number < self.reader.size.entries:
            before = self.reader.before(number)
            if before >= number:
                return number
            number = before
        return number


class EntryStream:
    """The entries of several files one after the other. `head` is the next one with its file, None at the end."""

    def __init__(self, files: Sequence[FileChains]) -> None:
        """Raises OSError, as `take` does."""
        self._entries = ((file, entry) for file in files for entry in file.entries())
        self._second: list[tuple[FileChains, IndexEntry] | None] = []
        self.head = next(self._entries, None)

    def take(self) -> None:
        """Go on to the entry behind the next one."""
        self.head = self._second.pop() if self._second else next(self._entries, None)

    def head_is_misplaced(self) -> bool:
        """Whether the entry behind the next one stands before it in the log: then the next one's offset is wrong."""
        if not self._second:
            self._second.append(next(self._entries, None))
        second = self._second[0]
        return self.head is not None and second is not None and second[1].log_offset < self.head[1].log_offset
