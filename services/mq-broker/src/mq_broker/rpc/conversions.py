"""Between protobuf messages and the plain values of the processors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.delays import DelayLevels, Lateness
from mq_broker.core.life import LifeEvent
from mq_broker.core.limits import RefusedError
from mq_broker.core.members import ClientGroups, Connection, Consumer, LockedQueue, Subscription
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.core.topics import TopicConfig
from mq_broker.core.transactions import Phase, TransactionState
from mq_broker.processor.backup import BackupEnd, BackupFile, BackupPart
from mq_broker.processor.consuming import Offsets, QueueReport
from mq_broker.processor.group_administration import CommandAnswer, OffsetChange, QueueProgress
from mq_broker.processor.recalling import NewTime, Recalled
from mq_broker.processor.topic_administration import QueueStats
from mq_broker.processor.transactions import Transaction
from mq_broker.schedule.delay_service import WaitingQueue
from mqproto.codes import ResponseCode, TransactionPhase

NO_OFFSET = -1  # on the wire


def pull_query(request: pb.PullRequest, client: str) -> PullQuery:
    return PullQuery(
        request.group,
        request.topic,
        request.queue_id,
        request.queue_offset,
        request.max_messages,
        request.max_bytes,
        request.expression,
        request.expression_type,
        client,
        request.version if request.HasField("version") else None,
    )


def write_pull_result(result: PullResult, response: pb.PullResponse, offsets: Offsets) -> None:
    """Fill the response where it stands: to put one message into another copies it, the records included."""
    response.code = result.code  # type: ignore[assignment]
    response.remark = result.remark
    response.status = result.status  # type: ignore[assignment]
    response.next_begin_offset = result.next_begin_offset
    response.min_offset = result.min_offset
    response.max_offset = result.max_offset
    response.count = result.count
    response.records = result.records
    response.suggest_broker_id = result.suggest_broker_id
    if result.progress is not None:
        response.progress.CopyFrom(queue_progress("", 0, result.progress, offsets.log_needed))


def client_groups(heartbeat: pb.Heartbeat, connection: str) -> ClientGroups:
    return ClientGroups(
        heartbeat.client_id,
        frozenset(producer.group for producer in heartbeat.producers),
        tuple(map(_consumer, heartbeat.consumers)),
        connection,
        heartbeat.incarnation,
    )


def _consumer(data: pb.ConsumerData) -> Consumer:
    return Consumer(
        data.group,
        tuple(Subscription(one.topic, one.expression, one.expression_type) for one in data.subscriptions),
        broadcasting=data.message_model == pb.BROADCASTING,
        orderly=data.orderly,
        consume_from_where=data.consume_from_where,
    )


def _consumer_data(consumer: Consumer) -> pb.ConsumerData:
    return pb.ConsumerData(
        group=consumer.group,
        message_model=pb.BROADCASTING if consumer.broadcasting else pb.CLUSTERING,
        consume_from_where=consumer.consume_from_where,  # type: ignore[arg-type]
        subscriptions=[
            pb.Subscription(topic=one.topic, expression=one.expression, expression_type=one.expression_type)
            for one in consumer.subscriptions
        ],
        orderly=consumer.orderly,
    )


def connection(one: Connection) -> admin_pb.ConsumerConnection:
    return admin_pb.ConsumerConnection(
        client_id=one.client_id,
        data=_consumer_data(one.consumer),
        last_heartbeat_timestamp_ms=one.last_heartbeat_ms,
    )


def command_answer(answer: pb.CommandAnswer) -> CommandAnswer:
    """The answer; its result stays the wire's, for the call that waits for it."""
    result = answer.WhichOneof("result")
    try:
        code = ResponseCode(answer.code)
    except ValueError:
        return CommandAnswer(ResponseCode.SYSTEM_ERROR, f"the client answered {answer.code}: {answer.remark}", None)
    return CommandAnswer(code, answer.remark, getattr(answer, result) if result else None)


def locked_queues(queues: Iterable[common_pb2.QueueRef]) -> list[LockedQueue]:
    return [LockedQueue(one.topic, one.queue_id) for one in queues]


def queue_refs(queues: Iterable[LockedQueue]) -> list[common_pb2.QueueRef]:
    return [common_pb2.QueueRef(topic=one.topic, queue_id=one.queue_id) for one in queues]


