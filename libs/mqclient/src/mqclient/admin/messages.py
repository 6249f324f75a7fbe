"""Messages found again: by key, by id, by place, by time (MISSION Q1, M8, M9)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.admin.asking import AdminCalls, answer_of, on_each
from mqclient.consumer.pulling import (
    ALL,
    MessageSelector,
    PullResult,
    messages_of,
    offset_at,
    offsets_of,
    parse_subscription,
    pull_from,
)
from mqclient.message import MessageExt, MessageQueue, parse_offset_message_id
from mqclient.transport.methods import QUERY_MESSAGE, VIEW_MESSAGE
from mqproto.codes import PullStatus
from mqproto.names import TOOLS_CONSUMER_GROUP
from mqproto.properties import UNIQ_KEY

PAGE_MESSAGES = 256  # of a queue that is read through; a page is no more than FRAME_BYTES_TARGET


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
        found = [message for target, answer in answers for message in messages_of(answer.records, target.name)]
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
        (message,) = messages_of(answer.record, target.name)
        return message

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str | MessageSelector | None = ALL,
    ) -> PullResult:
        """Messages of the queue from `offset` on, at once, whether there are any or not; all, or those that are wanted.

        Nobody's offset moves and no group is made: the broker is asked in the name of RocketMQ's TOOLS_CONSUMER.
        Raises IllegalArgumentError, NoRouteError when no living broker has the queue, and the broker's refusal.
        """
        subscription = parse_subscription(queue.topic, expression)
        target = await self._target_named(queue.broker_name)
        return await pull_from(
            target.connection, TOOLS_CONSUMER_GROUP, queue, offset, subscription, max_messages=max_messages
        )

    async def read_queue(
        self,
        queue: MessageQueue,
        *,
        offset: int = 0,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        expression: str | MessageSelector | None = ALL,
    ) -> AsyncIterator[MessageExt]:
        """The messages of the queue from `offset` on, as far as it reaches when it is asked first, a page at a time.

        Stored from `begin_ms` to before `end_ms`; None: no bound. Raises as `pull`.
        """
        first, last = await self.queue_offsets(queue)
        if begin_ms is not None:
            first = max(first, await self.search_offset(queue, begin_ms))
        if end_ms is not None:
            last = min(last, await self.search_offset(queue, end_ms))
        at = max(first, offset)
        while at < last:
            result = await self.pull(queue, at, max_messages=PAGE_MESSAGES, expression=expression)
            for message in result.messages:
                if message.queue_offset < last:
                    yield message
            if result.next_begin_offset <= at or result.status is PullStatus.NO_NEW_MSG:
                return
            at = result.next_begin_offset

    async def queue_offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """(first offset that can be read, offset of the next message to come).

        Raises NoRouteError when no living broker has the queue, and the broker's refusal.
        """
        target = await self._target_named(queue.broker_name)
        return await offsets_of(target.connection, queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset of the queue that was stored at or after the time; its end when all are older.

        Raises NoRouteError when no living broker has the queue, and the broker's refusal.
        """
        target = await self._target_named(queue.broker_name)
        return await offset_at(target.connection, queue, timestamp_ms)
