"""Living members of consumer groups: who they are, how they are, and one message for one of them (MISSION L11-L13)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.admin.asking import AdminCalls, Target, answer_of, on_each
from mqclient.consumer.consume_service import TopicConsumeStats
from mqclient.consumer.listener import ConsumeFromWhere, MessageModel
from mqclient.message import MessageExt, MessageQueue, parse_offset_message_id
from mqclient.transport.methods import CONSUME_MESSAGE_DIRECTLY, GET_CONSUMER_CONNECTIONS, GET_CONSUMER_RUNNING_INFO
from mqproto.codes import ResponseCode

# A little more than the broker waits for the member.
RUNNING_INFO_TIMEOUT_S = 6.0
CONSUME_DIRECTLY_TIMEOUT_S = 32.0
_LACKING = {ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}


class ConsumeResult(IntEnum):
    """What a listener made of a message that it got directly, with RocketMQ's names."""

    CR_UNSPECIFIED = 0
    CR_SUCCESS = 1
    CR_LATER = 2
    CR_THROW_EXCEPTION = 3


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """What a member wants of one topic; `expression_type` is TAG or SQL92."""

    topic: str
    expression: str
    expression_type: str


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """How a member consumes; members of a group have it in common, but for where they begin (MISSION C4)."""

    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    orderly: bool
    subscriptions: tuple[SubscriptionData, ...]


@dataclass(frozen=True, slots=True)
class ConsumerConnection:
    """A member as its newest heartbeat tells, and the brokers that know it, sorted."""

    client_id: str
    data: ConsumerData
    last_heartbeat_timestamp_ms: int
    broker_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo:
    """One queue at the member that consumes it.

    `commit_offset` is the smallest unfinished offset, `pull_offset` the next one to be pulled; `cached_messages` and
    `cached_bytes` are pulled and not finished; `locked` says of an orderly consumer whether it may consume the queue
    now. Timestamps are 0 for never.
    """

    queue: MessageQueue
    commit_offset: int
    pull_offset: int
    cached_messages: int
    cached_bytes: int
    locked: bool
    last_pull_timestamp_ms: int
    last_consume_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo:
    """A member as it is now. `consume_concurrency` is how many listeners run at the same time, at most."""

    client_id: str
    data: ConsumerData
    start_timestamp_ms: int
    consume_concurrency: int
    suspended: bool
    queues: tuple[ProcessQueueInfo, ...]
    stats: tuple[TopicConsumeStats, ...]


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyResult:
    """What came of a message; `remark` says what was raised."""

    result: ConsumeResult
    remark: str
    spent_ms: int


class ConsumerAdmin(AdminCalls):
    """Calls about the living members of consumer groups."""

    async def consumer_connections(self, group: str) -> list[ConsumerConnection]:
        """The group's living members over all masters, by client id.

        Raises NoRouteError when there is no broker, SUBSCRIPTION_GROUP_NOT_EXIST as a refusal when no broker knows the
        group, and the first other refusal.
        """
        request = admin_pb.GetConsumerConnectionsRequest(group=group)
        answers = await on_each(
            await self._targets(),
            lambda target: answer_of(target, GET_CONSUMER_CONNECTIONS, request),
            passing_over={ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST},
        )
        newest: dict[str, admin_pb.ConsumerConnection] = {}
        brokers: dict[str, list[str]] = {}
        for target, answer in answers:
            for one in answer.connections:
                known = newest.setdefault(one.client_id, one)
                if one.last_heartbeat_timestamp_ms > known.last_heartbeat_timestamp_ms:
                    newest[one.client_id] = one
                brokers.setdefault(one.client_id, []).append(target.name)
        return [
            ConsumerConnection(
                client_id, _data(one.data), one.last_heartbeat_timestamp_ms, tuple(sorted(brokers[client_id]))
            )
            for client_id, one in sorted(newest.items())
        ]

    async def consumer_running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """How the member is, as it says itself: each master asks it for the queues that it has of that master.

        Raises NoRouteError when there is no broker, CONSUMER_NOT_ONLINE as a refusal when no broker has this member or
        hears of it in time, and the first other refusal.
        """
        request = admin_pb.GetConsumerRunningInfoRequest(group=group, client_id=client_id)
        answers = await on_each(
            await self._targets(),
            lambda target: answer_of(target, GET_CONSUMER_RUNNING_INFO, request, RUNNING_INFO_TIMEOUT_S),
            passing_over=_LACKING,
        )
        _, newest = answers[-1]
        queues = [_queue(one, target.name) for target, answer in answers for one in answer.info.queues]
        return ConsumerRunningInfo(
            newest.info.client_id,
            _data(newest.info.data),
            newest.info.start_timestamp_ms,
            newest.info.consume_concurrency,
            newest.info.suspended,
            tuple(sorted(queues, key=lambda info: info.queue)),
            tuple(_stats(one) for one in sorted(newest.info.stats, key=lambda stats: stats.topic)),
        )

    async def consume_message_directly(
        self, group: str, client_id: str, message: MessageExt | str
    ) -> ConsumeDirectlyResult:
        """Have one member's listener consume one message now; no offset moves, and what fails does not come again.

        `message` may be its id by position (MISSION M8). It has to be of a topic to which the member subscribes, or one
        of the group's retries or dead letters. Raises IllegalArgumentError for an id that is none,
        CONSUMER_NOT_ONLINE as a refusal when the member is not there or does not answer within 30 s, and other
        refusals.
        """
        target, log_offset = await self._holder_of(message)
        request = admin_pb.ConsumeMessageDirectlyRequest(group=group, client_id=client_id, log_offset=log_offset)
        answer = await answer_of(target, CONSUME_MESSAGE_DIRECTLY, request, CONSUME_DIRECTLY_TIMEOUT_S)
        return ConsumeDirectlyResult(ConsumeResult(answer.result.result), answer.result.remark, answer.result.spent_ms)

    async def _holder_of(self, message: MessageExt | str) -> tuple[Target, int]:
        """The broker that has the message, and where it stands in that broker's log."""
        if isinstance(message, str):
            host, port, log_offset = parse_offset_message_id(message)
            return self._target_at(f"{host}:{port}"), log_offset
        for target in await self._targets():
            if target.name == message.broker_name:
                return target, message.log_offset
        return self._target_at(message.broker_name), message.log_offset  # `view_message` knows an address only


def _data(data: broker_pb.ConsumerData) -> ConsumerData:
    return ConsumerData(
        MessageModel[broker_pb.MessageModel.Name(data.message_model)],
        ConsumeFromWhere[broker_pb.ConsumeFromWhere.Name(data.consume_from_where)],
        data.orderly,
        tuple(
            SubscriptionData(one.topic, one.expression or "*", one.expression_type or "TAG")
            for one in sorted(data.subscriptions, key=lambda subscription: subscription.topic)
        ),
    )


def _queue(info: broker_pb.ProcessQueueInfo, broker_name: str) -> ProcessQueueInfo:
    return ProcessQueueInfo(
        MessageQueue(info.topic, broker_name, info.queue_id),
        info.commit_offset,
        info.pull_offset,
        info.cached_messages,
        info.cached_bytes,
        info.locked,
        info.last_pull_timestamp_ms,
        info.last_consume_timestamp_ms,
    )


def _stats(stats: broker_pb.TopicConsumeStats) -> TopicConsumeStats:
    return TopicConsumeStats(
        stats.topic,
        stats.pull_rt_ms,
        stats.pull_tps,
        stats.consume_rt_ms,
        stats.consume_ok_tps,
        stats.consume_failed_tps,
        stats.consume_failed_messages,
    )
