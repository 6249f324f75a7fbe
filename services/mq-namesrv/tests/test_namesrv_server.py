"""A real name server on loopback: streams, queries, health, and what it says to requests that make no sense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from hourglass.mq.v1 import common_pb2, name_service_pb2, name_service_pb2_grpc, replication_service_pb2
from mq_namesrv.app import SERVICE_NAME, NameServer, StartError
from mq_namesrv.config import NamesrvConfig
from osenv import SimClock

WAIT_SECONDS = 10


@dataclass
class Running:
    server: NameServer
    clock: SimClock
    channel: grpc.aio.Channel
    stub: Any
    port: int


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    clock = SimClock()
    server = NameServer(NamesrvConfig(listen_port=0), clock)
    address = await server.start()
    scan = asyncio.create_task(server.scan())
    async with grpc.aio.insecure_channel(str(address)) as channel:
        yield Running(server, clock, channel, name_service_pb2_grpc.NameServiceStub(channel), address.port)
    scan.cancel()
    await server.stop()


def registration(
    name: str = "broker-a",
    broker_id: int = 0,
    *,
    topics: tuple[str, ...] = ("orders",),
    version: int = 1,
    epoch: tuple[int, int] = (0, 0),
    **who: Any,
) -> name_service_pb2.RegisterBrokerRequest:
    identity = {
        "cluster_name": "c1",
        "broker_name": name,
        "broker_id": broker_id,
        "address": f"127.0.0.1:{1 + broker_id}",
    }
    return name_service_pb2.RegisterBrokerRequest(
        broker=name_service_pb2.BrokerIdentity(**{**identity, **who}),
        ha_address="127.0.0.1:10912",
        topics=[
            common_pb2.TopicConfig(topic=topic, read_queue_count=8, write_queue_count=4, perm=6) for topic in topics
        ],
        data_version=version,
        epoch=replication_service_pb2.Epoch(term=epoch[0], start=epoch[1]),
    )


async def open_stream(running: Running, request: name_service_pb2.RegisterBrokerRequest) -> Any:
    stream = running.stub.RegisterBroker()
    await stream.write(request)
    response = await stream.read()
    assert response.code == common_pb2.SUCCESS
    return stream


async def topics_become(running: Running, expected: list[str]) -> None:
    """Wait for the state of the server, which hears of a closed stream a moment later than its peer."""
    async with asyncio.timeout(WAIT_SECONDS):
        while list((await running.stub.ListTopics(name_service_pb2.ListTopicsRequest())).topics) != expected:
            pass


async def query(running: Running, topic: str) -> name_service_pb2.QueryRouteResponse:
    response: name_service_pb2.QueryRouteResponse = await running.stub.QueryRoute(
        name_service_pb2.QueryRouteRequest(topic=topic), timeout=WAIT_SECONDS
    )
    return response


async def test_registered_broker_is_in_the_route(running: Running) -> None:
    await open_stream(running, registration())

    response = await query(running, "orders")

    assert response.code == common_pb2.SUCCESS
    assert list(response.route.queues) == [
        name_service_pb2.QueueData(broker_name="broker-a", read_queue_count=8, write_queue_count=4, perm=6)
    ]
    assert list(response.route.brokers) == [
        name_service_pb2.BrokerData(cluster_name="c1", broker_name="broker-a", addresses={0: "127.0.0.1:1"})
    ]


async def test_replica_learns_where_its_master_replicates(running: Running) -> None:
    await open_stream(running, registration())
    stream = running.stub.RegisterBroker()
    await stream.write(registration(broker_id=1))
    assert (await stream.read()).ha_address == "127.0.0.1:10912"
    route = (await query(running, "orders")).route
    assert dict(route.brokers[0].addresses) == {0: "127.0.0.1:1", 1: "127.0.0.1:2"}


async def register_on(stream: Any, request: name_service_pb2.RegisterBrokerRequest) -> Any:
    await stream.write(request)
    return await stream.read()


async def test_replaced_master_is_told_on_its_open_stream_each_time(running: Running) -> None:
    old_request = registration(epoch=(7, 3))
    new_request = registration(epoch=(8, 0), address="127.0.0.1:99")
    new_request.ha_address = "127.0.0.1:1099"
    old = await open_stream(running, old_request)
    new = await open_stream(running, new_request)
    for _ in range(2):
        answer = await register_on(old, old_request)
        assert answer.code == common_pb2.NOT_LEADER_FOR_QUEUE
        assert (answer.ha_address, answer.master_epoch.term, answer.master_epoch.start) == ("127.0.0.1:1099", 8, 0)
        assert "its successor of 8.0 is at 127.0.0.1:99" in answer.remark
    await old.done_writing()
    assert await old.read() is grpc.aio.EOF
    assert await old.code() == grpc.StatusCode.OK
    assert dict((await query(running, "orders")).route.brokers[0].addresses) == {0: "127.0.0.1:99"}
    assert (await register_on(new, new_request)).code == common_pb2.SUCCESS


async def test_replica_hears_of_another_master_when_it_registers_again(running: Running) -> None:
    await open_stream(running, registration(epoch=(7, 3)))
    replica = await open_stream(running, registration(broker_id=1))
    taking_over = registration(epoch=(8, 0), address="127.0.0.1:99")
    taking_over.ha_address = "127.0.0.1:1099"
    await open_stream(running, taking_over)
    answer = await register_on(replica, registration(broker_id=1))
    assert (answer.code, answer.ha_address) == (common_pb2.SUCCESS, "127.0.0.1:1099")
    assert (answer.master_epoch.term, answer.master_epoch.start) == (8, 0)


async def test_a_stream_that_was_rejected_stays_one_broker_s(running: Running) -> None:
    await open_stream(running, registration(epoch=(8, 0), address="127.0.0.1:99"))
    old = running.stub.RegisterBroker()
    assert (await register_on(old, registration(epoch=(7, 0)))).code == common_pb2.NOT_LEADER_FOR_QUEUE
    await old.write(registration(broker_id=1, address="127.0.0.1:1"))
    assert await old.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "a stream registers one broker" in await old.details()


async def test_unknown_topic_is_answered_with_topic_not_exist(running: Running) -> None:
    response = await query(running, "nothing")
    assert response.code == common_pb2.TOPIC_NOT_EXIST
    assert response.remark == "no registered broker has the topic 'nothing'"
    assert not response.HasField("route")


async def test_changed_topics_arrive_on_the_same_stream(running: Running) -> None:
    stream = await open_stream(running, registration())
    await stream.write(registration(topics=("orders", "payments"), version=2))
    assert (await stream.read()).code == common_pb2.SUCCESS
    assert (await query(running, "payments")).code == common_pb2.SUCCESS


@pytest.mark.mechanism("N3")
@pytest.mark.parametrize("how", ["done_writing", "cancel"])
async def test_end_of_the_stream_removes_the_broker_at_once(running: Running, how: str) -> None:
    stream = await open_stream(running, registration())
    await topics_become(running, ["orders"])
    if how == "cancel":
        stream.cancel()
    else:
        await stream.done_writing()
    await topics_become(running, [])  # the clock has not moved: no expiry was needed
    assert (await query(running, "orders")).code == common_pb2.TOPIC_NOT_EXIST


async def test_lost_connection_removes_the_broker_at_once(running: Running) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        stream: Any = name_service_pb2_grpc.NameServiceStub(channel).RegisterBroker()
        await stream.write(registration())
        await stream.read()
        await topics_become(running, ["orders"])
    await topics_become(running, [])


async def test_newer_stream_takes_the_broker_over(running: Running) -> None:
    old = await open_stream(running, registration())
    new = await open_stream(running, registration(topics=("payments",), address="127.0.0.1:99"))
    await old.done_writing()
    assert await old.read() is grpc.aio.EOF
    assert await old.code() == grpc.StatusCode.OK  # the old stream has ended, and its end was handled
    await topics_become(running, ["payments"])
    assert (await query(running, "payments")).route.brokers[0].addresses[0] == "127.0.0.1:99"

    await new.done_writing()
    await topics_become(running, [])


async def test_superseded_stream_is_ended_with_a_reason(running: Running) -> None:
    old = await open_stream(running, registration())
    await open_stream(running, registration(address="127.0.0.1:99"))
    await old.write(registration())
    assert await old.code() == grpc.StatusCode.ABORTED
    assert "newer session, from 127.0.0.1:99" in await old.details()


@pytest.mark.mechanism("N3")
async def test_silent_broker_expires_after_120_seconds(running: Running) -> None:
    stream = await open_stream(running, registration())
    for _ in range(10):  # a heartbeat every 30 s keeps it, for as long as it comes
        await running.clock.advance(30)
        await stream.write(registration())
        await stream.read()
    await running.clock.advance(120)
    assert (await query(running, "orders")).code == common_pb2.SUCCESS
    await running.clock.advance(10)
    assert (await query(running, "orders")).code == common_pb2.TOPIC_NOT_EXIST

    await stream.write(registration())
    await stream.read()
    assert (await query(running, "orders")).code == common_pb2.SUCCESS


async def test_it_says_that_it_is_uncertain_after_its_start_after_a_loss_and_while_a_broker_is_silent(
    running: Running,
) -> None:
    stub, list_brokers = running.stub, name_service_pb2.ListClustersRequest()

    async def uncertain() -> set[bool]:
        answers = [
            await query(running, "orders"),
            await query(running, "nowhere"),
            await stub.ListClusters(list_brokers),
        ]
        return {answer.uncertain for answer in answers}

    assert await uncertain() == {True}
    await running.clock.advance(120.1)
    assert await uncertain() == {False}

    stream = await open_stream(running, registration())
    other = await open_stream(running, registration("broker-b", address="127.0.0.1:50", topics=("payments",)))
    assert await uncertain() == {False}
    await other.done_writing()
    await topics_become(running, ["orders"])
    assert await uncertain() == {True}
    other = await open_stream(running, registration("broker-b", address="127.0.0.1:51", topics=("payments",)))
    assert await uncertain() == {False}  # it is back, at another address
    await other.done_writing()
    await topics_become(running, ["orders"])
    for _ in range(4):
        await running.clock.advance(30.1)
        assert await uncertain() == {True} or _ == 3
        await register_on(stream, registration())
    assert await uncertain() == {False}  # for an expiry time is enough: the broker may have been removed for good

    await stub.UnregisterBroker(name_service_pb2.UnregisterBrokerRequest(broker=registration().broker))
    assert await uncertain() == {False}
    await register_on(stream, registration())
    await running.clock.advance(60.1)
    assert (await query(running, "orders")).uncertain  # two of its periods without a word


async def test_brokers_are_listed_with_the_highest_epoch_of_their_masters(running: Running) -> None:
    await open_stream(running, registration(epoch=(7, 3)))
    replica = await open_stream(running, registration(broker_id=1, epoch=(7, 2)))
    for _ in range(2):
        (listed,) = (await running.stub.ListClusters(name_service_pb2.ListClustersRequest())).brokers
        (routed,) = (await query(running, "orders")).route.brokers
        assert listed == routed
        assert (listed.master_epoch.term, listed.master_epoch.start) == (7, 3)
        await running.stub.UnregisterBroker(name_service_pb2.UnregisterBrokerRequest(broker=registration().broker))
    assert dict(listed.addresses) == {1: "127.0.0.1:2"}
    replica.cancel()


async def test_unregistered_broker_is_gone_before_its_stream_ends(running: Running) -> None:
    await open_stream(running, registration())
    for _ in range(2):  # the second time there is nothing to do, and that is no error
        response = await running.stub.UnregisterBroker(
            name_service_pb2.UnregisterBrokerRequest(broker=registration().broker)
        )
        assert response.code == common_pb2.SUCCESS
    assert (await query(running, "orders")).code == common_pb2.TOPIC_NOT_EXIST


async def test_cluster_list_names_every_broker(running: Running) -> None:
    await open_stream(running, registration())
    await open_stream(running, registration("broker-b", address="127.0.0.1:50"))
    response = await running.stub.ListClusters(name_service_pb2.ListClustersRequest())
    assert [(one.cluster_name, one.broker_name) for one in response.brokers] == [("c1", "broker-a"), ("c1", "broker-b")]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (name_service_pb2.RegisterBrokerRequest(), "the cluster name is missing"),
        (registration(broker_name=""), "the broker name is missing"),
        (registration(address="127.0.0.1"), "the broker address: '127.0.0.1' is not an address"),
        (registration(broker_id=-1, address="127.0.0.1:1"), "the broker id is -1"),
        (registration(topics=("a/b",)), "'a/b' has a character that is not allowed"),
        (registration(topics=("a", "b", "a")), "the topic 'a' comes more than once"),
        (registration(version=-1), "the data version is -1"),
        (registration(epoch=(-1, 0)), "the epoch is -1.0"),
    ],
)
async def test_malformed_registration_is_an_invalid_argument(
    running: Running, request_: name_service_pb2.RegisterBrokerRequest, sentence: str
) -> None:
    stream = running.stub.RegisterBroker()
    await stream.write(request_)
    assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in await stream.details()
    await topics_become(running, [])


async def test_negative_queue_count_is_an_invalid_argument(running: Running) -> None:
    request = registration()
    request.topics[0].write_queue_count = -1
    stream = running.stub.RegisterBroker()
    await stream.write(request)
    assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "has -1 write queues" in await stream.details()


async def test_stream_cannot_change_its_broker(running: Running) -> None:
    stream = await open_stream(running, registration())
    await stream.write(registration("broker-b"))
    assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "this one began as broker broker-a:0" in await stream.details()
    await topics_become(running, [])


async def test_rejection_arrives_also_when_the_answers_before_it_were_not_read(running: Running) -> None:
    # More than the peer's window takes: gRPC rejects a status while a message is being written.
    good = registration()
    good.ha_address = f"{'a' * 8_000}:10912"
    stream = running.stub.RegisterBroker()

    async def write_all() -> None:
        for request in [good] * 40 + [registration(broker_name="")]:
            await stream.write(request)

    writing = asyncio.create_task(write_all())
    await topics_become(running, ["orders"])
    async with asyncio.timeout(WAIT_SECONDS):
        for _ in range(40):
            assert (await stream.read()).ha_address == good.ha_address
        with pytest.raises(grpc.aio.AioRpcError, match="this one began as broker broker-a:0"):
            await stream.read()
        await writing
    await topics_become(running, [])


async def test_other_times_hold_after_the_present_pause(running: Running) -> None:
    await open_stream(running, registration())
    running.server.reconfigure(NamesrvConfig(scan_not_active_broker_interval_ms=1_000, broker_expire_timeout_ms=12_000))
    await running.clock.advance(12)
    assert (await query(running, "orders")).code == common_pb2.SUCCESS
    await running.clock.advance(1)
    assert (await query(running, "orders")).code == common_pb2.TOPIC_NOT_EXIST


@pytest.mark.parametrize(("topic", "sentence"), [("", "the topic name is empty"), ("a/b", "not allowed")])
async def test_query_of_an_illegal_topic_is_an_invalid_argument(running: Running, topic: str, sentence: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await query(running, topic)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in str(caught.value.details())


async def test_a_broker_that_has_left_is_told_as_away_with_its_topics(running: Running) -> None:
    await open_stream(running, registration(topics=("orders", "carts")))
    await open_stream(running, registration("broker-b", address="127.0.0.1:9", topics=("orders",)))
    request = name_service_pb2.UnregisterBrokerRequest(broker=registration().broker)
    await running.stub.UnregisterBroker(request)
    assert list((await query(running, "orders")).away_brokers) == ["broker-a"]
    carts = await query(running, "carts")
    assert (carts.code, list(carts.away_brokers)) == (common_pb2.TOPIC_NOT_EXIST, ["broker-a"])
    for with_away, expected in ((False, ["orders"]), (True, ["carts", "orders"])):
        page = name_service_pb2.ListTopicsRequest(topics_max=10, with_away=with_away)
        assert list((await running.stub.ListTopics(page)).topics) == expected


async def test_unregister_without_a_name_is_an_invalid_argument(running: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.stub.UnregisterBroker(name_service_pb2.UnregisterBrokerRequest())
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("service", ["", SERVICE_NAME])
async def test_health_is_serving_once_started_and_not_when_stopping(running: Running, service: str) -> None:
    watch = health_pb2_grpc.HealthStub(running.channel).Watch(health_pb2.HealthCheckRequest(service=service))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    stopping = asyncio.create_task(running.server.stop())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    await stopping


async def test_stopping_ends_the_registration_streams(running: Running) -> None:
    stream = await open_stream(running, registration())
    await running.server.stop()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() == grpc.StatusCode.OK


async def test_port_in_use_is_a_start_error(running: Running) -> None:
    second = NameServer(NamesrvConfig(listen_port=running.port), running.clock)
    with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{running.port}: the port is in use"):
        await second.start()
    await second.stop()


@pytest.mark.mechanism("N4")
async def test_name_servers_know_nothing_of_each_other(running: Running) -> None:
    other = NameServer(NamesrvConfig(listen_port=0), running.clock)
    address = await other.start()
    await open_stream(running, registration())
    async with grpc.aio.insecure_channel(str(address)) as channel:
        stub: Any = name_service_pb2_grpc.NameServiceStub(channel)
        response = await stub.QueryRoute(name_service_pb2.QueryRouteRequest(topic="orders"))
    assert response.code == common_pb2.TOPIC_NOT_EXIST
    assert (await query(running, "orders")).code == common_pb2.SUCCESS
    await other.stop()
