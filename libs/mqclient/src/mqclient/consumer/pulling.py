"""Reads from queues: the subscription to a topic, and which broker of a name serves the pulls.

Pull consumers and operators read in the same way as members of a group; they differ in the group that they name.
Tags are checked twice: the broker compares hashes, and the client the text. A condition in SQL92 is the broker's alone.

Invariant: a replica may be behind, so it is never believed about what it does not have. An offset that it calls
illegal, or a topic that it does not know, is for the master to judge; while there is none the consumer waits and asks
again. What it says of the group's progress is newer than what the consumer has, and counts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_instance import ClientInstance
from mqclient.connection.broker_connections import BrokerConnection
from mqclient.connection.poll_stream import PollEndedError
from mqclient.errors import (
    BrokerUnavailableError,
    BrokerUnreachableError,
    ConnectionLostError,
    IllegalArgumentError,
    MQClientError,
    OutcomeUnknownError,
    require_success,
)
from mqclient.message import MessageExt, MessageQueue
from mqclient.name_servers import MASTER_ID
from mqclient.transport import Method, RequestT, ResponseT
from mqclient.transport.methods import GET_QUEUE_OFFSETS, PULL, SEARCH_OFFSET
from mqproto.codes import ExpressionType, PullStatus, ResponseCode
from mqproto.grpc_options import FRAME_BYTES_TARGET
from mqproto.names import IllegalNameError, check_topic
from mqproto.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, PropertiesError
from mqproto.record import RecordError, iter_sealed_records

logger = logging.getLogger("mqclient.pulling")

ALL = "*"
OR = "||"

AGAIN_S = 1.0  # between two questions to a replica that has nothing, and does not wait until it has

Ask = Callable[[BrokerConnection], Awaitable[broker_pb.PullResponse]]


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """What to subscribe to, in one of two languages. A plain string is an expression of tags."""

    expression_type: ExpressionType
    expression: str

    @classmethod
    def by_tag(cls, expression: str) -> MessageSelector:
        """All messages ("*"), or those with one of the tags in "A || B"."""
        return cls(ExpressionType.TAG, expression)

    @classmethod
    def by_sql(cls, expression: str) -> MessageSelector:
        """Those whose properties fulfil a condition, such as "amount > 100 AND region IN ('east', 'west')".

        mqfilter says what can be written. The broker evaluates it, if its configuration has enablePropertyFilter=true,
        and rejects what it cannot parse, with the place of the error.
        """
        return cls(ExpressionType.SQL92, expression)


@dataclass(frozen=True, slots=True)
class Subscription:
    """`tags` is empty for everything, and for SQL92."""

    topic: str
    expression: str
    expression_type: ExpressionType = ExpressionType.TAG
    tags: frozenset[str] = frozenset()

    def matches(self, message: MessageExt) -> bool:
        """The exact check of tags; what cannot be read is the listener's business, and SQL92 the broker's."""
        if not self.tags:
            return True
        try:
            return message.tag in self.tags
        except PropertiesError:
            return True


def parse_subscription(topic: str, wanted: str | MessageSelector | None) -> Subscription:
    """The subscription to what is `wanted` of the topic; None is everything.

    Raises IllegalArgumentError with what is allowed.
    """
    try:
        check_topic(topic)
    except IllegalNameError as error:
        raise IllegalArgumentError(str(error)) from error
    selector = MessageSelector.by_tag(wanted or ALL) if isinstance(wanted, str | None) else wanted
    if not isinstance(selector, MessageSelector):
        raise IllegalArgumentError(
            f"a subscription to {topic} has to be a tag expression, a MessageSelector or None, not {wanted!r}"
        )
    if not isinstance(selector.expression, str):
        raise IllegalArgumentError(f"the expression of a MessageSelector has to be text, not {selector.expression!r}")
    if selector.expression_type is ExpressionType.SQL92:
        return _parse_sql(topic, selector.expression)
    return _parse_tags(topic, selector.expression)


def _parse_tags(topic: str, expression: str) -> Subscription:
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic, ALL)
    tags = [tag.strip() for tag in text.split(OR) if tag.strip()]
    if not tags:
        raise IllegalArgumentError(f"the tag expression {expression!r} has no tag; write {ALL!r} for every message")
    for tag in tags:
        if tag == ALL or NAME_VALUE_SEPARATOR in tag or PROPERTY_SEPARATOR in tag:
            raise IllegalArgumentError(f"the tag expression {expression!r} is not {ALL!r} and not like 'A {OR} B'")
    return Subscription(topic, f" {OR} ".join(sorted(set(tags))), tags=frozenset(tags))


def _parse_sql(topic: str, expression: str) -> Subscription:
    text = expression.strip()
    if not text:
        raise IllegalArgumentError('the SQL92 expression is empty; write a condition, such as "amount > 100"')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise IllegalArgumentError(f"the SQL92 expression is not text that UTF-8 can hold: {error.reason}") from error
    return Subscription(topic, text, ExpressionType.SQL92)


class Asked(Protocol):
    """A broker, or the brokers that serve a broker name."""

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT) -> ResponseT: ...


@dataclass(frozen=True, slots=True)
class PullResult:
    """What one pull found (mechanism C6). `next_begin_offset` is where to go on, whatever the status.

    FOUND: there are `messages`. NO_MATCHED_MSG: what was looked at is not what was wanted. NO_NEW_MSG: the end of the
    queue. OFFSET_ILLEGAL: the offset lies below `min_offset` or beyond `max_offset`.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[MessageExt, ...]


