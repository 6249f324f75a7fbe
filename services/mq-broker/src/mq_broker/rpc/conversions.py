"""Between protobuf messages and the plain values of the processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core.life import LifeEvent
from mq_broker.core.members import ClientGroups
from mq_broker.core.producer_sequences import Numbering
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.consume_progress import OffsetChange, QueueProgress
from mq_broker.processor.producing import BatchOutcome, IncomingBatch
from mq_broker.processor.topic_administration import QueueStats

NO_OFFSET = -1  # on the wire


def incoming_batch(batch: pb.RecordBatch, request: pb.ProduceRequest | pb.SendRequest) -> IncomingBatch:
    """A batch of the request that says who numbers it."""
    base = batch.base_sequence
    numbering = None
    if base:
        numbering = Numbering(request.producer_id, request.producer_epoch, base, batch.first_unanswered_sequence)
    return IncomingBatch(batch.topic, batch.queue_id, batch.count, batch.records, numbering)


def batch_result(outcome: BatchOutcome) -> pb.BatchResult:
    return pb.BatchResult(
        code=outcome.code,  # type: ignore[arg-type]  # an IntEnum with the wire's numbers
        remark=outcome.remark,
        base_queue_offset=outcome.base_queue_offset,
        base_log_offset=outcome.base_log_offset,
        stretches=[
            pb.StoredStretch(
                count=stretch.count,
                base_queue_offset=stretch.base_queue_offset,
                base_log_offset=stretch.base_log_offset,
            )
            for stretch in outcome.stretches
        ],
    )


def pull_query(request: pb.PullRequest) -> PullQuery:
    return PullQuery(
        request.group,
        request.topic,
        request.queue_id,
        request.queue_offset,
        request.max_messages,
        request.max_bytes,
        request.tag_expression,
    )


def pull_response(result: PullResult) -> pb.PullResponse:
    return pb.PullResponse(
        code=result.code,  # type: ignore[arg-type]
        remark=result.remark,
        status=result.status,  # type: ignore[arg-type]
        next_begin_offset=result.next_begin_offset,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        count=result.count,
        records=result.records,
    )


def client_groups(heartbeat: pb.Heartbeat) -> ClientGroups:
    return ClientGroups(
        heartbeat.client_id,
        frozenset(producer.group for producer in heartbeat.producers),
        frozenset(consumer.group for consumer in heartbeat.consumers),
        frozenset(one.group for one in heartbeat.consumers if one.message_model == pb.BROADCASTING),
    )


def reset_command(group: str, offsets: Sequence[tuple[str, int, int]]) -> pb.ResetConsumerOffset:
    return pb.ResetConsumerOffset(
        group=group,
        offsets=[
            common_pb2.QueueOffset(topic=topic, queue_id=queue_id, offset=offset) for topic, queue_id, offset in offsets
        ],
    )


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
    )


def subscription_group(config: admin_pb.SubscriptionGroupConfig) -> SubscriptionGroup:
    return SubscriptionGroup(
        config.group,
        config.retry_max_times,
        config.consume_enable,
        config.consume_broadcast_enable,
        config.retry_queue_count,
    )


def subscription_group_message(group: SubscriptionGroup) -> admin_pb.SubscriptionGroupConfig:
    return admin_pb.SubscriptionGroupConfig(
        group=group.group,
        consume_enable=group.consume_enable,
        consume_broadcast_enable=group.consume_broadcast_enable,
        retry_max_times=group.retry_max_times,
        retry_queue_count=group.retry_queue_count,
    )


def queue_consume_stats(progress: QueueProgress) -> admin_pb.QueueConsumeStats:
    return admin_pb.QueueConsumeStats(
        topic=progress.topic,
        queue_id=progress.queue_id,
        broker_offset=progress.broker_offset,
        consumer_offset=_or_none(progress.consumer_offset),
        last_timestamp_ms=progress.last_consumed_ms,
    )


def offset_change(change: OffsetChange) -> admin_pb.OffsetChange:
    return admin_pb.OffsetChange(queue_id=change.queue_id, offset_before=_or_none(change.before), offset=change.now)


def _or_none(offset: int | None) -> int:
    return NO_OFFSET if offset is None else offset


def life_event(event: LifeEvent) -> admin_pb.LifeEvent:
    """The event; its fields have the wire's names."""
    return admin_pb.LifeEvent(**asdict(event))
