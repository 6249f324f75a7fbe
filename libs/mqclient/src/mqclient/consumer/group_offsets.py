"""A group's offsets at its brokers, for a consumer that says itself what is finished (MISSION C5, C23).

Invariant: an offset is reported with the version that this consumer has last asked for or set, so that it does not undo
what somebody else has set since; only `set_to` sets an offset whatever the broker has, and only the master does that.
For the rest a slave is asked and told while its master is away, and one that has an older version is only late.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.connection.broker_connections import Answer, BrokerCalls
from mqclient.consumer.progress import Progress, from_wire, of_queues, to_wire
from mqclient.consumer.pulling import reference
from mqclient.errors import require_success
from mqclient.message import MessageQueue, by_broker
from mqclient.transport.methods import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET

Calls = Callable[[MessageQueue], Awaitable[BrokerCalls]]


class GroupOffsets:
    """Of `group`, in the name of the client `client_id`. `calls` makes sure that the queue's broker is known.

    Every call raises MQClientError when a broker does not do it.
    Several brokers are told one after the other, by name; the first error ends the call, and it can be made again.
    """

    def __init__(self, calls: Calls, group: str, client_id: str) -> None:
        self._calls = calls
        self._group = group
        self._client_id = client_id
        self._heard: dict[MessageQueue, Progress] = {}

    async def query(self, queue: MessageQueue) -> int | None:
        """Where the group goes on in this queue; None when it has never said."""
        answer = await self._query(broker_pb.QueryConsumerOffsetRequest(group=self._group), queue)
        if answer.code == common_pb.QUERY_NOT_FOUND:
            self._heard[queue] = from_wire(answer)
            return None
        return self._take(queue, answer).offset

    async def begin(self, queue: MessageQueue) -> int:
        """Where the group goes on; if it has never said, that is the queue's end, from now on and for all of it."""
        begin = broker_pb.ConsumeBegin(where=broker_pb.CONSUME_FROM_LAST_OFFSET)
        answer = await self._query(broker_pb.QueryConsumerOffsetRequest(group=self._group, begin=begin), queue)
        return self._take(queue, answer).offset

    async def grow(self, offsets: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        """Report that everything below the offsets is finished. A broker that has a larger one keeps it.

        Returns the queues that were left out, because somebody has set their offset anew: `query` tells where.
        """
        for queue in offsets.keys() - self._heard.keys():
            await self.query(queue)
        left_out = []
        for _, part in sorted(by_broker(sorted(offsets))):
            progress = {queue: replace(self._heard[queue], offset=offsets[queue], finished=()) for queue in part}
            answer = await self._report(part[0], self._request(progress))
            left_out += [
                queue
                for queue, one in _told(part[0], answer.response).items()
                if one.differs_from(self._heard[queue].version, only_newer=answer.by_slave)
            ]
        return left_out

    async def set_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Let the group go on exactly here, backwards as well. What is finished beyond is forgotten."""
        for _, part in sorted(by_broker(sorted(offsets))):
            progress = {queue: Progress(offsets[queue]) for queue in part}
            calls = await self._calls(part[0])
            request = self._request(progress, set_anew=True)
            response = await calls.to_master(part[0].broker_name, UPDATE_CONSUMER_OFFSET, request)
            self._heard.update(_told(part[0], response))

    async def _query(
        self, request: broker_pb.QueryConsumerOffsetRequest, queue: MessageQueue
    ) -> broker_pb.QueryConsumerOffsetResponse:
        request.queue.CopyFrom(reference(queue))
        return await (await self._calls(queue)).readers(queue.broker_name).unary(QUERY_CONSUMER_OFFSET, request)

    def _take(self, queue: MessageQueue, answer: broker_pb.QueryConsumerOffsetResponse) -> Progress:
        require_success(answer.code, answer.remark, queue.broker_name)
        progress = self._heard[queue] = from_wire(answer)
        return progress

    def _request(
        self, progress: Mapping[MessageQueue, Progress], *, set_anew: bool = False
    ) -> broker_pb.UpdateConsumerOffsetRequest:
        return broker_pb.UpdateConsumerOffsetRequest(
            group=self._group,
            client_id=self._client_id,
            queues=[to_wire(queue, one) for queue, one in progress.items()],
            set=set_anew,
        )

    async def _report(
        self, some_queue: MessageQueue, request: broker_pb.UpdateConsumerOffsetRequest
    ) -> Answer[broker_pb.UpdateConsumerOffsetResponse]:
        calls = await self._calls(some_queue)
        return await calls.to_any(some_queue.broker_name, UPDATE_CONSUMER_OFFSET, request)


def _told(some_queue: MessageQueue, response: broker_pb.UpdateConsumerOffsetResponse) -> dict[MessageQueue, Progress]:
    """What the broker of this queue has now. Raises its refusal."""
    require_success(response.code, response.remark, some_queue.broker_name)
    return of_queues(some_queue.broker_name, response.queues)
