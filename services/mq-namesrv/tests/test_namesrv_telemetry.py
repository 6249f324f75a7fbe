"""What the name server tells of itself: metrics, and spans of the calls that their callers trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from hourglass.mq.v1 import common_pb2
from hourglass.mq.v1 import name_service_pb2 as pb
from hourglass.mq.v1 import name_service_pb2_grpc as pb_grpc
from mq_namesrv.app import SERVICE_DESCRIPTOR, NameServer
from mq_namesrv.config import NamesrvConfig
from osenv import SimClock
from telemetry.grpc_server import call_interceptors, unary_methods
from telemetry.testing.recorder import Recorder

TRACE, CALLER = "a" * 32, "b" * 16
TRACED = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)


@asynccontextmanager
async def serving(reader: InMemoryMetricReader | None = None) -> AsyncIterator[grpc.aio.Channel]:
    """A name server in which two brokers of one name have a topic."""
    provider = MeterProvider([reader] if reader else [])
    server = NameServer(NamesrvConfig(listen_port=0), SimClock(), provider.get_meter("test"))
    address = await server.start()
    async with grpc.aio.insecure_channel(str(address)) as channel:
        streams = [await registered(channel, number) for number in (0, 1)]
        yield channel
        for stream in streams:
            stream.cancel()
    await server.stop()
    provider.shutdown()


async def registered(channel: grpc.aio.Channel, broker_id: int) -> Any:
    stub: Any = pb_grpc.NameServiceStub(channel)
    stream = stub.RegisterBroker(metadata=TRACED)
    broker = pb.BrokerIdentity(
        cluster_name="c", broker_name="a", broker_id=broker_id, address=f"127.0.0.1:{1 + broker_id}"
    )
    topic = common_pb2.TopicConfig(topic="orders", read_queue_count=4, write_queue_count=4, perm=6)
    await stream.write(pb.RegisterBrokerRequest(broker=broker, topics=[topic], data_version=1))
    assert (await stream.read()).code == common_pb2.SUCCESS
    return stream


async def query(channel: grpc.aio.Channel, topic: str, metadata: Any = ()) -> None:
    stub: Any = pb_grpc.NameServiceStub(channel)
    await stub.QueryRoute(pb.QueryRouteRequest(topic=topic), metadata=metadata)


async def test_brokers_topics_and_queries_are_counted() -> None:
    reader = InMemoryMetricReader()
    async with serving(reader) as channel:
        for topic in ("orders", "orders", "nothing"):
            await query(channel, topic)
        data = reader.get_metrics_data()
    assert data is not None
    found = {
        (metric.name, *(point.attributes or {}).values()): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }
    assert found == {
        ("hourglass.namesrv.brokers",): 2,
        ("hourglass.namesrv.topics",): 1,
        ("hourglass.namesrv.route.queries", True): 2,
        ("hourglass.namesrv.route.queries", False): 1,
    }


async def test_a_call_has_a_span_when_its_caller_has_one_and_streams_and_health_checks_have_none() -> None:
    with Recorder() as recorder:
        async with serving() as channel:
            await query(channel, "orders")
            health: Any = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest(), metadata=TRACED)
            assert recorder.spans() == []
            await query(channel, "orders", TRACED)
        (span,) = recorder.spans()
    assert (span.name, span.kind) == ("/hourglass.mq.v1.NameService/QueryRoute", "SERVER")
    assert (span.trace_id, span.parent_span_id) == (TRACE, CALLER)
    assert span.attributes["rpc.method"] == "QueryRoute"


def test_without_tracing_no_call_is_intercepted() -> None:
    assert call_interceptors([SERVICE_DESCRIPTOR]) == ()


def test_the_stream_of_a_broker_is_no_unary_method() -> None:
    assert unary_methods([SERVICE_DESCRIPTOR]) == {
        f"/hourglass.mq.v1.NameService/{name}"
        for name in ("UnregisterBroker", "QueryRoute", "ListTopics", "ListClusters")
    }


@pytest.mark.processes
def test_telemetry_that_cannot_be_is_one_sentence_and_exit_code_2() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "mq_namesrv", "listenPort=0"],
        env={"OTEL_TRACES_EXPORTER": "oltp"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (2, "mq-namesrv: OTEL_TRACES_EXPORTER: 'oltp' is none of otlp, none\n")
