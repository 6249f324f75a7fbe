"""The transports on real sockets over loopback: the same fake brokers, served by gRPC and by frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient import (
    Admin,
    BrokerUnreachableError,
    ConnectionLostError,
    ConsumeFromWhere,
    ConsumeStatus,
    IllegalArgumentError,
    LocalTransactionState,
    Message,
    MessageExt,
    MQClientError,
    NoRouteError,
    Producer,
    PushConsumer,
    RequestTimeoutError,
    TransactionProducer,
)
from mqclient.testing import RecordingTransactionListener
from mqclient.testing.loopback import Loopback, loopback_server
from mqclient.transport import Channel, Method, methods
from mqclient.transport.grpc_transport import client_error
from mqclient.transport.network import open_transport
from mqproto.record import decode_record
from osenv import until
from telemetry import tracer
from telemetry.testing.recorder import Recorder

SERVERS = ("AioServer", "frames_service", "testing/loopback")


@pytest_asyncio.fixture(params=["grpc", "frames"])
async def loopback(request: pytest.FixtureRequest) -> AsyncIterator[Loopback]:
    async with loopback_server(by_frames=request.param == "frames") as loopback:
        yield loopback


def open_channel(loopback: Loopback) -> Channel:
    return open_transport(loopback.broker.address, uses_frames=loopback.by_frames).open_channel(loopback.broker.address)


@asynccontextmanager
async def channel_to(loopback: Loopback) -> AsyncIterator[Channel]:
    channel = open_channel(loopback)
    try:
        yield channel
    finally:
        await channel.close()


def own_tasks() -> set[asyncio.Task[Any]]:
    """All tasks but those of the server, which come and go with its connections."""
    return {task for task in asyncio.all_tasks() if not any(name in repr(task) for name in SERVERS)}


async def test_100_delayed_sends_at_once_to_one_queue_succeed(loopback: Loopback) -> None:
    async with Producer("shop", loopback.url) as producer:
        sends = (
            producer.send(Message("orders", b"%d" % n, delay_level=16), selector=lambda queues, *_: queues[0])
            for n in range(100)
        )
        results = await asyncio.gather(*sends)
        stored = [decode_record(record) for record in loopback.broker.queues["orders", 0]]
    assert {(result.queue_offset, result.log_offset) for result in results} == {
        (record.queue_offset, record.log_offset) for record in stored
    }
    assert {record.body for record in stored} == {b"%d" % n for n in range(100)}


async def test_a_transaction_commits_and_a_check_is_answered(loopback: Loopback) -> None:
    before = own_tasks()
    listener = RecordingTransactionListener(check_state=LocalTransactionState.COMMIT_MESSAGE)
    async with TransactionProducer("shop", loopback.url, transaction_listener=listener) as producer:
        await producer.send_message_in_transaction(Message("orders", b"at once"))
        await until(lambda: loopback.broker.bodies == [b"at once"])
        listener.state = LocalTransactionState.UNKNOW
        asked = await producer.send_message_in_transaction(Message("orders", b"when asked"))
        loopback.broker.check(asked.transaction_id)
        await until(lambda: len(loopback.broker.bodies) == 2)
    assert [message.transaction_id for message in listener.checked] == [asked.transaction_id]
    await until(lambda: own_tasks() <= before)


@pytest.mark.mechanism("U9")
async def test_messages_go_through_and_nothing_is_left_behind(loopback: Loopback) -> None:
    before = own_tasks()
    got: list[MessageExt] = []

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        got.extend(messages)
        failed = messages[0].body == b"0" and messages[0].reconsume_times == 0
        return ConsumeStatus.RECONSUME_LATER if failed else ConsumeStatus.CONSUME_SUCCESS

    consumer = PushConsumer("closers", loopback.url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("orders", "created")
    consumer.register_message_listener(listener)
    loopback.broker.create_topic("%RETRY%closers", 1)
    async with consumer, Producer("shop", loopback.url) as producer:
        sends = (producer.send(Message("orders", b"%d" % n, tag="created")) for n in range(20))
        results = await asyncio.gather(*sends)
        await until(lambda: len(got) == 21)
    assert {message.message_id for message in got} == {result.message_id for result in results}
    assert sorted(message.body for message in got) == sorted([b"0"] + [b"%d" % n for n in range(20)])
    assert {message.offset_message_id for message in got if not message.reconsume_times} != {""}
    assert sum(loopback.broker.offsets["closers", "orders", queue] for queue in range(4)) == 20
    assert loopback.broker.members("closers") == []
    await until(lambda: own_tasks() == before)


async def test_streams_and_unary_calls_share_no_connection(loopback: Loopback) -> None:
    consumer = PushConsumer("closers", loopback.url)
    consumer.subscribe("orders")

    async def listener(_: list[MessageExt]) -> ConsumeStatus:
        return ConsumeStatus.CONSUME_SUCCESS

    consumer.register_message_listener(listener)
    async with consumer:
        assert len(loopback.peers["stream"]) == len(loopback.peers["unary"]) == 1
        assert not loopback.peers["stream"] & loopback.peers["unary"]


async def test_admin_creates_topics_and_reads_the_brokers_status(loopback: Loopback) -> None:
    async with Admin(loopback.url) as admin:
        await admin.update_topic("payments", read_queue_count=2, write_queue_count=2)
        assert loopback.broker.topics["payments"].write_queue_count == 2
        route = await admin.topic_route("payments")
        assert [queue.queue_id for queue in route.publish_queues()] == [0, 1]
        assert "payments" in await admin.topic_list()
        (status,) = await admin.broker_statuses()
        assert (status.broker_name, status.address) == ("broker-a", loopback.broker.address)
        assert [(level.level, level.waiting) for level in status.delay_levels] == [(16, 2)]
        with pytest.raises(NoRouteError):
            await admin.topic_route("nowhere")
        with pytest.raises(NoRouteError, match="other-cluster"):
            await admin.update_topic("payments", cluster_name="other-cluster")
        with pytest.raises(IllegalArgumentError):
            await admin.update_topic("bad topic")


async def test_an_unused_port_is_unreachable_for_unary_and_stream(loopback: Loopback) -> None:
    await loopback.stop()
    async with channel_to(loopback) as channel:
        with pytest.raises(BrokerUnreachableError, match=loopback.broker.address):
            await channel.unary(methods.QUERY_ROUTE, name_pb.QueryRouteRequest(topic="orders"), 5.0)
        stream = channel.stream(methods.PRODUCE)
        with pytest.raises(BrokerUnreachableError):
            await stream.write(broker_pb.ProduceRequest(request_id=1))
        with pytest.raises(BrokerUnreachableError):
            await stream.read()  # it stays broken
        with pytest.raises(BrokerUnreachableError):
            await channel.stream(methods.PRODUCE).read()


async def test_late_answer_is_a_timeout_of_unknown_outcome(loopback: Loopback) -> None:
    async with channel_to(loopback) as channel:

        async def never(path: str, request: Any) -> Any:
            await asyncio.Event().wait()

        loopback.broker.unary = never  # type: ignore[method-assign]
        with pytest.raises(RequestTimeoutError, match=r"DEADLINE_EXCEEDED|in time"):
            await channel.unary(methods.GET_CONSUMER_LIST, broker_pb.GetConsumerListRequest(group="g"), 0.05)


async def test_server_that_goes_away_loses_the_connection_of_a_stream(loopback: Loopback) -> None:
    async with channel_to(loopback) as channel:
        loopback.broker.silent = True
        stream = channel.stream(methods.PRODUCE)
        await stream.write(broker_pb.ProduceRequest(request_id=1))
        await until(lambda: len(loopback.broker.frames) == 1)
        reading = asyncio.create_task(stream.read())
        await loopback.stop()
        with pytest.raises(ConnectionLostError):
            await reading
        with pytest.raises(MQClientError):
            await stream.write(broker_pb.ProduceRequest(request_id=2))


async def test_given_up_stream_and_closed_channel_raise_connection_lost(loopback: Loopback) -> None:
    loopback.broker.silent = True
    channel = open_channel(loopback)
    first, second = channel.stream(methods.PRODUCE), channel.stream(methods.POLL)
    await first.write(broker_pb.ProduceRequest(request_id=1))
    await second.write(broker_pb.PollRequest(poll_id=1))
    readers = [asyncio.create_task(first.read()), asyncio.create_task(second.read())]
    await asyncio.sleep(0)
    first.cancel()
    await channel.close()
    for error in await asyncio.gather(*readers, return_exceptions=True):
        assert isinstance(error, ConnectionLostError)


async def test_stream_that_is_ended_in_order_reads_none(loopback: Loopback) -> None:
    async with channel_to(loopback) as channel:
        stream = channel.stream(methods.SESSION)
        await stream.write(broker_pb.SessionRequest(heartbeat=broker_pb.Heartbeat(client_id="c")))
        answer = await stream.read()
        assert answer is not None
        assert answer.WhichOneof("command") == "heartbeat_ack"
        await stream.done_writing()
        assert await stream.read() is None


async def test_a_broker_s_address_is_told_from_a_name_server_s(loopback: Loopback) -> None:
    async with channel_to(loopback) as channel:
        unserved = Method(
            "/hourglass.mq.v1.NameService/UnregisterBroker", name_pb.QueryRouteRequest, name_pb.QueryRouteResponse
        )
        with pytest.raises(IllegalArgumentError, match=r"is not a name server, but a broker.*port 9876"):
            await channel.unary(unserved, name_pb.QueryRouteRequest(), 5.0)


async def test_unknown_method_makes_no_sense(loopback: Loopback) -> None:
    async with channel_to(loopback) as channel:
        unknown = Method(
            "/hourglass.mq.v1.ReplicationService/Replicate", name_pb.QueryRouteRequest, name_pb.QueryRouteResponse
        )
        with pytest.raises(IllegalArgumentError, match=r"UNIMPLEMENTED|code 20300 is not supported"):
            await channel.unary(unknown, name_pb.QueryRouteRequest(), 5.0)


async def test_a_call_by_frames_inside_a_span_has_a_span_at_each_end() -> None:
    request = name_pb.QueryRouteRequest(topic="orders")
    with Recorder() as recorder:
        async with loopback_server(by_frames=True) as loopback, channel_to(loopback) as channel:
            await channel.unary(methods.QUERY_ROUTE, request, 5.0)
            assert recorder.spans() == []
            with tracer("test").start_as_current_span("an order"):
                await channel.unary(methods.QUERY_ROUTE, request, 5.0)
        served, called, order = recorder.spans()
    assert served.name == called.name == methods.QUERY_ROUTE.path
    assert (served.kind, called.kind) == ("SERVER", "CLIENT")
    assert (served.parent_span_id, called.parent_span_id) == (called.span_id, order.span_id)
    assert served.attributes["rpc.method"] == called.attributes["rpc.method"] == "QueryRoute"


@pytest.mark.parametrize(
    ("status", "details", "kind"),
    [
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: rejected",
            BrokerUnreachableError,
        ),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", ConnectionLostError),
        (grpc.StatusCode.UNAVAILABLE, None, ConnectionLostError),
        (grpc.StatusCode.INTERNAL, "boom", ConnectionLostError),
        (grpc.StatusCode.CANCELLED, "shutting down", ConnectionLostError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", RequestTimeoutError),
        (grpc.StatusCode.INVALID_ARGUMENT, "the batch is malformed", IllegalArgumentError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max", IllegalArgumentError),
        (None, None, ConnectionLostError),
    ],
)
def test_every_status_has_its_place_in_the_error_tree(
    status: grpc.StatusCode | None, details: str | None, kind: type[MQClientError]
) -> None:
    error = client_error("host:1", status, details)
    assert type(error) is kind
    assert "host:1" in str(error)


def test_transport_has_the_name_servers_and_an_own_address() -> None:
    transport = open_transport("one:9876;two:9876")
    assert transport.name_servers == ("one:9876", "two:9876")
    assert transport.local_ip.count(".") == 3
