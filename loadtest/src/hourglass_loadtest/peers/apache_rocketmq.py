"""Apache RocketMQ: name server and broker, and its Java client; or its Python client, through the proxy in the broker.

The Java client measures by a program of ours (java/rocketmq/Bench.java).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hourglass_loadtest.peers import java_programs
from hourglass_loadtest.peers.hourglass_queue import python_client
from hourglass_loadtest.peers.peer import CALLS, QUEUE, Connection, Deliver, PeerError, Program, listens, which
from hourglass_local.ports import LOOPBACK, free_ports

QUEUES, GROUP = 8, "bench-group"
RECEIVE_MAX, INVISIBLE_S, AWAIT_S = 32, 60, 5
_BENCH = java_programs.PROJECTS / "rocketmq" / "Bench.java"


class RocketPeer:
    """One master without a replica."""

    window = CALLS

    def __init__(self, name: str, *, durable: bool, proxy: bool) -> None:
        self.name, self.durable, self._proxy, self.delays = name, durable, proxy, not proxy
        self.settings: Mapping[str, str] = {
            "flushDiskType": "SYNC_FLUSH" if durable else "ASYNC_FLUSH",
            "brokerRole": "ASYNC_MASTER",
            "queues": str(QUEUES),
            "heap": f"{java_programs.HEAP} each",
            "client": "Python, by gRPC to the proxy in local mode" if proxy else "Java",
            "delay": "not measured" if proxy else "delay level 1",
        }
        self._programs: list[Program] = []
        self._jars = ""

    def missing(self) -> str | None:
        return java_programs.missing()

    async def start(self, folder: Path) -> str:
        jars = self._jars = await java_programs.classpath("rocketmq", folder)
        name_port, broker_port, ha_port, grpc_port, remoting_port = _ports()
        name_server_file, broker_file, proxy_file = (
            folder / name for name in ("namesrv.conf", "broker.conf", "proxy.json")
        )
        name_server_file.write_text(f"listenPort={name_port}\nbindAddress={LOOPBACK}\n")
        broker = {
            "brokerClusterName": "peers", "brokerName": "broker-a", "brokerId": "0", "brokerIP1": LOOPBACK,
            "bindAddress": LOOPBACK, "listenPort": str(broker_port), "haListenPort": str(ha_port),
            "namesrvAddr": f"{LOOPBACK}:{name_port}", "storePathRootDir": str(folder / "store"),
            "brokerRole": "ASYNC_MASTER", "flushDiskType": self.settings["flushDiskType"],
            "autoCreateTopicEnable": "true", "defaultTopicQueueNums": str(QUEUES), "diskMaxUsedSpaceRatio": "98",
        }  # fmt: skip
        broker_file.write_text("".join(f"{key}={value}\n" for key, value in broker.items()))
        home = {"ROCKETMQ_HOME": str(folder), "NAMESRV_ADDR": f"{LOOPBACK}:{name_port}"}
        options = [
            f"-Duser.home={folder}",
            "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        ]
        start = ["java", java_programs.HEAP, *options, "-cp", jars]
        servers = Program(
            "namesrv", [*start, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(name_server_file)], folder, home
        )
        self._programs = [servers]
        await servers.ready(lambda: listens(name_port))
        if self._proxy:
            settings = {
                "rocketMQClusterName": "peers", "proxyMode": "LOCAL", "namesrvAddr": home["NAMESRV_ADDR"],
                "grpcServerPort": grpc_port, "remotingListenPort": remoting_port, "localServeAddr": LOOPBACK,
            }  # fmt: skip
            proxy_file.write_text(json.dumps(settings))
            main = [
                "org.apache.rocketmq.proxy.ProxyStartup",
                "-pm",
                "local",
                "-bc",
                str(broker_file),
                "-pc",
                str(proxy_file),
            ]
        else:
            main = ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(broker_file)]
        one = Program("broker", [*start, *main], folder, home)
        self._programs.append(one)
        await one.ready(lambda: listens(grpc_port if self._proxy else broker_port))
        main = ["org.apache.rocketmq.tools.command.MQAdminStartup", "updateTopic", "-b", f"{LOOPBACK}:{broker_port}"]
        await Program("admin", [*start, *main, "-t", QUEUE, "-r", str(QUEUES), "-w", str(QUEUES)], folder, home).ended()
        return f"{LOOPBACK}:{grpc_port}" if self._proxy else home["NAMESRV_ADDR"]

    def pids(self) -> list[int]:
        return [program.pid for program in self._programs]

    async def stop(self) -> None:
        for program in reversed(self._programs):
            await program.stop()

    def client(self, address: str, seconds: float) -> list[str]:
        if self._proxy:
            return python_client(self.name, address, seconds)
        java = which("java") or "java"
        return [
            "setpriv",
            "--pdeathsig",
            "TERM",
            java,
            *java_programs.java(self._jars, str(_BENCH), address, str(seconds))[1:],
        ]

    def versions(self) -> dict[str, str]:
        client = f"rocketmq-python-client {version('rocketmq-python-client')}" if self._proxy else "rocketmq-client"
        return {"server": java_programs.version_of("rocketmq"), "client": client}


def _ports() -> list[int]:
    """The broker listens two below its own port too, and not above."""
    while True:
        ports = free_ports(5)
        if ports[1] - 2 not in ports:
            return ports


class _Connection:
    """The library has threads of its own; asyncio waits for them."""

    def __init__(self, address: str, producer: Any) -> None:
        self._address, self._producer = address, producer

    async def produce(self, body: bytes) -> None:
        from rocketmq import Message  # noqa: PLC0415 - only make bench-peers has it

        message = Message()
        message.topic, message.body = QUEUE, body
        await asyncio.wrap_future(self._producer.send_async(message))

    async def produce_together(self, bodies: Sequence[bytes]) -> None:
        raise PeerError("the client takes messages one by one")

    async def produce_delayed(self, body: bytes, delay_ms: int) -> None:
        raise PeerError("delays are measured with the Java client")

    async def consume(self, deliver: Deliver) -> None:
        from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer  # noqa: PLC0415 - only make bench-peers has it

        configuration = ClientConfiguration(self._address, Credentials())
        consumer = SimpleConsumer(configuration, GROUP, {QUEUE: FilterExpression()}, AWAIT_S)
        await asyncio.to_thread(consumer.startup)
        try:
            while True:
                messages = await asyncio.wrap_future(consumer.receive_async(RECEIVE_MAX, INVISIBLE_S))
                deliver([message.body for message in messages])
                await asyncio.gather(*(asyncio.wrap_future(consumer.ack_async(message)) for message in messages))
        finally:
            consumer.shutdown()

    async def close(self) -> None:
        await asyncio.to_thread(self._producer.shutdown)


async def connect(address: str) -> Connection:
    """A started producer."""
    from rocketmq import ClientConfiguration, Credentials, Producer  # noqa: PLC0415 - only make bench-peers has it

    producer = Producer(ClientConfiguration(address, Credentials()), (QUEUE,))
    await asyncio.to_thread(producer.startup)
    return _Connection(address, producer)
