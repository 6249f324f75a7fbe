"""The queues that a member of a group consumes now: begun, set anew, given up (MISSION C13, C20, C23, L13).

Invariants: every queue has one process queue and one pull task. A queue that is given up keeps its place until no
listener works on it any more and its progress is committed, as far as the consume service asks for that; only then its
lock goes back, and only then it may be begun here anew. An orderly consumer has a queue while it has its lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping

from mqclient.consumer.consume_service import ConsumeService
from mqclient.consumer.offset_store import OffsetStore
from mqclient.consumer.process_queue import FlowControl, ProcessQueue
from mqclient.consumer.progress import Progress
from mqclient.consumer.pull_loop import PullLoop
from mqclient.consumer.queue_locks import LOCK_LIVE_S, QueueLocks
from mqclient.errors import MQClientError
from mqclient.lifecycle import BackgroundTasks
from mqclient.message import MessageQueue
from osenv import Clock

logger = logging.getLogger("mqclient.member_queues")

COMMIT_RETRY_S, COMMIT_RETRY_S_MAX = 1.0, 5.0  # doubled up to C22's interval

MakePullLoop = Callable[[ProcessQueue], PullLoop]


class MemberQueues:
    """Of one consumer. `locks` is None unless it is orderly; `freed` is called when a queue could be begun again."""

    def __init__(
        self,
        clock: Clock,
        *,
        offset_store: OffsetStore,
        consume_service: ConsumeService,
        flow_control: FlowControl,
        locks: QueueLocks | None,
        make_pull_loop: MakePullLoop,
        freed: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._offset_store = offset_store
        self._consume_service = consume_service
        self._flow_control = flow_control
        self._locks = locks
        self._make_pull_loop = make_pull_loop
        self._freed = freed
        self._tasks = BackgroundTasks(clock)
        self._assigned: dict[MessageQueue, ProcessQueue] = {}
        self._pulling: dict[MessageQueue, asyncio.Task[None]] = {}
        self._leaving: dict[MessageQueue, ProcessQueue] = {}
        self._set_meanwhile: dict[MessageQueue, Progress | None] = {}  # of the queues that are being added
        self._stopped = False

    @property
    def queues(self) -> list[MessageQueue]:
        """Sorted."""
        return sorted(self._assigned)

    @property
    def process_queues(self) -> list[ProcessQueue]:
        """By queue."""
        return [self._assigned[queue] for queue in self.queues]

    async def add(self, queues: Iterable[MessageQueue], *, from_first: Container[MessageQueue] = ()) -> bool:
        """Begin with those that are not assigned yet; says whether all of the queues are assigned now.

        Where the group has no offset, those in `from_first` begin with their first message.
        """
        added = [queue for queue in queues if queue not in self._assigned]
        free = [queue for queue in added if queue not in self._leaving]
        asked_at = self._clock.monotonic()
        if self._locks is not None and free:
            answers = await self._locks.lock(free)
            free = [queue for queue in free if answers.get(queue)]
        begun = await asyncio.gather(*(self._add(queue, asked_at, from_first=queue in from_first) for queue in free))
        return sum(begun) == len(added)

    def drop(self, queues: Iterable[MessageQueue]) -> None:
        """Give these up, as far as they are assigned."""
        for queue in queues:
            if queue in self._assigned:
                process_queue = self._leaving[queue] = self._stop_pulling(queue)
                self._tasks.start(self._leave(process_queue), f"mqclient leave {queue}")

    def set_anew(self, progress: Mapping[MessageQueue, Progress], *, only_newer: bool = False) -> None:
        """Somebody has set these offsets: forget what was pulled, and go on there; what others have is left out.

        A listener that runs may finish, but what it finishes no longer counts (RocketMQ's resetOffset). `only_newer`:
        who says so may not know of the newest offsets yet, and what has an older version is left out.
        """
        if self._stopped:
            return
        for queue, one in progress.items():
            if queue in self._set_meanwhile:
                before_that = self._set_meanwhile[queue]
                if not only_newer or before_that is None or one.version > before_that.version:
                    self._set_meanwhile[queue] = one
            elif queue in self._assigned and one.differs_from(self._assigned[queue].version, only_newer=only_newer):
                logger.info("the offset of %s has been set to %d", queue, one.offset)
                before = self._stop_pulling(queue)
                before.outdated = True
                self._offset_store.forget(queue)
                self._start_pulling(queue, one, before.locked_until)

    async def commit(self) -> None:
        """Write the progress of all queues, given up or not, to where it is kept (C20, C22)."""
        every = {**self._leaving, **self._assigned}
        await self._offset_store.commit({queue: process_queue.progress for queue, process_queue in every.items()})

    async def renew_locks(self) -> None:
        """Ask for all locks again, also where a listener runs for a queue that has been given up.

        A queue whose lock is lost, or had run out, has to be begun anew.
        """
        held = {**self._leaving, **self._assigned}
        if self._locks is None or not held:
            return
        asked_at = self._clock.monotonic()
        answers = await self._locks.lock(held)
        lost = []
        for queue, ours in answers.items():
            process_queue = self._assigned.get(queue)
            if process_queue is None:
                continue  # given up, before we asked or meanwhile
            if ours and self.may_consume(process_queue):
                process_queue.locked_until = asked_at + LOCK_LIVE_S
            else:
                lost.append(queue)
        if lost and not self._stopped:
            logger.warning("the locks of %s are lost; what is not finished comes again", [str(one) for one in lost])
            self.drop(lost)

    def may_consume(self, process_queue: ProcessQueue) -> bool:
        """Whether the queue's lock, if it needs one, has not run out."""
        return self._locks is None or self._clock.monotonic() < process_queue.locked_until

    async def stop(self) -> None:
        """Pull nothing more. What is in flight may still be finished; `commit` covers it until the end."""
        self._stopped = True
        await self._tasks.close()
        self._pulling.clear()

    async def unlock(self) -> None:
        """Give all locks back: nothing of these queues is consumed here any more."""
        if self._locks is not None:
            await self._locks.unlock({**self._leaving, **self._assigned})

    async def _add(self, queue: MessageQueue, asked_at: float, *, from_first: bool) -> bool:
        self._set_meanwhile[queue] = None
        try:
            begin = await self._offset_store.begin(queue, from_first=from_first)
        except MQClientError as error:
            logger.warning("where to begin with %s is not known, it is tried again: %s", queue, error)
            return False
        finally:
            meanwhile = self._set_meanwhile.pop(queue)
        if meanwhile is not None and meanwhile.version > begin.version:
            self._offset_store.forget(queue)
            begin = meanwhile
        self._start_pulling(queue, begin, asked_at + LOCK_LIVE_S)
        return True

    async def _leave(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        await self._consume_service.finish(queue)
        pause_s = COMMIT_RETRY_S
        while not await self._offset_store.commit({queue: process_queue.progress}):
            # The broker is away. To begin with the queue anew before it knows would consume all of this again.
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, COMMIT_RETRY_S_MAX)
        if self._locks is not None:
            await self._locks.unlock([queue])
        self._offset_store.forget(queue)
        del self._leaving[queue]
        self._freed()

    def _start_pulling(self, queue: MessageQueue, begin: Progress, locked_until: float) -> None:
        process_queue = self._assigned[queue] = ProcessQueue(queue, begin, self._flow_control)
        process_queue.locked_until = locked_until
        self._pulling[queue] = self._tasks.start(self._make_pull_loop(process_queue).run(), f"mqclient pull {queue}")

    def _stop_pulling(self, queue: MessageQueue) -> ProcessQueue:
        """Nothing new of the queue is begun from now on."""
        process_queue = self._assigned.pop(queue)
        process_queue.dropped = True
        self._pulling.pop(queue).cancel()
        return process_queue
