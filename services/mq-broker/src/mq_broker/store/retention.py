"""Retention: old files are deleted by age, or because the disk is too full (mechanisms E1-E4)."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.limits import GuardMode, Reason, first_few, reason_to_delete, worth_deleting
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queue import ConsumeQueues
from mq_broker.store.errors import StoreError
from mq_broker.store.index import Index
from mq_broker.store.log_scan import ColdReads, resynchronise, scan_log
from mq_broker.store.reader import QueueRepairer
from mqproto.record import Record
from osenv import Clock, Disk, SyncError
from osenv.clock import local_hour

if TYPE_CHECKING:
    from mq_broker.store.message_store import MessageStore


log = logging.getLogger(__name__)

ROUND_INTERVAL_S = 10  # mechanism E2
FILES_IN_ROUND_MAX = 10  # RocketMQ's deleteFileBatchMax
NEWEST_LOOK_BYTES = 8 * 1024 * 1024  # more than the largest record takes, so that one begins there

LOOK_AGAIN_S = 60  # whether deleting gains anything is found out from all that waits: 0.3 s for a million messages

Carry = Callable[[int], Awaitable[int]]
Waiting = Callable[[int], AsyncIterator[tuple[int, int]]]
Unconsumed = Callable[[int], Awaitable[Sequence[str]]]
Behind = Callable[[int], Sequence[str]]


@dataclass
class Retention:
    """The cleaner. Each of `carriers` writes again what waits below a log offset, and says how much that was.

    Each of `waiting` tells log offset and size of what the carriers would write, roughly: it reads no records.
    `unconsumed` names the groups, each with its queue, that have not consumed everything below a log offset, `behind`
    the connected replicas that have not written everything below it.

    A file of the log goes only after what still waits in it has been written again at the log's end, durably, and is
    confirmed there.

    Invariants: the newest file always stays; nothing that waits for its delivery or for the end of its transaction is
    deleted; one round works at a time.
    """

    store: MessageStore
    disk: Disk
    clock: Clock
    time: BrokerTime
    carriers: Sequence[Carry]
    unconsumed: Unconsumed
    behind: Behind = lambda _log_offset: ()
    waiting: Sequence[Waiting] = ()
    carried: int = 0
    _warned_below: int = 0
    _worth_to: int = 0  # files up to here are worth deleting on a full disk
    _look_again: tuple[float, int] = (0.0, 0)  # when (monotonic seconds), or at which end of the log
    _working: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._carried_to = self.store.log_end  # the log ends there behind the last copies, those of earlier lives too

    @property
    def files_deleted(self) -> int:
        """Files of the log, of consume queues and of the index."""
        return self.store.segment_cleaner.deleted

    async def run(self) -> None:
        """Clean for ever. What fails is logged and tried again in the next round."""
        while True:
            await self.clock.sleep(ROUND_INTERVAL_S)
            await self.round()

    async def watch(self) -> None:
        """Measure the disk for ever and delete nothing: a replica's files go when its master's have gone."""
        while True:
            try:
                await self._measure()
            except OSError as error:
                log.warning("measuring the disk: %s; the next round tries again", error)
            await self.clock.sleep(ROUND_INTERVAL_S)

    async def round(self) -> None:
        """Measure the disk, and delete what has to go. A call waits for the end of a round that is under way."""
        async with self._working:
            await self._round()

    async def _round(self) -> None:
        self.store.segment_cleaner.let_go()
        try:
            used = await self._measure()
            for number in range(FILES_IN_ROUND_MAX):
                if self.store.failure is not None or not await self._delete_oldest(used, first=number == 0):
                    break
                used = await self._measure()
            await self.store.segment_cleaner.forget_below()
        except SyncError as error:
            self.store.fence(error)
        except (OSError, StoreError, ValueError) as error:
            log.warning("cleaning the store: %s; the next round tries again", error)

    async def _measure(self) -> float:
        """The share of the disk that counts as used, which the gate then knows. Raises OSError."""
        used_share, free_bytes = await self.disk.offload(self.disk.usage, self.store.layout.root)
        self.store.gate.measured(used_share, free_bytes)
        return self.store.gate.options.counted_share(used_share, free_bytes)

    def close(self) -> None:
        """Close the deleted files that are still held."""
        self.store.segment_cleaner.close()

    async def _delete_oldest(self, used: float, *, first: bool) -> bool:
        """Delete the oldest file of the log if it has to go; whether it went."""
        end, gate = self.store.segment_cleaner.first_end, self.store.gate
        reason = None if end is None else await self._reason(end, used)
        if end is None or reason is None:
            gate.blocked_by = ""
            if end is None and self.store.log.files.first_file_end and used >= gate.options.forced_share:
                log.warning("the disk is %.0f%% full, but the log's oldest file is not confirmed yet", used * 100)
            return False
        if not await self._may_go(end, reason) or (reason is Reason.FORCED and not await self._is_worth(end)):
            return False
        if failures := await self._carry_over(end):
            sentence = "; ".join(failures)
            gate.blocked_by = f"the oldest file of the log has to go, but what waits in it cannot be kept: {sentence}"
            log.error("%s", gate.blocked_by)
            return False
        if not await self._is_kept(end) or not self._is_copied(used):
            return False
        if not first:
            await self.clock.sleep(BETWEEN_FILES_S)
        log.info("the log file before offset %d goes: %s", end, reason.value)
        has_gone = await self.store.segment_cleaner.delete_first(end)
        gate.blocked_by = ""
        return has_gone

    async def _is_worth(self, end: int) -> bool:
        """Whether the disk is emptier in the end when the file before `end` goes. Raises OSError."""
        store, files = self.store, self.store.log.files
        if end <= self._worth_to:
            return True
        if self.clock.monotonic() < self._look_again[0] and store.log_end < self._look_again[1]:
            return False
        ends = [one for one in files.starts[1:] if one <= store.readable_end]
        sizes = [0] * len(ends)
        for waiting in self.waiting:
            async for log_offset, size in waiting(ends[-1]):
                sizes[bisect_right(ends, log_offset)] += size
        count = worth_deleting(store.log.file_bytes, sizes)
        if count:
            self._worth_to = ends[count - 1]
            return True
        self._look_again = (self.clock.monotonic() + LOOK_AGAIN_S, store.log_end + store.log.file_bytes)
        log.warning(
            "the disk is %.0f%% full, but deleting old files would free nothing: of %d bytes in them %d wait and "
            "would be written again; make room elsewhere",
            store.gate.used_share * 100,
            len(ends) * store.log.file_bytes,
            sum(sizes),
        )
        return False

    async def _carry_over(self, end: int) -> list[str]:
        """Write again what waits below `end`, and make it durable; returns what has failed. Raises OSError."""
        failures = []
        for carry in self.carriers:
            try:
                if not (count := await carry(end)):
                    continue
                self.carried += count
            except (StoreError, ValueError) as error:  # what the others carry is kept all the same
                failures.append(str(error))
            self._carried_to = self.store.log_end
        try:
            await self.store.checkpoint()  # what was carried has to be durable before its first copy goes
        except StoreError as error:
            failures.append(str(error))
        return failures

    async def _is_kept(self, end: int) -> bool:
        """Whether what counts below `end` is checkpointed, and confirmed where it stands again. Raises StoreError."""
        store = self.store
        if store.failure is not None or store.checkpointed_end < end:
            return False
        await store.wait_stored(self._carried_to)
        if store.readable_end < self._carried_to:
            log.warning(
                "the log file before offset %d stays: the copies of what waits in it are not confirmed yet", end
            )
            return False
        return True

    def _is_copied(self, used: float) -> bool:
        """Whether connected replicas have what was carried, and all before it, or the disk is too full to wait for
        them.

        A replica that is overtaken has to begin anew, and would be empty if the master were lost then.
        """
        lagging = self.behind(self._carried_to)
        if not lagging:
            return True
        names = first_few(lagging, ", ")
        if used >= self.store.gate.options.reject_share:
            log.warning("the disk is %.0f%% full: old files go before replicas have copied them: %s", used * 100, names)
            return True
        log.info("old files stay until connected replicas have what waits in them: %s", names)
        return False

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
        """When the last record of the oldest file, which ends at `end`, was stored (mechanism E1); may block.

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

    async def _may_go(self, end: int, reason: Reason) -> bool:
        """Whether the guard for messages that groups have not consumed yet allows it; beyond RocketMQ."""
        mode = self.store.gate.options.guard
        waiting = await self.unconsumed(end) if mode is not GuardMode.OFF else ()
        if not waiting:
            return True
        sentence = (
            f"the oldest file of the log ({reason.value}) holds messages not consumed by {first_few(waiting, ', ')}"
        )
        if mode is GuardMode.REFUSE:
            forced = reason is Reason.FORCED
            self.store.gate.blocked_by = f"{sentence}; unconsumedDeleteGuard=REFUSE keeps it" if forced else ""
            if self._warned_below < end:
                log.error("%s: it stays", sentence)
            self._warned_below = end
            return False
        log.warning("%s: it is deleted all the same", sentence)
        return True


BETWEEN_FILES_S = 0.1  # mechanism E2
HELD_S_MAX = 120  # mechanism E3: how long a reader may hold a deleted file


class Closable(Protocol):
    """A file that was deleted and can still be read."""

    def close(self) -> None:
        """Give it back."""


@dataclass
class SegmentCleaner:
    """Deletes old files: the first file of the log, and its entries in consume queues and index (mechanisms E2, E3).

    Invariants: the newest file of the log always stays, and so does a file that reaches beyond the readable end;
    consumers are never directed to a message that is gone; a later file is never gone when an earlier one is still
    there; readers that hold a file may finish; one file is deleted at a time.
    """

    disk: Disk
    clock: Clock
    log: CommitLog
    queues: ConsumeQueues
    index: Index
    repairer: QueueRepairer
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

        `checkpoint` makes one, and returns up to where. A disk that rejects it ends this; asking again goes on.
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
        """Let the queues begin with the log: no consumer is directed to a message that is gone. Raises OSError."""
        if self._untrimmed_from is not None:
            for queue in list(self.queues):
                await self.repairer.trim(queue, self._untrimmed_from)
            self._untrimmed_from = None

    def _hold(self, file: Closable) -> None:
        self._held.append((self.clock.monotonic(), file))
