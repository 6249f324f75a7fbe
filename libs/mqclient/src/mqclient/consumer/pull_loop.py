"""Long polls for one assigned queue, one after the other (MISSION C6, C7, C8, C19).

Invariants: one poll is under way at a time; it asks for exactly what follows the last answer; after its end nothing of
this queue reaches the consume service any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.consume_service import ConsumeService
from mqclient.consumer.offset_store import OffsetStore
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.consumer.progress import Progress, from_wire
from mqclient.consumer.pull_from_which_node import PullFromWhichNode
from mqclient.consumer.pulling import ask_for, messages_of, pull_request
from mqclient.consumer.stats import ConsumerStats
from mqclient.consumer.subscription import Subscription
from mqclient.errors import BrokerRefusedError, MQClientError, RejectedError
from mqclient.message import MessageQueue
from mqproto.record import RecordError

logger = logging.getLogger("mqclient.pull_loop")

SUSPEND_S = 15.0  # MISSION C7: how long the broker may hold a poll
GUARD_S = 30.0  # MISSION C7: how long the client waits for an answer at all
FLOW_CONTROL_PAUSE_S = 0.05  # MISSION C8
FAILURE_PAUSE_S = 1.0
REFUSAL_PAUSE_S_MAX = 16.0  # the pause doubles with each refusal in a row: of a group that may not consume, say


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
    set_anew: Callable[[Mapping[MessageQueue, Progress]], None] | None
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
                if isinstance(error, BrokerRefusedError) and error.code == common_pb.TOPIC_NOT_EXIST:
                    self._pulling.topic_gone(queue)
                    return
                pause_s = min(2 * pause_s, REFUSAL_PAUSE_S_MAX) if isinstance(error, RejectedError) else FAILURE_PAUSE_S
                continue
            pause_s = FAILURE_PAUSE_S
            if self._pulling.interval_s:
                await clock.sleep(self._pulling.interval_s)

    async def _pull_once(self) -> None:
        instance, queue, set_anew = self._pulling.instance, self._process_queue.queue, self._pulling.set_anew
        request = pull_request(
            self._pulling.group,
            queue,
            self._process_queue.pull_offset,
            self._subscription,
            self._pulling.batch_size,
            version=None if set_anew is None else self._process_queue.version,
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
        if response.HasField("progress") and set_anew is not None:
            set_anew({queue: from_wire(response.progress)})
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
