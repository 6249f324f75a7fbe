"""Consumer groups: their settings, progress, offset resets, and active members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.admin.brokers import AdminCalls, Target, answer_of, on_each
from mqclient.consumer.consume_service import TopicConsumeStats
from mqclient.consumer.listener import ConsumeFromWhere, MessageModel
from mqclient.errors import IllegalArgumentError
from mqclient.message import MessageExt, MessageQueue, parse_offset_message_id
from mqclient.transport.methods import (
    CONSUME_MESSAGE_DIRECTLY,
    DELETE_SUBSCRIPTION_GROUP,
    GET_CONSUME_STATS,
    GET_CONSUMER_CONNECTIONS,
    GET_CONSUMER_RUNNING_INFO,
    LIST_SUBSCRIPTION_GROUPS,
    RESET_CONSUMER_OFFSET,
    UPDATE_SUBSCRIPTION_GROUP,
)
from mqproto.codes import ResponseCode
from mqproto.names import IllegalNameError, check_group, check_group_name
from mqproto.values import to_message, to_value

QUEUE_END = -1  # as a time: behind the last message of each queue

# A little more than the broker waits for the member.
RUNNING_INFO_TIMEOUT_S = 6.0
CONSUME_DIRECTLY_TIMEOUT_S = 32.0
_LACKING = {ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """A consumer group as one broker has it, with RocketMQ's settings and defaults.

    `consume_enable`: its members may pull at all. `consume_broadcast_enable`: they may join with MessageModel
    BROADCASTING. `retry_max_times`: tries before a message is a dead letter. `retry_queue_count`: queues of its retry
    topic; 0: what is given back is not tried again. `different_subscriptions_allowed`, which RocketMQ does not have:
    members may subscribe differently, as they do while a change of the subscription is rolled out (mechanism C4).
    """

    group: str
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_max_times: int = 16
    retry_queue_count: int = 1
    different_subscriptions_allowed: bool = False


@dataclass(frozen=True, slots=True)
class QueueConsumeStats:
    """The progress of a group in one queue.

    `broker_offset` is that of the next message to come, `consumer_offset` that of the next one to be consumed, -1 when
    the group has never committed one; `last_timestamp_ms` is when the last consumed message was stored, 0 when that is
    not known any more. `finished_beyond` counts the messages behind `consumer_offset` that are finished all the same.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp_ms: int
    finished_beyond: int = 0

    @property
    def lag(self) -> int:
        """Messages behind the offset; without a committed offset all that the queue ever had, as RocketMQ counts."""
        return self.broker_offset - max(0, self.consumer_offset)


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """The progress of a group, over all masters: its queues, sorted, and its active members."""

    group: str
    queues: tuple[QueueConsumeStats, ...]
    client_ids: tuple[str, ...]

    @property
    def lag(self) -> int:
        """Messages that wait, over all queues."""
        return sum(queue.lag for queue in self.queues)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A group's offset in one queue before (-1: there was none) and after a reset."""

    before: int
    now: int


