"""The broker as a process: what it tells a collector of traces and metrics, and a container of its health."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import broker_service_pb2_grpc as pb_grpc
from hourglass.mq.v1 import common_pb2
from mq_broker.testing import half, incoming
from mqproto.health import check
from mqproto.names import parse_address
from telemetry.testing.otlp_receiver import OtlpReceiver
from telemetry.trace_tree import ReceivedMetric

TRACE, SENDER, CALLER = "a" * 32, "b" * 16, "c" * 16
TRACED = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)
STOP_S = 20

MEASURED = {
    ("hourglass.broker.messages.in", "t"),
    ("hourglass.broker.messages.in", "u"),
    ("hourglass.store.flush.duration", None),
    ("hourglass.transaction.halves", None),
}

pytestmark = pytest.mark.processes


@asynccontextmanager
async def broker_process(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[str]:
    """A broker on a port of its own; yields its address, and stops it in order."""
    settings = {"storePathRootDir": str(folder), "listenPort": "0", "mappedFileSizeCommitLog": "1048576"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mq_broker", *(f"{name}={value}" for name, value in settings.items())),
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while "address" not in (line := json.loads(await process.stderr.readline())):
            pass
        assert (line["broker_name"], line["role"]) == ("broker-a", "ASYNC_MASTER")
        reading = asyncio.create_task(process.stderr.read())
        yield line["address"]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), STOP_S) == 0
        await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def measured(metrics: list[ReceivedMetric]) -> set[tuple[str, Any]]:
    """Names, and topics."""
    return {(metric.name, metric.attributes.get("messaging.destination.name")) for metric in metrics}


async def test_spans_and_metrics_arrive_and_streams_and_health_checks_are_not_traced(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        telemetry = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
        async with (
            broker_process(tmp_path, telemetry) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            stub: Any = pb_grpc.BrokerServiceStub(channel)
            stream = stub.Produce(metadata=TRACED)
            plain = incoming("t", [b"x", b"y"])
            batch = pb.RecordBatch(topic="t", queue_id=0, count=2, records=plain.records)
            await stream.write(pb.ProduceRequest(request_id=1, batches=[batch]))
            assert (await stream.read()).results[0].code == common_pb2.SUCCESS
            await stream.done_writing()

            sent = half("u", b"x", "tx", properties={"traceparent": f"00-{TRACE}-{SENDER}-01"})
            batch = pb.RecordBatch(topic="u", queue_id=0, count=1, records=sent.records)
            assert (await stub.Send(pb.SendRequest(batch=batch))).result.code == common_pb2.SUCCESS
            end = pb.EndTransactionRequest(producer_group="shop", transaction_id="tx", state=pb.COMMIT_MESSAGE)
            assert (await stub.EndTransaction(end, metadata=TRACED)).code == common_pb2.SUCCESS

            health: Any = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest(), metadata=TRACED)
            for service in ("/store", "/writes"):
                name = f"hourglass.mq.v1.BrokerService{service}"
                assert await asyncio.to_thread(check, parse_address(address), name) == (
                    True,
                    f"{name} at {address} is serving",
                )
            await asyncio.to_thread(receiver.wait_for_metrics, lambda metrics: measured(metrics) >= MEASURED)
        spans = {span.name: span for span in receiver.spans()}
    assert spans.keys() == {"half u", "/hourglass.mq.v1.BrokerService/EndTransaction"}
    assert {(span.service, span.trace_id) for span in spans.values()} == {("mq-broker", TRACE)}
    assert spans["half u"].parent_span_id == SENDER
    assert spans["/hourglass.mq.v1.BrokerService/EndTransaction"].parent_span_id == CALLER


def test_telemetry_that_cannot_be_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "mq_broker", "listenPort=0", f"storePathRootDir={tmp_path / 'store'}"],
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    sentence = "mq-broker: OTEL_EXPORTER_OTLP_ENDPOINT: 'nowhere' is not an address like http://127.0.0.1:4317\n"
    assert (run.returncode, run.stderr) == (2, sentence)
    assert not (tmp_path / "store").exists()
