"""Producers and consumers of a benchmark, and what every measurement uses: meters, percentiles, pace, the error."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

import psutil

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

TOPIC = "bench"
GROUP = "bench-producers"
SEND_TIMEOUT_S = 30.0
CONSUMERS = "bench-consumers"
JOIN_TIMEOUT_S = 10.0
MIB = 1024 * 1024


class MeasureError(RuntimeError):
    """What was to be measured did not happen; the message says what did."""


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


class BrokerMeter:
    """The process of this id."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def cpu_seconds(self) -> float:
        """Processor time since its start, in user and system mode, of all its threads."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def rss_mib(self) -> float:
        """Resident memory now."""
        return float(self._process.memory_info().rss / MIB)


class CpuUse:
    """Processor time of broker and client, in user and system mode, of all their threads, since this was made."""

    def __init__(self, broker: BrokerMeter) -> None:
        self._broker = broker
        self._broker_begin, self._client_begin = broker.cpu_seconds(), time.process_time()

    def per_1000(self, messages: int) -> dict[str, float]:
        """Seconds for 1,000 messages when there were so many; the broker's clock has steps of 10 ms."""
        broker_s, client_s = self._broker.cpu_seconds() - self._broker_begin, time.process_time() - self._client_begin
        return {
            "broker_cpu_s_per_1000": broker_s / messages * 1000,
            "client_cpu_s_per_1000": client_s / messages * 1000,
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """By nearest rank: the smallest value that at least `percent` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def latency_metrics(seconds: Sequence[float], prefix: str = "") -> dict[str, float]:
    """p50, p99 and the largest, in milliseconds."""
    return {
        f"{prefix}p50_ms": percentile(seconds, 50) * 1000,
        f"{prefix}p99_ms": percentile(seconds, 99) * 1000,
        f"{prefix}max_ms": max(seconds) * 1000,
    }


# Doing things at times that were fixed before, however long they take.
#
# A thread paces them, because the event loop's timers are whole milliseconds.


async def start_on_time(times: Iterable[float], work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Start `work(0)`, `work(1)`.. at these times of perf_counter, however many still run; return when all are done.

    Raises an ExceptionGroup of what they raise; then, and when this is cancelled, no more are started.
    """
    loop, given_up = asyncio.get_running_loop(), threading.Event()
    try:
        async with asyncio.TaskGroup() as works:

            def begin(number: int) -> None:
                if not given_up.is_set():
                    works.create_task(work(number))

            await asyncio.to_thread(
                _pace, times, lambda number: loop.call_soon_threadsafe(begin, number), given_up.is_set
            )
    finally:
        given_up.set()


def _pace(times: Iterable[float], start: Callable[[int], object], given_up: Callable[[], bool]) -> None:
    """Call `start` with each number at its time; in a thread of its own."""
    for number, due in enumerate(times):
        while (rest := due - time.perf_counter()) > 0:
            time.sleep(rest)
        if given_up():
            return
        start(number)