@dataclass(frozen=True, slots=True)
class PulledFrame:
    """What one pull found, untouched: `records` lie end to end as their broker keeps them, or are empty.

    The rest is as of PullResult. A filter has passed over what its broker is sure of, and nothing has been checked
    since: iter_sealed_records proves the records, and an expression of tags was compared by hashes only.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes


async def pull_from(
    connection: BrokerConnection,
    group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    *,
    max_messages: int,
    block_s: float = 0.0,
    guard_s: float = 0.0,
) -> PullResult:
    """Messages of the queue from `offset` on, in the name of `group`.

    With `block_s` the broker may wait so long for something to give, and the client waits for `guard_s` at most.
    Raises IllegalArgumentError, the broker's rejection, and MQClientError when there is no answer.
    """
    request = pull_request(group, queue, offset, subscription, max_messages)
    answer = await ask_for(request, connection, block_s=block_s, guard_s=guard_s)
    require_success(answer.code, answer.remark, queue.broker_name)
    return pull_result(answer, queue, subscription)


async def ask_for(
    request: broker_pb.PullRequest, connection: BrokerConnection, *, block_s: float, guard_s: float
) -> broker_pb.PullResponse:
    """The broker's answer, whatever it is; at once, or within `block_s`. Raises MQClientError when there is none."""
    if block_s > 0:
        return await connection.poll.pull(request, suspend_s=block_s, guard_s=guard_s)
    return await connection.unary(PULL, request)


def pull_result(answer: broker_pb.PullResponse, queue: MessageQueue, subscription: Subscription) -> PullResult:
    """What is wanted of an answer. Raises ConnectionLostError when its bytes are damaged."""
    wanted = [message for message in messages_of(answer.records, queue.broker_name) if subscription.matches(message)]
    status = PullStatus(answer.status)
    if status is PullStatus.FOUND and not wanted:  # the broker compares hashes of tags only
        status = PullStatus.NO_MATCHED_MSG
    return PullResult(status, answer.next_begin_offset, answer.min_offset, answer.max_offset, tuple(wanted))


def pulled_frame(answer: broker_pb.PullResponse) -> PulledFrame:
    """All of an answer, and nothing looked at."""
    status = PullStatus(answer.status)
    return PulledFrame(status, answer.next_begin_offset, answer.min_offset, answer.max_offset, answer.records)


async def offsets_of(connection: Asked, queue: MessageQueue) -> tuple[int, int]:
    """(first offset that can be read, offset of the next message to come). Raises as `pull_from`."""
    answer = await connection.unary(GET_QUEUE_OFFSETS, broker_pb.GetQueueOffsetsRequest(queue=reference(queue)))
    require_success(answer.code, answer.remark, queue.broker_name)
    return answer.min_offset, answer.max_offset


async def offset_at(connection: Asked, queue: MessageQueue, timestamp_ms: int) -> int:
    """The first offset that was stored at or after the time; the queue's end when all are older.

    Raises as `pull_from`.
    """
    request = broker_pb.SearchOffsetRequest(queue=reference(queue), timestamp_ms=timestamp_ms)
    answer = await connection.unary(SEARCH_OFFSET, request)
    require_success(answer.code, answer.remark, queue.broker_name)
    return answer.offset


def pull_request(
    group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    max_messages: int,
    *,
    version: int | None = None,
) -> broker_pb.PullRequest:
    """For what follows `offset`, at most a frame of it. Raises IllegalArgumentError.

    With the `version` of its progress a member of the group gets no messages when that has another one by now.
    """
    if max_messages < 1:
        raise IllegalArgumentError(f"{max_messages} messages; ask for 1 at least")
    return broker_pb.PullRequest(
        group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_messages=max_messages,
        max_bytes=FRAME_BYTES_TARGET,
        expression=subscription.expression,
        expression_type=subscription.expression_type,
        version=version,
    )


def reference(queue: MessageQueue) -> common_pb.QueueRef:
    """The queue as its own broker calls it."""
    return common_pb.QueueRef(topic=queue.topic, queue_id=queue.queue_id)


