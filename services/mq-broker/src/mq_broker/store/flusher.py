"""When what was appended reaches the disk: at once, many appends with one sync, or every 200 ms (MISSION S11).

Invariants: `durable_end` never goes back, and everything below it has been synced; at most one sync runs; after the
first sync that fails there is never another one, and nobody is told that anything more is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from mq_broker.store.commit_log import CommitLog
from mq_broker.store.errors import StoreFencedError
from mq_broker.store.uninterrupted import uninterrupted
from osenv import Clock, Disk, Lane

log = logging.getLogger(__name__)


class Flusher:
    """The one place that syncs the commit log while the broker runs.

    With `interval_s` 0 every append is synced as soon as the sync before it has ended, together with everything that
    was appended in the meantime (group commit). `on_synced` is called with each new end in the thread that synced,
    `on_durable` afterwards on the event loop.
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
        await uninterrupted(self._flush())

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
