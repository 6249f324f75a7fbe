"""A replica's copy of the log: bytes of the master are appended, and what the master does not have is cut off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.documents import DELAY_OFFSETS, PRODUCER_SEQUENCES, TRANSACTION_OFFSETS
from mq_broker.core.replica_state import Cut
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queue import ConsumeQueues, QueueKey, QueueNumbers
from mq_broker.store.durability import Flusher, encode_watermark, read_watermark
from mq_broker.store.errors import CopyError, StoreFencedError, StoreWriteError
from mq_broker.store.index import Index
from mq_broker.store.layout import StoreLayout, read_checkpoint
from mq_broker.store.log_feed import Copied, CopiedDamage, CopiedRun, take_apart
from mq_broker.store.log_scan import Damage, Quarantine, scan_log, scan_whole
from mq_broker.store.reader import filler
from mq_broker.store.state_files import StateFiles
from mqproto.record import Record
from osenv import Disk, SyncError, replace_file

log = logging.getLogger(__name__)


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
    """Appends to one store what its master has sent.

    Invariants: everything is checked before anything is written; a record is in its consume queue, and told, in the
    same step in which it is in the log; queues have the numbers that the master gave.
    """

    def __init__(self, store: CopyTarget) -> None:
        self._store = store

    def append(self, log_offset: int, data: bytes) -> None:
        """Append what `data` holds at `log_offset`, which has to be the log's end.

        Raises CopyError when anything of it is wrong; then nothing has changed. Raises StoreWriteError when the disk
        rejects it; then the log's end says how much is there. Raises StoreFencedError when the disk has failed.
        """
        store = self._store
        store.require_sound()
        if log_offset != store.log.end:
            raise CopyError(f"bytes for log offset {log_offset} have come; the log ends at {store.log.end}")
        pieces = take_apart(data, log_offset, store.log.file_bytes)
        parts = self._plan(pieces)
        self._reserve(parts)
        store.flusher.appended()  # also when the disk rejects: a part may have been written
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


# What these tell may come from records that are cut; the log tells it anew. Topics and groups may stay.
FORGOTTEN_STATES = (DELAY_OFFSETS, PRODUCER_SEQUENCES, TRANSACTION_OFFSETS)


@dataclass(frozen=True, slots=True)
class LogCutter:
    """What a replica has and its master has not goes: the end of its log, or all of it when the master's begins behind
    it.

    Makes the cut of one store, of which nothing but the files of its log is open.

    A cut is pending (config/replica.json) until a checkpoint was made after it; until then every start makes it again,
    so what a crash has left half done is finished, and what it has left whole is done once more.

    Invariants: the end that goes is in quarantine, durably, before anything of it has gone; watermark, checkpoint and
    small state speak of nothing beyond the cut, durably, before the log is shorter; what was cut never comes back.
    """

    disk: Disk
    layout: StoreLayout
    log: CommitLog
    quarantine: Quarantine
    states: StateFiles
    numbers: QueueNumbers

    def make(self, cut: Cut) -> None:
        """Everything that the cut takes away is gone, durably, on return. Recovery has to read the whole log then.

        Raises ValueError, before anything has changed, when the log cannot be cut there; OSError. May block for long.
        """
        self._require_boundary(cut)
        durable = self._durable()
        for begin, end in self._parts_from(cut.end, durable or 0):
            self.quarantine.keep_cut(self.log.files, begin, end)
        if cut.begin is None:
            self._forget_from(cut.end, None if durable is None else min(durable, cut.end))
            self._shorten(cut.end)
        else:
            self._forget_from(0, cut.begin)
            self.log.files.drop(self.log.files.starts + self.log.files.stray)
            self.log.files.ensure(cut.begin)
        self.log.files.take_sync()()
        self.log.reopened()
        log.warning("the log is cut: it ends at %d at the most", cut.end if cut.begin is None else cut.begin)

    def distrust(self, queues: ConsumeQueues, cut: Cut) -> None:
        """Before recovery tells them anew: a process before this one may have done so, and not synced it.

        A log that begins anew gives its queues the numbers that its master gives.
        """
        for key in queues.stored():
            queues.get_or_open(*key).distrust()
        if cut.begin is not None:
            queues.wipe()

    def finish(self, queues: ConsumeQueues) -> None:
        """What recovery has told the queues is durable on return: entries of cut records cannot come back among those
        of others, whatever becomes of the cut's note. Raises OSError.
        """
        for queue in queues:
            queue.take_sync()()

    def _require_boundary(self, cut: Cut) -> None:
        files = self.log.files
        if cut.begin is not None:
            if cut.begin != files.file_begin(cut.begin):
                raise ValueError(
                    f"the log cannot begin at offset {cut.begin}: its files have {self.log.file_bytes} bytes each; "
                    "mappedFileSizeCommitLog has to be the master's"
                )
            return
        if cut.end < files.begin:
            raise ValueError(f"the log cannot end at offset {cut.end}: it begins at {files.begin}")
        if cut.end >= files.capacity_end:
            return
        for found in scan_whole(files, files.file_begin(cut.end), cut.end):
            if found.log_offset + found.size > cut.end:
                raise ValueError(f"the log cannot end at offset {cut.end}: a record at {found.log_offset} goes beyond")

    def _durable(self) -> int | None:
        """Up to where the log is known to have been synced; None when nothing tells."""
        watermark, checkpoint = read_watermark(self.disk, self.layout), read_checkpoint(self.disk, self.layout)
        return None if watermark is None else max(watermark, checkpoint.log_offset if checkpoint else 0)

    def _parts_from(self, first: int, durable: int) -> Iterator[tuple[int, int]]:
        """What of each file is worth being kept: up to its last record, or durable damage."""
        files = self.log.files
        for start in [*files.starts, *files.stray]:
            begin, file_end = max(start, first), start + self.log.file_bytes
            if begin < file_end:
                end = self._last_end(begin, file_end, durable)
                if begin < end:
                    yield begin, end

    def _last_end(self, begin: int, file_end: int, durable: int) -> int:
        last = begin
        for found in scan_log(self.log.files, begin, file_end):
            found_end = found.log_offset + found.size
            if isinstance(found, Record):
                last = found_end
            elif isinstance(found, Damage) and found.log_offset < durable:
                last = min(found_end, durable)
        return last

    def _forget_from(self, log_offset: int, durable: int | None) -> None:
        """Remove every reference to the log from `log_offset` on; below `durable` the log has been synced."""
        disk, layout = self.disk, self.layout
        if durable is not None:
            replace_file(disk, layout.watermark, encode_watermark(durable))
        if disk.exists(layout.checkpoint):
            disk.unlink(layout.checkpoint)
        disk.sync_dir(layout.root)
        self.numbers.forget_from(log_offset)
        self.states.remove(FORGOTTEN_STATES)
        self.states.cover_at_most(log_offset)
        if disk.exists(layout.queue_ends):
            disk.unlink(layout.queue_ends)
            disk.sync_dir(layout.config)
        self.quarantine.forget_from(log_offset)
        if disk.exists(layout.timer):
            if disk.exists(layout.timer_manifest):
                disk.unlink(layout.timer_manifest)
            disk.sync_dir(layout.timer)

    def _shorten(self, end: int) -> None:
        files = self.log.files
        if files.stray and end <= files.capacity_end:
            files.drop(files.stray)
        if files.starts:
            files.cut(end, keep_place=True)
            files.distrust(end)  # a process before this one may have cut it, and not synced that
