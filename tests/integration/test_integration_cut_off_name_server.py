"""A name server that brokers cannot reach, real processes: its clients go on with what the other one knows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.process import is_in_sync
from hourglass_local.queue_processes import broker, name_server, stopped_at_the_end, wait_known
from hourglass_local.testing_traffic import QUICK, Inbox, Load, consuming, load
from hourglass_local.waiting import eventually
from mqclient import Admin, ClientConfig, Message, Producer, SendStatus
from mqclient.sync import SyncProducer

TOPIC, BROKER = "flights", "broker-a"
PRODUCERS = 20
TIMEOUT_S = 60

pytestmark = pytest.mark.processes


class Link:
    """The way of the brokers to a name server; `swallow` lets nothing through any more, and breaks nothing."""

    def __init__(self, port: int, to_port: int) -> None:
        self._port, self._to_port = port, to_port
        self._swallows = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    def swallow(self) -> None:
        self._swallows = True

    def cut(self) -> None:
        """Break every connection, and take no other."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(LOOPBACK, self._to_port)
        self._writers += [writer, back]
        for task in (self._carry(reader, back), self._carry(there, writer)):
            self._tasks.add(asyncio.create_task(task))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                if not self._swallows:
                    target.write(data)
                    await target.drain()
        except ConnectionError:
            pass
        finally:
            target.close()


@dataclass
class World:
    """Two name servers and a pair of brokers, which reach the first one over `link`."""

    link: Link
    cut_off_port: int
    ports: tuple[int, int]
    url: str
    certain_url: str

    async def lose(self, state: str) -> None:
        """Cut the first name server off; it knows no broker any more, or what it knew."""
        if state == "stale":
            self.link.swallow()
        else:
            self.link.cut()
            await wait_known(self.cut_off_port)

    async def switch(self) -> None:
        """A graceful change of masters, by an operator. Raises AssertionError when it fails."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqadmin", "switchMaster", "-b", BROKER, "--yes"),
            *("--to", f"{LOOPBACK}:{self.ports[1]}", "-n", self.url.removeprefix("mq://")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """It runs, with a topic, and everything knows everything."""
    first_port, second_port, link_port, *ports = free_ports(7)
    (one, other), ha_ports = ports[:2], ports[2:]
    roles = ({"brokerRole": "SYNC_MASTER"}, {"brokerRole": "SLAVE", "brokerId": "1"})
    processes = [name_server(folder, port) for port in (first_port, second_port)]
    for role, port, ha_port in zip(roles, (one, other), ha_ports, strict=True):
        settings = role | {"haListenPort": str(ha_port)}
        processes.append(broker(folder / str(port), BROKER, port, [link_port, second_port], settings=settings))
    async with stopped_at_the_end(*processes), Link(link_port, first_port) as link:
        for process in processes:
            await process.start()
        for port in (first_port, second_port):
            await wait_known(port, one, other)
        await eventually(lambda: is_in_sync(f"{LOOPBACK}:{other}"), TIMEOUT_S, "the replica is in sync")
        certain = f"{LOOPBACK}:{second_port}"
        async with Admin(f"mq://{certain}") as admin:
            await admin.update_topic(TOPIC)
        yield World(link, first_port, (one, other), f"mq://{LOOPBACK}:{first_port};{certain}", f"mq://{certain}")


def client(number: int) -> ClientConfig:
    """Clients with names of their own begin with a name server of their own choice."""
    return ClientConfig(instance_name=f"client-{number}")


async def test_twenty_of_twenty_new_producers_send_and_a_consumer_gets_all(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        await running.lose("empty")
        async with consuming(running.url, TOPIC, "readers") as inbox:
            for number in range(PRODUCERS):
                async with Producer("writers", running.url, client_config=client(number)) as producer:
                    assert (await producer.send(Message(TOPIC, b"%d" % number))).send_status is SendStatus.SEND_OK
            await inbox.wait(PRODUCERS)

        def send_without_await() -> SendStatus:
            with SyncProducer("blocking-writers", running.url) as producer:
                return producer.send(Message("made-by-its-first-message", b"x")).send_status

        assert await asyncio.to_thread(send_without_await) is SendStatus.SEND_OK


@pytest.mark.parametrize("state", ["empty", "stale"])
async def test_running_clients_follow_a_switch_that_their_name_server_does_not_see(tmp_path: Path, state: str) -> None:
    async with world(tmp_path) as running:
        producers = [Producer("writers", running.url, client_config=client(number)) for number in range(8)]
        inbox: Inbox
        async with consuming(running.url, TOPIC, "readers") as inbox:
            loads: list[Load] = []
            for producer in producers:
                await producer.start()
                await producer.send(Message(TOPIC, b"before"))
            await running.lose(state)
            await running.switch()
            for producer in producers:
                async with load(producer, TOPIC, senders=1) as sending:
                    await sending.some(20)
                    loads.append(sending)
                await producer.shutdown()
            assert [failure for sending in loads for failure in sending.failures] == []
            await inbox.wait(len(producers) + sum(len(sending.bodies) for sending in loads))
        async with Admin(running.url, client_config=QUICK) as admin:
            masters = {one.address for one in await admin.cluster_list() if one.broker_id == 0}
        assert masters == {f"{LOOPBACK}:{running.ports[1]}"}
