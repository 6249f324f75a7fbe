"""Messages a second out of a backlog."""

from __future__ import annotations

import asyncio
import time

from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.measure.cpu_use import CpuUse
from hourglass_loadtest.measure.errors import MeasureError
from hourglass_loadtest.measure.receiving import group_of, make_consumer
from hourglass_loadtest.measure.sending import GROUP, make_topic, send_all
from hourglass_loadtest.workload import Workload
from mqclient import Admin, ConsumeStatus, MessageExt, Producer

TOPIC, WARM_UP_TOPIC = "bench", "bench-warm-up"
TIMEOUT_S = 120.0


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Time runs from the call of `start`, so that joining the group is part of it, until the broker has the offsets.

    `shutdown` commits them before it returns; the broker is asked afterwards whether it has them all.
    """
    async with Producer(GROUP, url) as producer:
        for topic, count in ((WARM_UP_TOPIC, workload.warm_up_messages), (TOPIC, workload.messages)):
            await make_topic(url, topic, workload)
            await send_all(producer, topic, count, workload)
    if workload.warm_up_messages:
        await _drain(url, WARM_UP_TOPIC, workload.warm_up_messages, workload)
    cpu = CpuUse(broker)
    first_s, seconds = await _drain(url, TOPIC, workload.messages, workload)
    cpu_seconds = cpu.per_1000(workload.messages)
    await _require_committed(url, TOPIC)
    return {
        "msg_per_s": workload.messages / seconds,
        "first_message_ms": first_s * 1000,
        **cpu_seconds,
    }


class _Countdown:
    """A listener that knows how many messages are to come, and reads the body of each, as every listener does."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.bytes_read = 0
        self.first_at: float | None = None
        self.done = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        if self.first_at is None:
            self.first_at = time.perf_counter()
        self.left -= len(messages)
        self.bytes_read += sum([len(message.body) for message in messages])
        if self.left <= 0:
            self.done.set()
        return ConsumeStatus.CONSUME_SUCCESS


async def _drain(url: str, topic: str, count: int, workload: Workload) -> tuple[float, float]:
    """Seconds until the first message, and until the offsets behind the last one are committed."""
    listener = _Countdown(count)
    consumer = make_consumer(url, topic, workload, listener)
    begin = time.perf_counter()
    await consumer.start()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await listener.done.wait()
    except TimeoutError:
        raise MeasureError(f"{listener.left:,} of {count:,} messages did not arrive in {TIMEOUT_S:.0f} s") from None
    finally:
        await consumer.shutdown()
    end = time.perf_counter()
    if listener.left or listener.first_at is None:
        raise MeasureError(f"{-listener.left:,} messages arrived twice although nothing failed")
    if listener.bytes_read != count * workload.body_bytes:
        raise MeasureError(f"{count:,} bodies of {workload.body_bytes:,} bytes are not {listener.bytes_read:,} bytes")
    return listener.first_at - begin, end - begin


async def _require_committed(url: str, topic: str) -> None:
    """Raises MeasureError unless the broker knows that the group has consumed every message of the topic."""
    async with Admin(url) as admin:
        stats = await admin.consume_stats(group_of(topic), topic)
    if stats.lag or not stats.queues:
        raise MeasureError(f"the broker has not been told of {stats.lag:,} of the messages that were consumed")
