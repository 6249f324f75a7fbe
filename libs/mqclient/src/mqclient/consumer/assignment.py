"""The queues that a member of a group consumes now: locked, begun, pulled, set anew, given up.

Invariants: every queue has one process queue and one pull task. One poll is under way at a time; it asks for exactly
what follows the last answer; after its end nothing of this queue reaches the consume service any more. A queue that is
given up keeps its place until no listener works on it any more and its progress is committed, as far as the consume
service asks for that; only then its lock goes back, and only then it may be begun here anew. An orderly consumer has a
queue while it has its lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_instance import ClientInstance
from mqclient.config import FlowControl
from mqclient.consumer.consume_service import ConsumerStats, ConsumeService, ProcessQueue
from mqclient.consumer.offsets import OffsetStore, Progress, from_wire
from mqclient.consumer.pulling import PullFromWhichNode, Subscription, ask_for, messages_of, pull_request, reference
from mqclient.errors import BrokerUnavailableError, MQClientError, RejectedError, require_success
from mqclient.lifecycle import BackgroundTasks
from mqclient.message import MessageQueue, by_broker
from mqclient.transport.methods import LOCK_QUEUES, UNLOCK_QUEUES
from mqproto.record import RecordError
from osenv import Clock

logger = logging.getLogger("mqclient.assignment")

LOCK_INTERVAL_S = 20.0  # RocketMQ's rebalanceLockInterval
LOCK_LIVE_S = 30.0  # RocketMQ's rebalanceLockMaxLiveTime

SUSPEND_S = 15.0  # mechanism C7: how long the broker may hold a poll
GUARD_S = 30.0  # mechanism C7: how long the client waits for an answer at all
FLOW_CONTROL_PAUSE_S = 0.05  # mechanism C8
FAILURE_PAUSE_S = 1.0
REJECTION_PAUSE_S_MAX = 16.0  # the pause doubles with each rejection in a row: of a group that may not consume, say

COMMIT_RETRY_S, COMMIT_RETRY_S_MAX = 1.0, 5.0  # doubled up to C22's interval


class QueueLocks:
    """Asks brokers for locks on queues, and gives them back; keeps nothing.

    A broker lends a queue to one member of a group for 60 s from its last request. A member asks again every 20 s, and
    begins with nothing more than 30 s after it last asked with success: so it has stopped long before any other member
    begins, also when its requests take their time and when it was asleep meanwhile. Only a master lends: while there is
    none, a member goes on for the rest of its 30 s and then pauses until there is one.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """For each queue whether this member has it now, until LOCK_LIVE_S after the call.

        Left out is what no broker has answered for: there it is as it was.
        """
        answers: dict[MessageQueue, bool] = {}
        for broker_name, asked in by_broker(queues):
            request = broker_pb.LockQueuesRequest(
                group=self._group,
                client_id=self._instance.client_id,
                queues=map(reference, asked),
                incarnation=self._instance.incarnation,
            )
            try:
                answer = await self._instance.calls.to_master(broker_name, LOCK_QUEUES, request)
                require_success(answer.code, answer.remark, broker_name)
            except MQClientError as error:
                logger.warning("queues of group %s could not be locked at %s: %s", self._group, broker_name, error)
                continue
            locked = {(one.topic, one.queue_id) for one in answer.locked}
            answers.update((queue, (queue.topic, queue.queue_id) in locked) for queue in asked)
        return answers

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Other members may have them at once; locks that cannot be given back now expire."""
        for broker_name, given_back in by_broker(queues):
            request = broker_pb.UnlockQueuesRequest(
                group=self._group,
                client_id=self._instance.client_id,
                queues=map(reference, given_back),
                incarnation=self._instance.incarnation,
            )
            try:
                answer = await self._instance.calls.to_master(broker_name, UNLOCK_QUEUES, request)
                require_success(answer.code, answer.remark, broker_name)
            except MQClientError as error:
                logger.warning("queues of group %s stay locked at %s for a minute: %s", self._group, broker_name, error)


@dataclass(frozen=True, slots=True)
class PullContext:
    """What the pull loops of one consumer share."""

    instance: ClientInstance
    nodes: PullFromWhichNode
    group: str
    consume_service: ConsumeService
    offset_store: OffsetStore
    stats: ConsumerStats
    resumed: asyncio.Event  # cleared while the consumer is suspended
    topic_gone: Callable[[MessageQueue], None]  # its broker does not have the queue's topic any more
    # Ends the queue's pull loop, and begins another one there; None when the brokers do not keep the offsets.
    reset_offsets: Callable[[Mapping[MessageQueue, Progress]], None] | None
    batch_size: int
    interval_s: float


class PullLoop:
    """Fills `process_queue` and passes its messages on."""

    def __init__(self, pulling: PullContext, subscription: Subscription, process_queue: ProcessQueue) -> None:
        self._pulling = pulling
        self._subscription = subscription
        self._process_queue = process_queue

    async def run(self) -> None:
        """Pull until cancelled, or until the queue is dropped."""
        clock = self._pulling.instance.clock
        pause_s = FAILURE_PAUSE_S
        while not self._process_queue.dropped:
            await self._pulling.resumed.wait()
            if self._process_queue.must_pause():
                await clock.sleep(FLOW_CONTROL_PAUSE_S)
                continue
            try:
                await self._pull_once()
            except (MQClientError, RecordError) as error:  # a record may show only when its tag is asked for
                queue = self._process_queue.queue
                logger.warning("%s could not be pulled, next try in %.0f s: %s", queue, pause_s, error)
                await clock.sleep(pause_s)
                if isinstance(error, BrokerUnavailableError) and error.code == common_pb.TOPIC_NOT_EXIST:
                    self._pulling.topic_gone(queue)
                    return
                pause_s = (
                    min(2 * pause_s, REJECTION_PAUSE_S_MAX) if isinstance(error, RejectedError) else FAILURE_PAUSE_S
                )
                continue
            pause_s = FAILURE_PAUSE_S
            if self._pulling.interval_s:
                await clock.sleep(self._pulling.interval_s)

    async def _pull_once(self) -> None:
        instance, queue, reset_offsets = self._pulling.instance, self._process_queue.queue, self._pulling.reset_offsets
        request = pull_request(
            self._pulling.group,
            queue,
            self._process_queue.pull_offset,
            self._subscription,
            self._pulling.batch_size,
            version=None if reset_offsets is None else self._process_queue.version,
        )
        began = instance.clock.monotonic()
        response = await self._pulling.nodes.pull(
            queue,
            request.queue_offset,
            partial(ask_for, request, block_s=SUSPEND_S, guard_s=GUARD_S),
            wait_s=SUSPEND_S,
        )
        self._process_queue.max_offset = response.max_offset
        self._process_queue.last_pull_ms = instance.clock.wall_ms()
        if response.HasField("progress") and reset_offsets is not None:
            reset_offsets({queue: from_wire(response.progress)})
            return
        if response.status == broker_pb.OFFSET_ILLEGAL:
            await self._go_on_elsewhere(response)
            return
        self._take(response)
        if response.count:
            now = instance.clock.monotonic()
            self._pulling.stats.pulled(queue.topic, now, now - began, response.count)

    def _take(self, response: broker_pb.PullResponse) -> None:
        queue = self._process_queue.queue
        begin = self._process_queue.pull_offset
        brought = messages_of(response.records, queue.broker_name)
        messages = [
            message for message in brought if message.queue_offset >= begin and self._subscription.matches(message)
        ]
        wanted = self._process_queue.put(messages, max(begin, response.next_begin_offset))
        self._pulling.consume_service.submit(self._process_queue, wanted)

    async def _go_on_elsewhere(self, response: broker_pb.PullResponse) -> None:
        queue, asked = self._process_queue.queue, self._process_queue.pull_offset
        following = response.next_begin_offset
        logger.warning("%s has no offset %d any more; it goes on at %d", queue, asked, following)
        self._process_queue.reset(following)
        await self._pulling.offset_store.commit({queue: self._process_queue.progress})
        if following == asked:  # a broker that contradicts itself must not be asked in a tight circle
            await self._pulling.instance.clock.sleep(FAILURE_PAUSE_S)


MakePullLoop = Callable[[ProcessQueue], PullLoop]


class QueueAssignment:
    """The queues of one consumer.

    `locks` is None unless it is orderly; `freed` is called when a queue could be begun again.
    """

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

    def reset_offsets(self, progress: Mapping[MessageQueue, Progress], *, only_newer: bool = False) -> None:
        """These offsets were set: forget what was pulled, and go on there. Queues of other members are left out.

        A listener that runs may finish, but what it finishes no longer counts (RocketMQ's resetOffset). `only_newer`:
        the sender may not have the newest offsets yet, so older versions are left out.
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
        """Write the progress of all queues, given up or not, to where it is kept (mechanisms C20, C22)."""
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
