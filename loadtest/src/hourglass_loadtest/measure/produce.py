"""Messages a second into the broker, each acknowledged."""

from __future__ import annotations

import time

import telemetry
from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.measure.cpu_use import CpuUse
from hourglass_loadtest.measure.percentiles import latency_metrics
from hourglass_loadtest.measure.sending import GROUP, make_topic, send_all
from hourglass_loadtest.workload import Workload
from mqclient import Producer

TOPIC = "bench"


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
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
