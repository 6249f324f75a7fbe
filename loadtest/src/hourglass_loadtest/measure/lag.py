"""How far a slave is behind its asynchronous master while a producer sends as fast as it can.

The slave is asked again and again how far it is. A message's lag is the time from its acknowledgement until the first
answer in which the slave has it, so that it is never too small, and too large by one interval of looking at the most;
what a slave has before the acknowledgement has no lag. In bytes, it is what was acknowledged at the time of an answer,
and is not in it.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.measure.cpu_use import CpuUse
from hourglass_loadtest.measure.errors import MeasureError
from hourglass_loadtest.measure.percentiles import percentile
from hourglass_loadtest.measure.sending import GROUP, make_topic, send_all, send_one
from hourglass_loadtest.workload import Flush, Workload
from hourglass_local.probes import ReplicaProbe
from hourglass_local.waiting import eventually
from mqclient import Admin, Message, Producer

TOPIC = "bench"
LOOK_INTERVAL_S = 0.005
ALL_THERE_TIMEOUT_S = 60.0

Seen = tuple[float, int]  # a time on perf_counter, and a log offset


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Raises MeasureError when the slave does not answer, or never gets everything."""
    await make_topic(url, TOPIC, workload)
    async with ReplicaProbe(await _slave_address(url)) as probe, Producer(GROUP, url) as producer:
        await send_all(producer, TOPIC, workload.warm_up_messages, workload)
        watch = _SlaveWatch(probe, durable=workload.flush is Flush.SYNC_FLUSH)
        looking = asyncio.create_task(watch.look_for_ever())
        try:
            cpu, begin = CpuUse(broker), time.perf_counter()
            acknowledged = await _send(producer, workload)
            seconds, cpu_seconds = time.perf_counter() - begin, cpu.per_1000(workload.messages)
            await eventually(lambda: watch.has(acknowledged[-1][1]), ALL_THERE_TIMEOUT_S, "the slave has everything")
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
    return {"msg_per_s": workload.messages / seconds, **lag_metrics(acknowledged, watch.seen), **cpu_seconds}


async def _slave_address(url: str) -> str:
    async with Admin(url) as admin:
        slaves = [broker.address for broker in await admin.cluster_list() if broker.broker_id]
    if len(slaves) != 1:
        raise MeasureError(f"the name server knows {len(slaves)} slaves, not one")
    return slaves[0]


class _SlaveWatch:
    """What a slave has acknowledged: what it has on disk, or what it has written. `seen` has every answer."""

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
        """Whether the slave has the record that begins there."""
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
    """From where the slave ends to the beginning of the last record that was acknowledged by then."""
    count = bisect_right(acknowledged_at, at)
    return max(0, furthest[count - 1] - end) if count else 0
