"""The index against the log: every entry belongs to a message, and every key of every message has its entry.

Invariant: both are in the order of the log, so one walk along both is enough.

The index follows the log: what lies above the end that the checkpoint names for it is told at the next start, and is
not judged here.
"""

from __future__ import annotations

from mq_broker.core.index_keys import record_index_keys
from mq_broker.store.index import IndexPoint
from mq_broker.tools.findings import INDEX, DamageMap, Findings
from mq_broker.tools.index_chains import EntryStream, FileChains
from mq_broker.tools.index_reader import IndexEntry
from mqproto.record import Record

SECONDS_MAX = 0x7FFF_FFFF


class IndexCheck:
    """All index files of a store, up to `point`."""

    def __init__(
        self,
        files: list[FileChains],
        point: IndexPoint,
        findings: Findings,
        damages: DamageMap,
        *,
        log_begin: int,
    ) -> None:
        self._stream, self._findings, self._damages = EntryStream(files), findings, damages
        self._files, self._log_begin, self._end = files, log_begin, point.log_offset
        self.entries = 0

    def record(self, record: Record) -> None:
        """The next whole record of the log. Raises OSError."""
        if record.log_offset >= self._end:
            return
        keys = record_index_keys(record)
        if keys:
            self._take_lower(record.log_offset, keys[0][0])
        for at, (key_hash, log_offset, store_ms) in enumerate(keys):
            head = self._stream.head
            if head is not None and head[1].log_offset == log_offset and head[1].key_hash == key_hash:
                self._compare(*head, key_hash, store_ms)
            else:
                self._match(key_hash, log_offset, store_ms, {later[0] for later in keys[at + 1 :]})

    def finish(self) -> None:
        """The log has ended: whatever else the index has is too much. Raises OSError."""
        while self._stream.head is not None:
            self._surplus(*self._stream.head)
        for file in self._files:
            file.finish()

    def _take_lower(self, log_offset: int, key_hash: int) -> None:
        """Pass the entries that stand before those of the record at `log_offset`."""
        while (head := self._stream.head) is not None and head[1].log_offset < log_offset:
            if head[1].key_hash == key_hash and not self._is_known(head[1]):
                return  # it is this record's, with a wrong offset
            self._surplus(*head)

    def _match(self, key_hash: int, log_offset: int, store_ms: int, later: set[int]) -> None:
        """Take the entry of this key, which is not simply the next one; `later` are the record's keys behind it."""
        while (head := self._stream.head) is not None:
            file, entry = head
            if entry.log_offset == log_offset and entry.key_hash not in later:
                self._compare(file, entry, key_hash, store_ms)
                return
            if entry.log_offset != log_offset and entry.key_hash == key_hash and not self._is_known(entry):
                file.differ(f"entry {entry.number} names log offset {entry.log_offset}; the message is at {log_offset}")
                self._take()
                return
            if entry.log_offset == log_offset or not self._stream.head_is_misplaced():
                break
            self._surplus(file, entry)
        self._findings.difference(INDEX, f"no entry for the key hash {key_hash} of the message at {log_offset}")

    def _compare(self, file: FileChains, entry: IndexEntry, key_hash: int, store_ms: int) -> None:
        if entry.number == 1:
            file.begin_ms = store_ms
        file.end_ms = store_ms
        seconds = min(max((store_ms - file.begin_ms) // 1_000, 0), SECONDS_MAX)
        if entry.key_hash != key_hash:
            file.differ(f"entry {entry.number} has key hash {entry.key_hash}; the key has {key_hash}")
        if entry.seconds != seconds:
            file.differ(f"entry {entry.number} says {entry.seconds} s after the first one; the message says {seconds}")
        self._take()

    def _surplus(self, file: FileChains, entry: IndexEntry) -> None:
        """An entry without a record; right when its message was deleted, or lost to damage in the log."""
        if not self._is_known(entry):
            file.differ(f"entry {entry.number} names log offset {entry.log_offset}, where no message has such a key")
        self._take()

    def _is_known(self, entry: IndexEntry) -> bool:
        return 0 <= entry.log_offset < self._log_begin or self._damages.touches(entry.log_offset)

    def _take(self) -> None:
        self._stream.take()
        self.entries += 1
