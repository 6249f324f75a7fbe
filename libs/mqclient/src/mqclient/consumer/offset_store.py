"""A group's offsets, kept by the brokers (MISSION C1, C10, C22).

Invariants: an offset goes to the broker only when it differs from the one that is there as far as this client knows;
one commit at a time is under way to a broker, so that none overtakes a later one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.listener import ConsumeFromWhere
from mqclient.errors import MQClientError, require_success
from mqclient.message_queue import MessageQueue
from mqclient.transport.methods import GET_QUEUE_OFFSETS, QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET
from mqproto.names import RETRY_PREFIX

logger = logging.getLogger("mqclient.offset_store")


class OffsetStore:
    """Reads and writes the offsets of `group`."""

    def __init__(self, instance: ClientInstance, group: str, consume_from_where: ConsumeFromWhere) -> None:
        self._instance = instance
        self._group = group
        self._consume_from_where = consume_from_where
        self._committed: dict[MessageQueue, int] = {}
        self._committing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by broker name

    async def initial_offset(self, queue: MessageQueue) -> int:
        """Where to begin with a queue that was just assigned. Raises MQClientError when the broker cannot say."""
        connection = self._instance.connection(queue.broker_name)
        reference = common_pb.QueueRef(topic=queue.topic, queue_id=queue.queue_id)
        stored = await connection.unary(
            QUERY_CONSUMER_OFFSET, broker_pb.QueryConsumerOffsetRequest(group=self._group, queue=reference)
        )
        if stored.code != common_pb.QUERY_NOT_FOUND:
            require_success(stored.code, stored.remark, queue.broker_name)
            self._committed[queue] = stored.offset
            return stored.offset
        limits = await connection.unary(GET_QUEUE_OFFSETS, broker_pb.GetQueueOffsetsRequest(queue=reference))
        require_success(limits.code, limits.remark, queue.broker_name)
        # A retry topic holds what this group has to see again, so nothing of it may be skipped.
        from_first = self._consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        offset = limits.min_offset if from_first or queue.topic.startswith(RETRY_PREFIX) else limits.max_offset
        # Committed at once: whoever crashes before the first commit must not begin at a later end next time.
        await self.commit({queue: offset})
        return offset

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write what has changed. A broker that does not take it is logged; the next commit tries again."""
        by_broker: dict[str, dict[MessageQueue, int]] = defaultdict(dict)
        for queue, offset in offsets.items():
            by_broker[queue.broker_name][queue] = offset
        await asyncio.gather(*(self._commit_to(broker_name, part) for broker_name, part in by_broker.items()))

    def forget(self, queue: MessageQueue) -> None:
        """Somebody else sets this queue's offset: the member it belongs to now, or an operator."""
        self._committed.pop(queue, None)

    async def _commit_to(self, broker_name: str, offsets: Mapping[MessageQueue, int]) -> None:
        async with self._committing[broker_name]:
            changed = {queue: offset for queue, offset in offsets.items() if self._committed.get(queue) != offset}
            if not changed:
                return
            try:
                await self._update(broker_name, changed)
            except MQClientError as error:
                logger.warning("offsets of %s were not committed to %s: %s", self._group, broker_name, error)
            else:
                self._committed.update(changed)

    async def _update(self, broker_name: str, offsets: Mapping[MessageQueue, int]) -> None:
        request = broker_pb.UpdateConsumerOffsetRequest(
            group=self._group,
            client_id=self._instance.client_id,
            offsets=[
                common_pb.QueueOffset(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
                for queue, offset in offsets.items()
            ],
        )
        response = await self._instance.connection(broker_name).unary(UPDATE_CONSUMER_OFFSET, request)
        require_success(response.code, response.remark, broker_name)
