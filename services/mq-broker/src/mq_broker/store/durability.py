"""Durability of the store: syncs, confirmation by replicas, checkpoints; and whether writes are accepted."""

from __future__ import annotations

import asyncio
import enum
import logging
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from mq_broker.core.limits import RetentionOptions
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.errors import StoreFencedError
from mq_broker.store.index import IndexPoint
from mq_broker.store.layout import Checkpoint, StoreLayout, write_checkpoint
from osenv import Clock, Disk, DiskFile, Lane, SyncError
from osenv.clock import Timer
from osenv.disk import read_file

if TYPE_CHECKING:
    from mq_broker.store.message_store import MessageStore


log = logging.getLogger(__name__)


class Flusher:
    """The one place that syncs the commit log while the broker runs.

    With `interval_s` 0 every append is synced as soon as the sync before it has ended, together with everything that
    was appended in the meantime (group commit). `on_synced` is called with each new end in the thread that synced,
    `on_durable` afterwards on the event loop.

    Invariants: `durable_end` never goes back, and everything below it has been synced; at most one sync runs; after the
    first sync that fails there is never another one, and nothing more is reported as durable.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        commit_log: CommitLog,
        *,
        interval_s: float,
        on_synced: Callable[[int], None],
        on_durable: Callable[[int], None],
    ) -> None:
        self._disk, self._clock, self._log, self._interval_s = disk, clock, commit_log, interval_s
        self._on_synced, self._on_durable = on_synced, on_durable
        self._appended = asyncio.Event()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._syncing = asyncio.Lock()
        self.durable_end = commit_log.begin  # the first flush after recovery makes sure of what was found
        self.failure: OSError | None = None
        self.syncs = 0
        self.on_flushed: Callable[[float], None] = lambda _seconds: None  # told how long each sync has taken

    def appended(self) -> None:
        """There is something to sync."""
        self._appended.set()

    async def wait_durable(self, end: int) -> None:
        """Return when everything below `end` is on disk. Raises StoreFencedError when that can not be promised."""
        if self.failure is not None:
            raise StoreFencedError(f"the disk has failed: {self.failure}")
        if end > self.durable_end:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((end, waiter))
            await waiter

    async def run(self) -> None:
        """Sync for ever; ends when the disk fails."""
        while self.failure is None:
            await self._appended.wait()
            if self._interval_s:
                await self._clock.sleep(self._interval_s)
            self._appended.clear()
            await self.flush()

    async def flush(self) -> None:
        """Sync everything appended so far, on return. After a failure, `failure` says so and nothing was promised."""
        await finish_despite_cancellation(self._flush())

    async def _flush(self) -> None:
        async with self._syncing:
            end = self._log.end
            if self.failure is not None or end == self.durable_end:
                return
            sync = self._log.take_sync()

            def sync_to_end() -> None:
                sync()
                self._on_synced(end)

            begun = self._clock.monotonic()
            try:
                await self._disk.offload_in(Lane.SYNC, sync_to_end)
            except OSError as error:
                log.critical("sync of the commit log failed, the broker accepts nothing more: %s", error)
                self.stop(error)
                return
            self.syncs += 1
            self.on_flushed(self._clock.monotonic() - begun)
            self.durable_end = end
        self._on_durable(end)
        while self._waiters and self._waiters[0][0] <= end:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def stop(self, error: OSError) -> None:
        """The disk has failed elsewhere: nothing is synced any more, and `run` ends."""
        self.failure = error
        self._appended.set()
        while self._waiters:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(StoreFencedError(f"the disk has failed: {error}"))


TIMER_EARLY_S = 0.002  # so much too early a timer may call


class Copies(enum.Enum):
    """What the in-sync replicas have of a message that is stored; RocketMQ's send statuses."""

    SEND_OK = 0
    SLAVE_NOT_AVAILABLE = 1  # the master alone has it, as its in-sync set allows
    FLUSH_SLAVE_TIMEOUT = 2  # not all of them have it in time; they may have it later


_Waiter = tuple[int, float, "asyncio.Future[Copies]"]  # end, deadline, answer


