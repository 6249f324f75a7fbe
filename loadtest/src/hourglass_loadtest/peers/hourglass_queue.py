"""Hourglass itself: a name server and a broker, and the Python client by frames or by gRPC."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from hourglass_loadtest.peers.peer import CALLS, QUEUE, Connection, Deliver, PeerError
from hourglass_local.cluster import ASYNC_FLUSH, SYNC_FLUSH, Cluster
from hourglass_local.process import MIB
from mqclient import (
    Admin,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SendStatus,
)

QUEUES = 8
LISTENER_BATCH = 32
GROUP = "bench-group"
SEND_TIMEOUT_S = 30.0


class HourglassPeer:
    """One broker without a replica, on a commit log as in production."""

    window, delays = CALLS, True

    def __init__(self, name: str, *, frames: bool, durable: bool) -> None:
        self.name, self.durable, self._frames = name, durable, frames
        self.settings: Mapping[str, str] = {
            "flushDiskType": SYNC_FLUSH if durable else ASYNC_FLUSH,
            "transport": "mq+frames" if frames else "mq+grpc",
            "queues": str(QUEUES),
            "listener batch": str(LISTENER_BATCH),
            "replicas": "none",
        }
        self._cluster: Cluster | None = None

    def missing(self) -> str | None:
        return None

    async def start(self, folder: Path) -> str:
        cluster = Cluster(folder, orders=False, flush=self.settings["flushDiskType"], commit_log_file_bytes=1024 * MIB)
        await cluster.start()
        self._cluster = cluster
        url = cluster.frames_url if self._frames else cluster.url.replace("mq://", "mq+grpc://")
        async with Admin(url) as admin:
            await admin.update_topic(QUEUE, read_queue_count=QUEUES, write_queue_count=QUEUES)
        return url

    def pids(self) -> list[int]:
        return [process.pid for process in self._cluster.processes] if self._cluster else []

    async def stop(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.stop()

    def client(self, address: str, seconds: float) -> list[str]:
        return python_client(self.name, address, seconds)

    def versions(self) -> dict[str, str]:
        return {"server": version("hourglass-mq-broker"), "client": version("hourglass-mqclient")}


def python_client(name: str, address: str, seconds: float) -> list[str]:
    """The client that most peers have: run_load in a process that ends with its parent."""
    arguments = [name, address, str(seconds)]
    return [sys.executable, "-m", "hourglass_local.child", "hourglass_loadtest", "peers-client", *arguments]


class _Connection:
    """The producer starts with the first message, so that a connection that only consumes has none."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._producer = Producer("bench-producers", url)
        self._started = False

    async def produce(self, body: bytes) -> None:
        await self._send(Message(QUEUE, body))

    async def produce_together(self, bodies: Sequence[bytes]) -> None:
        raise PeerError("the client makes its batches itself")

    async def produce_delayed(self, body: bytes, delay_ms: int) -> None:
        await self._send(Message(QUEUE, body, delay_ms=delay_ms))

    async def _send(self, message: Message) -> None:
        if not self._started:
            self._started = True
            await self._producer.start()
        result = await self._producer.send(message, timeout=SEND_TIMEOUT_S)
        if result.send_status is not SendStatus.SEND_OK:
            raise PeerError(f"the broker answered {result.send_status.value}, not SEND_OK")

    async def consume(self, deliver: Deliver) -> None:
        async def listen(messages: list[MessageExt]) -> ConsumeStatus:
            deliver([message.body for message in messages])
            return ConsumeStatus.CONSUME_SUCCESS

        consumer = PushConsumer(
            GROUP,
            self._url,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            consumer_config=ConsumerConfig(consume_message_batch_max_size=LISTENER_BATCH),
        )
        consumer.subscribe(QUEUE)
        consumer.register_message_listener(listen)
        async with consumer:
            await asyncio.Event().wait()

    async def close(self) -> None:
        if self._started:
            await self._producer.shutdown()


async def connect(url: str) -> Connection:
    """Producer and consumer share the connections of their process."""
    return _Connection(url)
