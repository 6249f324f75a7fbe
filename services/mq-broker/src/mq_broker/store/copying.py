"""A slave's hot path: what has come from the master is appended byte for byte, and told to all that hangs on the log.

Invariants: everything is checked before anything is written; a record is in its consume queue, and told, in the same
step in which it is in the log; queues have the numbers that the master gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queues import ConsumeQueues
from mq_broker.store.copied import Copied, CopiedDamage, CopiedRun, take_apart
from mq_broker.store.errors import CopyError, StoreFencedError, StoreWriteError
from mq_broker.store.flusher import Flusher
from mq_broker.store.index import Index
from mq_broker.store.log_scan import Damage
from mq_broker.store.mending import filler
from mq_broker.store.quarantine import Quarantine
from mq_broker.store.queue_numbers import QueueKey
from mqproto.record import Record
from osenv import SyncError


class CopyTarget(Protocol):
    """The parts of a store that a copied record goes into."""

    log: CommitLog
    queues: ConsumeQueues
    index: Index
    quarantine: Quarantine
    flusher: Flusher
    newest_store_ms: int
    on_copied: Callable[[Record], None]

    def require_sound(self) -> None:
        """Raises StoreFencedError when the disk has failed."""

    def fence(self, error: OSError) -> None:
        """The disk has failed."""

    def dispatched(self, queues: Iterable[QueueKey], count: int) -> None:
        """So many records that end with the log are in these queues."""


@dataclass(slots=True)
class QueuePart:
    """What one queue gets: entries from number `begin` on, by the run that they stand in."""

    begin: int
    next: int
    last_log_offset: int
    entries: dict[int, list[bytes]] = field(default_factory=dict)


class Copier:
    """Appends to one store what its master has sent."""

    def __init__(self, store: CopyTarget) -> None:
        self._store = store

    def append(self, log_offset: int, data: bytes) -> None:
        """Append what `data` holds at `log_offset`, which has to be the log's end.

        Raises CopyError when anything of it is wrong; then nothing has changed. Raises StoreWriteError when the disk
        refuses it; then the log's end says how much is there. Raises StoreFencedError when the disk has failed.
        """
        store = self._store
        store.require_sound()
        if log_offset != store.log.end:
            raise CopyError(f"bytes for log offset {log_offset} have come; the log ends at {store.log.end}")
        pieces = take_apart(data, log_offset, store.log.file_bytes)
        parts = self._plan(pieces)
        self._reserve(parts)
        store.flusher.appended()  # also when the disk refuses: a part may have been written
        for number, piece in enumerate(pieces):
            if isinstance(piece, CopiedRun):
                store.log.append(piece.data)
                entries = {key: part.entries[number] for key, part in parts.items() if number in part.entries}
                self._dispatch(piece, entries)
            elif isinstance(piece, CopiedDamage):
                self._append_damage(piece)
            else:
                store.log.append_blank()
            store.index.appended()

    # ------------------------------------------------------------------------------------------- checking

    def _plan(self, pieces: Sequence[Copied]) -> dict[QueueKey, QueuePart]:
        """Which entries each queue gets. Raises CopyError when a number is not the one that the queue is at."""
        parts: dict[QueueKey, QueuePart] = {}
        lost: Damage | None = None
        for number, piece in enumerate(pieces):
            if isinstance(piece, CopiedDamage):
                lost = self._stretch_here(piece)
            if not isinstance(piece, CopiedRun):
                continue
            for record, code in zip(piece.records, piece.codes, strict=True):
                key = (record.topic, record.queue_id)
                part = parts.get(key) or parts.setdefault(key, self._part(record))
                entries = part.entries.get(number)
                if entries is None:
                    entries = part.entries[number] = []
                if record.queue_offset != part.next:
                    entries += self._lost_before(record, part, lost)
                entries.append(CQ_ENTRY.pack(record.log_offset, record.size, code))
                part.next, part.last_log_offset = record.queue_offset + 1, record.log_offset
        return parts

    def _part(self, record: Record) -> QueuePart:
        queue = self._store.queues.get(record.topic, record.queue_id)
        if queue is None or queue.max_offset == 0:
            # The ones before have been deleted with the beginning of the master's log, or damaged there.
            return QueuePart(record.queue_offset, record.queue_offset, self._store.log.begin)
        newest = queue.max_offset - 1
        last_log_offset = queue.entry(newest)[0] if newest >= queue.first_offset else self._store.log.begin
        return QueuePart(queue.max_offset, queue.max_offset, last_log_offset)

    def _lost_before(self, record: Record, part: QueuePart, lost: Damage | None) -> list[bytes]:
        """The entries of messages that were in a damaged stretch between the one before and this record."""
        if lost is None or lost.log_offset < part.last_log_offset:
            lost = self._store.quarantine.newest_between(part.last_log_offset, record.log_offset)
        if lost is None or record.queue_offset < part.next:
            raise CopyError(
                f"the record for log offset {record.log_offset} is number {record.queue_offset} of queue "
                f"{record.queue_id} of {record.topic}, where number {part.next} was expected"
            )
        return [filler(lost)] * (record.queue_offset - part.next)

    # -------------------------------------------------------------------------------------------- writing

    def _reserve(self, parts: dict[QueueKey, QueuePart]) -> None:
        """Have room for all entries, so that no disk can be too full for them once the log has their records."""
        for (topic, queue_id), part in parts.items():
            try:
                queue = self._store.queues.get_or_open(topic, queue_id)
                if queue.max_offset == 0 and part.begin:
                    queue.begin_at(part.begin)
                queue.reserve(part.next)
            except OSError as error:
                raise StoreWriteError(f"the disk has no room for the consume queue of {topic}: {error}") from error

    def _dispatch(self, run: CopiedRun, entries: dict[QueueKey, list[bytes]]) -> None:
        store = self._store
        for key, added in entries.items():
            try:
                store.queues.get_or_open(*key).append(b"".join(added))
            except OSError as error:  # room was reserved: this disk is broken; the log tells the entries at next start
                store.fence(error)
                raise StoreFencedError(f"the disk has failed: {error}") from error
        newest_store_ms, tell = store.newest_store_ms, store.on_copied
        for record in run.records:
            tell(record)
            newest_store_ms = max(newest_store_ms, record.store_timestamp_ms)
        store.newest_store_ms = newest_store_ms
        store.dispatched(entries, len(run.records))

    def _append_damage(self, piece: CopiedDamage) -> None:
        """The last piece of a stretch puts it into quarantine, as recovery would; that may block, and is rare."""
        store = self._store
        store.log.append_damaged(piece.data)
        stretch = self._stretch_here(piece)
        if store.log.end < stretch.end:
            return
        try:
            store.quarantine.put_aside(store.log.files, stretch)
        except SyncError as error:
            store.fence(error)
            raise StoreFencedError(f"the disk has failed: {error}") from error

    def _stretch_here(self, piece: CopiedDamage) -> Damage:
        """What of the stretch this log has: it may begin in the middle of it."""
        begin = max(piece.stretch.log_offset, self._store.log.begin)
        return Damage(begin, piece.stretch.end - begin, piece.stretch.reason)
