"""A group's offsets, kept by the brokers: its progress in each queue.

A broker merges reports with what it has, so that a late report never moves an offset back; an offset reset is
recognised by its version. While a master is away its replica is asked and told, and the brokers join what both have
heard; a replica that has an older version is only late.

Invariants: the ranges of a Progress ascend, are apart from each other, and lie beyond the offset. Progress goes to the
broker only when it differs from what is there as far as this client knows; one commit at a time is under way to a
broker. A pull consumer reports an offset with the version that it has last asked for or set, so that it does not undo a
reset since; only `set_to` sets an offset whatever the broker has, and only the master does that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_instance import ClientInstance
from mqclient.connection.broker_connections import Answer, BrokerCalls
from mqclient.consumer.pulling import reference
from mqclient.errors import BrokerRejectedError, BrokerUnavailableError, MQClientError, require_success
from mqclient.lifecycle import SharedCalls
from mqclient.message import MessageQueue, by_broker
from mqclient.transport.methods import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET
from mqproto.names import RETRY_PREFIX

logger = logging.getLogger("mqclient.offsets")

RANGES_MAX = 4_096  # of one queue, as many as brokers keep: what is finished behind them comes again after a crash

FROM_FIRST = broker_pb.ConsumeBegin(where=broker_pb.CONSUME_FROM_FIRST_OFFSET)

# A member of a new group begins at all brokers at once: where none has begun after this time, the topic is new there.
BEGIN_PAUSE_S = 1.0

Calls = Callable[[MessageQueue], Awaitable[BrokerCalls]]


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything below `offset` is finished, and so are the ranges [begin, end).

    `version` grows with each offset reset; what is reported with another one does not count. What was sent back is
    finished because its retry stands in the log: it depends on the broker's log up to `log_end`.
    """

    offset: int
    finished: tuple[tuple[int, int], ...] = ()
    version: int = 0
    log_end: int = 0

    def differs_from(self, version: int, *, only_newer: bool) -> bool:
        """Whether the offset was reset; with `only_newer`, an older version is a late report and no reset."""
        return self.version > version if only_newer else self.version != version


def from_wire(
    answer: broker_pb.QueueProgress | broker_pb.QueryConsumerOffsetResponse,
) -> Progress:
    """What a broker says."""
    finished = tuple((one.begin, one.end) for one in answer.finished)
    return Progress(answer.offset, finished, answer.version, answer.log_end)


def of_queues(broker_name: str, queues: Iterable[broker_pb.QueueProgress]) -> dict[MessageQueue, Progress]:
    """What the broker of this name says of its queues."""
    return {MessageQueue(one.topic, broker_name, one.queue_id): from_wire(one) for one in queues}


def to_wire(queue: MessageQueue, progress: Progress) -> broker_pb.QueueProgress:
    """What a broker is told of the queue."""
    return broker_pb.QueueProgress(
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=progress.offset,
        finished=[broker_pb.OffsetRange(begin=begin, end=end) for begin, end in progress.finished],
        version=progress.version,
        log_end=progress.log_end,
    )


def gaps_between(offsets: Iterable[int], end: int) -> tuple[tuple[int, int], ...]:
    """The ranges below `end` that lie between the ascending offsets: what is finished behind what is not.

    Of more than RANGES_MAX the lowest ones, which the offset reaches first.
    """
    gaps: list[tuple[int, int]] = []
    following: int | None = None
    for offset in offsets:
        if following is not None and offset > following:
            gaps.append((following, offset))
            if len(gaps) == RANGES_MAX:
                return tuple(gaps)
        following = offset + 1
    if following is not None and following < end:
        gaps.append((following, end))
    return tuple(gaps)


