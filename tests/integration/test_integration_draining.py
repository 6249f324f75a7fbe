"""SIGTERM under load: the routes go first, every frame that was read is answered, and the store closes in order."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import broker_service_pb2_grpc, common_pb2, name_service_pb2, name_service_pb2_grpc
from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.process import ManagedProcess
from hourglass_local.queue_processes import broker, name_server, stopped_at_the_end, wait_known
from hourglass_local.waiting import eventually
from mq_broker.testing import incoming
from mqproto.record import iter_records

TOPIC, QUEUES = "flights", 4
STREAMS, FRAMES_UNDER_WAY = 4, 32  # each stream takes a thread of the default executor, which has 5 at least
BEFORE_THE_STOP = 250  # acknowledged on each stream
TIMEOUT_S = 20
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)

pytestmark = pytest.mark.processes


def batch(queue_id: int, body: bytes) -> pb.RecordBatch:
    one = incoming(TOPIC, [body], queue_id=queue_id)
    return pb.RecordBatch(topic=one.topic, queue_id=queue_id, count=one.count, records=one.records)


class Sender:
    """Keeps frames under way on one stream until the stream ends, and remembers every answer.

    In threads: grpc.aio gives up the answers that have arrived when a write meets the end of its stream.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._queue_id = number % QUEUES
        self._room = threading.Semaphore(FRAMES_UNDER_WAY)
        self._ended = False
        self.answered = Counter[int]()
        self.acknowledged: dict[bytes, tuple[int, int]] = {}  # body -> queue id, offset
        self.status: grpc.StatusCode | None = None

    def run(self, port: int) -> None:
        """Return when the stream has ended."""
        with grpc.insecure_channel(f"{LOOPBACK}:{port}", options=OWN_CONNECTION) as channel:
            stream: Any = broker_service_pb2_grpc.BrokerServiceStub(channel).Produce(self._frames())
            try:
                for answer in stream:
                    self._take(answer)
                self.status = stream.code()
            finally:
                self._ended = True
                self._room.release()

    def _frames(self) -> Iterator[pb.ProduceRequest]:
        for request_id in itertools.count(1):
            self._room.acquire()
            if self._ended:
                return
            yield pb.ProduceRequest(request_id=request_id, batches=[batch(self._queue_id, self._body(request_id))])

    def _take(self, answer: pb.ProduceResponse) -> None:
        (result,) = answer.results
        assert result.code == common_pb2.SUCCESS, result.remark
        self.answered[answer.request_id] += 1
        self.acknowledged[self._body(answer.request_id)] = (self._queue_id, result.base_queue_offset)
        self._room.release()

    def _body(self, request_id: int) -> bytes:
        return f"{self._number}:{request_id}".encode()