def messages_of(records: bytes, broker_name: str) -> list[MessageExt]:
    """The messages in an answer of this broker. Raises ConnectionLostError when the bytes are damaged."""
    try:
        return [MessageExt(record, broker_name) for record in iter_sealed_records(records)]
    except RecordError as error:
        raise ConnectionLostError(f"the answer of {broker_name} was damaged on its way: {error}") from error


class PullFromWhichNode:
    """Which broker of a name serves the pulls of a queue of one consumer (RocketMQ's pullFromWhichNodeTable).

    The one that the queue's last answer has suggested, else the master, else a replica; one that is not in the route,
    or could not be reached, is passed over for a while. Where to go on is the consumer's own knowledge, so nothing is
    lost by a change. `instance` knows which can be reached.

    With `prefers_replicas` no suggestion counts: a replica is asked where there is one, and its master for what the
    replica has not got.
    """

    def __init__(self, instance: ClientInstance, *, prefers_replicas: bool = False) -> None:
        self._instance = instance
        self._prefers_replicas = prefers_replicas
        self._suggested: dict[MessageQueue, int] = {}

    def reader(self, queue: MessageQueue) -> tuple[int, BrokerConnection]:
        """The id of the broker that serves the queue now, and its connection.

        Raises BrokerUnreachableError when no route names a broker of that name.
        """
        found = self._instance.readers(queue.broker_name, self._wanted(queue))
        if not found:
            raise BrokerUnreachableError(f"no address of broker {queue.broker_name!r} is known")
        broker_id, address = found[0]
        return broker_id, self._instance.connection_to(address)

    async def pull(self, queue: MessageQueue, offset: int, ask: Ask, *, wait_s: float) -> broker_pb.PullResponse:
        """The answer of the first broker that can give one.

        What a replica has not got is NO_NEW_MSG, after up to `wait_s`. Raises what the last of them raised, and
        BrokerUnavailableError or BrokerRejectedError for an answer that is no success.
        """
        clock = self._instance.clock
        while True:
            broker_id, connection = self.reader(queue)
            began = clock.monotonic()
            try:
                response = await ask(connection)
                require_success(response.code, response.remark, queue.broker_name)
            except MQClientError as error:
                await self._failed(queue, broker_id, connection, error)
                continue
            self._remember(queue, broker_id, offset, response)
            if broker_id == MASTER_ID:
                return response
            if self._brings_on(queue, offset, response):
                return response
            took_s = clock.monotonic() - began
            if took_s >= AGAIN_S or self.reader(queue)[0] != MASTER_ID:
                await clock.sleep(max(0.0, min(AGAIN_S, wait_s) - took_s))
                return response

    def _wanted(self, queue: MessageQueue) -> int:
        if self._prefers_replicas and queue not in self._suggested:
            replicas = [id_ for id_, _ in self._instance.readers(queue.broker_name) if id_ != MASTER_ID]
            return replicas[0] if replicas else MASTER_ID
        return self._suggested.get(queue, MASTER_ID)

    def _remember(self, queue: MessageQueue, broker_id: int, offset: int, response: broker_pb.PullResponse) -> None:
        """The broker to ask next."""
        if not self._prefers_replicas:
            self._suggested[queue] = response.suggest_broker_id
        elif broker_id == MASTER_ID or response.next_begin_offset > offset:
            self._suggested.pop(queue, None)
        else:
            self._suggested[queue] = MASTER_ID

    def _brings_on(self, queue: MessageQueue, offset: int, response: broker_pb.PullResponse) -> bool:
        """Reduce a replica's answer to what a replica can know; False when the consumer would not advance."""
        if response.HasField("progress"):
            return True
        if response.status == broker_pb.OFFSET_ILLEGAL:
            logger.info("a replica has no offset %d of %s; its master is asked", offset, queue)
            response.status, response.next_begin_offset = broker_pb.NO_NEW_MSG, offset
            self._suggested[queue] = MASTER_ID
        response.next_begin_offset = max(offset, response.next_begin_offset)
        return response.next_begin_offset > offset

    async def _failed(
        self, queue: MessageQueue, broker_id: int, connection: BrokerConnection, error: MQClientError
    ) -> None:
        """Return when another broker can be asked at once. Raises the error when not."""
        if isinstance(error, PollEndedError):
            return
        code = error.code if isinstance(error, BrokerUnavailableError) else None
        unknown_to_replica = code == ResponseCode.TOPIC_NOT_EXIST and broker_id != MASTER_ID
        cannot_serve = isinstance(error, (BrokerUnreachableError, OutcomeUnknownError))
        if not (cannot_serve or unknown_to_replica or code == ResponseCode.NOT_LEADER_FOR_QUEUE):
            raise error
        await self._instance.unreachable(connection.address)
        following = self.reader(queue)[1]
        if following is connection or self._instance.is_passed_over(following.address):
            if unknown_to_replica:
                raise BrokerUnreachableError(f"there is no master to ask: {error}") from error
            raise error
        logger.info("%s is pulled from %s now: %s", queue, following.address, error)
