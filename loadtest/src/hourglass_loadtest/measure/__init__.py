"""The client's side: what each kind of workload does, and what it measures."""

from __future__ import annotations

from hourglass_loadtest.measure import latency, throughput, waiting
from hourglass_loadtest.measure.clients import BrokerMeter
from hourglass_loadtest.workload import Kind, Workload

_MEASURES = {
    Kind.PRODUCE: throughput.produce,
    Kind.CONSUME: throughput.consume,
    Kind.LATENCY: latency.latency,
    Kind.MEMORY: throughput.memory,
    Kind.DUE: waiting.due,
    Kind.WAITING: waiting.waiting,
    Kind.LAG: latency.lag,
    Kind.CATCH_UP: throughput.fill,
}


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """One run against the queue at `url`: metrics by name, their unit last. Raises MQClientError, MeasureError."""
    return await _MEASURES[workload.kind](url, workload, broker)
