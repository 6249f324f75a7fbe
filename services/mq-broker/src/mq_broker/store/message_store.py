"""The store's interface for the other layers: put batches, and read them back."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mq_broker.core.batches import Batch, patch_batch, runs
from mq_broker.core.limits import OPEN_FILES_EMBEDDED_MAX, RetentionOptions
from mq_broker.core.replica_state import Cut
from mq_broker.store.commit_log import CommitLog, SegmentFiles
from mq_broker.store.consume_queue import ConsumeQueue, ConsumeQueues, QueueKey, QueueNumbers
from mq_broker.store.copying import Copier
from mq_broker.store.durability import (
    Checkpointer,
    Confirmation,
    Copies,
    Flusher,
    WriteGate,
    finish_despite_cancellation,
)
from mq_broker.store.errors import (
    NotMasterError,
    NotReplicatedError,
    StoreFencedError,
    StoreFullError,
    StoreLockedError,
    StoreWriteError,
    TooFewReplicasError,
)
from mq_broker.store.index import Index
from mq_broker.store.layout import StoreLayout, mark_version, reject_newer
from mq_broker.store.log_feed import LogFeed
from mq_broker.store.log_scan import ColdReads, Quarantine
from mq_broker.store.queue_ends import QueueEnds
from mq_broker.store.reader import QueueRepairer, Reader
from mq_broker.store.recovery import RecoveryReport, close_store, open_store
from mq_broker.store.retention import SegmentCleaner
from mq_broker.store.state_files import State, StateFiles
from mqproto.record import Record, pack_ip
from osenv import Clock, Disk, PooledFiles, SyncError
from osenv.disk import make_durable_dirs

log = logging.getLogger(__name__)


class FlushDiskType(enum.Enum):
    """When a message is acknowledged (mechanism S11)."""

    ASYNC_FLUSH = "ASYNC_FLUSH"  # when it is written; on disk 200 ms later at the latest
    SYNC_FLUSH = "SYNC_FLUSH"  # when it is on disk


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of the store."""

    layout: StoreLayout
    flush_disk_type: FlushDiskType
    flush_interval_ms: int
    store_ip: str
    store_port: int
    index_enabled: bool = True
    open_files_max: int = OPEN_FILES_EMBEDDED_MAX  # of the log and of the consume queues
    retention: RetentionOptions = field(default_factory=RetentionOptions)


@dataclass(slots=True)
class PutResult:
    """Where a batch stands."""

    base_queue_offset: int
    base_log_offset: int


