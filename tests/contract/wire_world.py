"""A broker and a name server in this process behind a network that fails on request, reached by gRPC or by frames."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mq_broker.app import BrokerProcess, run_until_stopped
from mq_broker.config import FORMAT, parse_config
from mq_broker.core.limits import DescriptorBudget
from mq_broker.telemetry import BrokerMetrics
from mq_namesrv.app import NameServer
from mq_namesrv.config import NamesrvConfig
from mqproto.config_source import ConfigSource
from osenv import RealClock, RealDisk
from osenv.network import LOOPBACK_IPV4, free_ports

PIECE_BYTES = 65_536
START_S, STOP_S = 30.0, 20.0


class Network:
    """Every connection to the broker goes through it. `port` is where clients find the broker."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.target_port = 0
        self.loses_answers = False
        """What the broker writes is read, and lost."""
        self.lost_bytes = 0
        self._may_answer = asyncio.Event()
        self._may_answer.set()
        self._connections: set[asyncio.Task[None]] = set()

    def hold_answers(self) -> None:
        """What the broker writes stays where it is, as with a client that does not read."""
        self._may_answer.clear()

    def release_answers(self) -> None:
        self._may_answer.set()

    def cut(self) -> None:
        """Break every connection."""
        for connection in self._connections:
            connection.cancel()

    async def carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            broker, to_broker = await asyncio.open_connection(LOOPBACK_IPV4, self.target_port)
            ways = [
                asyncio.create_task(self._requests(client, to_broker)),
                asyncio.create_task(self._answers(broker, to_client)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                to_broker.transport.abort()
        except OSError:
            pass  # nobody listens there now
        finally:
            self._connections.discard(task)
            to_client.transport.abort()

    async def _requests(self, client: asyncio.StreamReader, to_broker: asyncio.StreamWriter) -> None:
        while piece := await client.read(PIECE_BYTES):
            to_broker.write(piece)
            await to_broker.drain()

    async def _answers(self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while True:
            await self._may_answer.wait()
            if not (piece := await broker.read(PIECE_BYTES)):
                return
            await self._may_answer.wait()
            if self.loses_answers:
                self.lost_bytes += len(piece)
                continue
            to_client.write(piece)
            await to_client.drain()


class WireWorld:
    """`url` leads through the network; `other_url`, by the other protocol, does not."""

    def __init__(self, process: BrokerProcess, network: Network, url: str, other_url: str) -> None:
        self.network, self.url, self.other_url = network, url, other_url
        self._process = process
        self._stop = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def start(self, *, by_frames: bool) -> None:
        """A life of the broker begins, on the ports of the one before."""
        self._stop = asyncio.Event()
        self._life = asyncio.create_task(self._live(self._stop))
        async with asyncio.timeout(START_S):
            while (port := self._process.frames_port if by_frames else self._process.port) is None:
                if self._life.done():
                    self._life.result()
                await asyncio.sleep(0)
        self.network.target_port = port

    async def drain(self) -> None:
        """The life ends in order, as by SIGTERM."""
        self._stop.set()
        if self._life is not None:
            async with asyncio.timeout(STOP_S):
                await self._life

    async def _live(self, stop: asyncio.Event) -> None:
        stopped = asyncio.create_task(stop.wait())
        try:
            await run_until_stopped(self._process, stopped)
        finally:
            stopped.cancel()


@asynccontextmanager
async def wire_world(folder: Path, *, by_frames: bool) -> AsyncIterator[WireWorld]:
    """The two servers, and the network before the broker."""
    name_server = NameServer(NamesrvConfig(listen_port=0), RealClock())
    address = await name_server.start()
    network = Network(*free_ports(1))
    advertised = "advertisedFramesPort" if by_frames else "advertisedPort"
    settings = {
        "storePathRootDir": str(folder / "store"),
        "listenPort": "0",
        "haListenPort": "0",
        advertised: str(network.port),
        "namesrvAddr": str(address),
        "mappedFileSizeCommitLog": "16000000",
        "advertisedAddressCheck": "OFF",
        "flushDiskType": "SYNC_FLUSH",
    }
    proxy = await asyncio.start_server(network.carry, LOOPBACK_IPV4, network.port)
    with contextlib.closing(RealDisk()) as disk:
        process = BrokerProcess(
            ConfigSource(FORMAT, options=settings),
            parse_config(settings),
            disk,
            RealClock(),
            BrokerMetrics(),
            asyncio.Event(),
            DescriptorBudget.of(1_024),
        )
        urls = (f"mq+frames://{name_server.frames_address}", f"mq+grpc://{address}")
        world = WireWorld(process, network, *(urls if by_frames else reversed(urls)))
        try:
            await world.start(by_frames=by_frames)
            yield world
        finally:
            await world.drain()
            network.cut()
            proxy.close()
            await name_server.stop()
