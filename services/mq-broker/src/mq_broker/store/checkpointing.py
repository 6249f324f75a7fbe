"""Making checkpoints: everything that the store keeps becomes durable together, and that is written down.

Invariants: a checkpoint is one moment, so that no state is ever ahead of the log that survives (ADR 9); it is written
after everything that it promises; one is made at a time, and a cancelled task does not leave one half made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from mq_broker.store.checkpoint import Checkpoint, write_checkpoint
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.consume_queues import ConsumeQueues
from mq_broker.store.flusher import Flusher
from mq_broker.store.index import Index, IndexPoint
from mq_broker.store.layout import StoreLayout
from mq_broker.store.queue_numbers import QueueNumbers
from mq_broker.store.state_files import StateFiles
from mq_broker.store.uninterrupted import uninterrupted
from mq_broker.store.watermark import Watermark
from osenv import Disk, SyncError

log = logging.getLogger(__name__)

RECORDS_BETWEEN_MAX = 500_000  # a start after a kill reads about so many again: 2 s
STEP_QUEUES = 64  # synced in a thread at a time; taking their syncs keeps the event loop for less than a millisecond
STEPS_AT_ONCE = 3  # of the threads of Lane.WORK, which leaves one to journals and state files


class Kept(Protocol):
    """What a checkpoint is made of."""

    disk: Disk
    layout: StoreLayout
    log: CommitLog
    queues: ConsumeQueues
    index: Index
    states: StateFiles
    numbers: QueueNumbers
    flusher: Flusher
    newest_store_ms: int

    @property
    def keeps_index(self) -> bool:
        """Whether there is an index at all."""

    @property
    def failure(self) -> OSError | None:
        """Why the store accepts nothing more, if so."""

    def fence(self, error: OSError) -> None:
        """A sync has failed."""


class Checkpointer:
    """One store's checkpoints, and its watermark."""

    def __init__(self, store: Kept) -> None:
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

        A disk that refuses something now may take it at the next checkpoint; a sync that fails is the end.
        """
        await uninterrupted(self._checkpoint())

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

        What is appended to a queue before its turn comes is synced with it.
        """
        waiting, errors = iter(queues), list[OSError]()

        async def sync_steps() -> None:
            while not errors and (step := list(islice(waiting, STEP_QUEUES))):
                syncs = [queue.take_sync() for queue in step]
                try:
                    await self._store.disk.offload(_run_all, syncs)
                except OSError as error:
                    errors.append(error)

        await asyncio.gather(*(sync_steps() for _ in range(min(STEPS_AT_ONCE, -(-len(queues) // STEP_QUEUES)))))
        if errors:
            raise next((error for error in errors if isinstance(error, SyncError)), errors[0])


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
