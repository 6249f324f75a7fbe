"""The client's side: what each kind of workload does, and what it measures."""

from __future__ import annotations

from hourglass_loadtest.measure import consume, due, fill, lag, latency, memory, produce, waiting
from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.workload import Kind, Workload

_MEASURES = {
    Kind.PRODUCE: produce.measure,
    Kind.CONSUME: consume.measure,
    Kind.LATENCY: latency.measure,
    Kind.MEMORY: memory.measure,
    Kind.DUE: due.measure,
    Kind.WAITING: waiting.measure,
    Kind.LAG: lag.measure,
    Kind.CATCH_UP: fill.measure,
}


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """One run against the queue at `url`: metrics by name, their unit last. Raises MQClientError, MeasureError."""
    return await _MEASURES[workload.kind](url, workload, broker)