class MessageStore:
    """One broker's store. Single writer: every call comes from one event loop.

    Invariants: a batch gets consecutive queue offsets and stands without a gap in the log, or is not there at all;
    queue offsets are never given twice; no read goes beyond `readable_end`, which is what a crash cannot take away
    under sync flush, and the log's end under async flush.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        options: StoreOptions,
        states: Mapping[str, State],
        *,
        rebuilt_from_log: frozenset[str] = frozenset(),
        optional: frozenset[str] = frozenset(),
    ) -> None:
        """`rebuilt_from_log` names the states that reading the log again brings up to date, `optional` those whose loss
        is not worth reading all of it.
        """
        self.disk, self.options = disk, options
        layout = self.layout = options.layout
        self._store_ip = pack_ip(options.store_ip)
        self.is_sync_flush = options.flush_disk_type is FlushDiskType.SYNC_FLUSH
        reject_newer(disk, layout)
        make_durable_dirs(disk, layout.config)
        try:
            self._lock = disk.lock(layout.lock)
        except BlockingIOError as error:
            raise StoreLockedError(f"another process has the store in {layout.root}") from error
        mark_version(disk, layout)
        open_files = self.open_files = PooledFiles(disk, options.open_files_max)
        file_bytes = layout.commit_log_file_bytes
        self.log = CommitLog(
            SegmentFiles(open_files, layout.root, layout.commit_log, file_bytes, keeps_unsynced_open=True), file_bytes
        )
        self.queues = ConsumeQueues(open_files, layout)
        self.index = Index(disk, clock, layout.index, layout.index_size, self.log)
        self.quarantine = Quarantine(disk, layout.quarantine)
        self.numbers, self.ends = QueueNumbers(disk, layout), QueueEnds(disk, layout)
        self.gate = WriteGate(options.retention)
        self.states = StateFiles(
            disk, layout.config, states, lambda: self.log.end, rebuilt_from_log=rebuilt_from_log, optional=optional
        )
        self._checkpointer = Checkpointer(self)
        self.checkpoint_due = self._checkpointer.due
        self.flusher = Flusher(
            disk,
            clock,
            self.log,
            interval_s=0 if self.is_sync_flush else options.flush_interval_ms / 1000,
            on_synced=self._checkpointer.synced,
            on_durable=lambda _end: self._durable_grown(),
        )
        self.cold_reads = ColdReads(disk)
        self.repairer = QueueRepairer(self.log, self.quarantine, self.cold_reads, self.fence)
        self.readable = Readable(clock, self._stored_end)
        self.reader = Reader(self.log, self.quarantine, self.repairer, self.cold_reads, lambda: self.readable.end)
        self.segment_cleaner = SegmentCleaner(
            disk, clock, self.log, self.queues, self.index, self.repairer, self.cold_reads, lambda: self.readable_end
        )
        self.log_feed = LogFeed(self.log, self.quarantine, self.cold_reads, self.fence)
        self._copier = Copier(self)
        self.follows = False  # a master, which alone may be written
        self.on_copied: Callable[[Record], None] = lambda record: None  # told of each record that `append_copy` appends
        self.confirmation = self.readable.confirmation
        self.on_readable = self.readable.on_readable
        self._grown: Callable[[], None] = lambda: None
        self.too_few_replicas = ""  # a sentence while the in-sync set is too small to accept writes
        self._enough_replicas: Callable[[], None] = lambda: None
        self.newest_store_ms = 0
        self.is_new = False  # after `open`: whether there was no log
        self._fencing: OSError | None = None
        self.messages_put = 0

    def open(self, on_record: Callable[[Record], None], cut: Cut | None = None) -> RecoveryReport:
        """See `open_store`."""
        return open_store(self, self._checkpointer, on_record, cut)

    async def run(self) -> None:
        """Flush and index for ever; returns when the disk has failed."""
        following = asyncio.create_task(self._follow(), name="index")
        try:
            await self.flusher.run()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        if self.keeps_index:
            await self.index.run()

    async def checkpoint(self) -> None:
        """See `Checkpointer.checkpoint`."""
        await self._checkpointer.checkpoint()

    async def persist(self, name: str) -> None:
        """Have what the state `name` says now on disk, on return; a disk that rejects is asked again at a checkpoint.

        Raises OSError when it is not on disk.
        """
        await self._keeping(self.states.persist(name))

    async def rewrite(self, name: str) -> None:
        """The same, as a whole document, though the state may have a journal."""
        await self._keeping(self.states.rewrite(name))

    async def _keeping(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await finish_despite_cancellation(work)
        except SyncError as error:
            self.fence(error)
            raise

    async def close(self) -> None:
        """See `close_store`."""
        await close_store(self)

    def release(self) -> None:
        """Give files and lock back as they are."""
        self.segment_cleaner.close()
        self.queues.close()
        self.index.close()
        self.log.close()
        self._checkpointer.close()
        self.confirmation.close()
        self.states.close()
        self._lock.release()

    @property
    def keeps_index(self) -> bool:
        """messageIndexEnable."""
        return self.options.index_enabled

    @property
    def checkpointed_end(self) -> int:
        """The log offset of the last checkpoint of this run; -1 before the first one."""
        return self._checkpointer.end

    @property
    def failure(self) -> OSError | None:
        """Why the store accepts nothing more, if so."""
        return self._fencing or self.flusher.failure

    def fence(self, error: OSError) -> None:
        """A sync has failed: accept nothing more, promise nothing more, sync nothing more; `run` ends."""
        log.critical("the disk has failed, the broker accepts nothing more: %s", error)
        self._fencing = error
        self.flusher.stop(error)

    def require_sound(self) -> None:
        """Raises StoreFencedError when the disk has failed."""
        if (failure := self._fencing or self.flusher.failure) is not None:
            raise StoreFencedError(f"the disk has failed: {failure}")

    def put(
        self, batches: Sequence[Batch], store_ms: int, *, inward: bool = False, despite_full: bool = False
    ) -> list[PutResult]:
        """Append all of `batches` with one write; to be acknowledged after `wait_stored`.

        Raises StoreWriteError, StoreFullError while the disk is too full, and StoreFencedError when it has failed; none
        of them is there then. `despite_full` takes them on a full disk, `inward`, for what the store itself needs to
        become emptier, with too few replicas as well.
        """
        self.require_sound()
        if self.follows:
            raise NotMasterError("this broker follows a master; send there")
        if not (inward or despite_full) and (rejection := self.gate.rejection) is not None:
            raise StoreFullError(rejection)
        if not inward and self.too_few_replicas:
            raise TooFewReplicasError(self.too_few_replicas)
        size = sum([len(batch.buffer) for batch in batches])
        self.open_files.new_turn()
        places = self._reserve(batches)
        at = self.log.place(size)
        self.flusher.appended()  # also when the disk rejects the run: a blank may have been written
        results, entries = [], []
        for batch, (_, base) in zip(batches, places, strict=True):
            entries.append(
                patch_batch(
                    batch,
                    queue_offset=base,
                    log_offset=at,
                    store_ms=store_ms,
                    store_ip=self._store_ip,
                    store_port=self.options.store_port,
                )
            )
            results.append(PutResult(base, at))
            at += len(batch.buffer)
        self.log.append(batches[0].buffer if len(batches) == 1 else bytearray().join([b.buffer for b in batches]))
        self.newest_store_ms = max(self.newest_store_ms, store_ms)
        self._dispatch(batches, [queue for queue, _ in places], entries)
        self.index.appended()
        self._grown()
        return results

    def put_in_runs(self, batches: Sequence[Batch], store_ms: int, *, inward: bool = False) -> None:
        """Append batches that together may be longer than one `put` takes, in order.

        Raises as `put` does; then the first ones may be there.
        """
        for run in runs(batches, self.run_bytes_max):
            self.put(run, store_ms, inward=inward)

    async def wait_stored(self, end: int) -> Copies:
        """Return when what `put` has appended up to `end` may be acknowledged, and with which status.

        Raises StoreFencedError.
        """
        deadline = self.confirmation.deadline()
        if self.is_sync_flush:
            await self.flusher.wait_durable(end)
        else:
            self.require_sound()
        return await self.confirmation.wait(end, deadline)

    async def wait_acknowledged(self) -> None:
        """Return when everything that `put` has appended is as durable as an acknowledged message.

        Raises StoreFencedError, and NotReplicatedError where a producer would be answered FLUSH_SLAVE_TIMEOUT.
        """
        if await self.wait_stored(self.log_end) is Copies.FLUSH_SLAVE_TIMEOUT:
            raise NotReplicatedError("written, but the in-sync replicas did not have it in time: ask again")

    async def sync(self) -> None:
        """Have all that `put` has appended so far on disk, on return. Raises StoreFencedError when it cannot be."""
        await self.flusher.flush()
        self.require_sound()

    def _reserve(self, batches: Sequence[Batch]) -> list[tuple[ConsumeQueue, int]]:
        """The consume queue and the first queue offset of each batch, with room on disk for the entries of all.

        Raises StoreWriteError when the disk has no room for them, StoreFencedError when it has failed.
        """
        places: list[tuple[ConsumeQueue, int]] = []
        ends: dict[ConsumeQueue, int] = {}
        for batch in batches:
            try:
                queue = self.queues.get_or_open(batch.topic, batch.queue_id)
                base = ends.get(queue, queue.max_offset)
                end = base + batch.count
                queue.reserve(end)
            except SyncError as error:
                self.fence(error)
                raise StoreFencedError(f"the disk has failed: {error}") from error
            except OSError as error:
                sentence = f"the disk has no room for the consume queue of {batch.topic}: {error}"
                raise StoreWriteError(sentence) from error
            ends[queue] = end
            places.append((queue, base))
        return places

    def _dispatch(self, batches: Sequence[Batch], queues: Sequence[ConsumeQueue], entries: Sequence[bytes]) -> None:
        for queue, entry in zip(queues, entries, strict=True):
            try:
                queue.append(entry)
            except OSError as error:  # room was reserved: this disk is broken; the log tells the entries at next start
                self.fence(error)
                raise StoreFencedError(f"the disk has failed: {error}") from error
        self.dispatched([(batch.topic, batch.queue_id) for batch in batches], sum([batch.count for batch in batches]))

    def append_copy(self, log_offset: int, data: bytes) -> None:
        """Append what `LogFeed.read` has read at `log_offset` of the master's log, which is this log's end.

        Raises CopyError when it cannot stand there, and then nothing has changed; StoreWriteError, StoreFencedError.
        """
        try:
            self.open_files.new_turn()
            self._copier.append(log_offset, data)
        finally:
            self._grown()

    async def follow_begin(self, log_offset: int) -> None:
        """Delete the files of the log that lie wholly below `log_offset`, where the master's log begins.

        The newest one stays. What the disk rejects is logged, and tried again at the next call.
        """
        try:
            await self.segment_cleaner.delete_below(log_offset, self._checkpointed)
        except SyncError as error:
            self.fence(error)
        except OSError as error:
            log.warning("old files stay although the master's log begins at %d: %s", log_offset, error)

    async def _checkpointed(self) -> int:
        await self.checkpoint()
        return self.checkpointed_end if self.failure is None else -1

    def dispatched(self, queues: Iterable[tuple[str, int]], count: int) -> None:
        """So many records that end with the log are in these queues: their listeners are called when they can be
        read."""
        self.messages_put += count
        self._checkpointer.appended(count)
        self.readable.appended(self.log.end, queues)
        if not self.is_sync_flush:
            self.readable.tell()

    @property
    def log_begin(self) -> int:
        """Offset of the log's first byte."""
        return self.log.begin

    @property
    def log_end(self) -> int:
        """Offset behind the log's last record."""
        return self.log.end

    @property
    def readable_end(self) -> int:
        """The confirm offset: consumers see what lies below it."""
        return self.readable.end

    @property
    def stored_end(self) -> int:
        """What this broker vouches for: everything below is on its disk, or written, as flushDiskType says."""
        return self._stored_end()

    def _stored_end(self) -> int:
        return self.flusher.durable_end if self.is_sync_flush else self.log.end

    @property
    def run_bytes_max(self) -> int:
        """How many bytes one `put` can take."""
        return self.log.run_bytes_max

    @property
    def messages_stored(self) -> int:
        """Entries of all consume queues that were ever written."""
        return self.queues.entry_count

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The consume queue, when anything was ever stored in it."""
        return self.queues.get(topic, queue_id)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(first offset, offset behind the last one); zeros for a queue that holds nothing yet."""
        queue = self.queues.get(topic, queue_id)
        return (queue.min_offset, queue.max_offset) if queue else (0, 0)

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The offset that the queue's next message will have."""
        return self.queue_bounds(topic, queue_id)[1]

    def is_deleted(self, record: Record) -> bool:
        """Whether the record was deleted with its topic."""
        queue = self.queues.get(record.topic, record.queue_id)
        return queue is not None and record.queue_offset < queue.deleted_below

    def is_message(self, record: Record) -> bool:
        """Whether its queue knows this record: bytes in the middle of another one may look like one."""
        queue = self.queues.get(record.topic, record.queue_id)
        known = queue is not None and queue.min_offset <= record.queue_offset < queue.max_offset
        return known and queue is not None and queue.entry(record.queue_offset)[0] == record.log_offset

    def confirm_from(self, end: int, *, timeout_s: float = 0.0) -> None:
        """From now on only what is confirmed can be read: what lies below `end`, and what is confirmed later."""
        self.confirmation.begin(end, timeout_s=timeout_s)
        if end < self.log.end:  # polls for what was recovered beyond it are answered when it can be read
            self.readable.appended(self.log.end, [(queue.topic, queue.queue_id) for queue in self.queues])

    def count_replicas(self, too_few: str) -> None:
        """Accept writes, or reject them with this sentence as long as too few replicas are in sync."""
        were_too_few, self.too_few_replicas = self.too_few_replicas, too_few
        if were_too_few and not too_few:
            self._enough_replicas()

    def on_enough_replicas(self, listener: Callable[[], None]) -> None:
        """Have `listener` called whenever writes are accepted again after too few replicas were in sync."""
        self._enough_replicas = listener

    def on_grown(self, listener: Callable[[], None]) -> None:
        """Have `listener` called whenever the log, or what is durable of it, has grown."""
        self._grown = listener

    def _durable_grown(self) -> None:
        self._grown()
        self.readable.tell()


