"""The index against the log: every entry belongs to a message, and every key of every message has its entry.

Invariant: both are in the order of the log, so one walk along both is enough.

The index follows the log: what lies above the end that the checkpoint names for it is told at the next start, and is
not judged here.
"""

from __future__ import annotations

from mq_broker.core.batches import IndexKey, record_index_keys
from mq_broker.store.index import IndexPoint
from mq_broker.store.layout import Checkpoint
from mq_broker.tools.findings import CHECKPOINT, INDEX, DamageMap, Findings
from mq_broker.tools.index_chains import RECOVERED_END_MS, EntryStream, FileChains
from mq_broker.tools.index_reader import IndexEntry
from mq_broker.tools.log_reader import record_at
from mq_broker.tools.stored_files import StoredFiles
from mqproto.record import Record

SECONDS_MAX = 0x7FFF_FFFF


class IndexCheck:
    """All index files of a store, up to `point`."""

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

        A disk that refused something was asked again, so the index may tell some messages twice.
        """
        record = record_at(self._log, entry.log_offset)
        has_key = record is not None and entry.key_hash in {key[0] for key in record_index_keys(record)}
        return record if has_key else None

    def _take(self) -> None:
        self._stream.take()
        self.entries += 1
