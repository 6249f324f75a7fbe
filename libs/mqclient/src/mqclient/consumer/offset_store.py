"""A group's offsets, kept by the brokers (MISSION C1, C10, C20, C22).

Invariants: progress goes to the broker only when it differs from what is there as far as this client knows; one commit
at a time is under way to a broker. A broker joins what it is told to what it has, so that nothing that comes late moves
an offset back; what somebody has set anew meanwhile is found out by its version. While a master is away its slave is
asked and told, and the brokers join what both have heard; a slave that has an older version is only late.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.progress import Progress, from_wire, of_queues, to_wire
from mqclient.consumer.pulling import reference
from mqclient.errors import BrokerRefusedError, BrokerRejectedError, MQClientError, require_success
from mqclient.lifecycle import SharedCalls
from mqclient.message import MessageQueue, by_broker
from mqclient.transport.methods import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET
from mqproto.names import RETRY_PREFIX

logger = logging.getLogger("mqclient.offset_store")

FROM_FIRST = broker_pb.ConsumeBegin(where=broker_pb.CONSUME_FROM_FIRST_OFFSET)
# A member of a new group begins at all brokers at once: where none has begun after this time, the topic is new there.
BEGIN_PAUSE_S = 1.0

SetAnew = Callable[[Mapping[MessageQueue, Progress]], None]


class OffsetStore(Protocol):
    """Where a group's offsets are kept: by the brokers (clustering), or on this machine (broadcasting)."""

    async def open(self) -> None:
        """Get ready. Raises IllegalStateError when somebody else keeps the same offsets."""

    async def begin(self, queue: MessageQueue, *, from_first: bool = False) -> Progress:
        """Where to begin with a queue that was just assigned, `from_first` if nothing is kept of it.

        Raises MQClientError when that cannot be told now.
        """

    async def commit(self, progress: Mapping[MessageQueue, Progress]) -> bool:
        """Keep what has changed. What cannot be kept now is logged; the next commit tries again.

        False when there was no answer, so that the same commit may succeed later.
        """

    def forget(self, queue: MessageQueue) -> None:
        """This consumer does not have the queue any more, or somebody has set its offset."""

    def doubt(self) -> None:
        """Somebody may have set offsets while this client could not hear of it: commit everything next time."""

    async def close(self) -> None:
        """Nothing is committed any more."""


