"""Apache Kafka: one node that is broker and controller (KRaft), and aiokafka. It has no delayed messages."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hourglass_loadtest.peers import java_programs
from hourglass_loadtest.peers.hourglass_queue import python_client
from hourglass_loadtest.peers.peer import CALLS, QUEUE, Connection, Deliver, PeerError, Program, listens
from hourglass_local.ports import LOOPBACK, free_ports

PARTITIONS, GROUP, POLL_MAX, POLL_MS = 8, "bench-group", 500, 500


class KafkaPeer:
    """One node, on which a message is on disk at the kernel's time, or (flush.messages=1) before the answer."""

    window, delays = CALLS, False

    def __init__(self, name: str, *, durable: bool) -> None:
        self.name, self.durable = name, durable
        self.settings: Mapping[str, str] = {
            "acks": "all",
            "flush.messages": "1" if durable else "none, the default",
            "partitions": str(PARTITIONS),
            "replicas": "1",
            "linger": "0 ms",
            "heap": java_programs.HEAP,
        }
        self._programs: list[Program] = []

    def missing(self) -> str | None:
        return java_programs.missing()

    async def start(self, folder: Path) -> str:
        jars = await java_programs.classpath("kafka", folder)
        port, controller_port = free_ports(2)
        settings = {
            "process.roles": "broker,controller", "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}", "controller.listener.names": "CONTROLLER",
            "log.dirs": str(folder / "data"), "num.partitions": str(PARTITIONS),
            "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
        }  # fmt: skip
        if self.durable:
            settings["log.flush.interval.messages"] = "1"
        file = folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        identity = uuid.uuid4().bytes.hex()[:22]
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", identity, "--config", str(file)]
        await Program("format", java_programs.java(jars, *tool), folder).ended()
        server = Program("kafka", java_programs.java(jars, "kafka.Kafka", str(file)), folder)
        self._programs = [server]
        await server.ready(lambda: listens(port))
        return f"{LOOPBACK}:{port}"

    def pids(self) -> list[int]:
        return [program.pid for program in self._programs]

    async def stop(self) -> None:
        for program in self._programs:
            await program.stop()

    def client(self, address: str, seconds: float) -> list[str]:
        return python_client(self.name, address, seconds)

    def versions(self) -> dict[str, str]:
        return {"server": java_programs.version_of("kafka"), "client": f"aiokafka {version('aiokafka')}"}


class _Connection:
    def __init__(self, address: str, producer: Any) -> None:
        self._address, self._producer = address, producer

    async def produce(self, body: bytes) -> None:
        await self._producer.send_and_wait(QUEUE, body)

    async def produce_together(self, bodies: Sequence[bytes]) -> None:
        raise PeerError("aiokafka makes its batches itself")

    async def produce_delayed(self, body: bytes, delay_ms: int) -> None:
        raise PeerError("Kafka delays no messages")

    async def consume(self, deliver: Deliver) -> None:
        from aiokafka import AIOKafkaConsumer  # noqa: PLC0415 - only make bench-peers has it

        consumer = AIOKafkaConsumer(
            QUEUE, bootstrap_servers=self._address, group_id=GROUP, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            while True:
                for records in (await consumer.getmany(timeout_ms=POLL_MS, max_records=POLL_MAX)).values():
                    deliver([record.value for record in records])
        finally:
            await consumer.stop()

    async def close(self) -> None:
        await self._producer.stop()


async def connect(address: str) -> Connection:
    """A started producer; its topic is made by the broker on the first question for it."""
    from aiokafka import AIOKafkaProducer  # noqa: PLC0415 - only make bench-peers has it

    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", linger_ms=0)
    await producer.start()
    await asyncio.wait_for(producer.partitions_for(QUEUE), 30)
    return _Connection(address, producer)
