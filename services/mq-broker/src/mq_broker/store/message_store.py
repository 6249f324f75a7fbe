"""The store as the rest of the broker sees it: put batches, read them back, nothing lost.

Invariants: a batch gets consecutive queue offsets and stands without a gap in the log, or is not there at all; queue
offsets are never given twice; nobody reads beyond `readable_end`, which is what a crash cannot take away under sync
flush, and the log's end under async flush.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mq_broker.core.batches import Batch, patch_batch
from mq_broker.core.pulling import SCAN_ENTRIES_MAX, Selection, select
from mq_broker.core.tag_filter import TagFilter
from mq_broker.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.errors import (
    StoreDamagedError,
    StoreFencedError,
    StoreLockedError,
    StoreWriteError,
)
from mq_broker.store.flusher import Flusher
from mq_broker.store.layout import CONSUME_QUEUE_AHEAD_BYTES, StoreLayout
from mq_broker.store.recovery import RecoveryReport, recover
from mq_broker.store.segment_files import SegmentFiles
from mq_broker.store.state_files import State, StateFiles
from mqproto.record import SEGMENT_HEAD, Record, decode_record, pack_ip
from osenv import Clock, Disk

log = logging.getLogger(__name__)


class FlushDiskType(enum.Enum):
    """When a message is acknowledged (MISSION S11)."""

    ASYNC_FLUSH = "ASYNC_FLUSH"  # when it is written; on disk 200 ms later at the latest
    SYNC_FLUSH = "SYNC_FLUSH"  # when it is on disk


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What the configuration says about the store."""

    layout: StoreLayout
    flush_disk_type: FlushDiskType
    flush_interval_ms: int
    store_ip: str
    store_port: int


@dataclass(frozen=True, slots=True)
class PutResult:
    """Where a batch stands."""

    base_queue_offset: int
    base_log_offset: int