class RemoteBrokerOffsetStore:
    """Reads and writes the offsets of `group`; a group that has none begins at `begin`.

    `set_anew` is told of queues whose offsets have been set by somebody else, and where they go on.
    """

    def __init__(self, instance: ClientInstance, group: str, begin: broker_pb.ConsumeBegin, set_anew: SetAnew) -> None:
        self._instance = instance
        self._group = group
        self._begin = begin
        self._set_anew = set_anew
        self._deciding: SharedCalls[str, broker_pb.ConsumeBegin] = SharedCalls(instance.tasks)  # by topic
        self._committed: dict[MessageQueue, Progress] = {}
        self._committing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by broker name

    async def open(self) -> None:
        """The brokers are ready, or will be."""

    async def begin(self, queue: MessageQueue, *, from_first: bool = False) -> Progress:
        """Where to begin with a queue that was just assigned. Raises MQClientError when the broker cannot say.

        A queue of which the group has nothing begins with its first message if the group has begun with the topic
        before, at this broker or at another one: then the queue was made later (ADR 90).
        """
        progress = await self._ask(queue)
        if progress is None:
            begin = FROM_FIRST
            if not from_first and begin.where != self._begin.where and not queue.topic.startswith(RETRY_PREFIX):
                begin = await self._deciding.run(
                    queue.topic, partial(self._beginning_of, queue.topic), f"mqclient beginning of {queue.topic}"
                )
            progress = await self._ask(queue, begin) or Progress(0)
        self._committed[queue] = progress
        return progress

    async def commit(self, progress: Mapping[MessageQueue, Progress]) -> bool:
        """Write what has changed. A broker that does not take it is logged; the next commit tries again.

        Says whether every broker has answered.
        """
        answered = await asyncio.gather(
            *(
                self._commit_to(broker_name, {queue: progress[queue] for queue in queues})
                for broker_name, queues in by_broker(progress)
            )
        )
        return all(answered)

    def forget(self, queue: MessageQueue) -> None:
        """Somebody else sets this queue's offset: the member it belongs to now, or an operator."""
        self._committed.pop(queue, None)

    def doubt(self) -> None:
        """Somebody may have set offsets while this client could not hear of it: commit everything next time."""
        self._committed.clear()

    async def close(self) -> None:
        """Nothing to give back."""

    async def _ask(self, queue: MessageQueue, begin: broker_pb.ConsumeBegin | None = None) -> Progress | None:
        """What the group has finished of the queue, which begins at `begin` if it has none; None without either."""
        request = broker_pb.QueryConsumerOffsetRequest(group=self._group, queue=reference(queue), begin=begin)
        answer = await self._instance.calls.readers(queue.broker_name).unary(QUERY_CONSUMER_OFFSET, request)
        if begin is None and answer.code == common_pb.QUERY_NOT_FOUND:
            return None
        require_success(answer.code, answer.remark, queue.broker_name)
        return from_wire(answer)

    async def _beginning_of(self, topic: str) -> broker_pb.ConsumeBegin:
        """Where the group begins with queues of the topic of which it has nothing.

        A new group begins at all brokers of the topic, so that what it meets later is new to the topic. Raises
        MQClientError when a broker that might know the group does not answer.
        """
        route = await self._instance.routes.subscribe_route(topic)
        queues = route.subscribe_queues() if route is not None else ()
        firsts = list({queue.broker_name: queue for queue in reversed(queues)}.values())
        answers = await asyncio.gather(*map(self._ask, firsts), return_exceptions=True)
        if any(isinstance(answer, Progress) for answer in answers):
            if None in answers:  # another member may be about to begin there
                await self._instance.clock.sleep(BEGIN_PAUSE_S)
            return FROM_FIRST
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        begin = broker_pb.ConsumeBegin()
        begin.CopyFrom(self._begin)
        begin.whole_topic = True
        begun = await asyncio.gather(*(self._ask(queue, begin) for queue in firsts), return_exceptions=True)
        for queue, result in zip(firsts, begun, strict=True):
            if isinstance(result, BaseException):
                logger.warning("group %s has not begun with %s yet: %s", self._group, queue, result)
        return begin

    async def _commit_to(self, broker_name: str, progress: Mapping[MessageQueue, Progress]) -> bool:
        async with self._committing[broker_name]:
            changed = {queue: one for queue, one in progress.items() if self._committed.get(queue) != one}
            if not changed:
                return True
            try:
                anew = await self._update(broker_name, changed)
            except MQClientError as error:
                logger.warning("offsets of %s were not committed to %s: %s", self._group, broker_name, error)
                return isinstance(error, (BrokerRefusedError, BrokerRejectedError))
            self._committed.update((queue, one) for queue, one in changed.items() if queue not in anew)
        if anew:
            self._set_anew(anew)
        return True

    async def _update(
        self, broker_name: str, progress: Mapping[MessageQueue, Progress]
    ) -> Mapping[MessageQueue, Progress]:
        """Those that have been set anew since this client heard of them."""
        request = broker_pb.UpdateConsumerOffsetRequest(
            group=self._group,
            client_id=self._instance.client_id,
            queues=[to_wire(queue, one) for queue, one in progress.items()],
        )
        answer = await self._instance.calls.to_any(broker_name, UPDATE_CONSUMER_OFFSET, request)
        require_success(answer.response.code, answer.response.remark, broker_name)
        now = of_queues(broker_name, answer.response.queues)
        return {
            queue: now[queue]
            for queue, one in progress.items()
            if queue in now and now[queue].differs_from(one.version, only_newer=answer.by_slave)
        }
