"""Messages found again: by key, by id, by place, by time (MISSION Q1, M8, M9)."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.admin.asking import AdminCalls, answer_of, on_each
from mqclient.consumer.subscription import parse_subscription
from mqclient.errors import ConnectionLostError, IllegalArgumentError
from mqclient.message_ext import MessageExt
from mqclient.message_id import parse_offset_message_id
from mqclient.message_queue import MessageQueue
from mqclient.transport.methods import GET_QUEUE_OFFSETS, PULL, QUERY_MESSAGE, SEARCH_OFFSET, VIEW_MESSAGE
from mqproto.codes import PullStatus
from mqproto.grpc_options import FRAME_BYTES_TARGET
from mqproto.names import TOOLS_CONSUMER_GROUP
from mqproto.properties import UNIQ_KEY
from mqproto.record import RecordError, iter_sealed_records


@dataclass(frozen=True, slots=True)
class PullResult:
    """What one pull found (MISSION C6). `next_begin_offset` is where to go on, whatever the status."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[MessageExt, ...]


class MessageAdmin(AdminCalls):
    """Calls about messages and where they stand."""

    async def query_message(
        self, topic: str, key: str, *, max_messages: int = 32, begin_ms: int = 0, end_ms: int = 0
    ) -> list[MessageExt]:
        """Messages of the topic with this key or unique id, newest first.

        They were stored from `begin_ms` to `end_ms` (0: no end).
        Asks every master; each gives up to `max_messages`, at most 2,000, and no more than fit one answer (MISSION Q1).
        Raises NoRouteError when there is no broker, and the first refusal of a broker.
        """
        request = broker_pb.QueryMessageRequest(
            topic=topic, key=key, max_messages=max_messages, begin_timestamp_ms=begin_ms, end_timestamp_ms=end_ms
        )
        answers = await on_each(await self._targets(), lambda target: answer_of(target, QUERY_MESSAGE, request))
        found = [message for target, answer in answers for message in _messages(answer.records, target.name)]
        return sorted(found, key=lambda message: message.store_timestamp_ms, reverse=True)[: max_messages or None]

    async def query_message_by_unique_key(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Messages of the topic with this unique id, the `message_id` of a send's result, newest first.

        One, or none; several when it was sent again after an unknown outcome. Raises as `query_message`.
        """
        found = await self.query_message(topic, unique_key)
        return [message for message in found if message.properties.get(UNIQ_KEY) == unique_key]

    async def view_message(self, message_id: str) -> MessageExt:
        """The message of an id by position (MISSION M8), asked of the broker that the id names.

        Raises IllegalArgumentError for an id that is none, and the broker's refusal when it has no such message.
        """
        host, port, log_offset = parse_offset_message_id(message_id)
        target = self._target_at(f"{host}:{port}")
        answer = await answer_of(target, VIEW_MESSAGE, broker_pb.ViewMessageRequest(log_offset=log_offset))
        (message,) = _messages(answer.record, target.name)
        return message

    async def pull(
        self, queue: MessageQueue, offset: int, *, max_messages: int = 32, tag_expression: str = "*"
    ) -> PullResult:
        """Messages of the queue from `offset` on, at once, whether there are any or not.

        Nobody's offset moves and no group is made: the broker is asked in the name of RocketMQ's TOOLS_CONSUMER.
        Raises IllegalArgumentError, NoRouteError when no living broker has the queue, and the broker's refusal.
        """
        if max_messages < 1:
            raise IllegalArgumentError(f"{max_messages} messages; ask for 1 at least")
        subscription = parse_subscription(queue.topic, tag_expression)
        request = broker_pb.PullRequest(
            group=TOOLS_CONSUMER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_messages=max_messages,
            max_bytes=FRAME_BYTES_TARGET,
            tag_expression=subscription.expression,
        )
        answer = await answer_of(await self._target_named(queue.broker_name), PULL, request)
        messages = _messages(answer.records, queue.broker_name)
        return PullResult(
            PullStatus(answer.status),
            answer.next_begin_offset,
            answer.min_offset,
            answer.max_offset,
            tuple(message for message in messages if subscription.matches(message)),
        )

    async def queue_offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """(first offset that can be read, offset of the next message to come).

        Raises NoRouteError when no living broker has the queue, and the broker's refusal.
        """
        request = broker_pb.GetQueueOffsetsRequest(queue=_reference(queue))
        answer = await answer_of(await self._target_named(queue.broker_name), GET_QUEUE_OFFSETS, request)
        return answer.min_offset, answer.max_offset

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset of the queue that was stored at or after the time; its end when all are older.

        Raises NoRouteError when no living broker has the queue, and the broker's refusal.
        """
        request = broker_pb.SearchOffsetRequest(queue=_reference(queue), timestamp_ms=timestamp_ms)
        answer = await answer_of(await self._target_named(queue.broker_name), SEARCH_OFFSET, request)
        return answer.offset


def _reference(queue: MessageQueue) -> common_pb.QueueRef:
    return common_pb.QueueRef(topic=queue.topic, queue_id=queue.queue_id)


def _messages(records: bytes, broker_name: str) -> list[MessageExt]:
    try:
        return [MessageExt(record, broker_name) for record in iter_sealed_records(records)]
    except RecordError as error:
        raise ConnectionLostError(f"the answer of {broker_name} was damaged on its way: {error}") from error
