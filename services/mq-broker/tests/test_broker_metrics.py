"""The metrics: what a collector reads is what the broker is, in whichever life of the process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from mq_broker.core.replica_state import BrokerRole, Epoch, HaStatus, ReplicaStatus
from mq_broker.processor.broker import Broker
from mq_broker.store.log_scan import Damage
from mq_broker.telemetry import (
    CONSUMERS_COUNTERS,
    CONSUMERS_GAUGES,
    COUNTERS,
    GAUGES,
    OWN_GAUGES,
    REPLICA_GAUGES,
    ROLE,
    TRAFFIC_COUNTERS,
    BrokerMetrics,
)
from mq_broker.testing import incoming, produce, running_broker
from osenv import SimClock, SimDisk


def read(reader: InMemoryMetricReader) -> dict[str, float]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
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
    shown = BrokerMetrics(provider.get_meter("test"))
    async with running_broker(SimDisk(), SimClock()) as broker:
        with shown.showing(broker):
            await check_store(broker, reader)
    assert read(reader) == {}
    provider.shutdown()


async def check_store(broker: Broker, reader: InMemoryMetricReader) -> None:
    before = read(reader)
    silent = {one.name for one in (*REPLICA_GAUGES, *TRAFFIC_COUNTERS, *CONSUMERS_GAUGES, *CONSUMERS_COUNTERS)}
    assert before.keys() == {one.name for one in (*GAUGES, *COUNTERS)} - silent
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


SLAVE = ReplicaStatus("a" * 32, 1, "10.0.0.2:10911", True, False, 90, 80, 80, 20, 1.5)
MASTER = HaStatus(
    role=BrokerRole.SYNC_MASTER,
    writable=True,
    reason="",
    epoch=Epoch(7, 3),
    broker_id=0,
    replica_id="b" * 32,
    log_begin=0,
    log_end=100,
    durable_end=100,
    confirm_offset=90,
    min_in_sync_replicas=1,
    in_sync_version=4,
    in_sync_replicas=2,
    in_sync=True,
    connected=False,
    master_ha_address="",
    lag_bytes=0,
    lag_seconds=0.0,
    replicas=(
        SLAVE,
        replace(
            SLAVE, replica_id="c" * 32, broker_id=2, lag_bytes=0, lag_seconds=0.0, in_sync=True, clock_ahead_ms=-3_500
        ),
    ),
)


async def test_collector_reads_how_replication_stands_and_how_far_each_replica_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    shown = BrokerMetrics(provider.get_meter("test"))
    async with running_broker(SimDisk(), SimClock()) as broker:
        monkeypatch.setattr(broker.replication, "status", lambda: MASTER)
        with shown.showing(broker):
            found = points(reader)
    provider.shutdown()
    assert {name: values[()] for name, values in found.items() if name in {one.name for one in OWN_GAUGES}} == {
        "hourglass.replication.writable": 1,
        "hourglass.replication.epoch.term": 7,
        "hourglass.replication.epoch.start": 3,
        "hourglass.replication.in_sync.replicas": 2,
        "hourglass.replication.in_sync": 1,
        "hourglass.replication.connected": 0,
        "hourglass.replication.lag.size": 0,
        "hourglass.replication.lag.time": 0,
        "hourglass.replication.clock.ahead": 0,
    }
    one, two = (("slave.id", 1), ("slave.replica", "a" * 32)), (("slave.id", 2), ("slave.replica", "c" * 32))
    assert {name: values for name, values in found.items() if name in {one.name for one in REPLICA_GAUGES}} == {
        "hourglass.replication.slave.connected": {one: 1, two: 1},
        "hourglass.replication.slave.in_sync": {one: 0, two: 1},
        "hourglass.replication.slave.lag.size": {one: 20, two: 0},
        "hourglass.replication.slave.lag.time": {one: 1.5, two: 0},
        "hourglass.replication.slave.clock.ahead": {one: 0, two: -3.5},
    }
    assert found[ROLE] == {
        (("role", "ASYNC_MASTER"),): 1,  # of the broker, not of the status that the test plays
        (("role", "SYNC_MASTER"),): 0,
        (("role", "SLAVE"),): 0,
    }


def points(reader: InMemoryMetricReader) -> dict[str, dict[tuple[tuple[str, object], ...], float]]:
    """The values of each instrument by the attributes that replication gives them."""
    found: dict[str, dict[tuple[tuple[str, object], ...], float]] = {}
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics]
    for metric in metrics:
        for point in metric.data.data_points:
            own = {
                name.removeprefix("hourglass.replication."): value
                for name, value in (point.attributes or {}).items()
                if name.startswith("hourglass.replication.")
            }
            if hasattr(point, "value"):
                found.setdefault(metric.name, {})[tuple(sorted(own.items()))] = point.value
    return found
