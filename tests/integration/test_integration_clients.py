"""Programs that use the client, on real processes: a plain script, a FastAPI application, addresses that are looked up.

Traffic goes to loopback only.
"""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hourglass_local.cluster import Cluster
from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.process import ManagedProcess
from hourglass_local.waiting import eventually
from mqclient import (
    Admin,
    BrokerRejectedError,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SendStatus,
)
from mqclient.admin import SubscriptionGroupConfig

TIMEOUT_S = 30
TOPIC = "orders"

pytestmark = pytest.mark.processes

SCRIPT = """
import threading, time
from mqclient import ConsumeFromWhere, ConsumeStatus, Message
from mqclient.sync import SyncAdmin, SyncProducer, SyncPushConsumer

came = threading.Event()
bodies = []

def listener(messages):
    bodies.extend(message.body for message in messages)
    if len(bodies) == 100:
        came.set()
    return ConsumeStatus.CONSUME_SUCCESS

consumer = SyncPushConsumer("script", "mq://", consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer.subscribe("orders")
consumer.register_message_listener(listener)
with SyncAdmin("mq://") as admin, SyncProducer("shop", "mq://") as producer, consumer:
    assert "orders" in admin.topic_list()
    threads = [
        threading.Thread(target=lambda n=n: [producer.send(Message("orders", b"%d-%d" % (n, m))) for m in range(25)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert came.wait(20)
patience = time.monotonic() + 10  # gRPC ends its own thread a moment after the last channel
while threading.active_count() > 1 and time.monotonic() < patience:
    time.sleep(0.01)
print(len(set(bodies)), [thread.name for thread in threading.enumerate()])
"""

APPLICATION = """
import asyncio, os
from contextlib import asynccontextmanager
from fastapi import FastAPI
from mqclient import Message, Producer

producer = Producer("web", os.environ["MQ_URL"])

@asynccontextmanager
async def lifespan(app):
    async with producer:
        yield

app = FastAPI(lifespan=lifespan)

@app.get("/loop")
async def loop():
    return {"loop": type(asyncio.get_running_loop()).__module__}

@app.post("/orders/{number}")
async def place(number: int):
    result = await producer.send(Message("orders", b"%d" % number))
    return {"status": result.send_status.name}
"""


@asynccontextmanager
async def cluster_with_topic(folder: Path, **options: Any) -> AsyncIterator[Cluster]:
    async with Cluster(folder, orders=False, **options) as cluster:
        async with Admin(cluster.url) as admin:
            await admin.update_topic(TOPIC)
        yield cluster
        stopped = await cluster.stop()
        assert (stopped.killed, stopped.failed, stopped.leftover) == ((), (), ())


def consumer_of(url: str, group: str, bodies: list[bytes]) -> PushConsumer:
    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        bodies.extend(message.body for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = PushConsumer(group, url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(TOPIC)
    consumer.register_message_listener(listener)
    return consumer


async def test_a_plain_script_sends_and_consumes_and_ends(tmp_path: Path) -> None:
    """Its URL is mq://, and the name servers come from the environment."""
    async with cluster_with_topic(tmp_path) as cluster:
        environment = os.environ | {"NAMESRV_ADDR": cluster.url.removeprefix("mq://")}
        script = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", SCRIPT, stdout=PIPE, stderr=PIPE, env=environment
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                out, error = await script.communicate()
        finally:
            if script.returncode is None:
                script.kill()
        assert (script.returncode, out.decode(), error.decode()) == (0, "100 ['MainThread']\n", "")


async def test_a_fastapi_application_sends_under_uvicorn_and_uvloop(tmp_path: Path) -> None:
    (tmp_path / "shop_application.py").write_text(textwrap.dedent(APPLICATION), encoding="utf-8")
    (port,) = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    async with cluster_with_topic(tmp_path) as cluster, httpx.AsyncClient() as http:

        async def ready() -> bool:
            try:
                return (await http.get(f"{url}/loop")).status_code == httpx.codes.OK
            except httpx.TransportError:
                return False

        application = ManagedProcess(
            "application",
            "uvicorn",
            ["shop_application:app", "--host", LOOPBACK, "--port", str(port), "--loop", "uvloop"],
            ready=ready,
            log_path=tmp_path / "application.log",
            environment={"MQ_URL": cluster.url, "PYTHONPATH": str(tmp_path)},
        )
        bodies: list[bytes] = []
        try:
            await application.start()
            assert (await http.get(f"{url}/loop")).json() == {"loop": "uvloop"}
            answers = await asyncio.gather(
                *(http.post(f"{url}/orders/{number}", timeout=TIMEOUT_S) for number in range(50))
            )
            assert {answer.json()["status"] for answer in answers} == {"SEND_OK"}
            async with consumer_of(cluster.url, "auditors", bodies):
                await eventually(lambda: len(bodies) == 50, TIMEOUT_S, "all messages")
        finally:
            await application.terminate()
        log = (tmp_path / "application.log").read_text(encoding="utf-8")
        assert sorted(bodies) == sorted(b"%d" % number for number in range(50))
        assert application.exit_code in (0, -15)  # uvicorn raises the signal again once it has shut down in order
        assert not application.was_killed_to_stop
        assert "Application shutdown complete" in log
        assert "Traceback" not in log
        assert "never" not in log  # retrieved, or awaited


@pytest.mark.mechanism("N7")
async def test_addresses_are_looked_up_by_http_and_by_dns(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, name_servers=2) as cluster:
        listed = list(cluster.name_server_addresses)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            body = ";".join(listed).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            writer.close()

        server = await asyncio.start_server(serve, LOOPBACK, 0)
        http_url = f"mq+http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}/rocketmq/nsaddr"
        dns_url = f"mq+dns://localhost:{listed[0].rpartition(':')[2]}"
        for number, url in enumerate((http_url, dns_url)):
            async with Producer(f"shop-{number}", url) as producer:
                assert (await producer.send(Message(TOPIC, b"x"))).send_status is SendStatus.SEND_OK
        server.close()
        await server.wait_closed()


async def test_a_consumer_hears_at_its_start_that_its_group_does_not_exist(tmp_path: Path) -> None:
    settings = {"autoCreateSubscriptionGroup": "false"}
    bodies: list[bytes] = []
    async with cluster_with_topic(tmp_path, broker_settings=settings) as cluster:
        async with Producer("shop", cluster.url) as producer:
            await producer.send(Message(TOPIC, b"x"))
            with pytest.raises(BrokerRejectedError, match="'auditors' does not exist"):
                await consumer_of(cluster.url, "auditors", bodies).start()
            assert (await producer.send(Message(TOPIC, b"y"))).send_status is SendStatus.SEND_OK
        async with Admin(cluster.url) as admin:
            await admin.update_subscription_group(SubscriptionGroupConfig("auditors"))
        async with consumer_of(cluster.url, "auditors", bodies):
            await eventually(lambda: sorted(bodies) == [b"x", b"y"], TIMEOUT_S, "both messages")
