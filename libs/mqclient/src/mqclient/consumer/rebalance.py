"""Which queues this member pulls, kept in step with the group (MISSION C13).

Invariants: every assigned queue has one process queue and one pull task; of a dropped queue the offset is committed
once more, and what its listeners finish afterwards no longer counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.background import BackgroundTasks, wait_event
from mqclient.client_instance import ClientInstance
from mqclient.consumer.allocate import AllocateMessageQueueStrategy
from mqclient.consumer.offset_store import OffsetStore
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.consumer.pull_loop import PullLoop
from mqclient.consumer.subscription import Subscription
from mqclient.errors import MQClientError, NoRouteError, broker_answer_error
from mqclient.message_queue import MessageQueue
from mqclient.route import TopicRoute
from mqclient.transport.methods import GET_CONSUMER_LIST

logger = logging.getLogger("mqclient.rebalance")

REBALANCE_INTERVAL_S = 20.0  # MISSION C13
INCOMPLETE_RETRY_S = 1.0  # doubled up to the interval: a topic that does not exist yet, a broker that does not answer

MakePullLoop = Callable[[ProcessQueue, Subscription], PullLoop]


class Rebalance:
    """The queues of one consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        subscriptions: Mapping[str, Subscription],
        strategy: AllocateMessageQueueStrategy,
        offset_store: OffsetStore,
        make_pull_loop: MakePullLoop,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._strategy = strategy
        self._offset_store = offset_store
        self._make_pull_loop = make_pull_loop
        self._tasks = BackgroundTasks(instance.clock)
        self._assigned: dict[MessageQueue, ProcessQueue] = {}
        self._pulling: dict[MessageQueue, asyncio.Task[None]] = {}
        self._reset_meanwhile: dict[MessageQueue, int | None] = {}  # of the queues that are being added
        self._wanted = asyncio.Event()
        self.done_once = asyncio.Event()

    def start(self) -> None:
        self._tasks.start(self._run(), f"mqclient rebalance {self._group}")

    def rebalance_now(self) -> None:
        """The group or the queues may have changed."""
        self._wanted.set()

    async def stop(self) -> None:
        """Pull nothing more. What is in flight may still be finished; `commit` covers it until the end."""
        await self._tasks.close()
        self._pulling.clear()

    @property
    def queues(self) -> list[MessageQueue]:
        """What is assigned to this member now, sorted."""
        return sorted(self._assigned)

    async def commit(self) -> None:
        """Write the offsets of all assigned queues to their brokers (C20, C22)."""
        await self._offset_store.commit(
            {queue: process_queue.commit_offset for queue, process_queue in self._assigned.items()}
        )

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Forget what was pulled of these queues, and go on from these offsets; what others have is left out.

        A listener that runs may finish, but what it finishes no longer counts (RocketMQ's resetOffset).
        """
        for queue, offset in offsets.items():
            if queue in self._reset_meanwhile:
                self._reset_meanwhile[queue] = offset
            elif queue in self._assigned:
                logger.info("group %s, %s: an operator has set the offset to %d", self._group, queue, offset)
                self._stop_pulling(queue)
                self._offset_store.forget(queue)
                self._start_pulling(queue, offset)
        # A commit of an old offset may be under way: the new one goes behind it.
        self._tasks.start(self.commit(), f"mqclient reset offsets {self._group}")

    async def _run(self) -> None:
        retry_s = INCOMPLETE_RETRY_S
        while True:
            self._wanted.clear()
            complete = await self._balance_all()
            self.done_once.set()
            await wait_event(self._instance.clock, self._wanted, REBALANCE_INTERVAL_S if complete else retry_s)
            retry_s = INCOMPLETE_RETRY_S if complete else min(2 * retry_s, REBALANCE_INTERVAL_S)

    async def _balance_all(self) -> bool:
        """Whether every topic could be looked after."""
        complete = True
        for subscription in self._subscriptions.values():
            try:
                complete = await self._balance(subscription) and complete
            except MQClientError as error:
                logger.warning("%s of group %s could not be balanced: %s", subscription.topic, self._group, error)
                complete = False
            except Exception:
                logger.exception("%s of group %s could not be balanced", subscription.topic, self._group)
                complete = False
        return complete

    async def _balance(self, subscription: Subscription) -> bool:
        route = await self._instance.routes.subscribe_route(subscription.topic)
        if route is None:
            logger.debug("the topic %s does not exist yet", subscription.topic)
            return False
        members = await self._members(route)
        share = self._strategy.allocate(self._instance.client_id, route.subscribe_queues(), members)
        mine = [queue for queue in self._assigned if queue.topic == subscription.topic]
        await asyncio.gather(*(self._drop(queue) for queue in mine if queue not in share))
        added = [queue for queue in share if queue not in self._assigned]
        outcomes = await asyncio.gather(*(self._add(queue) for queue in added))
        if added or any(queue not in share for queue in mine):
            logger.info("group %s, topic %s: queues %s", self._group, subscription.topic, [str(q) for q in share])
        return all(outcomes)

    async def _members(self, route: TopicRoute) -> Sequence[str]:
        """The group's living members, from any broker that has the topic."""
        error: MQClientError = NoRouteError(f"no master of a broker with the topic {route.topic} is known")
        for broker_name in sorted(route.brokers):
            try:
                response = await self._instance.connection(broker_name).unary(
                    GET_CONSUMER_LIST, broker_pb.GetConsumerListRequest(group=self._group)
                )
            except MQClientError as caught:
                error = caught
                continue
            if response.code == common_pb.SUCCESS:
                return sorted(response.client_ids)
            error = broker_answer_error(response.code, response.remark, broker_name)
        raise error

    async def _add(self, queue: MessageQueue) -> bool:
        self._reset_meanwhile[queue] = None
        try:
            offset = await self._offset_store.initial_offset(queue)
        except MQClientError as error:
            logger.warning("where to begin with %s is not known, it is tried again: %s", queue, error)
            return False
        finally:
            reset = self._reset_meanwhile.pop(queue)
        if reset is not None:
            self._offset_store.forget(queue)
        self._start_pulling(queue, offset if reset is None else reset)
        return True

    async def _drop(self, queue: MessageQueue) -> None:
        process_queue = self._stop_pulling(queue)
        await self._offset_store.commit({queue: process_queue.commit_offset})
        self._offset_store.forget(queue)

    def _start_pulling(self, queue: MessageQueue, offset: int) -> None:
        process_queue = self._assigned[queue] = ProcessQueue(queue, offset)
        loop = self._make_pull_loop(process_queue, self._subscriptions[queue.topic])
        self._pulling[queue] = self._tasks.start(loop.run(), f"mqclient pull {queue}")

    def _stop_pulling(self, queue: MessageQueue) -> ProcessQueue:
        """Nothing of the queue counts any more from now on, and nothing of it is committed by itself."""
        process_queue = self._assigned.pop(queue)
        process_queue.dropped = True
        self._pulling.pop(queue).cancel()
        return process_queue
