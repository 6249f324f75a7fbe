"""Redis Streams with a consumer group. Delayed messages are a sorted set that the consumer polls, as its users do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from hourglass_loadtest.peers.hourglass_queue import python_client
from hourglass_loadtest.peers.peer import (
    QUEUE,
    TOGETHER,
    Connection,
    Deliver,
    Program,
    listens,
    missing_programs,
    output_of,
)
from hourglass_local.ports import LOOPBACK, free_ports

GROUP, LATER, READ_MAX, BLOCK_MS, POLL_S, CONNECTIONS_MAX = "group", "later", 128, 1_000, 0.1, 16


class RedisPeer:
    """One server with an append-only file."""

    window, delays = TOGETHER, True

    def __init__(self, name: str, *, durable: bool) -> None:
        self.name, self.durable = name, durable
        self.settings: Mapping[str, str] = {
            "appendonly": "yes",
            "appendfsync": "always" if durable else "everysec",
            "save": '""',
            "64 in flight": "a pipeline of 64 XADD",
            "delay": f"a sorted set, polled every {POLL_S * 1000:.0f} ms",
        }
        self._program: Program | None = None

    def missing(self) -> str | None:
        return missing_programs("redis-server")

    async def start(self, folder: Path) -> str:
        (port,) = free_ports(1)
        options = f"--port {port} --bind {LOOPBACK} --appendonly yes --appendfsync {self.settings['appendfsync']}"
        self._program = Program("redis", ["redis-server", *options.split(), "--save", "", "--dir", str(folder)], folder)
        await self._program.ready(lambda: listens(port))
        return f"redis://{LOOPBACK}:{port}"

    def pids(self) -> list[int]:
        return [self._program.pid] if self._program else []

    async def stop(self) -> None:
        if self._program is not None:
            await self._program.stop()

    def client(self, address: str, seconds: float) -> list[str]:
        return python_client(self.name, address, seconds)

    def versions(self) -> dict[str, str]:
        return {"server": output_of("redis-server", "--version"), "client": f"redis {version('redis')}, hiredis"}


class _Connection:
    def __init__(self, url: str) -> None:
        from redis.asyncio import BlockingConnectionPool, Redis  # noqa: PLC0415 - only make bench-peers has it

        pool = BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS_MAX, timeout=None)
        self._redis = Redis.from_pool(pool)

    async def produce(self, body: bytes) -> None:
        await self._redis.xadd(QUEUE, {b"b": body})

    async def produce_together(self, bodies: Sequence[bytes]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(QUEUE, {b"b": body})
        await pipeline.execute()

    async def produce_delayed(self, body: bytes, delay_ms: int) -> None:
        await self._redis.zadd(LATER, {body: time.time() + delay_ms / 1000})

    async def consume(self, deliver: Deliver) -> None:
        from redis.exceptions import ResponseError  # noqa: PLC0415 - only make bench-peers has it

        with suppress(ResponseError):  # the group is there already
            await self._redis.xgroup_create(QUEUE, GROUP, id="0", mkstream=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(deliver))
            tasks.create_task(self._poll(deliver))

    async def _read(self, deliver: Deliver) -> None:
        while True:
            for _, entries in (
                await self._redis.xreadgroup(GROUP, "one", {QUEUE: ">"}, count=READ_MAX, block=BLOCK_MS) or ()
            ):
                deliver([fields[b"b"] for _, fields in entries])
                await self._redis.xack(QUEUE, GROUP, *(identity for identity, _ in entries))

    async def _poll(self, deliver: Deliver) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            if due := await self._redis.zrangebyscore(LATER, 0, time.time(), start=0, num=READ_MAX):
                deliver(due)
                await self._redis.zrem(LATER, *due)

    async def close(self) -> None:
        await self._redis.aclose()


async def connect(url: str) -> Connection:
    """A pool of connections."""
    return _Connection(url)