class Readable:
    """What consumers may see of the store, and the listeners that hear when that grows.

    `stored_end` tells what this broker vouches for.

    Invariant: no listener is called for a queue before all of what was appended to it can be read; all are called
    afterwards.
    """

    def __init__(self, clock: Clock, stored_end: Callable[[], int]) -> None:
        self._stored_end = stored_end
        self._waiting: deque[tuple[int, QueueKey]] = deque()  # where in the log, and in which queue
        self._listeners: list[Callable[[str, int], None]] = []
        self.confirmation = Confirmation(clock, self.tell)

    @property
    def end(self) -> int:
        """The confirm offset: consumers see what lies below it."""
        confirmed, stored = self.confirmation.end, self._stored_end()
        return stored if confirmed is None else min(confirmed, stored)

    def appended(self, log_end: int, queues: Iterable[QueueKey]) -> None:
        """These queues have something new that ends here in the log."""
        self._waiting.extend((log_end, key) for key in queues)

    def on_readable(self, listener: Callable[[str, int], None]) -> None:
        """Have `listener` told of each queue in which something new can be read."""
        self._listeners.append(listener)

    def tell(self) -> None:
        """Tell the listeners what has become readable."""
        end = self.end
        ready: dict[QueueKey, None] = {}
        while self._waiting and self._waiting[0][0] <= end:
            ready[self._waiting.popleft()[1]] = None
        for topic, queue_id in ready:
            for listener in self._listeners:
                listener(topic, queue_id)
