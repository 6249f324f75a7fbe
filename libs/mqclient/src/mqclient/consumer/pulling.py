"""What a queue holds, asked of its broker without being a member of anything (MISSION C5, C6, C23, Q1).

Pull consumers and operators read in the same way; they differ in the group that they name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.connection.broker_connections import BrokerConnection
from mqclient.consumer.subscription import Subscription
from mqclient.errors import ConnectionLostError, IllegalArgumentError, require_success
from mqclient.message import MessageExt, MessageQueue
from mqclient.transport import Method, RequestT, ResponseT
from mqclient.transport.methods import GET_QUEUE_OFFSETS, PULL, SEARCH_OFFSET
from mqproto.codes import PullStatus
from mqproto.grpc_options import FRAME_BYTES_TARGET
from mqproto.record import RecordError
from mqproto.sealed_record import iter_sealed_records


class Asked(Protocol):
    """A broker, or whoever serves a broker name."""

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT) -> ResponseT: ...


@dataclass(frozen=True, slots=True)
class PullResult:
    """What one pull found (MISSION C6). `next_begin_offset` is where to go on, whatever the status.

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
    Raises IllegalArgumentError, the broker's refusal, and MQClientError when there is no answer.
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
