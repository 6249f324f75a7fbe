"""How much a broker takes: messages a second in and out, its memory, and what reading costs a producer."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from types import TracebackType
from typing import Self

import telemetry
from hourglass_loadtest.measure.clients import (
    GROUP,
    TOPIC,
    BrokerMeter,
    CpuUse,
    MeasureError,
    group_of,
    latency_metrics,
    make_consumer,
    make_topic,
    send_all,
    send_one,
    start_on_time,
)
from hourglass_loadtest.workload import Workload
from mqclient import Admin, ConsumeStatus, Message, MessageExt, Producer
from osenv.process import stop_event


async def produce(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """The latency of a send counts from the call, because the next call waits for it."""
    telemetry.observe("loadtest")
    await make_topic(url, TOPIC, workload)
    async with Producer(GROUP, url) as producer:
        await send_all(producer, TOPIC, workload.warm_up_messages, workload)
        cpu, begin = CpuUse(broker), time.perf_counter()
        latencies_s = await send_all(producer, TOPIC, workload.messages, workload)
        seconds, cpu_seconds = time.perf_counter() - begin, cpu.per_1000(workload.messages)
    telemetry.shutdown()
    return {
        "msg_per_s": workload.messages / seconds,
        **latency_metrics(latencies_s),
        **cpu_seconds,
    }


WARM_UP_TOPIC = "bench-warm-up"
TIMEOUT_S = 120.0


async def consume(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
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


async def memory(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Before the first connection, and after `messages` were acknowledged."""
    idle_mib = broker.rss_mib()
    await make_topic(url, TOPIC, workload)
    async with Producer(GROUP, url) as producer:
        await send_all(producer, TOPIC, workload.messages, workload)
        stored_mib = broker.rss_mib()
    return {"rss_idle_mib": idle_mib, "rss_stored_mib": stored_mib}


# A broker with `messages` stored; what the bench then does with it is measured there (run.py).


async def fill(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Messages a second into a broker whose replica is away."""
    await make_topic(url, TOPIC, workload)
    async with Producer(GROUP, url) as producer:
        begin = time.perf_counter()
        await send_all(producer, TOPIC, workload.messages, workload)
        return {"fill_msg_per_s": workload.messages / (time.perf_counter() - begin)}


# A producer in a process of its own, so that what it sees is not the doing of the consumer beside it.
#
# It sends at fixed times, and each send counts from its time. It stops when it is asked to (SIGTERM, or the end of its
# standard input), and then writes what it has seen to its standard output: pairs of the intended time, on perf_counter,
# which all processes of a machine share, and the seconds from it until the acknowledgement.

BESIDE_TOPIC = "bench-beside"
STARTED = b"started\n"

Sent = tuple[float, float]


async def produce_beside(url: str, workload: Workload) -> None:
    """What the process does. Raises MQClientError, MeasureError."""
    asked = stop_event()
    sent: list[Sent] = []
    body = os.urandom(workload.body_bytes)
    async with Producer(f"{GROUP}-beside", url) as producer:
        await send_one(producer, Message(BESIDE_TOPIC, body))  # opens the connection
        begin = time.perf_counter()

        def intended(number: int) -> float:
            return begin + number / workload.beside_per_s

        async def send(number: int) -> None:
            await send_one(producer, Message(BESIDE_TOPIC, body))
            sent.append((intended(number), time.perf_counter() - intended(number)))

        sending = asyncio.create_task(start_on_time(map(intended, itertools.count()), send))
        stopping = asyncio.create_task(asked.wait())
        sys.stdout.buffer.write(STARTED)
        sys.stdout.buffer.flush()
        await asyncio.wait((sending, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        sending.cancel()
        await asyncio.wait((sending,))
        if not sending.cancelled():
            sending.result()
    print(json.dumps(sent))


class ProducerBeside:
    """That process; an async context manager, in which it sends until `stop`."""

    def __init__(self, url: str, workload: Workload) -> None:
        self._arguments = [url, json.dumps(workload.to_dict())]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Raises MeasureError when it does not come to send."""
        leashed = ["-m", "hourglass_local.child", "hourglass_loadtest", "beside"]  # it ends with us, however we end
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *leashed, *self._arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            await self._started(self._process)
        except BaseException:
            await self._end(self._process)
            raise
        return self

    async def stop(self) -> list[Sent]:
        """What it has seen. Raises MeasureError when it has failed."""
        process = self._process
        if process is None or process.stdin is None:
            raise AssertionError("the producer has been started, with pipes")
        process.stdin.close()
        output, _ = await process.communicate()
        if process.returncode:
            raise MeasureError(f"the producer beside it ended with code {process.returncode}")
        return [(intended, took_s) for intended, took_s in json.loads(output)]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            await self._end(self._process)

    @staticmethod
    async def _started(process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            raise AssertionError("the output of the producer is a pipe")
        if (line := await process.stdout.readline()) != STARTED:
            raise MeasureError(f"the producer beside it did not come to send; {line!r}, code {await process.wait()}")

    @staticmethod
    async def _end(process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.kill()
            await process.wait()
