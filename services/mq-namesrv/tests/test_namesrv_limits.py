"""What one request, one stream and all brokers together can ask of a name server: it stays able to answer others."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from hourglass.mq.v1 import common_pb2
from hourglass.mq.v1 import name_service_pb2 as pb
from mq_namesrv import rpc
from mq_namesrv.app import SERVICE_DESCRIPTOR, NameServer
from mq_namesrv.config import NamesrvConfig
from mq_namesrv.core.registration import (
    BROKER_STREAMS_MAX,
    FIRST_REQUEST_S_MAX,
    TOPICS_PER_STEP,
    AnnouncedTopics,
    CheckedTopics,
    RegistrationError,
    TopicConfig,
)
from mq_namesrv.core.route_table import RouteTable, check_invariants
from mq_namesrv.rpc import REQUEST_LIMITS, NameServiceServicer
from mqproto.grpc_options import limited_fields
from osenv import SimClock


class RejectedError(Exception):
    """How a stream was ended."""


class Stream:
    """A broker's stream to the servicer, without a network."""

    def __init__(self, servicer: NameServiceServicer) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(servicer.RegisterBroker(None, self))

    async def read(self) -> Any:
        return await self._requests.get()

    async def write(self, answer: Any) -> None:
        self._answers.put_nowait(answer)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise RejectedError(f"{code.name}: {details}")

    async def ask(self, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerResponse:
        """The answer. Raises RejectedError."""
        self._requests.put_nowait(request)
        answer = asyncio.ensure_future(self._answers.get())
        await asyncio.wait({answer, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            await self.task
        response: pb.RegisterBrokerResponse = await answer
        return response

    async def end(self) -> None:
        self._requests.put_nowait(grpc.aio.EOF)
        await self.task


def request(*topics: str, queues: int = 4, **fields: Any) -> pb.RegisterBrokerRequest:
    name = fields.pop("name", "broker-a")
    return pb.RegisterBrokerRequest(
        broker=pb.BrokerIdentity(cluster_name="c", broker_name=name, address=f"{name}:1"),
        topics=[
            common_pb2.TopicConfig(topic=one, read_queue_count=queues, write_queue_count=queues, perm=6)
            for one in topics
        ],
        **fields,
    )


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


@pytest.fixture
def servicer(table: RouteTable) -> NameServiceServicer:
    return NameServiceServicer(table, SimClock(), lambda: 120.0)


def test_every_text_and_repeated_field_of_a_request_has_a_limit() -> None:
    assert set(limited_fields(SERVICE_DESCRIPTOR)) == set(REQUEST_LIMITS), "give the new fields limits"


async def test_a_registration_in_parts_holds_when_its_last_part_has_come(
    table: RouteTable, servicer: NameServiceServicer
) -> None:
    stream = Stream(servicer)
    first = await stream.ask(request("a", "b", data_version=1, more_follows=True))
    assert (first.takes_parts, table.offers) == (True, {})
    await stream.ask(request("c", data_version=1, adds=True))
    assert sorted(table.offers) == ["a", "b", "c"]
    await stream.ask(request("a", queues=8, data_version=2, adds=True, deleted_topics=["b", "never there"]))
    assert sorted(table.offers) == ["a", "c"]
    assert table.offers["a"]["broker-a"].write_queue_count == 8
    await stream.ask(request(data_version=2, adds=True))
    assert sorted(table.offers) == ["a", "c"], "a heartbeat"
    await stream.ask(request("d", data_version=3))
    assert sorted(table.offers) == ["d"], "as brokers of earlier versions tell"
    check_invariants(table)
    await stream.end()
    assert table.offers == {}


async def test_a_new_stream_begins_with_nothing(table: RouteTable, servicer: NameServiceServicer) -> None:
    await Stream(servicer).ask(request("a", "b", data_version=5))
    await Stream(servicer).ask(request("c", data_version=6, adds=True))
    assert sorted(table.offers) == ["c"]
    check_invariants(table)


async def test_of_too_many_topics_the_first_have_routes_and_the_broker_stays(
    table: RouteTable, servicer: NameServiceServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "TOPIC_COUNT_MAX", 3)
    monkeypatch.setattr(rpc, "TOPICS_TOTAL_MAX", 5)
    one, other = Stream(servicer), Stream(servicer)
    answer = await one.ask(request("a", "b", "c", "d", data_version=1))
    assert (answer.code, answer.topics_left_out) == (common_pb2.SUCCESS, 1)
    assert "1 topics are left out" in answer.remark
    assert sorted(table.offers) == ["a", "b", "c"]
    assert (await other.ask(request("a", "x", "y", name="broker-b", data_version=1))).topics_left_out == 1
    assert sorted(table.offers) == ["a", "b", "c", "x"]
    assert (await one.ask(request("a", queues=8, data_version=2, adds=True))).topics_left_out == 1
    assert (await one.ask(request("b", "c", "d", data_version=3))).topics_left_out == 0
    check_invariants(table)


async def test_a_large_registration_leaves_turns_to_others(table: RouteTable, servicer: NameServiceServicer) -> None:
    stream, turns = Stream(servicer), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await stream.ask(request(*(f"t{n}" for n in range(4 * TOPICS_PER_STEP)), data_version=1))
    counting.cancel()
    assert turns >= 4
    assert len(table.offers) == 4 * TOPICS_PER_STEP


class CountedName(str):
    """A topic's name that counts its comparisons."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)


def test_a_topic_that_comes_twice_is_found_in_one_pass() -> None:
    count = 10_000
    configs = [TopicConfig(CountedName(f"t{n}"), 1, 1, 6) for n in [*range(count), 0]]
    announced = AnnouncedTopics()
    announced.begin(adds=False)
    CountedName.comparisons = 0
    with pytest.raises(RegistrationError, match="'t0' comes more than once"):
        announced.add(configs, 10 * count)
    assert CountedName.comparisons < 10 * count


def test_topics_that_were_given_out_do_not_change() -> None:
    announced = AnnouncedTopics()
    announced.begin(adds=False)
    announced.add([TopicConfig("a", 1, 1, 6)], 10)
    before = announced.topics()
    announced.begin(adds=True)
    assert announced.topics() is before, "a heartbeat copies nothing"
    announced.add([TopicConfig("b", 1, 1, 6)], 10)
    announced.remove(["a"])
    assert list(before) == ["a"]
    assert list(announced.topics()) == ["b"]
    assert isinstance(announced.topics(), CheckedTopics)


@pytest.mark.parametrize(
    "broken",
    [
        request(deleted_topics=["x"] * (TOPICS_PER_STEP + 1)),
        pb.RegisterBrokerRequest(broker=pb.BrokerIdentity(cluster_name="c" * 20_000)),
        pb.RegisterBrokerRequest(broker=pb.BrokerIdentity(broker_name="c" * 20_000)),
        pb.RegisterBrokerRequest(broker=pb.BrokerIdentity(address="c" * 20_000)),
        request(ha_address="a" * 20_000),
        request("t" * 256),
    ],
)
async def test_a_registration_beyond_a_limit_is_rejected(
    servicer: NameServiceServicer, broken: pb.RegisterBrokerRequest
) -> None:
    with pytest.raises(RejectedError, match=r"INVALID_ARGUMENT: .* at most \d+ are allowed"):
        await Stream(servicer).ask(broken)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("UnregisterBroker", pb.UnregisterBrokerRequest(broker=pb.BrokerIdentity(address="c" * 20_000))),
        ("QueryRoute", pb.QueryRouteRequest(topic="t" * 256)),
    ],
)
async def test_a_call_beyond_a_limit_is_rejected(servicer: NameServiceServicer, name: str, broken: Any) -> None:
    stream = Stream(servicer)
    with pytest.raises(RejectedError, match=r"INVALID_ARGUMENT: .* has .* at most"):
        await getattr(servicer, name)(broken, stream)
    await stream.end()


async def test_so_many_brokers_can_be_registered_and_one_more_when_one_has_gone(
    servicer: NameServiceServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BROKER_STREAMS_MAX >= 1_000
    monkeypatch.setattr(rpc, "BROKER_STREAMS_MAX", 2)
    one, _ = [Stream(servicer), Stream(servicer)]
    await one.ask(request("a", data_version=1))
    with pytest.raises(RejectedError, match="RESOURCE_EXHAUSTED: 2 brokers"):
        await Stream(servicer).ask(request("b", name="broker-b", data_version=1))
    await one.end()
    await Stream(servicer).ask(request("b", name="broker-b", data_version=1))


async def test_a_stream_without_a_registration_is_ended(table: RouteTable) -> None:
    clock = SimClock()
    servicer = NameServiceServicer(table, clock, lambda: 120.0)
    silent, registered = Stream(servicer), Stream(servicer)
    await registered.ask(request("a", data_version=1))
    await clock.advance(FIRST_REQUEST_S_MAX + 1)
    with pytest.raises(RejectedError, match="DEADLINE_EXCEEDED"):
        await silent.task
    await registered.ask(request("b", data_version=2))
    assert sorted(table.offers) == ["b"]


async def test_one_connection_more_than_the_limit_is_closed_and_has_room_when_another_ends() -> None:
    server = NameServer(NamesrvConfig(listen_port=0), SimClock(), connections_max=2)
    port = (await server.start()).port
    try:
        async with asyncio.timeout(10):
            first, second = await _session(port), await _session(port)
            assert first is not None
            assert second is not None
            assert await _session(port) is None
            first.close()
            while (third := await _session(port)) is None:  # the server hears of the end a moment later
                pass
            third.close()
            second.close()
    finally:
        await server.stop()


async def _session(port: int) -> asyncio.StreamWriter | None:
    """A connection on which an HTTP/2 session has begun, and no call; None when it was closed instead."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    try:
        if await reader.read(1):
            return writer
    except ConnectionError:
        pass
    writer.close()
    return None