class GroupAdmin(AdminCalls):
    """Calls about consumer groups."""

    async def update_subscription_group(
        self, config: SubscriptionGroupConfig, *, cluster_name: str | None = None, broker_address: str | None = None
    ) -> None:
        """Create or change the group, durably.

        Raises IllegalArgumentError, NoRouteError when there is no broker, and the first rejection of a broker.
        """
        _check_group(config.group)
        request = admin_pb.UpdateSubscriptionGroupRequest(config=to_message(admin_pb.SubscriptionGroupConfig, config))
        await on_each(
            await self._targets(cluster_name, broker_address),
            lambda target: answer_of(target, UPDATE_SUBSCRIPTION_GROUP, request),
        )

    async def delete_subscription_group(
        self,
        group: str,
        *,
        clean_offsets: bool = False,
        cluster_name: str | None = None,
        broker_address: str | None = None,
    ) -> None:
        """Delete the group's settings, durably; with `clean_offsets` its offsets and its retry topic too.

        Its dead letters stay: `delete_topic("%DLQ%" + group)` deletes them. A broker without the group is passed over;
        when none has it, SUBSCRIPTION_GROUP_NOT_EXIST is raised; NO_PERMISSION while it has active members. Raises
        IllegalArgumentError, NoRouteError when there is no broker, and the first other rejection of a broker.
        """
        _check_group(group, check_group_name)
        request = admin_pb.DeleteSubscriptionGroupRequest(group=group, clean_offsets=clean_offsets)
        await on_each(
            await self._targets(cluster_name, broker_address),
            lambda target: answer_of(target, DELETE_SUBSCRIPTION_GROUP, request),
            passing_over={ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST},
        )

    async def subscription_groups(self, broker_address: str) -> list[SubscriptionGroupConfig]:
        """Every consumer group of one broker, by name. Raises MQClientError when it does not answer."""
        target = self._target_at(broker_address)
        answer = await target.ask(LIST_SUBSCRIPTION_GROUPS, admin_pb.ListSubscriptionGroupsRequest())
        return [to_value(SubscriptionGroupConfig, one) for one in answer.groups]

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """The group's progress in `topic`, or in every topic for which it has an offset.

        Raises NoRouteError when there is no broker, SUBSCRIPTION_GROUP_NOT_EXIST as a rejection when no broker knows
        the group, and the first other rejection.
        """
        request = admin_pb.GetConsumeStatsRequest(group=group, topic=topic or "")
        answers = await on_each(
            await self._targets(),
            lambda target: answer_of(target, GET_CONSUME_STATS, request),
            passing_over={ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST},
        )
        queues = [
            to_value(QueueConsumeStats, one, queue=MessageQueue(one.topic, target.name, one.queue_id))
            for target, answer in answers
            for one in answer.queues
        ]
        members = {client_id for _, answer in answers for client_id in answer.client_ids}
        return ConsumeStats(group, tuple(sorted(queues, key=lambda stats: stats.queue)), tuple(sorted(members)))

    async def reset_offset_by_time(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, OffsetChange]:
        """Reset the group's offsets to the first messages stored at or after `timestamp_ms` (-1: to the end of each
        queue).

        Without `force` an offset only moves back. The offsets are durable and the active members have been told on
        return; what they commit late changes nothing. A broker that lacks the topic or the group is passed over, and
        its queues are not in the result; when all lack it, TOPIC_NOT_EXIST or SUBSCRIPTION_GROUP_NOT_EXIST is raised.
        Raises IllegalArgumentError, NoRouteError when there is no broker, and the first other rejection.
        """
        _check_group(group)
        if timestamp_ms < QUEUE_END:
            raise IllegalArgumentError(f"{timestamp_ms} is no time: milliseconds since 1970, or -1 for the end")
        request = admin_pb.ResetConsumerOffsetRequest(group=group, topic=topic, timestamp_ms=timestamp_ms, force=force)
        lacking = {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
        answers = await on_each(
            await self._targets(),
            lambda target: answer_of(target, RESET_CONSUMER_OFFSET, request),
            passing_over=lacking,
        )
        return {queue: change for target, answer in answers for queue, change in _changes(topic, target, answer)}

    async def reset_offset_by_queue(
        self, group: str, offsets: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, OffsetChange]:
        """Reset the group's offsets in these queues, forward as well as back; its other queues stay as they are.

        Durable, and told to the active members, as with `reset_offset_by_time`. Returns the changes of these queues.
        Raises IllegalArgumentError, NoRouteError when no registered broker has a queue, and the first rejection of a
        broker, which has changed nothing of that topic then.
        """
        _check_group(group)
        if any(offset < 0 for offset in offsets.values()):
            raise IllegalArgumentError(f"offsets are 0 and more: {dict(sorted(offsets.items()))}")
        requests: defaultdict[tuple[str, str], list[common_pb.QueueOffset]] = defaultdict(list)
        for queue, offset in sorted(offsets.items()):
            one = common_pb.QueueOffset(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
            requests[queue.broker_name, queue.topic].append(one)
        targets = {name: await self._target_named(name) for name, _ in requests}
        changes: dict[MessageQueue, OffsetChange] = {}
        for (name, topic), wanted in requests.items():
            request = admin_pb.ResetConsumerOffsetRequest(group=group, topic=topic, offsets=wanted)
            answer = await answer_of(targets[name], RESET_CONSUMER_OFFSET, request)
            changes |= dict(_changes(topic, targets[name], answer))
        return changes


def _changes(
    topic: str, target: Target, answer: admin_pb.ResetConsumerOffsetResponse
) -> list[tuple[MessageQueue, OffsetChange]]:
    return [
        (MessageQueue(topic, target.name, one.queue_id), OffsetChange(one.offset_before, one.offset))
        for one in answer.queues
    ]


def _check_group(group: str, check: Callable[[str], None] = check_group) -> None:
    try:
        check(group)
    except IllegalNameError as error:
        raise IllegalArgumentError(str(error)) from error


class ConsumeResult(IntEnum):
    """The outcome of a message that a listener got directly, with RocketMQ's names."""

    CR_UNSPECIFIED = 0
    CR_SUCCESS = 1
    CR_LATER = 2
    CR_THROW_EXCEPTION = 3


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """A member's subscription to one topic; `expression_type` is TAG or SQL92."""

    topic: str
    expression: str
    expression_type: str


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """How a member consumes; members of a group have it in common, but for where they begin (mechanism C4)."""

    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    orderly: bool
    subscriptions: tuple[SubscriptionData, ...]


@dataclass(frozen=True, slots=True)
class ConsumerConnection:
    """A member by its newest heartbeat, and the brokers that know it, sorted."""

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
    """The outcome of a message; `remark` says what was raised."""

    result: ConsumeResult
    remark: str
    spent_ms: int


class ConsumerAdmin(AdminCalls):
    """Calls about the active members of consumer groups."""

    async def consumer_connections(self, group: str) -> list[ConsumerConnection]:
        """The group's active members over all masters, by client id.

        Raises NoRouteError when there is no broker, SUBSCRIPTION_GROUP_NOT_EXIST as a rejection when no broker knows
        the group, and the first other rejection.
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
        """The member's own report of its state: each master asks it for the queues that it has of that master.

        Raises NoRouteError when there is no broker, CONSUMER_NOT_ONLINE as a rejection when no broker has this member
        or hears of it in time, and the first other rejection.
        """
        request = admin_pb.GetConsumerRunningInfoRequest(group=group, client_id=client_id)
        answers = await on_each(
            await self._targets(),
            lambda target: answer_of(target, GET_CONSUMER_RUNNING_INFO, request, RUNNING_INFO_TIMEOUT_S),
            passing_over=_LACKING,
        )
        _, newest = answers[-1]
        queues = [
            to_value(ProcessQueueInfo, one, queue=MessageQueue(one.topic, target.name, one.queue_id))
            for target, answer in answers
            for one in answer.info.queues
        ]
        return ConsumerRunningInfo(
            newest.info.client_id,
            _data(newest.info.data),
            newest.info.start_timestamp_ms,
            newest.info.consume_concurrency,
            newest.info.suspended,
            tuple(sorted(queues, key=lambda info: info.queue)),
            tuple(to_value(TopicConsumeStats, one) for one in sorted(newest.info.stats, key=lambda stats: stats.topic)),
        )

    async def consume_message_directly(
        self, group: str, client_id: str, message: MessageExt | str
    ) -> ConsumeDirectlyResult:
        """Have one member's listener consume one message now; no offset moves, and what fails does not come again.

        `message` may be its id by position (mechanism M8). It has to be of a topic to which the member subscribes, or
        one of the group's retries or dead letters. Raises IllegalArgumentError for an id that is none,
        CONSUMER_NOT_ONLINE as a rejection when the member is not there or does not answer within 30 s, and other
        rejections.
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
