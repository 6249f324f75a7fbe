"""How long a message takes to its listener, and how many of them a queue of this load keeps waiting."""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from hourglass_loadtest.measure.clients import (
    GROUP,
    TOPIC,
    BrokerMeter,
    CpuUse,
    MeasureError,
    all_queues,
    latency_metrics,
    make_consumer,
    make_topic,
    percentile,
    send_all,
    send_one,
    start_on_time,
)
from hourglass_loadtest.workload import Flush, Workload
from hourglass_local.process import ReplicaProbe
from hourglass_local.waiting import eventually
from mqclient import Admin, ConsumeStatus, Message, MessageExt, Producer

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


# From the time at which a message was to be sent until the listener has it.
#
# The intended times are fixed before the first message: a queue that stalls is charged with the waiting of every
# message that was to be sent meanwhile. The messages are sent one by one when they are due, however many are still
# under way; how late the generator was itself is measured, too.

LEAD_S = 0.1  # between now and the first intended time
ARRIVAL_TIMEOUT_S = 30.0  # after the last message is due


async def latency(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
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


# How far a replica is behind its asynchronous master while a producer sends as fast as it can.
#
# The replica is asked again and again how far it is. A message's lag is the time from its acknowledgement until the
# first answer in which the replica has it, so that it is never too small, and too large by one interval of looking at
# the most; what a replica has before the acknowledgement has no lag. In bytes, it is what was acknowledged at the time
# of an answer, and is not in it.

LOOK_INTERVAL_S = 0.005
ALL_THERE_TIMEOUT_S = 60.0

Seen = tuple[float, int]  # a time on perf_counter, and a log offset


async def lag(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Raises MeasureError when the replica does not answer, or never gets everything."""
    await make_topic(url, TOPIC, workload)
    async with ReplicaProbe(await _replica_address(url)) as probe, Producer(GROUP, url) as producer:
        await send_all(producer, TOPIC, workload.warm_up_messages, workload)
        watch = _ReplicaWatch(probe, durable=workload.flush is Flush.SYNC_FLUSH)
        looking = asyncio.create_task(watch.look_for_ever())
        try:
            cpu, begin = CpuUse(broker), time.perf_counter()
            acknowledged = await _send(producer, workload)
            seconds, cpu_seconds = time.perf_counter() - begin, cpu.per_1000(workload.messages)
            await eventually(lambda: watch.has(acknowledged[-1][1]), ALL_THERE_TIMEOUT_S, "the replica has everything")
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
    return {"msg_per_s": workload.messages / seconds, **lag_metrics(acknowledged, watch.seen), **cpu_seconds}


async def _replica_address(url: str) -> str:
    async with Admin(url) as admin:
        replicas = [broker.address for broker in await admin.cluster_list() if broker.broker_id]
    if len(replicas) != 1:
        raise MeasureError(f"the name server knows {len(replicas)} replicas, not one")
    return replicas[0]


class _ReplicaWatch:
    """What a replica has acknowledged: what it has on disk, or what it has written. `seen` has every answer."""

    def __init__(self, probe: ReplicaProbe, *, durable: bool) -> None:
        self._probe = probe
        self._durable = durable
        self.seen: list[Seen] = []

    async def look_for_ever(self) -> None:
        while True:
            if (status := await self._probe.status()) is not None:
                self.seen.append((time.perf_counter(), status.durable_end if self._durable else status.log_end))
            await asyncio.sleep(LOOK_INTERVAL_S)

    def has(self, log_offset: int) -> bool:
        """Whether the replica has the record that begins there."""
        return bool(self.seen) and self.seen[-1][1] > log_offset


async def _send(producer: Producer, workload: Workload) -> list[Seen]:
    """When each message was acknowledged, and where it stands in the log; in the order of the log."""
    acknowledged: list[Seen] = []
    messages = _messages(workload)

    async def send_some() -> None:
        for message in messages:
            result = await send_one(producer, message)
            acknowledged.append((time.perf_counter(), result.log_offset))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(workload.in_flight):
            tasks.create_task(send_some())
    return sorted(acknowledged, key=lambda one: one[1])


def _messages(workload: Workload) -> Iterator[Message]:
    body = os.urandom(workload.body_bytes)
    return (Message(TOPIC, body) for _ in range(workload.messages))


def lag_metrics(acknowledged: Sequence[Seen], seen: Sequence[Seen]) -> dict[str, float]:
    """Of messages in the order of the log, and answers in the order of time, the last of which has all messages."""
    times, ends = zip(*seen, strict=True)
    lags_s = [max(0.0, times[bisect_right(ends, offset)] - at) for at, offset in acknowledged]
    in_time = sorted(acknowledged)
    acknowledged_at = [at for at, _ in in_time]
    furthest = list(accumulate((offset for _, offset in in_time), max))
    behind = [_bytes_behind(acknowledged_at, furthest, at, end) for at, end in seen if at <= acknowledged_at[-1]]
    intervals_s = [later - earlier for earlier, later in pairwise(times)]
    return {
        **{f"lag_p{percent}_ms": percentile(lags_s, percent) * 1000 for percent in (50, 99)},
        "lag_max_ms": max(lags_s) * 1000,
        **{f"lag_p{percent}_bytes": float(percentile(behind or [0], percent)) for percent in (50, 99)},
        "lag_max_bytes": float(max(behind, default=0)),
        "look_p50_ms": percentile(intervals_s or [0.0], 50) * 1000,
    }


def _bytes_behind(acknowledged_at: Sequence[float], furthest: Sequence[int], at: float, end: int) -> int:
    """From where the replica ends to the beginning of the last record that was acknowledged by then."""
    count = bisect_right(acknowledged_at, at)
    return max(0, furthest[count - 1] - end) if count else 0
