"""The store's metrics: what a collector reads is what the store is."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from mq_broker.metrics import COUNTERS, GAUGES, register
from mq_broker.store.log_scan import Damage
from mq_broker.testing import incoming, produce, running_broker
from osenv import SimClock, SimDisk


def read(reader: InMemoryMetricReader) -> dict[str, float]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }


async def test_collector_reads_the_store_as_it_is_now() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with running_broker(SimDisk(), SimClock()) as broker:
        register(broker, provider.get_meter("test"))
        before = read(reader)
        assert before.keys() == {name for name, *_ in (*GAUGES, *COUNTERS)} | {"hourglass.delay.waiting"}
        assert before["hourglass.store.damage.stretches"] == 0
        await produce(broker, incoming("t", [b"a", b"b"]))
        broker.store.quarantine.put_aside(broker.store.log.files, Damage(0, 100, "for this test"))
        broker.store.gate.measured(0.95)
        after = read(reader)
        assert after["hourglass.store.messages.put"] == before["hourglass.store.messages.put"] + 2
        assert after["hourglass.store.log.end"] == after["hourglass.store.log.readable"] == broker.store.log_end
        assert after["hourglass.store.damage.size"] == 100
        assert after["hourglass.store.damage.stretches"] == 1
        assert after["hourglass.store.writes.refused"] == 1
        assert after["hourglass.store.disk.used"] == 0.95
        assert after["hourglass.store.fenced"] == 0
    provider.shutdown()