def queue_reports(group: str, queues: Iterable[pb.QueueProgress], offsets: Offsets) -> list[QueueReport]:
    """What a member of the group reports, without what depends on a log that this broker does not have."""
    reports = [(_queue_report(one), one.log_end) for one in queues]
    return [report for report, log_end in reports if offsets.has_log_of(group, report, log_end)]


def _queue_report(queue: pb.QueueProgress) -> QueueReport:
    ranges = tuple((one.begin, one.end) for one in queue.finished)
    return queue.topic, queue.queue_id, Progress(queue.offset, ranges, queue.version)


def queue_progress(topic: str, queue_id: int, progress: Progress, log_end: int = 0) -> pb.QueueProgress:
    """What a broker has; it depends on the log up to `log_end`, and an offset that was set on nothing."""
    return pb.QueueProgress(
        topic=topic,
        queue_id=queue_id,
        offset=progress.offset,
        finished=_offset_ranges(progress),
        version=progress.version,
        log_end=log_end,
    )


def consumer_offset(progress: Progress, log_end: int) -> pb.QueryConsumerOffsetResponse:
    return pb.QueryConsumerOffsetResponse(
        offset=progress.offset, finished=_offset_ranges(progress), version=progress.version, log_end=log_end
    )


def _offset_ranges(progress: Progress) -> list[pb.OffsetRange]:
    return [pb.OffsetRange(begin=begin, end=end) for begin, end in progress.ranges]


def reset_command(group: str, queues: Iterable[QueueReport]) -> pb.ResetConsumerOffset:
    return pb.ResetConsumerOffset(group=group, queues=[queue_progress(*queue) for queue in queues])


def topic_config(config: common_pb2.TopicConfig) -> TopicConfig:
    return TopicConfig(config.topic, config.read_queue_count, config.write_queue_count, config.perm)


def topic_config_message(config: TopicConfig) -> common_pb2.TopicConfig:
    return common_pb2.TopicConfig(
        topic=config.topic,
        read_queue_count=config.read_queue_count,
        write_queue_count=config.write_queue_count,
        perm=config.perm,
    )


def queue_stats(stats: QueueStats) -> admin_pb.QueueStats:
    return admin_pb.QueueStats(
        queue_id=stats.queue_id,
        min_offset=stats.min_offset,
        max_offset=stats.max_offset,
        last_update_timestamp_ms=stats.last_update_ms,
        about_bytes=stats.about_bytes,
    )


def subscription_group(config: admin_pb.SubscriptionGroupConfig, known: SubscriptionGroup | None) -> SubscriptionGroup:
    """The group; where the request leaves something out, that is as it is known."""
    broker_id, slowly = (known.broker_id, known.which_broker_when_consume_slowly) if known else (0, 1)
    return SubscriptionGroup(
        config.group,
        config.retry_max_times,
        config.consume_enable,
        config.consume_broadcast_enable,
        config.retry_queue_count,
        config.different_subscriptions_allowed,
        config.broker_id if config.HasField("broker_id") else broker_id,
        config.which_broker_when_consume_slowly if config.HasField("which_broker_when_consume_slowly") else slowly,
    )


def subscription_group_message(group: SubscriptionGroup) -> admin_pb.SubscriptionGroupConfig:
    return admin_pb.SubscriptionGroupConfig(
        group=group.group,
        consume_enable=group.consume_enable,
        consume_broadcast_enable=group.consume_broadcast_enable,
        retry_max_times=group.retry_max_times,
        retry_queue_count=group.retry_queue_count,
        different_subscriptions_allowed=group.different_subscriptions_allowed,
        broker_id=group.broker_id,
        which_broker_when_consume_slowly=group.which_broker_when_consume_slowly,
    )


def queue_consume_stats(progress: QueueProgress) -> admin_pb.QueueConsumeStats:
    return admin_pb.QueueConsumeStats(
        topic=progress.topic,
        queue_id=progress.queue_id,
        broker_offset=progress.broker_offset,
        consumer_offset=_or_none(progress.consumer_offset),
        last_timestamp_ms=progress.last_consumed_ms,
        finished_beyond=progress.finished_beyond,
    )


def reset_offsets(topic: str, offsets: Iterable[common_pb2.QueueOffset]) -> list[tuple[int, int]]:
    """Where the queues of the topic are to go on: (queue id, offset). Raises RefusedError for another topic's."""
    for one in offsets:
        if one.topic not in ("", topic):
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"topic {topic!r} is reset, and not {one.topic!r}")
    return [(one.queue_id, one.offset) for one in offsets]


