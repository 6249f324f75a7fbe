"""Spans where things go wrong, in threads, over real gRPC, and in handlers of FastAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI

import telemetry
from hourglass.mq.v1 import common_pb2 as common_pb
from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    BrokerRejectedError,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    TransactionProducer,
)
from mqclient.fastapi import MQ
from mqclient.observed.operations import observed_processing
from mqclient.sync import SyncProducer, SyncTransactionProducer
from mqclient.testing import FakeCluster, RecordingTransactionListener
from mqclient.testing.loopback import loopback_server
from mqproto.properties import PropertiesError
from osenv import SimClock, until
from telemetry.testing.recorder import Recorder
from telemetry.trace_tree import ReceivedSpan

GRPC = "opentelemetry.instrumentation.grpc"


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as recorder:
        yield recorder


def by_name(recorder: Recorder) -> dict[str, ReceivedSpan]:
    return {span.name: span for span in recorder.spans()}


async def test_another_try_is_an_event_and_the_span_tells_where_the_message_went(recorder: Recorder) -> None:
    cluster, (first, _) = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    async with Producer("shop", cluster.url) as producer:
        while (await producer.send(Message("orders", b"before"))).message_queue.broker_name != "broker-b":
            pass
        first.next_codes = [common_pb.SYSTEM_BUSY]
        await producer.send(Message("orders", b"x", keys="order-1"))
    (span,) = [span for span in recorder.spans() if "messaging.rocketmq.message.keys" in span.attributes]
    assert [(event.name, event.attributes["hourglass.broker.name"]) for event in span.events] == [
        ("tried again", "broker-a")
    ]
    assert span.events[0].attributes["error.type"] == "BrokerUnavailableError"
    assert (span.status, span.attributes["hourglass.broker.name"]) == ("UNSET", "broker-b")


async def test_a_send_that_fails_has_a_span_that_failed_and_counts() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    with Recorder() as recorder:
        async with Producer("shop", cluster.url) as producer:
            broker.next_codes = [common_pb.MESSAGE_ILLEGAL]
            with pytest.raises(BrokerRejectedError):
                await producer.send(Message("orders", b"x"))
        (span,) = recorder.spans()
        assert (span.status, span.attributes["error.type"]) == ("ERROR", "BrokerRejectedError")
        assert [event.name for event in span.events] == ["exception"]
        counted = [point for point in recorder.metrics() if point.name == "messaging.client.sent.messages"]
        assert [(point.value, point.attributes["error.type"]) for point in counted] == [(1, "BrokerRejectedError")]


async def test_a_send_that_is_cancelled_says_so(recorder: Recorder) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        broker.silent = True
        sending = asyncio.create_task(producer.send(Message("orders", b"x")))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        broker.silent = False
    assert [span.attributes.get("error.type") for span in recorder.spans()] == [None, "cancelled"]


async def test_each_try_of_a_half_has_its_own_id_and_all_carry_the_span_of_the_send(recorder: Recorder) -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    listener = RecordingTransactionListener()
    async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
        while (await producer.send(Message("orders", b"before"))).message_queue.broker_name != "broker-b":
            pass
        first.next_codes = [common_pb.SYSTEM_BUSY]
        result = await producer.send_message_in_transaction(Message("orders", b"x", keys="order-1"))
    spans = by_name(recorder)
    (send,) = [span for span in recorder.spans() if "messaging.rocketmq.message.keys" in span.attributes]
    assert [event.name for event in send.events] == ["tried again"]
    assert send.attributes["messaging.message.id"] == result.transaction_id
    assert spans["transaction orders"].parent_span_id == send.span_id
    (stored,) = [record for records in second.queues.values() for record in records if b"order-1" in record]
    assert f"-{send.span_id}-".encode() in stored


class BrokenMessage:
    """Its properties cannot be read."""

    topic = "orders"

    @property
    def properties(self) -> dict[str, str]:
        raise PropertiesError("broken")


async def test_a_message_that_cannot_be_read_is_its_listeners_business(recorder: Recorder) -> None:
    async def process() -> tuple[bool, object]:
        return False, "what the listener made of it"

    broken: Any = BrokenMessage()
    queue = MessageQueue("orders", "broker-a", 0)
    outcome = await observed_processing("readers", queue, [broken], process(), SimClock())
    assert outcome == (False, "what the listener made of it")
    assert recorder.spans() == []


# ------------------------------------------------------------------------------------------------------ over gRPC


async def test_unary_calls_inside_a_span_are_traced_and_those_in_the_background_are_not(recorder: Recorder) -> None:
    async with loopback_server() as loopback:
        listener = RecordingTransactionListener()
        async with TransactionProducer("shop", loopback.url, transaction_listener=listener) as producer:
            await producer.send_message_in_transaction(Message("orders", b"x"))
            await until(lambda: loopback.broker.bodies)
    spans = recorder.spans()
    calls = [span for span in spans if span.scope == GRPC]
    commit = by_name(recorder)["commit orders"]
    assert [span.name for span in calls if span.name.endswith("EndTransaction")] == [
        "/hourglass.mq.v1.BrokerService/EndTransaction"
    ]
    assert {span.parent_span_id for span in calls} == {commit.span_id}
    assert {span.kind for span in calls} == {"CLIENT"}


class ThreadListener:
    """Notes the trace in which it is called, in whichever thread."""

    def __init__(self) -> None:
        self.traces: list[tuple[str, str | None]] = []
        self.state = LocalTransactionState.COMMIT_MESSAGE

    def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        with telemetry.tracer("test").start_as_current_span("INSERT"):
            self.traces.append(("execute", telemetry.current_trace_id()))
        return self.state

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.traces.append(("check", telemetry.current_trace_id()))
        return LocalTransactionState.COMMIT_MESSAGE


async def test_the_synchronous_faces_stay_in_the_span_of_their_caller(recorder: Recorder) -> None:
    listener = ThreadListener()

    def script(url: str, check: Callable[[str], None]) -> str | None:
        with (
            SyncProducer("shop", url) as shop,
            SyncTransactionProducer("payers", url, transaction_listener=listener) as payers,
            telemetry.tracer("test").start_as_current_span("app"),
        ):
            shop.send(Message("orders", b"plain"))
            listener.state = LocalTransactionState.UNKNOW
            check(payers.send_message_in_transaction(Message("orders", b"asked")).transaction_id)
            here = telemetry.current_trace_id()
            for _ in range(1_000):
                if len(listener.traces) == 2:
                    break
                shop.send(Message("orders", b"meanwhile"))
            return here

    async with loopback_server() as loopback:
        loop = asyncio.get_running_loop()

        def check(transaction_id: str) -> None:
            loop.call_soon_threadsafe(loopback.broker.check, transaction_id)

        here = await asyncio.to_thread(script, loopback.url, check)
    assert here is not None
    assert listener.traces == [("execute", here), ("check", here)]
    app = by_name(recorder)["app"]
    assert {span.parent_span_id for span in recorder.spans() if span.name == "send orders"} == {app.span_id}
    spans = by_name(recorder)
    assert spans["INSERT"].parent_span_id == spans["transaction orders"].span_id


# ------------------------------------------------------------------------------------------------------ FastAPI


@pytest.mark.parametrize("in_thread", [False, True])
async def test_handlers_run_in_the_span_of_their_message(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder, in_thread: bool
) -> None:
    mq = MQ(broker.url)
    shop = mq.producer("shop")
    traces: list[str | None] = []
    if in_thread:

        @mq.consumer("readers", "orders")
        def read_in_thread(message: MessageExt) -> None:
            traces.append(telemetry.current_trace_id())

    else:

        @mq.consumer("readers", "orders")
        async def read(message: MessageExt) -> None:
            traces.append(telemetry.current_trace_id())
            await (await shop()).send(Message("answers", b"17"))

    async with mq.lifespan(FastAPI()):
        with telemetry.tracer("test").start_as_current_span("app"):
            await (await shop()).send(Message("orders", b"17"))
        async with asyncio.timeout(20):
            while not traces:
                await clock.advance(1)
    spans = by_name(recorder)
    assert traces == [spans["app"].trace_id]
    assert spans["process orders"].parent_span_id == spans["send orders"].span_id
    if not in_thread:
        assert spans["send answers"].parent_span_id == spans["process orders"].span_id
