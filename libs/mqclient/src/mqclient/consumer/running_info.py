"""What a consumer tells of itself when a broker asks, and does when it is told to (MISSION L11-L13)."""

from __future__ import annotations

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.engine import ConsumerEngine
from mqclient.consumer.listening import Listening
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.consumer.stats import TopicConsumeStats
from mqclient.message import MessageExt
from osenv import Clock


def running_info(instance: ClientInstance, engine: ConsumerEngine, broker_name: str) -> broker_pb.ConsumerRunningInfo:
    """How the consumer is now, with its queues of one broker."""
    return broker_pb.ConsumerRunningInfo(
        client_id=instance.client_id,
        data=engine.consumer_data(),
        start_timestamp_ms=engine.started_ms,
        consume_concurrency=engine.concurrency.count,
        suspended=not engine.resumed.is_set(),
        queues=[
            _queue_info(one, locked=engine.assigned.may_consume(one))
            for one in engine.assigned.process_queues
            if one.queue.broker_name == broker_name
        ],
        stats=map(_topic_stats, engine.stats.of_last_minute(instance.clock.monotonic())),
    )


async def consume_directly(clock: Clock, listening: Listening, message: MessageExt) -> broker_pb.ConsumeDirectlyResult:
    """Call the listener with this one message, and tell what it did."""
    began = clock.monotonic()
    success, status = await listening.outcome(message.message_queue, [message])
    result, remark = broker_pb.CR_SUCCESS if success else broker_pb.CR_LATER, ""
    if isinstance(status, Exception):
        result, remark = broker_pb.CR_THROW_EXCEPTION, repr(status)
    spent_ms = round((clock.monotonic() - began) * 1_000)
    return broker_pb.ConsumeDirectlyResult(result=result, remark=remark, spent_ms=spent_ms)


def _queue_info(process_queue: ProcessQueue, *, locked: bool) -> broker_pb.ProcessQueueInfo:
    return broker_pb.ProcessQueueInfo(
        topic=process_queue.queue.topic,
        queue_id=process_queue.queue.queue_id,
        commit_offset=process_queue.commit_offset,
        pull_offset=process_queue.pull_offset,
        cached_messages=process_queue.message_count,
        cached_bytes=process_queue.byte_count,
        locked=locked,
        last_pull_timestamp_ms=process_queue.last_pull_ms,
        last_consume_timestamp_ms=process_queue.last_consume_ms,
    )


def _topic_stats(stats: TopicConsumeStats) -> broker_pb.TopicConsumeStats:
    return broker_pb.TopicConsumeStats(
        topic=stats.topic,
        pull_rt_ms=stats.pull_rt_ms,
        pull_tps=stats.pull_tps,
        consume_rt_ms=stats.consume_rt_ms,
        consume_ok_tps=stats.consume_ok_tps,
        consume_failed_tps=stats.consume_failed_tps,
        consume_failed_messages=stats.consume_failed_messages,
    )
