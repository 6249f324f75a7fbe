"""Old files go: by age, or because the disk is too full (MISSION E1-E4).

A file of the log goes only after what still waits in it has been written again at the log's end, durably; then the
consume queues and the index forget what lies below.

Invariants: the newest file always stays; nothing that waits for its delivery or for the end of its transaction is
deleted; readers that hold a file may finish.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.retention import GuardMode, Reason, reason_to_delete
from mq_broker.store.errors import StoreError
from mq_broker.store.log_scan import resynchronise, scan_log
from mq_broker.store.message_store import MessageStore
from mqproto.record import Record
from osenv import Clock, Disk, SyncError
from osenv.clock import local_hour

log = logging.getLogger(__name__)

ROUND_INTERVAL_S = 10  # MISSION E2
BETWEEN_FILES_S = 0.1  # MISSION E2
FILES_IN_ROUND_MAX = 10  # RocketMQ's deleteFileBatchMax
NEWEST_LOOK_BYTES = 8 * 1024 * 1024  # more than the largest record takes, so that one begins there
HELD_S_MAX = 120  # MISSION E3: how long a reader may hold a deleted file

Carry = Callable[[int], Awaitable[int]]
Unconsumed = Callable[[int], Sequence[str]]


class Closable(Protocol):
    """A file that was deleted and can still be read."""

    def close(self) -> None:
        """Give it back."""


@dataclass
class Retention:
    """The cleaner. Each of `carriers` writes again what waits below a log offset, and says how much that was.

    `unconsumed` names the groups, each with its queue, that have not consumed everything below a log offset.
    """

    store: MessageStore
    disk: Disk
    clock: Clock
    time: BrokerTime
    carriers: Sequence[Carry]
    unconsumed: Unconsumed
    files_deleted: int = 0
    carried: int = 0
    _held: deque[tuple[float, Closable]] = field(default_factory=deque)
    _warned_below: int = 0
    _untrimmed_from: int | None = None  # where the log began when the queues were last in order, if they are not now

    async def run(self) -> None:
        """Clean for ever. What fails is logged and tried again in the next round."""
        while True:
            await self.clock.sleep(ROUND_INTERVAL_S)
            await self.round()

    async def round(self) -> None:
        """Measure the disk, and delete what has to go."""
        self._let_go()
        try:
            used = await self.disk.offload(self.disk.usage, self.store.layout.root)
            self.store.gate.measured(used)
            for number in range(FILES_IN_ROUND_MAX):
                if self.store.failure is not None or not await self._delete_oldest(used, first=number == 0):
                    break
                used = await self.disk.offload(self.disk.usage, self.store.layout.root)
                self.store.gate.measured(used)
            await self._forget_below()
        except SyncError as error:
            self.store.fence(error)
        except (OSError, StoreError, ValueError) as error:
            log.warning("cleaning the store: %s; the next round tries again", error)

    def close(self) -> None:
        """Close the deleted files that are still held."""
        while self._held:
            self._held.popleft()[1].close()

    async def _delete_oldest(self, used: float, *, first: bool) -> bool:
        """Delete the oldest file of the log if it has to go; whether it went."""
        files, gate = self.store.log.files, self.store.gate
        end = files.first_file_end
        reason = None if end is None or end > self.store.log.end else await self._reason(end, used)
        if end is None or reason is None:
            gate.blocked_by = ""
            return False
        if not self._may_go(end, reason):
            return False
        try:
            for carry in self.carriers:
                self.carried += await carry(end)
            await self.store.checkpoint()  # what was carried has to be durable before its first copy goes
        except StoreError as error:
            gate.blocked_by = f"the oldest file of the log has to go, but what waits in it cannot be kept: {error}"
            log.error("%s", gate.blocked_by)  # noqa: TRY400
            return False
        if self.store.failure is not None or self.store.checkpointed_end < end:
            return False
        if not first:
            await self.clock.sleep(BETWEEN_FILES_S)
        log.info("the log file before offset %d goes: %s", end, reason.value)
        self._untrimmed_from = self.store.log.begin if self._untrimmed_from is None else self._untrimmed_from
        self.store.log.begin = end
        await self._trim()
        await self.disk.offload(files.unlink_first)
        self._hold(files.forget_first())
        self.files_deleted += 1
        gate.blocked_by = ""
        return True

    async def _trim(self) -> None:
        """Let the queues begin with the log: nobody is sent to a message that is gone. Raises OSError."""
        if self._untrimmed_from is not None:
            for queue in list(self.store.queues):
                await self.store.mender.trim(queue, self._untrimmed_from)
            self._untrimmed_from = None

    async def _reason(self, end: int, used: float) -> Reason | None:
        newest_ms = await self.disk.offload(self._newest_store_ms, end)
        return reason_to_delete(
            self.store.gate.options,
            newest_store_ms=newest_ms,
            now_ms=self.time.now_ms(),
            local_hour=local_hour(self.time.now_ms()),
            used_share=used,
        )

    def _newest_store_ms(self, end: int) -> int:
        """When the last record of the oldest file, which ends at `end`, was stored (MISSION E1); may block.

        The last records stand in the last bytes; only where those are damaged the file behind has to tell.
        """
        files = self.store.log.files
        start = max(files.begin, end - NEWEST_LOOK_BYTES)
        first = start if start == files.begin else resynchronise(files, start, end)
        newest_ms = None
        for found in scan_log(files, first, end) if first is not None else ():
            if isinstance(found, Record):
                newest_ms = found.store_timestamp_ms
        if newest_ms is not None:
            return newest_ms
        behind = (one.store_timestamp_ms for one in scan_log(files, end, self.store.log.end) if isinstance(one, Record))
        return next(behind, self.time.now_ms())

    def _may_go(self, end: int, reason: Reason) -> bool:
        """Whether nobody objects: the guard for what groups have not consumed yet, beyond RocketMQ."""
        mode = self.store.gate.options.guard
        waiting = self.unconsumed(end) if mode is not GuardMode.OFF else ()
        if not waiting:
            return True
        sentence = f"the oldest file of the log ({reason.value}) holds messages not consumed by {', '.join(waiting)}"
        if mode is GuardMode.REFUSE:
            forced = reason is Reason.FORCED
            self.store.gate.blocked_by = f"{sentence}; unconsumedDeleteGuard=REFUSE keeps it" if forced else ""
            if self._warned_below < end:
                log.error("%s: it stays", sentence)
            self._warned_below = end
            return False
        log.warning("%s: it goes all the same", sentence)
        return True

    async def _forget_below(self) -> None:
        """Consume queues and index let go of what lies below the log's begin."""
        await self._trim()
        begin = self.store.log.begin
        for queue in list(self.store.queues):
            while queue.has_surplus_file():
                await self.clock.sleep(BETWEEN_FILES_S)
                await self.disk.offload(queue.unlink_first)
                self._hold(queue.forget_first())
                self.files_deleted += 1
        async for file in self.store.index.forget_below(begin):
            self._hold(file)
            self.files_deleted += 1

    def _hold(self, file: Closable) -> None:
        self._held.append((self.clock.monotonic(), file))

    def _let_go(self) -> None:
        """Close deleted files when no reader can have them any more."""
        now = self.clock.monotonic()
        while self._held and (self.store.cold_reads.running == 0 or now - self._held[0][0] >= HELD_S_MAX):
            self._held.popleft()[1].close()
