"""How old files go: the first file of the log, and what consume queues and index say of it (MISSION E2, E3).

Invariants: the newest file of the log always stays, and so does a file that reaches beyond the readable end; consumers
are never directed to a message that is gone; a later file is never gone when an earlier one is still there; readers
that hold a file may finish; one file is deleted at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from mq_broker.store.cold_reads import ColdReads
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queues import ConsumeQueues
from mq_broker.store.index import Index
from mq_broker.store.mending import Mender
from osenv import Clock, Disk

log = logging.getLogger(__name__)

BETWEEN_FILES_S = 0.1  # MISSION E2
HELD_S_MAX = 120  # MISSION E3: how long a reader may hold a deleted file


class Closable(Protocol):
    """A file that was deleted and can still be read."""

    def close(self) -> None:
        """Give it back."""


@dataclass
class OldFiles:
    """The files of one store that have to go."""

    disk: Disk
    clock: Clock
    log: CommitLog
    queues: ConsumeQueues
    index: Index
    mender: Mender
    cold_reads: ColdReads
    readable_end: Callable[[], int]
    deleted: int = 0
    _held: deque[tuple[float, Closable]] = field(default_factory=deque)
    _untrimmed_from: int | None = None  # where the log began when the queues were last in order, if they are not now
    _deleting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def first_end(self) -> int | None:
        """Where the log's first file ends if it may go: it is not the newest one, and all of it can be read.

        What lies beyond the readable end may be on no other replica, and what waits there can neither be delivered
        nor be written again yet.
        """
        end = self.log.files.first_file_end
        return end if end is not None and end <= self.readable_end() else None

    async def delete_first(self, end: int) -> bool:
        """Delete the first file of the log if it ends at `end`; whether it did. What was below has to be checkpointed.

        Raises OSError; then asking again goes on where this has stopped.
        """
        async with self._deleting:
            if self.first_end != end:  # it has gone meanwhile: the file that is the first one now is another
                return False
            files = self.log.files
            self._untrimmed_from = self.log.begin if self._untrimmed_from is None else self._untrimmed_from
            self.log.begin = end
            await self._trim()
            await self.disk.offload(files.unlink_first)
            self._hold(files.forget_first())
            self.deleted += 1
            return True

    async def delete_below(self, log_offset: int, checkpoint: Callable[[], Awaitable[int]]) -> None:
        """Delete the files of the log that lie wholly below `log_offset`, and forget what was in them.

        `checkpoint` makes one, and returns up to where. A disk that refuses it ends this; asking again goes on.
        Raises OSError.
        """
        self.let_go()
        while (end := self.first_end) is not None and end <= log_offset:
            if await checkpoint() < end:
                return
            log.info("the log file before offset %d goes: the master's log begins at %d", end, log_offset)
            await self.delete_first(end)
        await self.forget_below()

    async def forget_below(self) -> None:
        """Consume queues and index let go of what lies below the log's begin. Raises OSError."""
        await self._trim()
        for queue in list(self.queues):
            while queue.has_surplus_file():
                await self.clock.sleep(BETWEEN_FILES_S)
                await self.disk.offload(queue.unlink_first)
                self._hold(queue.forget_first())
                self.deleted += 1
        async for file in self.index.forget_below(self.log.begin):
            self._hold(file)
            self.deleted += 1

    def let_go(self) -> None:
        """Close deleted files when no reader can have them any more."""
        now = self.clock.monotonic()
        while self._held and (self.cold_reads.running == 0 or now - self._held[0][0] >= HELD_S_MAX):
            self._held.popleft()[1].close()

    def close(self) -> None:
        """Close the deleted files that are still held."""
        while self._held:
            self._held.popleft()[1].close()

    async def _trim(self) -> None:
        """Let the queues begin with the log: nobody is sent to a message that is gone. Raises OSError."""
        if self._untrimmed_from is not None:
            for queue in list(self.queues):
                await self.mender.trim(queue, self._untrimmed_from)
            self._untrimmed_from = None

    def _hold(self, file: Closable) -> None:
        self._held.append((self.clock.monotonic(), file))
