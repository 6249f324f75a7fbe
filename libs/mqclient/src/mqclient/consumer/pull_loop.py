"""Long polls for one assigned queue, one after the other (MISSION C6, C7, C8).

Invariants: one poll is under way at a time; it asks for exactly what follows the last answer; after `stop` nothing of
this queue reaches the consume service any more.
"""

from __future__ import annotations

import logging

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.consume_service import ConsumeMessageConcurrentlyService
from mqclient.consumer.offset_store import OffsetStore
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.consumer.subscription import Subscription
from mqclient.errors import MQClientError, require_success
from mqclient.message_ext import MessageExt
from mqproto.grpc_options import FRAME_BYTES_TARGET
from mqproto.record import RecordError, iter_sealed_records

logger = logging.getLogger("mqclient.pull_loop")

SUSPEND_S = 15.0  # MISSION C7: how long the broker may hold a poll
GUARD_S = 30.0  # MISSION C7: how long the client waits for an answer at all
FLOW_CONTROL_PAUSE_S = 0.05  # MISSION C8
FAILURE_PAUSE_S = 1.0


class PullLoop:
    """Fills `process_queue` and passes its messages on."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscription: Subscription,
        process_queue: ProcessQueue,
        *,
        consume_service: ConsumeMessageConcurrentlyService,
        offset_store: OffsetStore,
        pull_batch_size: int,
    ) -> None:
        self.process_queue = process_queue
        self._instance = instance
        self._group = group
        self._subscription = subscription
        self._consume_service = consume_service
        self._offset_store = offset_store
        self._pull_batch_size = pull_batch_size

    async def run(self) -> None:
        """Pull until cancelled."""
        clock = self._instance.clock
        while not self.process_queue.dropped:
            if self.process_queue.must_pause():
                await clock.sleep(FLOW_CONTROL_PAUSE_S)
                continue
            try:
                await self._pull_once()
            except (MQClientError, RecordError) as error:
                logger.warning(
                    "%s could not be pulled, next try in %.1f s: %s", self.process_queue.queue, FAILURE_PAUSE_S, error
                )
                await clock.sleep(FAILURE_PAUSE_S)

    async def _pull_once(self) -> None:
        queue = self.process_queue.queue
        request = broker_pb.PullRequest(
            group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=self.process_queue.pull_offset,
            max_messages=self._pull_batch_size,
            max_bytes=FRAME_BYTES_TARGET,
            tag_expression=self._subscription.expression,
        )
        connection = self._instance.connection(queue.broker_name)
        response = await connection.poll.pull(request, suspend_s=SUSPEND_S, guard_s=GUARD_S)
        require_success(response.code, response.remark, queue.broker_name)
        if response.status == broker_pb.OFFSET_ILLEGAL:
            await self._go_on_elsewhere(response)
        else:
            self._take(response)

    def _take(self, response: broker_pb.PullResponse) -> None:
        queue = self.process_queue.queue
        begin = self.process_queue.pull_offset
        brought = [MessageExt(record, queue.broker_name) for record in iter_sealed_records(response.records)]
        messages = [
            message for message in brought if message.queue_offset >= begin and self._subscription.matches(message)
        ]
        self.process_queue.put(messages, max(begin, response.next_begin_offset))
        self._consume_service.submit(self.process_queue, messages)

    async def _go_on_elsewhere(self, response: broker_pb.PullResponse) -> None:
        queue, asked = self.process_queue.queue, self.process_queue.pull_offset
        following = response.next_begin_offset
        logger.warning("%s has no offset %d any more; it goes on at %d", queue, asked, following)
        self.process_queue.reset(following)
        await self._offset_store.commit({queue: following})
        if following == asked:  # a broker that contradicts itself must not be asked in a tight circle
            await self._instance.clock.sleep(FAILURE_PAUSE_S)
