"""The index against the log: every entry belongs to a message, and every key of every message has its entry."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from mq_broker.core.batches import IndexKey, record_index_keys
from mq_broker.store.index import SLOT, IndexPoint
from mq_broker.store.layout import Checkpoint
from mq_broker.tools.findings import CHECKPOINT, INDEX, DamageMap, Findings
from mq_broker.tools.stored_files import IndexEntry, IndexReader, StoredFiles, record_at
from mqproto.record import Record

SECONDS_MAX = 0x7FFF_FFFF


class IndexCheck:
    """All index files of a store, up to `point`.

    Invariant: both are in the order of the log, so one walk along both is enough.

    The index follows the log: what lies above the end that the checkpoint names for it is told at the next start, and
    is not judged here.
    """

    def __init__(
        self,
        files: list[FileChains],
        point: IndexPoint,
        log: StoredFiles,
        findings: Findings,
        damages: DamageMap,
    ) -> None:
        self._stream, self._findings, self._damages = EntryStream(files), findings, damages
        self._files, self._log, self._end = files, log, point.log_offset
        self.entries = self._twice = 0

    def record(self, record: Record) -> None:
        """The next whole record of the log. Raises OSError."""
        if record.log_offset >= self._end:
            return
        keys = record_index_keys(record)
        for at, (key_hash, log_offset, _) in enumerate(keys):
            head = self._stream.head
            if head is not None and head[1].log_offset == log_offset and head[1].key_hash == key_hash:
                self._compare(*head, keys[at])
            else:
                self._match([key[0] for key in keys], at, keys[at])

    def finish(self, log_end: int, checkpoint: Checkpoint | None, *, was_open: bool) -> None:
        """The log has ended: whatever else the index has is too much. Raises OSError."""
        while self._stream.head is not None:
            self._surplus(*self._stream.head)
        for file in self._files:
            file.finish()
        if self._twice:
            self._findings.note(INDEX, f"{self._twice} entries tell a key of a message once more")
        if checkpoint is not None:
            self._check_reach(checkpoint, log_end, was_open=was_open)

    def _check_reach(self, checkpoint: Checkpoint, log_end: int, *, was_open: bool) -> None:
        """How far the checkpoint says that the index is. Retention may have deleted files since."""
        if len(self._files) != (count := checkpoint.index.file_count):
            text = f"counts {count} index files; there are {len(self._files)}"
            self._findings.judge(CHECKPOINT, text, allowed=was_open and len(self._files) < count)
        if self._files and self._end < log_end:
            text = f"ends at log offset {self._end}; the log ends at {log_end}"
            self._findings.judge(INDEX, text, allowed=was_open)
        full_ms, said_ms = (
            max((file.end_ms for file in self._files if file.is_full), default=0),
            checkpoint.full_index_ms,
        )
        if not full_ms <= said_ms < full_ms + RECOVERED_END_MS:
            text = f"says that the full index files end at {said_ms} ms; they do at {full_ms}"
            self._findings.judge(CHECKPOINT, text, allowed=was_open and said_ms > full_ms)

    def _match(self, hashes: list[int], at: int, key: IndexKey) -> None:
        """Take the entry of the record's key number `at`, which is not simply the next one."""
        key_hash, log_offset, _ = key
        while (head := self._stream.head) is not None:
            file, entry = head
            if entry.log_offset == log_offset:
                if entry.key_hash in hashes[at + 1 :] and entry.key_hash != key_hash:
                    break  # a later key's
                if entry.key_hash == key_hash or entry.key_hash not in hashes:
                    self._compare(file, entry, key)
                    return
            elif entry.key_hash == key_hash and not self._is_known(entry) and self._record_of(entry) is None:
                file.differ(f"entry {entry.number} names log offset {entry.log_offset}; the message is at {log_offset}")
                self._take()
                return
            elif entry.log_offset > log_offset and not self._stream.head_is_misplaced():
                break  # a later message's
            self._surplus(file, entry)
        self._findings.difference(INDEX, f"no entry for the key hash {key_hash} of the message at {log_offset}")

    def _compare(self, file: FileChains, entry: IndexEntry, key: IndexKey) -> None:
        key_hash, _, store_ms = key
        if entry.key_hash != key_hash:
            file.differ(f"entry {entry.number} has key hash {entry.key_hash}; the key has {key_hash}")
        self._compare_time(file, entry, store_ms)
        self._take()

    def _compare_time(self, file: FileChains, entry: IndexEntry, store_ms: int) -> None:
        if entry.number == 1:
            file.begin_ms = store_ms
        file.end_ms = store_ms
        seconds = min(max((store_ms - file.begin_ms) // 1_000, 0), SECONDS_MAX)
        if entry.seconds != seconds:
            file.differ(f"entry {entry.number} says {entry.seconds} s after the first one; the message says {seconds}")

    def _surplus(self, file: FileChains, entry: IndexEntry) -> None:
        """Pass an entry where the log has no next key: of a message that is gone, told twice, or wrong."""
        if not self._is_known(entry):
            record = self._record_of(entry)
            if record is not None:
                self._twice += 1
                self._compare_time(file, entry, record.store_timestamp_ms)
            else:
                text = f"entry {entry.number} names log offset {entry.log_offset}, where no message has such a key"
                file.differ(text)
        self._take()

    def _is_known(self, entry: IndexEntry) -> bool:
        """Whether the entry's message was deleted, or lost to damage."""
        return 0 <= entry.log_offset < self._log.begin or self._damages.touches(entry.log_offset)

    def _record_of(self, entry: IndexEntry) -> Record | None:
        """The message that the entry names, when it is there and has the key.

        A disk that rejected something was asked again, so the index may tell some messages twice.
        """
        record = record_at(self._log, entry.log_offset)
        has_key = record is not None and entry.key_hash in {key[0] for key in record_index_keys(record)}
        return record if has_key else None

    def _take(self) -> None:
        self._stream.take()
        self.entries += 1


RECOVERED_END_MS = 1_000  # recovery knows the end timestamp to the second only, and takes the later one


class FileChains:
    """The entries of all index files in the order of the log, with each file's slots and chains checked on the way.

    One index file up to entry `end` - 1. `is_open` says that it may have been saved after the checkpoint.

    Invariants: an entry must name the entry before it in its slot, and at the end of a file each slot its newest entry;
    so an entry that is there and in its chain can be found. One table of slots is in memory, 20 MB at RocketMQ's
    numbers.

    What may differ in the last file of a store that was not stopped cleanly: it may have been saved after the
    checkpoint, so that slots and head already speak of entries that the checkpoint does not.
    """

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