class FinishedBefore:
    """The ranges that the group had finished when this consumer took the queue over; asked in ascending order."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = list(reversed(ranges))

    def __contains__(self, offset: int) -> bool:
        ranges = self._ranges
        while ranges and ranges[-1][1] <= offset:
            ranges.pop()
        return bool(ranges) and ranges[-1][0] <= offset

    def __bool__(self) -> bool:
        return bool(self._ranges)


ResetOffsets = Callable[[Mapping[MessageQueue, Progress]], None]


class OffsetStore(Protocol):
    """Where a group's offsets are kept: by the brokers (clustering), or on this machine (broadcasting)."""

    async def open(self) -> None:
        """Get ready. Raises IllegalStateError when another process keeps the same offsets."""

    async def begin(self, queue: MessageQueue, *, from_first: bool = False) -> Progress:
        """Where to begin with a queue that was just assigned, `from_first` if nothing is kept of it.

        Raises MQClientError when that cannot be told now.
        """

    async def commit(self, progress: Mapping[MessageQueue, Progress]) -> bool:
        """Keep what has changed. What cannot be kept now is logged; the next commit tries again.

        False when there was no answer, so that the same commit may succeed later.
        """

    def forget(self, queue: MessageQueue) -> None:
        """This consumer does not have the queue any more, or its offset was reset."""

    def invalidate(self) -> None:
        """Resets may have been missed while there was no connection: commit everything next time."""

    async def close(self) -> None:
        """Nothing is committed any more."""


class RemoteBrokerOffsetStore:
    """Reads and writes the offsets of `group`; a group that has none begins at `begin`.

    `reset_offsets` is called with the queues whose offsets were reset elsewhere, and where they go on.
    """

    def __init__(
        self, instance: ClientInstance, group: str, begin: broker_pb.ConsumeBegin, reset_offsets: ResetOffsets
    ) -> None:
        self._instance = instance
        self._group = group
        self._begin = begin
        self._reset_offsets = reset_offsets
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
        """The queue's offset is set elsewhere: by the member it belongs to now, or by an operator."""
        self._committed.pop(queue, None)

    def invalidate(self) -> None:
        """Resets may have been missed while there was no connection: commit everything next time."""
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
                return isinstance(error, (BrokerUnavailableError, BrokerRejectedError))
            self._committed.update((queue, one) for queue, one in changed.items() if queue not in anew)
        if anew:
            self._reset_offsets(anew)
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
            if queue in now and now[queue].differs_from(one.version, only_newer=answer.by_replica)
        }


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
        """The committed offset of this queue; None when there is none."""
        answer = await self._query(broker_pb.QueryConsumerOffsetRequest(group=self._group), queue)
        if answer.code == common_pb.QUERY_NOT_FOUND:
            self._heard[queue] = from_wire(answer)
            return None
        return self._take(queue, answer).offset

    async def begin(self, queue: MessageQueue) -> int:
        """The committed offset; without one the queue's end, from now on and for the whole group."""
        begin = broker_pb.ConsumeBegin(where=broker_pb.CONSUME_FROM_LAST_OFFSET)
        answer = await self._query(broker_pb.QueryConsumerOffsetRequest(group=self._group, begin=begin), queue)
        return self._take(queue, answer).offset

    async def grow(self, offsets: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        """Report that everything below the offsets is finished. A broker that has a larger one keeps it.

        Returns the queues that were left out, because their offset was reset: `query` tells where.
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
                if one.differs_from(self._heard[queue].version, only_newer=answer.by_replica)
            ]
        return left_out

    async def set_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Reset the offsets to exactly these, backwards as well. What is finished beyond is forgotten."""
        for _, part in sorted(by_broker(sorted(offsets))):
            progress = {queue: Progress(offsets[queue]) for queue in part}
            calls = await self._calls(part[0])
            request = self._request(progress, reset_offsets=True)
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
        self, progress: Mapping[MessageQueue, Progress], *, reset_offsets: bool = False
    ) -> broker_pb.UpdateConsumerOffsetRequest:
        return broker_pb.UpdateConsumerOffsetRequest(
            group=self._group,
            client_id=self._client_id,
            queues=[to_wire(queue, one) for queue, one in progress.items()],
            set=reset_offsets,
        )

    async def _report(
        self, some_queue: MessageQueue, request: broker_pb.UpdateConsumerOffsetRequest
    ) -> Answer[broker_pb.UpdateConsumerOffsetResponse]:
        calls = await self._calls(some_queue)
        return await calls.to_any(some_queue.broker_name, UPDATE_CONSUMER_OFFSET, request)


def _told(some_queue: MessageQueue, response: broker_pb.UpdateConsumerOffsetResponse) -> dict[MessageQueue, Progress]:
    """What the broker of this queue has now. Raises its rejection."""
    require_success(response.code, response.remark, some_queue.broker_name)
    return of_queues(some_queue.broker_name, response.queues)
