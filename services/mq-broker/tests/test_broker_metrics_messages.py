"""The metrics of messages: what comes in and goes out, lags, dead letters, and how long waits take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY, generate_latest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.producer_sequences import BatchSequence
from mq_broker.core.pulling import PullQuery
from mq_broker.processor.broker import Broker
from mq_broker.store.durability import Confirmation, Copies
from mq_broker.telemetry import WAIT_BOUNDS_S, BrokerMetrics
from mq_broker.testing import (
    COMMIT,
    RecordingSession,
    asking_at_once,
    check_and_answer,
    client,
    end,
    half,
    incoming,
    join,
    numbered,
    park,
    produce,
    read_all,
    running_broker,
)
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

TOPIC, GROUP = "messaging.destination.name", "messaging.consumer.group.name"


class Shown:
    """A broker, and what a collector reads of it."""

    def __init__(self, broker: Broker, clock: SimClock, reader: InMemoryMetricReader) -> None:
        self.broker, self.clock, self._reader = broker, clock, reader

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def read(self, name: str) -> dict[tuple[Any, ...], float]:
        """Values by what tells them apart: topic, then group."""
        found = {}
        for point in self.points(name):
            attributes = dict(point.attributes)
            assert attributes.pop("hourglass.broker.name") == "broker-a"
            key = tuple(attributes.pop(one) for one in (TOPIC, GROUP) if one in attributes)
            assert not attributes
            found[key] = point.value
        return found


@pytest.fixture
def meter() -> Iterator[tuple[Meter, InMemoryMetricReader]]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    yield provider.get_meter("test"), reader
    provider.shutdown()


@asynccontextmanager
async def showing(meter: tuple[Meter, InMemoryMetricReader]) -> AsyncIterator[Shown]:
    clock = SimClock(1_700_000_000_000)
    options = asking_at_once(check_times_max=2)
    async with running_broker(SimDisk(), clock, options=options) as broker:
        with BrokerMetrics(meter[0]).showing(broker):
            yield Shown(broker, clock, meter[1])


async def test_what_producers_send_counts_by_the_topic_they_send_it_to(meter: Any) -> None:
    async with showing(meter) as shown:
        batches = [incoming("t", [b"a", b"b"]), incoming("t", [b"c"], delay_level=1), half("u", b"d", "tx")]
        await produce(shown.broker, *batches, incoming("no such name", [b"e"]))
        await end(shown.broker, "tx", COMMIT)
        await shown.clock.advance(1)
        assert shown.read("hourglass.broker.messages.in") == {("t",): 3, ("u",): 1}
        sizes = [len(batch.records) for batch in batches]
        assert shown.read("hourglass.broker.bytes.in") == {("t",): sizes[0] + sizes[1], ("u",): sizes[2]}


async def test_what_is_repeated_counts_once(meter: Any) -> None:
    async with showing(meter) as shown:
        for _ in range(3):
            await produce(shown.broker, numbered("t", [b"a", b"b"], BatchSequence(1, 1, 1, 1)))
        assert shown.read("hourglass.broker.messages.in") == {("t",): 2}


async def test_what_consumers_get_counts_by_topic_and_group(meter: Any) -> None:
    async with showing(meter) as shown:
        await produce(shown.broker, incoming("t", [b"a", b"b"]))
        records = await read_all(shown.broker, "t")
        for group in ("g", "g", "h"):
            shown.broker.pulling.pull_hot(PullQuery(group, "t", 0, 1, 32, 1 << 20, "*"))
            shown.broker.pulling.pull_hot(PullQuery(group, "t", 0, 1, 32, 1 << 20, "nothing has this tag"))
        expected = {("t", "test-group"): 2, ("t", "g"): 2, ("t", "h"): 1}
        assert shown.read("hourglass.broker.messages.out") == expected
        sizes = [record.size for record in records]
        assert shown.read("hourglass.broker.bytes.out") == {
            ("t", "test-group"): sum(sizes),
            ("t", "g"): 2 * sizes[1],
            ("t", "h"): sizes[1],
        }


async def test_the_lag_is_what_a_group_has_not_finished_of_the_queues_it_reads(meter: Any) -> None:
    async with showing(meter) as shown:
        offsets = shown.broker.consumer_offsets
        await produce(shown.broker, *[incoming("t", [b"x"] * 10, queue_id=queue_id) for queue_id in range(3)])
        offsets.put("g", "t", 0, Progress(4))
        offsets.put("g", "t", 1, Progress(10))
        offsets.put("h", "t", 0, Progress(2, ((5, 7),)))
        lag = "hourglass.consumer.lag"
        assert shown.read(lag) == {("t", "g"): 6, ("t", "h"): 6}
        shown.broker.store.follows = True  # its master tells
        assert shown.read(lag) == {}
        shown.broker.store.follows = False


async def test_dead_letters_count_by_group(meter: Any) -> None:
    async with showing(meter) as shown:
        await produce(shown.broker, incoming("t", [b"x"]))
        (record,) = await read_all(shown.broker, "t")
        for group, times_max in (("g", 16), ("h", 16), ("h", 16)):
            await shown.broker.send_back.send_back(
                group, record.log_offset, delay_level=-1 if group == "h" else 1, max_reconsume_times=times_max
            )
        assert shown.read("hourglass.dead_letters") == {("g",): 0, ("h",): 2}


async def test_halves_and_checks(meter: Any) -> None:
    async with showing(meter) as shown:
        await park(shown.broker, "parked")
        await produce(shown.broker, half("t", b"x", "one"), half("t", b"x", "two"))
        join(shown.broker)
        await check_and_answer(shown.broker, "one", COMMIT)
        assert shown.read("hourglass.transaction.halves") == {(): 1}
        assert shown.read("hourglass.transaction.parked") == {(): 1}
        assert shown.read("hourglass.transaction.checks") == {(): 4}  # 2 until it was parked, and one of each


async def test_clients_and_held_polls(meter: Any) -> None:
    async with showing(meter) as shown:
        broker = shown.broker
        for number in range(3):
            broker.sessions.heartbeat(RecordingSession(), client(f"client-{number}", "g"))
        broker.topics.ensure_for_arrival("t", 0)
        for _ in range(2):
            broker.long_polling.poll(PullQuery("g", "t", 0, 0, 32, 1 << 20, "*"), 10_000, lambda _: None)
        assert shown.read("hourglass.broker.clients") == {(): 3}
        assert shown.read("hourglass.broker.polls.held") == {(): 2}
        await shown.clock.advance(10)
        assert shown.read("hourglass.broker.polls.held") == {(): 0}


async def test_each_sync_of_the_log_is_timed(meter: Any) -> None:
    async with showing(meter) as shown:
        before = shown.broker.store.flusher.syncs
        await produce(shown.broker, incoming("t", [b"x"] * 5))
        await produce(shown.broker, incoming("t", [b"x"]))
        (point,) = shown.points("hourglass.store.flush.duration")
        assert point.count == shown.broker.store.flusher.syncs - before == 2
        assert point.explicit_bounds == WAIT_BOUNDS_S


async def test_each_answer_of_replicas_tells_how_long_the_first_one_has_waited_for_it() -> None:
    clock, told = SimClock(), list[float]()
    confirmation = Confirmation(clock, lambda: None)
    confirmation.on_answered = told.append
    confirmation.begin(0, timeout_s=3.0)
    waiting = []
    for end_ in (10, 20, 30, 40):
        waiting.append(asyncio.create_task(confirmation.wait(end_, confirmation.deadline())))
        await settle()
        await clock.advance(0.5)
    confirmation.advance(5, alone=False)
    assert told == []
    confirmation.advance(20, alone=False)
    await clock.advance(1)
    confirmation.advance(30, alone=False)
    await clock.advance(3)
    assert told == [pytest.approx(2.0), pytest.approx(2.0), pytest.approx(3.0, abs=0.01)]
    assert [one.result() for one in waiting] == [Copies.SEND_OK] * 3 + [Copies.FLUSH_SLAVE_TIMEOUT]
    confirmation.close()


# As a page for Prometheus has them; dashboards, alerts and the manual name them.
PAGE = [
    "hourglass_broker_bytes_in_total", "hourglass_broker_bytes_out_total", "hourglass_broker_clients",
    "hourglass_broker_messages_in_total", "hourglass_broker_messages_out_total", "hourglass_broker_polls_held",
    "hourglass_consumer_lag", "hourglass_dead_letters_total", "hourglass_delay_lateness_seconds",
    "hourglass_delay_waiting", "hourglass_replication_clock_ahead_seconds",
    "hourglass_replication_connected", "hourglass_replication_epoch_start",
    "hourglass_replication_epoch_term", "hourglass_replication_in_sync", "hourglass_replication_in_sync_replicas",
    "hourglass_replication_lag_size_bytes", "hourglass_replication_lag_time_seconds", "hourglass_replication_role",
    "hourglass_replication_writable", "hourglass_store_damage_size_bytes", "hourglass_store_damage_stretches",
    "hourglass_store_disk_used", "hourglass_store_fenced", "hourglass_store_files_deleted_total",
    "hourglass_store_flush_duration_seconds", "hourglass_store_index_end_bytes", "hourglass_store_log_begin_bytes",
    "hourglass_store_log_durable_bytes", "hourglass_store_log_end_bytes", "hourglass_store_log_readable_bytes",
    "hourglass_store_messages_carried_total", "hourglass_store_messages_put_total", "hourglass_store_size_bytes",
    "hourglass_store_writes_refused", "hourglass_transaction_checks_total", "hourglass_transaction_halves",
    "hourglass_transaction_parked",
]  # fmt: skip


async def test_the_names_on_the_page_for_prometheus() -> None:
    provider = MeterProvider([PrometheusMetricReader()])
    meter = (provider.get_meter("test"), InMemoryMetricReader())
    async with showing(meter) as shown:
        await produce(shown.broker, incoming("t", [b"x"], delay_level=1), incoming("t", [b"x"]))
        await shown.clock.advance(1)
        (record, _) = await read_all(shown.broker, "t")
        shown.broker.consumer_offsets.put("g", "t", 0, Progress(0))
        await shown.broker.send_back.send_back("g", record.log_offset, delay_level=-1, max_reconsume_times=1)
        page = generate_latest(REGISTRY).decode()
    provider.shutdown()
    types = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE hourglass_")]
    assert sorted(types) == PAGE
    assert 'hourglass_consumer_lag{hourglass_broker_name="broker-a"' in page
