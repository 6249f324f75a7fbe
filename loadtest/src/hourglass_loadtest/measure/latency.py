"""From the time at which a message was to be sent until the listener has it.

The intended times are fixed before the first message: a queue that stalls is charged with the waiting of every message
that was to be sent meanwhile. The messages are sent one by one when they are due, however many are still under way. A
thread paces them, because the event loop's timers are whole milliseconds; how late it was itself is measured, too.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence

from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.measure.cpu_use import CpuUse
from hourglass_loadtest.measure.errors import MeasureError
from hourglass_loadtest.measure.percentiles import latency_metrics, percentile
from hourglass_loadtest.measure.receiving import all_queues, make_consumer
from hourglass_loadtest.measure.sending import GROUP, make_topic, send_one
from hourglass_loadtest.workload import Workload
from mqclient import ConsumeStatus, Message, MessageExt, Producer

TOPIC = "bench"
NUMBER_BYTES = 8
LEAD_S = 0.1  # between now and the first intended time
ARRIVAL_TIMEOUT_S = 30.0  # after the last message is due


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Lateness counts from the intended time plus the delay; a message is early by the time of its real sending."""
    await make_topic(url, TOPIC, workload)
    count = workload.warm_up_messages + workload.messages
    arrivals = _Arrivals(count)
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
        **cpu_seconds,
    }


class _Arrivals:
    """A listener that notes when each message came first."""

    def __init__(self, count: int) -> None:
        self.at = [0.0] * count
        self._left = count
        self._done = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        now = time.perf_counter()
        for message in messages:
            number = int.from_bytes(message.body[:NUMBER_BYTES], "big")
            if not self.at[number]:
                self.at[number] = now
                self._left -= 1
        if not self._left:
            self._done.set()
        return ConsumeStatus.CONSUME_SUCCESS

    async def wait(self, deadline: float) -> None:
        """Return when all are there. Raises MeasureError at `deadline`."""
        try:
            async with asyncio.timeout(deadline - time.perf_counter()):
                await self._done.wait()
        except TimeoutError:
            raise MeasureError(f"{self._left:,} of {len(self.at):,} messages did not arrive") from None


async def _send_on_time(producer: Producer, intended: Sequence[float], workload: Workload) -> list[float]:
    """When each message was really sent; returns when all are acknowledged. Raises MQClientError, MeasureError."""
    called = [0.0] * len(intended)
    padding = os.urandom(workload.body_bytes - NUMBER_BYTES)
    loop, given_up = asyncio.get_running_loop(), threading.Event()

    async def send(number: int) -> None:
        body = number.to_bytes(NUMBER_BYTES, "big") + padding
        called[number] = time.perf_counter()
        await send_one(producer, Message(TOPIC, body, delay_level=workload.delay_level))

    try:
        async with asyncio.TaskGroup() as sends:

            def begin(number: int) -> None:
                if not given_up.is_set():
                    sends.create_task(send(number))

            await asyncio.to_thread(
                _pace, intended, lambda number: loop.call_soon_threadsafe(begin, number), given_up.is_set
            )
    finally:
        given_up.set()
    return called


def _pace(intended: Sequence[float], send: Callable[[int], object], given_up: Callable[[], bool]) -> None:
    """Call `send` with each number at its time; in a thread of its own."""
    for number, due in enumerate(intended):
        while (rest := due - time.perf_counter()) > 0:
            time.sleep(rest)
        if given_up():
            return
        send(number)
