"""Between protobuf messages and the plain values of the processors."""

from __future__ import annotations

from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core.members import ClientGroups
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.producing import BatchOutcome, IncomingBatch


def incoming_batch(batch: pb.RecordBatch) -> IncomingBatch:
    return IncomingBatch(batch.topic, batch.queue_id, batch.count, batch.records)


def batch_result(outcome: BatchOutcome) -> pb.BatchResult:
    return pb.BatchResult(
        code=outcome.code,  # type: ignore[arg-type]  # an IntEnum with the wire's numbers
        remark=outcome.remark,
        base_queue_offset=outcome.base_queue_offset,
        base_log_offset=outcome.base_log_offset,
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
