"""Configuration with real processes: RocketMQ's sample, SIGHUP, and an advertised address that leads elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from hourglass.mq.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    common_pb2,
    name_service_pb2,
    name_service_pb2_grpc,
)
from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.process import ManagedProcess, ProcessDiedError
from hourglass_local.queue_processes import broker, name_server, stopped_at_the_end, wait_known
from hourglass_local.waiting import eventually
from mqclient import Admin, Message, MQClientError, Producer

COURSE_SAMPLE = Path(__file__).parents[2] / "services/mq-broker/tests/rocketmq_files/course.conf"
TIMEOUT_S = 20
EXIT_CANNOT_START = 1

pytestmark = pytest.mark.processes


def log_lines(process: ManagedProcess, level: str) -> list[str]:
    """What the process has said at this level, or printed."""
    lines = []
    for line in process.log_path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line) if line.startswith("{") else {"level": "printed", "event": line}
        if entry["level"] == level:
            lines.append(str(entry["event"]))
    return lines


async def says(process: ManagedProcess, level: str, text: str) -> str:
    """The first line at this level with `text` in it."""

    def found() -> list[str]:
        return [line for line in log_lines(process, level) if text in line]

    return (await eventually(found, TIMEOUT_S, f"{process.name} says {text!r}"))[0]


async def config_in_force(port: int) -> dict[str, str]:
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        stub: Any = admin_service_pb2_grpc.AdminServiceStub(channel)
        answer = await stub.GetBrokerConfig(admin_service_pb2.GetBrokerConfigRequest(), timeout=TIMEOUT_S)
        return dict(answer.config)


async def test_the_course_s_sample_starts_a_broker_unchanged_apart_from_its_address(tmp_path: Path) -> None:
    file, (routes_port, port) = tmp_path / "broker.conf", free_ports(2)
    sample = COURSE_SAMPLE.read_text(encoding="utf-8")
    file.write_text(sample.replace("brokerIP1=192.168.0.128", f"brokerIP1={LOOPBACK}"))
    assert file.read_text() != sample
    routes = name_server(tmp_path, routes_port)
    served = broker(tmp_path, "broker-a", port, [routes_port], "-c", str(file))
    async with stopped_at_the_end(routes, served):
        await routes.start()
        await served.start()
        await wait_known(routes_port, port)
        in_force = await config_in_force(port)
        wanted = dict(line.replace(" ", "").split("=") for line in file.read_text().splitlines() if line[0] != "#")
        assert wanted.items() <= in_force.items()
        async with Producer("course", f"mq://{LOOPBACK}:{routes_port}") as producer:
            assert (await producer.send(Message("flights", b"hello"))).message_queue.broker_name == "broker-a"
        assert [*log_lines(served, "error"), *log_lines(served, "printed")] == []
    assert served.exit_code == 0


class TestReload:
    @asynccontextmanager
    async def running(self, folder: Path, text: str) -> AsyncIterator[tuple[ManagedProcess, int, Path, int]]:
        """A broker with a file, its port, its file, and the port of its name server."""
        file, (routes_port, port) = folder / "broker.conf", free_ports(2)
        file.write_text(text)
        routes = name_server(folder, routes_port)
        environment = {"NAMESRV_ADDR": f"{LOOPBACK}:{routes_port}"}
        served = broker(folder, "broker-a", port, [], "-c", str(file), environment=environment)
        async with stopped_at_the_end(routes, served):
            await routes.start()
            await served.start()
            await wait_known(routes_port, port)
            yield served, port, file, routes_port
        assert (served.exit_code, len(served.pids)) == (0, 1)

    async def test_a_running_broker_follows_its_file(self, tmp_path: Path) -> None:
        async with (
            self.running(tmp_path, "maxMessageSize=100\n") as (served, port, file, routes_port),
            Producer("reload", f"mq://{LOOPBACK}:{routes_port}") as producer,
        ):
            await producer.send(Message("sizes", bytes(100)))
            with pytest.raises(MQClientError, match="at most 100 are allowed"):
                await producer.send(Message("sizes", bytes(101)))
            file.write_text("maxMessageSize=200\ndefaultTopicQueueNums=7\nflushDiskType=SYNC_FLUSH\n")
            served.hang_up()
            line = await says(served, "info", "was read again")
            assert line.endswith("defaultTopicQueueNums=7 (was 4), maxMessageSize=200 (was 100)")
            await producer.send(Message("sizes", bytes(101)))
            (kept,) = [line for line in log_lines(served, "warning") if "only a restart changes these keys" in line]
            assert "flushDiskType=ASYNC_FLUSH (not SYNC_FLUSH)" in kept
            in_force = await config_in_force(port)
            assert (in_force["maxMessageSize"], in_force["flushDiskType"]) == ("200", "ASYNC_FLUSH")

    async def test_a_bad_file_changes_nothing(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, "maxMessageSize=100\n") as (served, port, file, _):
            before = await config_in_force(port)
            file.write_text("maxMessageSize=200\nfileReservedTime=none\n")
            served.hang_up()
            line = await says(served, "error", "the configuration stays as it was")
            assert line.startswith("fileReservedTime='none' is not a whole number")
            assert await config_in_force(port) == before

    async def test_name_servers_come_and_go(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, "") as (served, port, file, routes_port):
            (other_port,) = free_ports(1)
            other = name_server(tmp_path, other_port)
            async with stopped_at_the_end(other):
                await other.start()
                file.write_text(f"namesrvAddr={LOOPBACK}:{other_port}\n")
                served.hang_up()
                await wait_known(other_port, port)
                await wait_known(routes_port)

    async def test_a_running_name_server_follows_its_file(self, tmp_path: Path) -> None:
        file, (port,) = tmp_path / "namesrv.conf", free_ports(1)
        file.write_text("scanNotActiveBrokerInterval=100\n")
        routes = name_server(tmp_path, port, "-c", str(file))
        async with stopped_at_the_end(routes):
            await routes.start()
            async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
                stub: Any = name_service_pb2_grpc.NameServiceStub(channel)
                identity = name_service_pb2.BrokerIdentity(cluster_name="c", broker_name="b", address="127.0.0.1:1")
                topic = common_pb2.TopicConfig(topic="t", read_queue_count=1, write_queue_count=1, perm=6)
                stream = stub.RegisterBroker()
                await stream.write(name_service_pb2.RegisterBrokerRequest(broker=identity, topics=[topic]))
                await stream.read()

                async def is_known() -> bool:
                    route = await stub.QueryRoute(name_service_pb2.QueryRouteRequest(topic="t"))
                    return bool(route.code == common_pb2.SUCCESS)

                assert await is_known()
                file.write_text("scanNotActiveBrokerInterval=100\nbrokerExpireTimeout=200\nlistenPort=1\n")
                routes.hang_up()
                line = await says(routes, "info", "was read again")
                assert line.endswith("brokerExpireTimeout=200 (was 120000)")

                async def is_gone() -> bool:
                    return not await is_known()

                await eventually(is_gone, TIMEOUT_S, "the silent broker's end")
                stream.cancel()
        assert routes.exit_code == 0


class TestAdvertisedAddress:
    async def test_an_address_that_leads_nowhere_is_said_and_the_broker_runs(self, tmp_path: Path) -> None:
        (port,) = free_ports(1)
        served = broker(tmp_path, "broker-a", port, settings={"brokerIP1": "127.0.0.2"})
        async with stopped_at_the_end(served):
            await served.start()
            (sentence,) = log_lines(served, "error")
        assert f"at 127.0.0.2:{port}, which does not lead here: nothing answers there" in sentence
        assert f"listens on 127.0.0.1:{port}; set brokerIP1" in sentence
        assert served.exit_code == 0

    async def test_where_that_is_rejected_the_broker_does_not_start(self, tmp_path: Path) -> None:
        routes_port, port = free_ports(2)
        settings = {"brokerIP1": "127.0.0.2", "advertisedAddressCheck": "REFUSE"}
        routes = name_server(tmp_path, routes_port)
        served = broker(tmp_path, "broker-a", port, [routes_port], settings=settings)
        async with stopped_at_the_end(routes, served):
            await routes.start()
            with pytest.raises(ProcessDiedError):
                await served.start()
            assert served.exit_code == EXIT_CANNOT_START
            (sentence,) = log_lines(served, "printed")
            assert sentence.startswith(f"mq-broker: clients are told to find this broker at 127.0.0.2:{port}")
            async with Admin(f"mq://{LOOPBACK}:{routes_port}") as admin:
                assert await admin.cluster_list() == []  # it was not registered for a moment
            served_again = broker(tmp_path, "broker-a", port, [routes_port])
            async with stopped_at_the_end(served_again):
                await served_again.start()  # and it has left its store in order
                assert any("read again: 0 records" in line for line in log_lines(served_again, "info"))

    async def test_another_broker_there_is_not_taken_for_this_one(self, tmp_path: Path) -> None:
        first_port, second_port = free_ports(2)
        first = broker(tmp_path, "broker-a", first_port)
        second = broker(tmp_path, "broker-b", second_port, settings={"advertisedPort": str(first_port)})
        async with stopped_at_the_end(first, second):
            await first.start()
            await second.start()
            (sentence,) = log_lines(second, "error")
            assert "which does not lead here: another process answers there" in sentence
            assert log_lines(first, "error") == []

    async def test_behind_a_port_mapping_clients_use_the_mapped_port(self, tmp_path: Path) -> None:
        routes_port, port, mapped_port = free_ports(3)
        settings = {"advertisedPort": str(mapped_port), "advertisedAddressCheck": "REFUSE"}
        routes = name_server(tmp_path, routes_port)
        served = broker(tmp_path, "broker-a", port, [routes_port], settings=settings)
        async with PortMapping(mapped_port, port) as mapping, stopped_at_the_end(routes, served):
            await routes.start()
            await served.start()
            await wait_known(routes_port, mapped_port)
            assert log_lines(served, "error") == []
            connections = mapping.connections
            assert connections > 0
            async with Producer("mapped", f"mq://{LOOPBACK}:{routes_port}") as producer:
                assert (await producer.send(Message("flights", b"hello"))).queue_offset == 0
            assert mapping.connections > connections


class PortMapping:
    """Forwards connections from one port of this machine to another, as a container's host does."""

    def __init__(self, port: int, inner_port: int) -> None:
        self._port, self._inner_port = port, inner_port
        self._forwarding: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._forwarding:
            task.cancel()
        await asyncio.gather(*self._forwarding, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._forward(reader, writer))
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(LOOPBACK, self._inner_port)
        try:
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        finally:
            for one in (writer, inner_writer):
                one.close()
            await asyncio.gather(writer.wait_closed(), inner_writer.wait_closed(), return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()