def offset_change(change: OffsetChange) -> admin_pb.OffsetChange:
    return admin_pb.OffsetChange(queue_id=change.queue_id, offset_before=_or_none(change.before), offset=change.now)


def _or_none(offset: int | None) -> int:
    return NO_OFFSET if offset is None else offset


def life_event(event: LifeEvent) -> admin_pb.LifeEvent:
    """The event; its fields have the wire's names."""
    return admin_pb.LifeEvent(**asdict(event))


def new_time(request: pb.RecallMessageRequest) -> NewTime | None:
    """For when a recalled message is to wait instead; None to remove it."""
    if not request.HasField("reschedule"):
        return None
    if request.WhichOneof("reschedule") == "delay_ms":
        return NewTime(delay_ms=request.delay_ms)
    return NewTime(deliver_ms=request.deliver_timestamp_ms)


def recalled_message(recalled: Recalled) -> pb.RecalledMessage:
    """What became of one message."""
    return pb.RecalledMessage(
        message_id=recalled.message_id,
        outcome=recalled.outcome,  # type: ignore[arg-type]  # an IntEnum with the wire's numbers
        due_timestamp_ms=recalled.due_ms,
    )


def delay_status(queue: WaitingQueue, levels: DelayLevels, lateness: Lateness) -> admin_pb.DelayLevelStatus:
    """How one queue of waiting messages is, and how late its deliveries were."""
    return admin_pb.DelayLevelStatus(
        level=queue.level,
        delay_ms=levels.delay_ms(queue.level) if 0 < queue.level <= levels.highest else 0,
        waiting=queue.waiting,
        delivered=lateness.count,
        lateness_max_ms=lateness.max_ms,
        lateness_p50_ms=lateness.quantile_ms(0.50),
        lateness_p99_ms=lateness.quantile_ms(0.99),
        next_due_timestamp_ms=(queue.next_due_ms or 0) if queue.waiting else 0,
    )


def backup_response(part: BackupPart) -> admin_pb.BackupStoreResponse:
    match part:
        case BackupFile():
            file = admin_pb.BackupFile(path=part.path, size=part.size, full_size=part.full_size)
            return admin_pb.BackupStoreResponse(file=file)
        case BackupEnd():
            end = admin_pb.BackupEnd(
                broker_name=part.broker_name,
                timestamp_ms=part.timestamp_ms,
                log_min_offset=part.log_min_offset,
                log_max_offset=part.log_max_offset,
                files=part.files,
                bytes=part.size,
                crc32=part.crc32,
            )
            return admin_pb.BackupStoreResponse(end=end)
        case _:
            return admin_pb.BackupStoreResponse(content=part)


# Between protobuf messages and the plain values of what an operator asks of transactions.

_PHASES = {
    Phase.PREPARED: TransactionPhase.PREPARED,
    Phase.PARKED: TransactionPhase.PARKED,
    Phase.COMMITTED: TransactionPhase.COMMITTED,
    Phase.ROLLED_BACK: TransactionPhase.ROLLED_BACK,
}


def transaction_phase(phase: Phase) -> admin_pb.TransactionPhase.ValueType:
    """The phase by its number on the wire."""
    return admin_pb.TransactionPhase.ValueType(_PHASES[phase])


def phase_or_none(number: int) -> Phase | None:
    """The phase that the number stands for; None for the unspecified one. Raises RefusedError."""
    if number == admin_pb.TRANSACTION_PHASE_UNSPECIFIED:
        return None
    for phase, known in _PHASES.items():
        if known == number:
            return phase
    raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"{number} is no phase of a transaction; 0 to {len(_PHASES)} are")


def transaction_state(number: int) -> TransactionState:
    """The state that the number stands for. Raises RefusedError."""
    try:
        return TransactionState(number)
    except ValueError:
        sentence = f"{number} is no transaction state; allowed are 0, 1 and 2"
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence) from None


def transaction_info(transaction: Transaction) -> admin_pb.TransactionInfo:
    """The transaction; its fields have the wire's names."""
    return admin_pb.TransactionInfo(**{**asdict(transaction), "phase": transaction_phase(transaction.phase)})
