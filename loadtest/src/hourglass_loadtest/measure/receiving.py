"""Consumers of a benchmark."""

from __future__ import annotations

from hourglass_loadtest.workload import Workload
from hourglass_local.waiting import eventually
from mqclient import ConsumeFromWhere, ConsumerConfig, MessageListenerConcurrently, PushConsumer

GROUP = "bench-consumers"
JOIN_TIMEOUT_S = 10.0


def group_of(topic: str) -> str:
    """Each topic of a benchmark has a group of its own."""
    return f"{GROUP}-{topic}"


def make_consumer(url: str, topic: str, workload: Workload, listener: MessageListenerConcurrently) -> PushConsumer:
    """The only member of a group that reads `topic` from its beginning; not started."""
    consumer = PushConsumer(
        group_of(topic),
        url,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consumer_config=ConsumerConfig(consume_message_batch_max_size=workload.listener_batch),
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(listener)
    return consumer


async def all_queues(consumer: PushConsumer, topic: str, workload: Workload) -> None:
    """Return when the consumer has every queue of the topic. Raises NotInTimeError."""
    await eventually(
        lambda: sum(queue.topic == topic for queue in consumer.queues) == workload.queues,
        JOIN_TIMEOUT_S,
        "the consumer has all queues",
    )
