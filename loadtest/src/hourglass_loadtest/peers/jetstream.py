"""NATS JetStream: a stream in files, and a durable pull consumer. It has no delayed messages."""

from __future__ import annotations

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

FETCH_MAX, FETCH_TIMEOUT_S = 256, 1.0


class JetStreamPeer:
    """One server; it writes to its files, and syncs them every two minutes."""

    name, durable, window, delays = "NATS JetStream", False, CALLS, False
    settings: Mapping[str, str] = {"storage": "file", "sync_interval": "2m, the default", "ack": "explicit"}

    def __init__(self) -> None:
        self._program: Program | None = None

    def missing(self) -> str | None:
        return missing_programs("nats-server")

    async def start(self, folder: Path) -> str:
        (port,) = free_ports(1)
        command = f"nats-server --jetstream --addr {LOOPBACK} --port {port} --store_dir {folder}"
        self._program = Program("nats", command.split(), folder)
        await self._program.ready(lambda: listens(port))
        return f"nats://{LOOPBACK}:{port}"

    def pids(self) -> list[int]:
        return [self._program.pid] if self._program else []

    async def stop(self) -> None:
        if self._program is not None:
            await self._program.stop()

    def client(self, address: str, seconds: float) -> list[str]:
        return python_client(self.name, address, seconds)

    def versions(self) -> dict[str, str]:
        return {"server": output_of("nats-server", "--version"), "client": f"nats-py {version('nats-py')}"}


class _Connection:
    def __init__(self, client: Any, stream: Any) -> None:
        self._client, self._stream = client, stream

    async def produce(self, body: bytes) -> None:
        await self._stream.publish(QUEUE, body, timeout=30)

    async def produce_together(self, bodies: Sequence[bytes]) -> None:
        raise PeerError("JetStream acknowledges messages one by one")

    async def produce_delayed(self, body: bytes, delay_ms: int) -> None:
        raise PeerError("JetStream delays no messages")

    async def consume(self, deliver: Deliver) -> None:
        from nats.errors import TimeoutError as NothingThereError  # noqa: PLC0415 - only make bench-peers has it

        subscription = await self._stream.pull_subscribe(QUEUE, durable="group")
        while True:
            try:
                messages = await subscription.fetch(FETCH_MAX, timeout=FETCH_TIMEOUT_S)
            except NothingThereError:
                continue
            deliver([message.data for message in messages])
            for message in messages:
                await message.ack()

    async def close(self) -> None:
        await self._client.close()


async def connect(url: str) -> Connection:
    """One connection, and the stream if there was none."""
    import nats  # noqa: PLC0415 - only make bench-peers has it

    client = await nats.connect(url)
    stream = client.jetstream(timeout=30, publish_async_max_pending=1024)
    await stream.add_stream(name=QUEUE, subjects=[QUEUE])
    return _Connection(client, stream)
