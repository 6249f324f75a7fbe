"""How long a message takes from its producer to its consumer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.measure.cpu_use import CpuUse
from hourglass_loadtest.measure.errors import MeasureError
from hourglass_loadtest.measure.pacing import start_on_time
from hourglass_loadtest.measure.percentiles import latency_metrics, percentile
from hourglass_loadtest.measure.receiving import all_queues, make_consumer
from hourglass_loadtest.measure.sending import GROUP, make_topic, send_one
from hourglass_loadtest.workload import Workload
from mqclient import Admin, ConsumeStatus, Message, MessageExt, Producer

# ----------------------------------------------------------------------------------------------------------------------
# What has arrived, and when.


NUMBER_BYTES = 8


def numbered_body(number: int, padding: bytes) -> bytes:
    """A body that says which message it is."""
    return number.to_bytes(NUMBER_BYTES, "big") + padding


class Arrivals:
    """A listener that notes when each of `count` messages came first (`at`, on perf_counter), and keeps it."""

    def __init__(self, count: int) -> None:
        self.at = [0.0] * count
        self.messages: list[MessageExt | None] = [None] * count
        self._left = count
        self._again = 0
        self._done = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        now = time.perf_counter()
        for message in messages:
            number = int.from_bytes(message.body[:NUMBER_BYTES], "big")
            if self.at[number]:
                self._again += 1
                continue
            self.at[number], self.messages[number] = now, message
            self._left -= 1
        if not self._left:
            self._done.set()
        return ConsumeStatus.CONSUME_SUCCESS

    async def wait(self, deadline: float) -> None:
        """Return when all are there. Raises MeasureError at `deadline`, and when one has come twice."""
        try:
            async with asyncio.timeout(deadline - time.perf_counter()):
                await self._done.wait()
        except TimeoutError:
            raise MeasureError(f"{self._left:,} of {len(self.at):,} messages did not arrive") from None
        if self._again:
            raise MeasureError(f"{self._again:,} messages arrived twice although nothing failed")


# ----------------------------------------------------------------------------------------------------------------------
# From the time at which a message was to be sent until the listener has it.
#
# The intended times are fixed before the first message: a queue that stalls is charged with the waiting of every
# message that was to be sent meanwhile. The messages are sent one by one when they are due, however many are still
# under way; how late the generator was itself is measured, too.


TOPIC = "bench"
LEAD_S = 0.1  # between now and the first intended time
ARRIVAL_TIMEOUT_S = 30.0  # after the last message is due


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Lateness counts from the intended time plus the delay; a message is early by the time of its real sending."""
    await make_topic(url, TOPIC, workload)
    count = workload.warm_up_messages + workload.messages
    arrivals = Arrivals(count)
    consumer = make_consumer(url, TOPIC, workload, arrivals)
    async with Producer(GROUP, url) as producer, consumer:
        await all_queues(consumer, TOPIC, workload)
        cpu = CpuUse(broker)
        begin = time.perf_counter() + LEAD_S
        intended = [begin + number / workload.rate_per_s for number in range(count)]
        called = await _send_on_time(producer, intended, workload)
        await arrivals.wait(intended[-1] + workload.delay_s + ARRIVAL_TIMEOUT_S)
        cpu_seconds = cpu.per_1000(count)
    measured = range(workload.warm_up_messages, count)
    lateness_s = [arrivals.at[number] - intended[number] - workload.delay_s for number in measured]
    early = sum(arrivals.at[number] < called[number] + workload.delay_s for number in measured)
    return {
        **latency_metrics(lateness_s),
        "early": float(early),
        "generator_p99_ms": percentile([called[number] - intended[number] for number in measured], 99) * 1000,
        **(await _broker_lateness(url, workload.delay_level) if workload.delay_level else {}),
        **cpu_seconds,
    }


async def _send_on_time(producer: Producer, intended: Sequence[float], workload: Workload) -> list[float]:
    """When each message was really sent; returns when all are acknowledged. Raises MQClientError, MeasureError."""
    called = [0.0] * len(intended)
    padding = os.urandom(workload.body_bytes - NUMBER_BYTES)

    async def send(number: int) -> None:
        body = numbered_body(number, padding)
        called[number] = time.perf_counter()
        await send_one(producer, Message(TOPIC, body, delay_level=workload.delay_level))

    await start_on_time(intended, send)
    return called


async def _broker_lateness(url: str, level: int) -> dict[str, float]:
    """What the broker says: of all messages since its start, in whole milliseconds, up to an eighth too high."""
    async with Admin(url) as admin:
        (status,) = await admin.broker_statuses()
    for one in status.delay_levels:
        if one.level == level:
            return {"broker_p50_ms": float(one.lateness_p50_ms), "broker_p99_ms": float(one.lateness_p99_ms)}
    raise MeasureError(f"the broker says nothing of its delay level {level}")