async def stored(port: int) -> dict[bytes, list[tuple[int, int]]]:
    """Everything in the topic: body -> where it stands, each place once."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", options=OWN_CONNECTION) as channel:
        stub: Any = broker_service_pb2_grpc.BrokerServiceStub(channel)
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                request = pb.PullRequest(
                    group="auditors",
                    topic=TOPIC,
                    queue_id=queue_id,
                    queue_offset=offset,
                    max_messages=1_000,
                    max_bytes=1 << 20,
                )
                answer = await stub.Pull(request, timeout=TIMEOUT_S)
                if answer.next_begin_offset == offset:
                    break
                offset = answer.next_begin_offset
                for record in iter_records(answer.records):
                    found.setdefault(record.body, []).append((queue_id, record.queue_offset))
    return found


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_sigterm_under_load_answers_every_frame_that_was_read(tmp_path: Path, flush: str) -> None:
    routes_port, port = free_ports(2)
    routes = name_server(tmp_path, routes_port)
    served = broker(tmp_path, "broker-a", port, [routes_port], settings={"flushDiskType": flush})
    async with stopped_at_the_end(routes, served):
        await routes.start()
        await served.start()
        senders = [Sender(number) for number in range(STREAMS)]
        async with asyncio.TaskGroup() as tasks:
            for sender in senders:
                tasks.create_task(asyncio.to_thread(sender.run, port))
            await eventually(
                lambda: min(len(one.acknowledged) for one in senders) > BEFORE_THE_STOP,
                TIMEOUT_S,
                "load on each stream",
            )
            await served.terminate()
        assert (served.exit_code, served.was_killed_to_stop) == (0, False)
        await wait_known(routes_port)

        acknowledged = {body: place for one in senders for body, place in one.acknowledged.items()}
        assert all(one.status is grpc.StatusCode.OK for one in senders)
        assert {times for one in senders for times in one.answered.values()} == {1}
        await served.start()
        assert "read again: 0 records" in served.log_path.read_text()  # the store was closed in order
        # Nothing that was acknowledged is lost, and nothing was stored behind an answer that never came.
        assert await stored(port) == {body: [place] for body, place in acknowledged.items()}


class PlayedNameServer(name_service_pb2_grpc.NameServiceServicer):
    """Sends to the broker that unregisters, and answers only then."""

    def __init__(self) -> None:
        self.broker: Any = None  # a stub
        self.registered = asyncio.Event()
        self.heard: list[str] = []

    async def RegisterBroker(self, _requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        while await context.read() is not grpc.aio.EOF:
            await context.write(name_service_pb2.RegisterBrokerResponse())
            self.registered.set()
        self.heard.append("the stream has ended")

    async def UnregisterBroker(  # noqa: N802
        self, _request: Any, _context: Any
    ) -> name_service_pb2.UnregisterBrokerResponse:
        self.heard.append("unregistered")
        sent = await self.broker.Send(pb.SendRequest(batch=batch(0, b"late")), timeout=TIMEOUT_S)
        self.heard.append(f"the broker still answers {sent.result.code}")
        return name_service_pb2.UnregisterBrokerResponse()


@asynccontextmanager
async def played_name_server(port: int) -> AsyncIterator[PlayedNameServer]:
    played, server = PlayedNameServer(), grpc.aio.server()  # type: ignore[abstract]  # brokers ask no more
    name_service_pb2_grpc.add_NameServiceServicer_to_server(played, server)
    server.add_insecure_port(f"{LOOPBACK}:{port}")
    await server.start()
    yield played
    await server.stop(None)


async def test_the_routes_go_before_the_broker_serves_no_more(tmp_path: Path) -> None:
    routes_port, port = free_ports(2)
    served = broker(tmp_path, "broker-a", port, [routes_port])
    async with (
        played_name_server(routes_port) as played,
        stopped_at_the_end(served),
        grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", options=OWN_CONNECTION) as channel,
    ):
        await served.start()
        played.broker = broker_service_pb2_grpc.BrokerServiceStub(channel)
        await played.broker.Send(pb.SendRequest(batch=batch(0, b"early")), timeout=TIMEOUT_S)
        async with asyncio.timeout(TIMEOUT_S):
            await played.registered.wait()
        await served.terminate()
        assert played.heard[:2] == ["unregistered", f"the broker still answers {common_pb2.SUCCESS}"]
        assert (served.exit_code, served.was_killed_to_stop) == (0, False)
        await served.start()
        assert await stored(port) == {b"early": [(0, 0)], b"late": [(0, 1)]}


async def test_a_name_server_that_hangs_does_not_keep_the_broker_from_stopping(tmp_path: Path) -> None:
    routes_port, port = free_ports(2)
    routes = name_server(tmp_path, routes_port)
    served = broker(tmp_path, "broker-a", port, [routes_port])
    async with stopped_at_the_end(routes, served):
        await routes.start()
        await served.start()
        await wait_known(routes_port, port)
        routes.pause()
        await served.terminate()
        routes.resume()
        assert (served.exit_code, served.was_killed_to_stop) == (0, False)
        await wait_known(routes_port)


async def test_a_name_server_ends_its_streams_in_order(tmp_path: Path) -> None:
    routes_port, *ports = free_ports(4)
    routes = name_server(tmp_path, routes_port)
    brokers = [broker(tmp_path, f"broker-{port}", port, [routes_port]) for port in ports]
    async with stopped_at_the_end(routes, *brokers):
        await routes.start()
        for one in brokers:
            await one.start()
        await wait_known(routes_port, *ports)
        await routes.terminate()
        assert (routes.exit_code, routes.was_killed_to_stop) == (0, False)
        for one in brokers:
            await says(one, "has ended the registration")
            assert one.running


async def says(process: ManagedProcess, text: str) -> None:
    await eventually(lambda: text in process.log_path.read_text(), TIMEOUT_S, f"{process.name} says {text!r}")
