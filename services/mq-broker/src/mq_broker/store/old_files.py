"""How old files go: the first file of the log, and what consume queues and index say of it (MISSION E2, E3).

Invariants: the newest file of the log always stays; nobody is sent to a message that is gone; a later file is never
gone when an earlier one is still there; readers that hold a file may finish.
"""

from __future__ import annotations

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
    deleted: int = 0
    _held: deque[tuple[float, Closable]] = field(default_factory=deque)
    _untrimmed_from: int | None = None  # where the log began when the queues were last in order, if they are not now

    async def delete_first(self) -> None:
        """Delete the first file of the log, which is not its only one. What was below its end has to be checkpointed.

        Raises OSError; then asking again goes on where this has stopped.
        """
        files, end = self.log.files, self.log.files.first_file_end
        if end is None:
            raise ValueError("the log has no file that could go")
        self._untrimmed_from = self.log.begin if self._untrimmed_from is None else self._untrimmed_from
        self.log.begin = end
        await self._trim()
        await self.disk.offload(files.unlink_first)
        self._hold(files.forget_first())
        self.deleted += 1

    async def delete_below(self, log_offset: int, checkpoint: Callable[[], Awaitable[int]]) -> None:
        """Delete the files of the log that lie wholly below `log_offset`, and forget what was in them.

        `checkpoint` makes one, and returns up to where. A disk that refuses it ends this; asking again goes on.
        Raises OSError.
        """
        self.let_go()
        while (end := self.log.files.first_file_end) is not None and end <= min(log_offset, self.log.end):
            if await checkpoint() < end:
                return
            log.info("the log file before offset %d goes: the master's log begins at %d", end, log_offset)
            await self.delete_first()
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
