"""Registration with name servers that a test plays: all of them, at once on a change, every period, and the way out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from hourglass.mq.v1 import common_pb2, name_service_pb2_grpc
from hourglass.mq.v1 import name_service_pb2 as pb
from mq_broker.core.replica_state import BrokerIdentity, Epoch
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.rpc.registration import REPLICA_PERIOD_S_MAX, SEEKING_PERIOD_S_MAX, HaTerms, Registration
from mqproto.frames_service import SERVER_CONFIG, FramesService
from mqproto.grpc_options import FRAME_BYTES_MAX, SERVER_OPTIONS
from mqproto.names import Address
from mqremoting import Server
from osenv import SimClock

IDENTITY = BrokerIdentity("c", "broker-a", 0, "127.0.0.1:10911")
PERIOD_S = 30
TIMEOUT_S = 10
PROTOCOL = {"by_frames": False}


class PlayedNameServer(name_service_pb2_grpc.NameServiceServicer):
    """Tells what it hears, in order: the topics of each registration, "unregistered", "stream ended"."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.address = Address("", 0)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answer = pb.RegisterBrokerResponse()
        self.requests: list[pb.RegisterBrokerRequest] = []

    async def RegisterBroker(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                self.requests.append(request)
                self.heard.put_nowait({topic.topic for topic in request.topics if topic.topic in {"orders", "more"}})
                await self.may_answer.wait()
                await context.write(self.answer)
        finally:
            self.heard.put_nowait("stream ended")

    async def UnregisterBroker(self, request: pb.UnregisterBrokerRequest, context: Any) -> pb.UnregisterBrokerResponse:
        assert request.broker.address == IDENTITY.address
        self.heard.put_nowait("unregistered")
        return pb.UnregisterBrokerResponse()

    async def next(self) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.heard.get()


@pytest.fixture(autouse=True, params=["grpc", "frames"])
def wire(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the played name servers speak."""
    PROTOCOL["by_frames"] = request.param == "frames"
    yield
    PROTOCOL["by_frames"] = False


@asynccontextmanager
async def name_server(port: int = 0, *, takes_parts: bool = False) -> AsyncIterator[PlayedNameServer]:
    played = PartsNameServer() if takes_parts else PlayedNameServer()  # type: ignore[abstract]  # that is all it needs
    if PROTOCOL["by_frames"]:
        frames = FramesService()
        frames.add(pb.DESCRIPTOR.services_by_name["NameService"], played)
        frames_server = Server(frames, SERVER_CONFIG)
        played.address = Address("127.0.0.1", await frames_server.listen("127.0.0.1", port))
        yield played
        await frames_server.close()
        return
    server = grpc.aio.server(options=SERVER_OPTIONS)
    name_service_pb2_grpc.add_NameServiceServicer_to_server(played, server)
    played.address = Address("127.0.0.1", server.add_insecure_port(f"127.0.0.1:{port}"))
    await server.start()
    yield played
    await server.stop(None)


@asynccontextmanager
async def registered(
    clock: SimClock, *servers: PlayedNameServer, identity: BrokerIdentity = IDENTITY, ha: HaTerms | None = None
) -> AsyncIterator[Registration]:
    topics = TopicTable(auto_create=True, default_queue_count=4, delay_level_count=18)
    topics.update(TopicConfig("orders", 4, 4))
    addresses = [one.address for one in servers]
    registration = Registration(identity, topics, addresses, clock, PERIOD_S, ha or HaTerms())
    running = asyncio.create_task(registration.run())
    yield registration
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def rested(clock: SimClock, links: int) -> None:
    """Return when so many links have had their answer and wait for the end of the period."""
    async with asyncio.timeout(TIMEOUT_S):
        while clock.timers != links:  # noqa: ASYNC110 - the clock has no event for it
            await asyncio.sleep(0)


@pytest.mark.mechanism("N2")
async def test_every_name_server_hears_of_the_broker_every_30_s_and_of_a_new_topic_at_once() -> None:
    clock = SimClock()
    async with name_server() as one, name_server() as two, registered(clock, one, two) as registration:
        for server in (one, two):
            assert await server.next() == {"orders"}
        for _ in range(3):
            await rested(clock, 2)
            await clock.advance(PERIOD_S - 1)
            assert clock.timers == 2  # no timer has fired
            await clock.advance(1)
            for server in (one, two):
                assert await server.next() == {"orders"}
        registration.topics.update(TopicConfig("more", 4, 4))
        for server in (one, two):
            assert await server.next() == {"orders", "more"}


async def test_it_unregisters_before_its_stream_ends() -> None:
    # A name server that is slow to see the end of a stream would send clients here for that long.
    clock = SimClock()
    async with name_server() as server:
        async with registered(clock, server):
            assert await server.next() == {"orders"}
            await rested(clock, 1)
        assert await server.next() == "unregistered"
        assert await server.next() == "stream ended"


async def test_it_unregisters_also_where_it_has_not_heard_that_it_is_registered() -> None:
    async with name_server() as server:
        server.may_answer.clear()
        async with registered(SimClock(), server):
            assert await server.next() == {"orders"}
        assert await server.next() == "unregistered"
        assert await server.next() == "stream ended"


async def test_a_name_server_that_cannot_be_reached_delays_no_other_and_is_found_when_it_comes() -> None:
    clock = SimClock()
    async with name_server() as gone:
        pass
    async with name_server() as there, registered(clock, gone, there):
        assert await there.next() == {"orders"}
        async with name_server(gone.address.port) as come:
            waiting = asyncio.create_task(come.next())
            async with asyncio.timeout(TIMEOUT_S):
                while not waiting.done():
                    await clock.advance(1)
                    await asyncio.wait({waiting}, timeout=0.05)
            assert await waiting == {"orders"}


async def test_name_servers_and_period_change_while_it_runs() -> None:
    clock = SimClock()
    async with AsyncExitStack() as stack:
        one, two, three = [await stack.enter_async_context(name_server()) for _ in range(3)]
        registration = await stack.enter_async_context(registered(clock, one, two))
        assert [await one.next(), await two.next()] == [{"orders"}, {"orders"}]
        await rested(clock, 2)

        registration.reconfigure([two.address, three.address], period_s=5)
        assert [await two.next(), await three.next()] == [{"orders"}, {"orders"}]
        heard = [await one.next()]
        while heard[-1] != "stream ended":
            heard.append(await one.next())
        assert "unregistered" in heard
        await rested(clock, 2)
        await clock.advance(5)
        assert [await two.next(), await three.next()] == [{"orders"}, {"orders"}]


async def test_announce_waits_for_the_connected_ones_only() -> None:
    clock = SimClock()
    async with name_server() as gone:
        pass
    async with name_server() as server, registered(clock, server, gone) as registration:
        assert await server.next() == {"orders"}
        registration.topics.update(TopicConfig("more", 4, 4))
        async with asyncio.timeout(TIMEOUT_S):
            await registration.announce()  # the clock stands still: no wait is given up
        assert await server.next() == {"orders", "more"}


class Heard:
    """What the replication behind a registration is told."""

    def __init__(self) -> None:
        self.masters: list[str] = []
        self.superseded: asyncio.Queue[tuple[Epoch, str]] = asyncio.Queue()
        self.problem: OSError | None = None

    def terms(self, epoch: Epoch) -> HaTerms:
        return HaTerms("127.0.0.1:10912", lambda: epoch, self.masters.append, self._superseded)

    async def _superseded(self, epoch: Epoch, ha_address: str) -> None:
        self.superseded.put_nowait((epoch, ha_address))
        if self.problem is not None:
            raise self.problem

    async def next(self) -> tuple[Epoch, str]:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.superseded.get()


SLAVE = BrokerIdentity("c", "broker-a", 1, "127.0.0.1:10911")


async def test_a_name_server_hears_where_replicas_connect_and_in_which_epoch_the_broker_is() -> None:
    heard = Heard()
    async with name_server() as server, registered(SimClock(), server, ha=heard.terms(Epoch(7, 3))):
        await server.next()
        (request,) = server.requests
    assert request.ha_address == "127.0.0.1:10912"
    assert (request.epoch.term, request.epoch.start) == (7, 3)
    assert request.broker.broker_id == 0


async def test_a_replica_hears_every_2_s_where_its_master_listens_and_a_master_does_not_follow_itself() -> None:
    clock, replica, master = SimClock(), Heard(), Heard()
    async with name_server() as server:
        server.answer = pb.RegisterBrokerResponse(ha_address="10.0.0.2:10912")
        async with registered(clock, server, identity=SLAVE, ha=replica.terms(Epoch(7, 3))):
            for _ in range(3):
                assert await server.next() == {"orders"}
                await rested(clock, 1)
                await clock.advance(REPLICA_PERIOD_S_MAX)
        assert replica.masters[:3] == ["10.0.0.2:10912"] * 3
    async with name_server() as server:
        server.answer = pb.RegisterBrokerResponse(ha_address="127.0.0.1:10912")
        async with registered(clock, server, ha=master.terms(Epoch(7, 3))):
            assert await server.next() == {"orders"}
            await rested(clock, 1)
        assert master.masters == []


async def test_a_replica_whose_master_is_unknown_asks_again_soon() -> None:
    clock, heard = SimClock(), Heard()
    async with name_server() as server, registered(clock, server, identity=SLAVE, ha=heard.terms(Epoch(7, 3))):
        for _ in range(3):
            assert await server.next() == {"orders"}
            await rested(clock, 1)
            await clock.advance(SEEKING_PERIOD_S_MAX)
    assert heard.masters == []


async def test_a_superseded_master_is_told_its_successor_each_time_until_it_has_written_it_down() -> None:
    clock, heard = SimClock(), Heard()
    heard.problem = OSError("the disk is full")
    async with name_server() as server:
        server.answer = pb.RegisterBrokerResponse(
            code=common_pb2.NOT_LEADER_FOR_QUEUE, remark="there is another", ha_address="10.0.0.2:10912"
        )
        server.answer.master_epoch.term = 8
        async with registered(clock, server, ha=heard.terms(Epoch(7, 3))):
            for _ in range(2):
                assert await server.next() == {"orders"}
                assert await heard.next() == (Epoch(8, 0), "10.0.0.2:10912")
                await rested(clock, 1)
                await clock.advance(PERIOD_S)


async def test_an_answer_that_makes_no_sense_supersedes_no_master_and_the_registration_goes_on() -> None:
    clock, heard = SimClock(), Heard()
    async with name_server() as server:
        server.answer = pb.RegisterBrokerResponse(code=common_pb2.NOT_LEADER_FOR_QUEUE)
        server.answer.master_epoch.term = -1
        async with registered(clock, server, ha=heard.terms(Epoch(7, 3))):
            for _ in range(2):
                assert await server.next() == {"orders"}
                await rested(clock, 1)
                await clock.advance(PERIOD_S)
        assert heard.superseded.empty()


class PartsNameServer(PlayedNameServer):
    """One that takes registrations in parts, as the real one does, and tells how many topics it knows after each."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = pb.RegisterBrokerResponse(takes_parts=True)

    async def RegisterBroker(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        topics: dict[str, int] = {}
        while (request := await context.read()) is not grpc.aio.EOF:
            self.requests.append(request)
            topics = topics if request.adds else {}
            topics |= {one.topic: one.write_queue_count for one in request.topics}
            for name in request.deleted_topics:
                del topics[name]
            if not request.more_follows:
                self.heard.put_nowait(dict(topics))
            await context.write(self.answer)


def make_topics(registration: Registration, count: int) -> set[str]:
    for number in range(count):
        registration.topics.ensure_for_arrival(f"{number:0>127}", 0)
    return set(registration.topics.by_name())


async def test_more_topics_than_one_request_has_room_for_register_in_parts() -> None:
    clock = SimClock()
    async with name_server(takes_parts=True) as server, registered(clock, server) as registration:
        await server.next()
        names = make_topics(registration, 9_000)
        assert set(await server.next()) == names
        assert [len(request.topics) for request in server.requests[1:]] == [4_096, 4_096, 808]
        assert all(request.ByteSize() < 1 << 20 for request in server.requests)


async def test_a_name_server_hears_all_topics_once_and_then_what_has_changed() -> None:
    clock = SimClock()
    async with name_server(takes_parts=True) as server, registered(clock, server) as registration:
        before = await server.next()
        registration.topics.update(TopicConfig("more", 4, 4))
        assert await server.next() == before | {"more": 4}
        registration.topics.update(TopicConfig("orders", 8, 8))
        assert await server.next() == before | {"more": 4, "orders": 8}
        registration.topics.delete("more", {})
        assert await server.next() == before | {"orders": 8}
        await rested(clock, 1)
        await clock.advance(PERIOD_S)
        assert await server.next() == before | {"orders": 8}
        told = [({one.topic for one in request.topics}, [*request.deleted_topics]) for request in server.requests[1:]]
        assert told == [({"more"}, []), ({"orders"}, []), (set(), ["more"]), (set(), [])]


async def test_a_name_server_that_left_topics_out_hears_all_of_them_again() -> None:
    clock = SimClock()
    async with name_server(takes_parts=True) as server, registered(clock, server) as registration:
        server.answer.topics_left_out = 1
        before = await server.next()
        registration.topics.update(TopicConfig("more", 4, 4))
        assert await server.next() == before | {"more": 4}
        registration.topics.update(TopicConfig("most", 4, 4))
        assert await server.next() == before | {"more": 4, "most": 4}
        assert [request.adds for request in server.requests[:3]] == [False] * 3


async def test_a_name_server_of_an_earlier_version_hears_as_many_topics_as_fit_in_one_request() -> None:
    clock = SimClock()
    async with name_server() as server, registered(clock, server) as registration:
        assert await server.next() == {"orders"}
        names = make_topics(registration, 9_000)
        await server.next()
        assert {one.topic for one in server.requests[1].topics} == names
        make_topics(registration, 35_000)
        await server.next()
        assert 20_000 < len(server.requests[2].topics) < 35_000
        assert server.requests[2].ByteSize() < FRAME_BYTES_MAX
        assert not server.requests[2].adds


async def test_many_topics_register_at_a_name_server_of_an_earlier_version_that_comes_later() -> None:
    clock = SimClock()
    topics = TopicTable(auto_create=True, default_queue_count=4, delay_level_count=18)
    for number in range(5_000):
        topics.ensure_for_arrival(f"t{number}", 0)
    async with name_server() as server:
        registration = Registration(IDENTITY, topics, [server.address], clock, PERIOD_S)
        running = asyncio.create_task(registration.run())
        for _ in range(2):
            await server.next()
        assert len(server.requests[0].topics) == 4_096
        assert {one.topic for one in server.requests[1].topics} == set(topics.by_name())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
