"""Between protobuf messages and the plain values of the processors."""

from __future__ import annotations

from collections.abc import Iterable

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.delays import DelayLevels, Lateness
from mq_broker.core.limits import RejectedError
from mq_broker.core.members import ClientGroups, Connection, Consumer, LockedQueue, Subscription
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.core.transactions import Phase, TransactionState
from mq_broker.processor.backup import BackupEnd, BackupFile, BackupPart
from mq_broker.processor.consuming import Offsets, QueueReport
from mq_broker.processor.group_administration import CommandAnswer, OffsetChange, QueueProgress
from mq_broker.processor.recalling import NewTime, Recalled
from mq_broker.processor.transactions import Transaction
from mq_broker.schedule.delay_service import WaitingQueue
from mqproto.codes import ResponseCode, TransactionPhase
from mqproto.values import to_message, to_value

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
        tuple(to_value(Subscription, one) for one in data.subscriptions),
        broadcasting=data.message_model == pb.BROADCASTING,
        orderly=data.orderly,
        consume_from_where=data.consume_from_where,
    )


def _consumer_data(consumer: Consumer) -> pb.ConsumerData:
    return pb.ConsumerData(
        group=consumer.group,
        message_model=pb.BROADCASTING if consumer.broadcasting else pb.CLUSTERING,
        consume_from_where=consumer.consume_from_where,  # type: ignore[arg-type]
        subscriptions=[to_message(pb.Subscription, one) for one in consumer.subscriptions],
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


def subscription_group(config: admin_pb.SubscriptionGroupConfig, known: SubscriptionGroup | None) -> SubscriptionGroup:
    """The group; where the request leaves something out, that is as it is known."""
    left_out = [name for name in ("broker_id", "which_broker_when_consume_slowly") if not config.HasField(name)]
    before = known or SubscriptionGroup(config.group)
    return to_value(SubscriptionGroup, config, **{name: getattr(before, name) for name in left_out})


def queue_consume_stats(progress: QueueProgress) -> admin_pb.QueueConsumeStats:
    return to_message(admin_pb.QueueConsumeStats, progress, consumer_offset=_or_none(progress.consumer_offset))


def reset_offsets(topic: str, offsets: Iterable[common_pb2.QueueOffset]) -> list[tuple[int, int]]:
    """Where the queues of the topic are to go on: (queue id, offset). Raises RejectedError for another topic's."""
    for one in offsets:
        if one.topic not in ("", topic):
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, f"topic {topic!r} is reset, and not {one.topic!r}")
    return [(one.queue_id, one.offset) for one in offsets]


def offset_change(change: OffsetChange) -> admin_pb.OffsetChange:
    return admin_pb.OffsetChange(queue_id=change.queue_id, offset_before=_or_none(change.before), offset=change.now)


def _or_none(offset: int | None) -> int:
    return NO_OFFSET if offset is None else offset


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
            return admin_pb.BackupStoreResponse(file=to_message(admin_pb.BackupFile, part))
        case BackupEnd():
            return admin_pb.BackupStoreResponse(end=to_message(admin_pb.BackupEnd, part))
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
    """The phase that the number stands for; None for the unspecified one. Raises RejectedError."""
    if number == admin_pb.TRANSACTION_PHASE_UNSPECIFIED:
        return None
    for phase, known in _PHASES.items():
        if known == number:
            return phase
    raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, f"{number} is no phase of a transaction; 0 to {len(_PHASES)} are")


def transaction_state(number: int) -> TransactionState:
    """The state that the number stands for. Raises RejectedError."""
    try:
        return TransactionState(number)
    except ValueError:
        sentence = f"{number} is no transaction state; allowed are 0, 1 and 2"
        raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence) from None


def transaction_info(transaction: Transaction) -> admin_pb.TransactionInfo:
    return to_message(admin_pb.TransactionInfo, transaction, phase=transaction_phase(transaction.phase))
