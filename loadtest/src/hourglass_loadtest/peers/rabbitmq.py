"""RabbitMQ: publisher confirms, a prefetch, acknowledgements by hand. A delay is a queue with a time to live."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hourglass_loadtest.peers.hourglass_queue import python_client
from hourglass_loadtest.peers.peer import (
    CALLS,
    QUEUE,
    Connection,
    Deliver,
    PeerError,
    Program,
    listens,
    missing_programs,
    output_of,
)
from hourglass_local.ports import LOOPBACK, free_ports

PREFETCH, LATER = 256, "later"
# Debian's script changes to a user of its own; this one runs as the user of the benchmark.
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class RabbitPeer:
    """One node. Its queue is a classic one, or a quorum queue of one member, which syncs its log before it confirms."""

    window, delays = CALLS, True

    def __init__(self, name: str, *, quorum: bool) -> None:
        self.name, self.durable, self._quorum = name, quorum, quorum
        self.settings: Mapping[str, str] = {
            "x-queue-type": "quorum" if quorum else "classic",
            "durable": "yes",
            "delivery mode": "persistent",
            "publisher confirms": "yes",
            "prefetch": str(PREFETCH),
            "delay": "a queue with a time to live and a dead-letter exchange: one delay a queue",
        }
        self._programs: list[Program] = []

    def missing(self) -> str | None:
        return missing_programs("epmd", "erl") or (None if Path(SERVER).exists() else "not installed: rabbitmq-server")

    async def start(self, folder: Path) -> str:
        port, distribution_port, epmd_port = free_ports(3)
        # An epmd that the node starts itself would outlive it.
        erlang = {"ERL_EPMD_PORT": str(epmd_port), "ERL_EPMD_ADDRESS": LOOPBACK, "HOME": str(folder)}
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text("disk_free_limit.absolute = 256MB\n")
        epmd = Program("epmd", ["epmd", "-port", str(epmd_port), "-address", LOOPBACK], folder, erlang)
        self._programs = [epmd]
        await epmd.ready(lambda: listens(epmd_port))
        environment = {
            **erlang,
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }
        server = Program("rabbitmq", [SERVER], folder, environment)
        self._programs.append(server)
        await server.ready(lambda: listens(port))
        return f"{'quorum' if self._quorum else 'classic'} amqp://guest:guest@{LOOPBACK}:{port}/"

    def pids(self) -> list[int]:
        return [program.pid for program in self._programs]

    async def stop(self) -> None:
        for program in reversed(self._programs):
            await program.stop()

    def client(self, address: str, seconds: float) -> list[str]:
        return python_client(self.name, address, seconds)

    def versions(self) -> dict[str, str]:
        return {
            "server": output_of("dpkg-query", "-W", "-f", "${Package} ${Version}", "rabbitmq-server"),
            "client": f"aio-pika {version('aio-pika')}",
        }


class _Connection:
    def __init__(self, connection: Any, channel: Any, queue: Any, kind: str) -> None:
        self._connection, self._channel, self._queue, self._kind = connection, channel, queue, kind
        self._exchange = channel.default_exchange
        self._later: asyncio.Future[None] | None = None

    async def produce(self, body: bytes) -> None:
        await self._publish(body, QUEUE)

    async def produce_together(self, bodies: Sequence[bytes]) -> None:
        raise PeerError("AMQP publishes messages one by one")

    async def produce_delayed(self, body: bytes, delay_ms: int) -> None:
        if self._later is None:
            self._later = asyncio.ensure_future(self._declare_later(delay_ms))
        await self._later
        await self._publish(body, LATER)

    async def _declare_later(self, delay_ms: int) -> None:
        arguments = {"x-message-ttl": delay_ms, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE}
        await self._channel.declare_queue(LATER, durable=True, arguments=arguments)

    async def _publish(self, body: bytes, queue: str) -> None:
        from aio_pika import DeliveryMode, Message  # noqa: PLC0415 - only make bench-peers has it

        await self._exchange.publish(Message(body, delivery_mode=DeliveryMode.PERSISTENT), routing_key=queue)

    async def consume(self, deliver: Deliver) -> None:
        async def take(message: Any) -> None:
            deliver([message.body])
            await message.ack()

        await self._queue.consume(take)
        await asyncio.Event().wait()

    async def close(self) -> None:
        await self._connection.close()


async def connect(address: str) -> Connection:
    """One connection with one channel, and the queue if there was none."""
    import aio_pika  # noqa: PLC0415 - only make bench-peers has it

    kind, _, url = address.partition(" ")
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    await channel.set_qos(prefetch_count=PREFETCH)
    queue = await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": kind})
    return _Connection(connection, channel, queue, kind)
