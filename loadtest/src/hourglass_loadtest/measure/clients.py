"""Producers and consumers of a benchmark."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

from hourglass_loadtest.measure.meters import MeasureError
from hourglass_loadtest.workload import Workload
from hourglass_local.waiting import eventually
from mqclient import (
    Admin,
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    MessageListenerConcurrently,
    Producer,
    PushConsumer,
    SendResult,
    SendStatus,
)

# ----------------------------------------------------------------------------------------------------------------------
# Sending as fast as the acknowledgements come.


TOPIC = "bench"
GROUP = "bench-producers"
SEND_TIMEOUT_S = 30.0


async def make_topic(url: str, topic: str, workload: Workload) -> None:
    """Topics exist before anything is measured."""
    async with Admin(url) as admin:
        await admin.update_topic(topic, read_queue_count=workload.queues, write_queue_count=workload.queues)


async def send_all(producer: Producer, topic: str, count: int, workload: Workload) -> list[float]:
    """Send `count` equal messages; the rest as `send_messages`."""
    body = os.urandom(workload.body_bytes)
    return await send_messages(producer, (Message(topic, body) for _ in range(count)), workload.in_flight)


async def send_messages(producer: Producer, messages: Iterator[Message], in_flight: int) -> list[float]:
    """Send all, `in_flight` of them under way at any time; seconds that each send took.

    Raises MQClientError, or MeasureError when one is stored less safely than wished.
    """
    latencies_s: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(_send_some(producer, messages, latencies_s))
    return latencies_s


async def send_one(producer: Producer, message: Message) -> SendResult:
    """Send, and accept nothing but SEND_OK. Raises MQClientError, MeasureError."""
    result = await producer.send(message, timeout=SEND_TIMEOUT_S)
    if result.send_status is not SendStatus.SEND_OK:
        raise MeasureError(f"the broker answered {result.send_status.value}, not SEND_OK")
    return result


async def _send_some(producer: Producer, messages: Iterator[Message], latencies_s: list[float]) -> None:
    for message in messages:
        begin = time.perf_counter()
        await send_one(producer, message)
        latencies_s.append(time.perf_counter() - begin)


# ----------------------------------------------------------------------------------------------------------------------
# Consumers of a benchmark.


CONSUMERS = "bench-consumers"
JOIN_TIMEOUT_S = 10.0


def group_of(topic: str) -> str:
    """Each topic of a benchmark has a group of its own."""
    return f"{CONSUMERS}-{topic}"


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