class MessageStore:
    """One broker's store. Single writer: every call comes from one event loop."""

    def __init__(self, disk: Disk, clock: Clock, options: StoreOptions, states: Mapping[str, State]) -> None:
        self._disk, self._options, self._layout = disk, options, options.layout
        self._store_ip = pack_ip(options.store_ip)
        disk.make_dirs(self._layout.config)
        try:
            self._lock = disk.lock(self._layout.lock)
        except BlockingIOError as error:
            raise StoreLockedError(f"another process has the store in {self._layout.root}") from error
        self._files = SegmentFiles(disk, self._layout.commit_log, self._layout.commit_log_file_bytes)
        self._log = CommitLog(self._files, self._layout.commit_log_file_bytes)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._unreadable: deque[tuple[int, tuple[str, int]]] = deque()
        self._listeners: list[Callable[[str, int], None]] = []
        self._newest_store_ms = 0
        self._fencing: OSError | None = None
        self._checkpointed: Checkpoint | None = None
        self._sync_flush = options.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.states = StateFiles(disk, self._layout.config, states, lambda: self._log.end)
        self.messages_put = 0
        interval_s = 0 if self._sync_flush else options.flush_interval_ms / 1000
        self.flusher = Flusher(disk, clock, self._log, interval_s=interval_s, on_durable=self._durable)

    # ------------------------------------------------------------------------------------------------ life

    def open(self, on_record: Callable[[Record], None]) -> RecoveryReport:
        """Load the states, recover, and mark the store as in use; may block for long. Raises StoreDamagedError."""
        existing = bool(self._files.capacity_end)
        missing = self.states.load()
        if existing and missing:
            log.error("no readable version of %s: the log is read again for what it can tell", ", ".join(missing))
        for topic in self._disk.list_dir(self._layout.consume_queues):
            for queue_id in self._disk.list_dir(self._layout.consume_queues / topic):
                self._open_queue(topic, int(queue_id))
        checkpoint = read_checkpoint(self._disk, self._layout)
        report = recover(
            self._log,
            self._files,
            self._queues,
            self._open_queue,
            checkpoint,
            rebuild=existing and bool(missing),
            on_record=on_record,
        )
        self._newest_store_ms = report.newest_store_ms
        self._log.prepare()
        self._mark_in_use()
        return report

    def _mark_in_use(self) -> None:
        self._disk.open(self._layout.abort, create=True).close()
        self._disk.sync_dir(self._layout.root)

    async def run(self) -> None:
        """Flush for ever; returns when the disk has failed."""
        await self.flusher.run()

    async def checkpoint(self) -> None:
        """Make log, consume queues and states durable, and write down that they are."""
        # Taken together, at one moment: what the states say must never be ahead of the log that survives.
        checkpoint = Checkpoint(self._log.end, self.messages_stored, self._newest_store_ms)
        snapshots = self.states.snapshot()
        if checkpoint == self._checkpointed and not snapshots:
            return
        syncs = [queue.take_sync() for queue in self._queues.values() if queue.dirty]
        await self.flusher.flush()
        if self.failure is not None:
            return
        try:
            for sync in syncs:
                await self._disk.offload(sync)
            await self.states.write(snapshots)
            await self._disk.offload(write_checkpoint, self._disk, self._layout, checkpoint)
            await self._disk.offload(self._log.prepare)
        except OSError as error:
            self._fence(error)
            return
        self._checkpointed = checkpoint

    async def close(self) -> None:
        """Leave the store so that the next start finds everything at its place: without failure, a clean stop."""
        await self.checkpoint()
        if self.failure is None:
            self._disk.unlink(self._layout.abort)
            self._disk.sync_dir(self._layout.root)
        self.release()

    def release(self) -> None:
        """Give files and lock back as they are."""
        for queue in self._queues.values():
            queue.close()
        self._log.close()
        self._lock.release()

    @property
    def failure(self) -> OSError | None:
        """Why the store accepts nothing more, if so."""
        return self._fencing or self.flusher.failure

    def _fence(self, error: OSError) -> None:
        log.critical("the disk has failed, the broker accepts nothing more: %s", error)
        self._fencing = error

    # ------------------------------------------------------------------------------------------------- put

    def put(self, batches: Sequence[Batch], store_ms: int) -> list[PutResult]:
        """Append all of `batches` with one write; to be acknowledged after `wait_stored`.

        Raises StoreWriteError, and StoreFencedError when the disk has failed; none of them is there then.
        """
        if self.failure is not None:
            raise StoreFencedError(f"the disk has failed: {self.failure}")
        size = sum(len(batch.buffer) for batch in batches)
        queues = [self._queue_for(batch) for batch in batches]
        at = self._log.place(size)
        results, entries = [], []
        next_offset: dict[tuple[str, int], int] = {}
        for batch, queue in zip(batches, queues, strict=True):
            key = (batch.topic, batch.queue_id)
            base = next_offset.get(key, queue.max_offset)
            entries.append(
                patch_batch(
                    batch,
                    queue_offset=base,
                    log_offset=at,
                    store_ms=store_ms,
                    store_ip=self._store_ip,
                    store_port=self._options.store_port,
                )
            )
            results.append(PutResult(base, at))
            next_offset[key] = base + batch.count
            at += len(batch.buffer)
        self._log.append(batches[0].buffer if len(batches) == 1 else bytearray().join([b.buffer for b in batches]))
        self._newest_store_ms = max(self._newest_store_ms, store_ms)
        self._dispatch(batches, queues, entries)
        self.flusher.appended()
        return results

    async def wait_stored(self, end: int) -> None:
        """Return when what `put` has appended up to `end` may be acknowledged. Raises StoreFencedError."""
        if self._sync_flush:
            await self.flusher.wait_durable(end)
        elif self.failure is not None:
            raise StoreFencedError(f"the disk has failed: {self.failure}")

    def _queue_for(self, batch: Batch) -> ConsumeQueue:
        try:
            queue = self._queues.get((batch.topic, batch.queue_id)) or self._open_queue(batch.topic, batch.queue_id)
            queue.reserve(batch.count)
        except OSError as error:
            raise StoreWriteError(f"the disk has no room for the consume queue of {batch.topic}: {error}") from error
        return queue

    def _dispatch(self, batches: Sequence[Batch], queues: Sequence[ConsumeQueue], entries: Sequence[bytes]) -> None:
        for batch, queue, entry in zip(batches, queues, entries, strict=True):
            try:
                queue.append(entry)
            except OSError as error:  # room was reserved: this disk is broken; the log tells the entries at next start
                self._fence(error)
                raise StoreFencedError(f"the disk has failed: {error}") from error
            self.messages_put += batch.count
            self._unreadable.append((self._log.end, (batch.topic, batch.queue_id)))
        if not self._sync_flush:
            self._durable(self._log.end)

    # ------------------------------------------------------------------------------------------------ read

    @property
    def log_begin(self) -> int:
        """Offset of the log's first byte."""
        return self._log.begin

    @property
    def log_end(self) -> int:
        """Offset behind the log's last record."""
        return self._log.end

    @property
    def readable_end(self) -> int:
        """The confirm offset: consumers see what lies below it."""
        return self.flusher.durable_end if self._sync_flush else self._log.end

    @property
    def run_bytes_max(self) -> int:
        """How many bytes one `put` can take."""
        return self._log.run_bytes_max

    @property
    def messages_stored(self) -> int:
        """Entries of all consume queues that were ever written."""
        return sum(queue.max_offset for queue in self._queues.values())

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The consume queue, when anything was ever stored in it."""
        return self._queues.get((topic, queue_id))

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(first offset, offset behind the last one); zeros for a queue that holds nothing yet."""
        queue = self._queues.get((topic, queue_id))
        return (queue.min_offset, queue.max_offset) if queue else (0, 0)

    def on_readable(self, listener: Callable[[str, int], None]) -> None:
        """Have `listener` told of each queue in which something new can be read."""
        self._listeners.append(listener)

    def select_hot(
        self, queue: ConsumeQueue, offset: int, tags: TagFilter, *, max_messages: int, max_bytes: int
    ) -> tuple[Selection, bytes] | None:
        """The records wanted from `offset` on when all of it is in memory, else None (then `select_cold`)."""
        entries = queue.read_hot(offset, self._scan_count(tags, max_messages))
        if entries is None:
            return None
        chosen = self._select(entries, tags, max_messages, max_bytes)
        parts = []
        for log_offset, size in chosen.ranges:
            part = self._log.read_hot(log_offset, size)
            if part is None:
                return None
            parts.append(part)
        return chosen, parts[0] if len(parts) == 1 else b"".join(parts)

    async def select_cold(
        self, queue: ConsumeQueue, offset: int, tags: TagFilter, *, max_messages: int, max_bytes: int
    ) -> tuple[Selection, bytes]:
        """The same from disk, away from the event loop. Raises OSError."""

        def read() -> tuple[Selection, bytes]:
            entries = queue.read(offset, self._scan_count(tags, max_messages))
            chosen = self._select(entries, tags, max_messages, max_bytes)
            return chosen, b"".join([self._log.read(at, size) for at, size in chosen.ranges])

        return await self._disk.offload(read)

    async def read_entries(self, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        """Consume-queue entries from disk, away from the event loop. Raises OSError."""
        return await self._disk.offload(queue.read, offset, count)

    async def read_records(self, places: Sequence[tuple[int, int]]) -> list[Record]:
        """The records at these (offset, size), with one visit to the disk at most. Raises RecordError, OSError."""
        parts = [self._log.read_hot(at, size) for at, size in places]
        if None in parts:
            parts = await self._disk.offload(lambda: [self._log.read(at, size) for at, size in places])
        return [decode_record(part) for part in parts if part is not None]

    async def read_record(self, log_offset: int) -> Record:
        """The record at this place. Raises ValueError (RecordError) when there is none."""
        if not self._log.begin <= log_offset <= self._log.end - SEGMENT_HEAD.size:
            raise ValueError(f"offset {log_offset} is not in the log, which ends at {self._log.end}")
        head = self._log.read_hot(log_offset, SEGMENT_HEAD.size)
        if head is None:
            head = await self._disk.offload(self._log.read, log_offset, SEGMENT_HEAD.size)
        size = SEGMENT_HEAD.unpack(head)[0]
        if not 0 < size <= self._log.end - log_offset:
            raise ValueError(f"no record begins at offset {log_offset}")
        data = self._log.read_hot(log_offset, size)
        if data is None:
            data = await self._disk.offload(self._log.read, log_offset, size)
        record = decode_record(data)
        if record.log_offset != log_offset:
            raise ValueError(f"no record begins at offset {log_offset}")
        return record

    def _scan_count(self, tags: TagFilter, max_messages: int) -> int:
        return max_messages if tags.codes is None else SCAN_ENTRIES_MAX

    def _select(self, entries: bytes, tags: TagFilter, max_messages: int, max_bytes: int) -> Selection:
        return select(entries, tags, max_messages=max_messages, max_bytes=max_bytes, readable_end=self.readable_end)

    def _durable(self, end: int) -> None:
        """Tell the listeners what has become readable."""
        ready: dict[tuple[str, int], None] = {}
        while self._unreadable and self._unreadable[0][0] <= end:
            ready[self._unreadable.popleft()[1]] = None
        for topic, queue_id in ready:
            for listener in self._listeners:
                listener(topic, queue_id)

    def _open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        try:
            files = SegmentFiles(
                self._disk,
                self._layout.consume_queue(topic, queue_id),
                self._layout.consume_queue_file_bytes,
                ahead_bytes=CONSUME_QUEUE_AHEAD_BYTES,
            )
        except ValueError as error:
            raise StoreDamagedError(str(error)) from error
        queue = self._queues[topic, queue_id] = ConsumeQueue(topic, queue_id, files)
        return queue