class Confirmation:
    """The confirm offset: what consumers may see, and the sends that wait for it.

    See docs/reference/faults.md#replication.

    Of one store. `end` is None while nothing has to be confirmed by another broker.

    A master that acknowledges alone has none: what its own disk says is enough. A synchronous master confirms what its
    in-sync replicas have, a replica what its master has told it is confirmed.

    Invariants: `end` never goes back; each waiter is answered once, in the order of the ends.
    """

    def __init__(self, clock: Clock, on_confirmed: Callable[[], None]) -> None:
        """`on_confirmed` is called after `end` has grown."""
        self._clock, self._on_confirmed = clock, on_confirmed
        self._waiters: deque[_Waiter] = deque()
        self._timer: Timer | None = None
        self.timeout_s = 0.0
        self.end: int | None = None
        self.is_alone = False
        # Told of each answer how long the first one that it goes to has waited, in seconds.
        self.on_answered: Callable[[float], None] = lambda _seconds: None

    def begin(self, end: int, *, timeout_s: float) -> None:
        """From now on something has to be confirmed; waiters give up after so many seconds."""
        self.end, self.timeout_s = end, timeout_s

    def deadline(self) -> float:
        """The deadline of a wait that begins now; monotonic seconds, 0.0 when there is nothing to wait for."""
        return 0.0 if self.end is None else self._clock.monotonic() + self.timeout_s

    async def wait(self, end: int, deadline: float) -> Copies:
        """What the replicas have of everything below `end`, once they have it, or at the deadline."""
        if self.end is None:
            return Copies.SEND_OK
        if self.end >= end:
            return Copies.SLAVE_NOT_AVAILABLE if self.is_alone else Copies.SEND_OK
        waiter: asyncio.Future[Copies] = asyncio.get_running_loop().create_future()
        self._waiters.append((end, deadline, waiter))
        if self._timer is None:
            self._set_timer()
        return await waiter

    def advance(self, end: int, *, alone: bool) -> None:
        """Everything below `end` is confirmed, by the master alone or not."""
        self.is_alone = alone
        if self.end is None or end <= self.end:
            return
        self.end = end
        self._answer(lambda waiter: waiter[0] <= end, Copies.SLAVE_NOT_AVAILABLE if alone else Copies.SEND_OK)
        self._on_confirmed()

    def give_up(self) -> None:
        """Nothing more will be confirmed: all waiters are answered now, FLUSH_SLAVE_TIMEOUT."""
        self._answer(lambda _: True, Copies.FLUSH_SLAVE_TIMEOUT)

    def close(self) -> None:
        """Drop all waiters without an answer."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self._timer = self._clock.call_later(max(0.0, self._waiters[0][1] - self._clock.monotonic()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic() + TIMER_EARLY_S
        self._answer(lambda waiter: waiter[1] <= now, Copies.FLUSH_SLAVE_TIMEOUT)
        if self._waiters:
            self._set_timer()

    def _answer(self, is_ready: Callable[[_Waiter], bool], copies: Copies) -> None:
        """The first ones, as long as they are ready."""
        if self._waiters and is_ready(self._waiters[0]):
            self.on_answered(self._clock.monotonic() - (self._waiters[0][1] - self.timeout_s))
        while self._waiters and (self._waiters[0][2].done() or is_ready(self._waiters[0])):
            waiter = self._waiters.popleft()[2]
            if not waiter.done():
                waiter.set_result(copies)


RECORDS_BETWEEN_MAX = 500_000  # a start after a kill reads about so many again: 2 s
STEP_QUEUES = 64  # synced in a thread at a time; taking their syncs keeps the event loop for less than a millisecond
STEPS_AT_ONCE = 3  # of the threads of Lane.WORK, which leaves one to journals and state files


class Checkpointer:
    """Making checkpoints: everything that the store keeps becomes durable together, and that is written down.

    Invariants: a checkpoint is one moment, so that no state is ever ahead of the log that survives (ADR 9); it is
    written after everything that it promises; one is made at a time, and a cancelled task does not leave one half made.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._made: Checkpoint | None = None
        self._making = asyncio.Lock()
        self._records = 0  # since the last checkpoint
        self.due = asyncio.Event()  # there are many
        self.watermark: Watermark | None = None

    @property
    def end(self) -> int:
        """The log offset of the last checkpoint; -1 before the first one."""
        return self._made.log_offset if self._made else -1

    def appended(self, count: int) -> None:
        """The log has so many records more."""
        self._records += count
        if self._records >= RECORDS_BETWEEN_MAX:
            self.due.set()

    def synced(self, end: int) -> None:
        """The log has been synced up to `end`."""
        if self.watermark is not None:
            self.watermark.write(end)

    def forget(self, durable: int | None) -> None:
        """Remove the checkpoint, durably; what it knew of the log goes into the watermark before. Raises OSError."""
        store = self._store
        if store.disk.exists(store.layout.checkpoint):
            if durable is not None and self.watermark is not None:
                self.watermark.write_durably(durable)
            store.disk.unlink(store.layout.checkpoint)
            store.disk.sync_dir(store.layout.root)

    async def checkpoint(self) -> None:
        """Make log, consume queues, index and states durable, and write down that they are.

        A disk that rejects something now may take it at the next checkpoint; a sync that fails is the end.
        """
        await finish_despite_cancellation(self._checkpoint())

    def close(self) -> None:
        """Give the watermark back."""
        if self.watermark is not None:
            self.watermark.close()

    async def _checkpoint(self) -> None:
        store = self._store
        async with self._making:
            self._records = 0
            self.due.clear()
            # Taken together, at one moment: what the states say must never be ahead of the log that survives.
            checkpoint = Checkpoint(
                store.log.end,
                store.queues.entry_count,
                store.newest_store_ms,
                store.index.point if store.keeps_index else IndexPoint(),
                store.index.full_end_ms,
            )
            note_ends = store.ends.take_note(store.queues, checkpoint, store.log.begin)
            snapshots = store.states.snapshot()
            dirty = [queue for queue in store.queues if queue.dirty]
            if checkpoint == self._made and not snapshots and not dirty:
                return
            save_index = store.index.take_save()
            await store.flusher.flush()
            if store.failure is not None:
                return
            try:
                await self._sync_queues(dirty)
                await store.disk.offload(save_index)
                await store.states.write(snapshots)
                await store.disk.offload(note_ends)
                await store.disk.offload(write_checkpoint, store.disk, store.layout, checkpoint)
                self._made = checkpoint
                if self.watermark is not None:  # should the checkpoint get lost, this still knows
                    await store.disk.offload(self.watermark.write_durably, checkpoint.log_offset)
                await store.disk.offload(store.numbers.forget)
                await store.disk.offload(store.log.prepare)
            except SyncError as error:
                store.fence(error)
            except OSError as error:
                log.error("the checkpoint is not complete: %s; the next one tries again", error)  # noqa: TRY400
                for queue in dirty:
                    queue.distrust()

    async def _sync_queues(self, queues: Sequence[ConsumeQueue]) -> None:
        """Have the queues on disk, on return. Raises SyncError, OSError; after either no further step begins.

        What is appended to a queue before its turn comes is synced with it. The queues of a step share the syncs of
        the folders above theirs: a queue that is new needs three of them.
        """
        waiting, errors, disk = iter(queues), list[OSError](), self._store.disk

        async def sync_steps() -> None:
            while not errors and (step := list(islice(waiting, STEP_QUEUES))):
                parents = dict.fromkeys(folder for queue in step for folder in queue.take_parents())
                syncs = [queue.take_sync() for queue in step]
                try:
                    await disk.offload(_run_all, [*syncs, partial(_sync_folders, disk, list(parents))])
                except OSError as error:
                    errors.append(error)

        await asyncio.gather(*(sync_steps() for _ in range(min(STEPS_AT_ONCE, -(-len(queues) // STEP_QUEUES)))))
        if errors:
            raise next((error for error in errors if isinstance(error, SyncError)), errors[0])


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _sync_folders(disk: Disk, folders: Sequence[Path]) -> None:
    for folder in folders:
        disk.sync_dir(folder)


@dataclass
class WriteGate:
    """Whether writes are accepted, by how full the disk is and by what cannot be cleaned."""

    options: RetentionOptions
    used_share: float = 0.0
    full: bool = False
    blocked_by: str = ""  # why the oldest file cannot go although it has to

    def measured(self, used_share: float, free_bytes: int = 0) -> None:
        """The disk's used share, 0 to 1, and what is free of it."""
        self.used_share = used_share
        counted = self.options.counted_share(used_share, free_bytes)
        if counted >= self.options.reject_share:
            self.full = True
        elif counted <= self.options.forced_share:
            self.full = False

    @property
    def rejection(self) -> str | None:
        """Why writes are rejected, or None when they are accepted."""
        if self.blocked_by:
            return self.blocked_by
        if self.full:
            limit, enough = self.options.forced_share, self.options.free_bytes_enough
            bytes_free = f", or with {enough} bytes free" if enough else ""
            return f"the disk is {self.used_share:.0%} full; writes are accepted again at {limit:.0%}{bytes_free}"
        return None


SLOT_BYTES, SLOTS = 512, 2
_OFFSET, _CRC = Struct(">q"), Struct(">I")


def encode_slot(log_offset: int) -> bytes:
    """The fields of one slot; the rest of its 512 bytes is zero."""
    offset = _OFFSET.pack(log_offset)
    return offset + _CRC.pack(zlib.crc32(offset))


def encode_watermark(log_offset: int) -> bytes:
    """A whole file, as of a store whose log has been synced once, up to `log_offset`."""
    return encode_slot(log_offset).ljust(SLOTS * SLOT_BYTES, b"\0")


def decode_watermark(data: bytes) -> int | None:
    """The largest offset that one of the slots holds whole; None when none does."""
    best: int | None = None
    for at in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES):
        slot = data[at : at + _OFFSET.size + _CRC.size]
        if len(slot) == _OFFSET.size + _CRC.size:
            offset = _OFFSET.unpack_from(slot)[0]
            if slot == encode_slot(offset):
                best = max(best or 0, offset)
    return best


def read_watermark(disk: Disk, layout: StoreLayout) -> int | None:
    """The log offset below which everything had been synced, as far as the file tells; None when it does not.

    Raises OSError.
    """
    try:
        return decode_watermark(read_file(disk, layout.watermark))
    except FileNotFoundError:
        return None


class Watermark:
    """The watermark: up to where the log was synced, as of the latest sync (Hourglass's own file, FORMAT.md).

    It tells a torn tail from damage: what is broken below it had been durable, so it is quarantined, and what follows
    it is kept; what is broken above it may never have been acknowledged, and the log is cut there. It is written after
    each sync and not synced itself: after a power cut it may be older than the truth, never newer.

    Invariant: everything below each value that ever stood here had been synced. Two slots are written in turn, so that
    a torn write leaves the one before.
    """

    def __init__(self, disk: Disk, layout: StoreLayout, found: int | None, *, is_new: bool) -> None:
        """Go on from what `read_watermark` has found. In a new store the file begins with 0, durably: from now on a
        missing one means damage. A store that has lost it gets a value with its first sync. Raises OSError.
        """
        self._file: DiskFile = disk.open(layout.watermark, create=True)
        self._file.allocate(0, SLOTS * SLOT_BYTES)
        self._slot = 0
        self._newest = found or 0
        if is_new:
            self._file.pwrite(encode_slot(0), 0)
            self._slot = 1
        elif found is not None and decode_watermark(self._file.pread(SLOT_BYTES, 0)) == found:
            self._slot = 1  # the next one goes where the older one stands
        # Also when it was there: its writer may have been killed before it was on disk.
        self._file.sync_data()
        disk.sync_dir(layout.root)

    def write(self, log_offset: int) -> None:
        """Everything below `log_offset` has been synced. A disk that rejects this costs precision, not safety."""
        if log_offset <= self._newest:
            return
        try:
            self._file.pwrite(encode_slot(log_offset), self._slot * SLOT_BYTES)
        except OSError as error:
            log.warning("the watermark could not be written: %s", error)
            return
        self._slot = (self._slot + 1) % SLOTS
        self._newest = log_offset

    def write_durably(self, log_offset: int) -> None:
        """The same, on disk on return. Raises SyncError."""
        self.write(log_offset)
        self._file.sync_data()

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


# Work that must not stop half way because its task was cancelled.

T = TypeVar("T")


async def finish_despite_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the caller is cancelled meanwhile, it hears of that only after the work has ended.

    A thread that syncs or renames goes on whatever happens to the task that waits for it: the next call must not begin
    before it has ended, nor miss its error.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while True:
        try:
            result = await asyncio.shield(task)
            break
        except asyncio.CancelledError:
            if task.done():
                raise
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return result
