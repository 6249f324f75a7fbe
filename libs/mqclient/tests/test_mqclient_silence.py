"""Servers on real sockets that take everything and answer nothing: the client leaves all the same, and leaves nothing.

What a client leaves behind is looked for in tasks, threads and sockets of this process.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from typing import Any

import psutil
import pytest
import pytest_asyncio

from mqclient import (
    Admin,
    ConsumeFromWhere,
    Message,
    MQClientError,
    Producer,
    PushConsumer,
)
from mqclient.testing import RecordingListener
from mqclient.testing.loopback import Loopback, loopback_server
from osenv import until

LIMIT_S = 20  # only a hang takes so long
SHUTDOWN_S = 0.5
SERVER = ("AioServer", "frames_service", "testing/loopback")


@pytest_asyncio.fixture(params=["grpc", "frames"])
async def loopback(request: pytest.FixtureRequest) -> AsyncIterator[Loopback]:
    async with loopback_server(by_frames=request.param == "frames") as loopback:
        yield loopback


def tasks_of_the_client() -> set[asyncio.Task[Any]]:
    """All tasks but those of the server, which come and go with its connections."""
    return {task for task in asyncio.all_tasks() if not any(part in repr(task) for part in SERVER)}


def sockets_to(port: int) -> list[Any]:
    return [one for one in psutil.Process().net_connections("tcp") if getattr(one.raddr, "port", 0) == port]


async def leaves_nothing(port: int, live: Callable[[], Awaitable[None]]) -> None:
    """Neither a task nor a thread nor a connection to `port` is left of it."""
    tasks, threads = tasks_of_the_client(), set(threading.enumerate())
    async with asyncio.timeout(LIMIT_S):
        await live()
    await until(lambda: tasks_of_the_client() <= tasks)
    await until(lambda: gc.collect() >= 0 and not sockets_to(port))
    assert set(threading.enumerate()) <= threads


async def assert_reported(calls: list[asyncio.Task[Any]]) -> None:
    """None of them hangs, or was cancelled: each says what is known."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, MQClientError)


def port_of(loopback: Loopback) -> int:
    return int(loopback.broker.address.rpartition(":")[2])


def fall_silent(loopback: Loopback) -> None:
    loopback.broker.silent = True
    loopback.broker.unary_gate = asyncio.Event()
    loopback.cluster.name_servers["name-server-0"].silent = True


def consumer_of(url: str) -> PushConsumer:
    consumer = PushConsumer("closers", url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_message_listener(RecordingListener())
    return consumer


async def test_a_producer_leaves_a_broker_that_has_fallen_silent(loopback: Loopback) -> None:

    async def live() -> None:
        producer = Producer("shop", loopback.url)
        await producer.start()
        await producer.send(Message("orders", b"x"))
        fall_silent(loopback)
        sends = [asyncio.create_task(producer.send(Message("orders", b"y"), timeout=60.0)) for _ in range(5)]
        await until(lambda: len(loopback.broker.frames) > 1)
        await producer.shutdown(timeout_s=SHUTDOWN_S)
        await assert_reported(sends)

    await leaves_nothing(port_of(loopback), live)


async def test_a_producer_leaves_name_servers_that_were_silent_from_the_start(loopback: Loopback) -> None:

    async def live() -> None:
        fall_silent(loopback)
        producer = Producer("shop", loopback.url)
        await producer.start()
        send = asyncio.create_task(producer.send(Message("orders", b"y"), timeout=60.0))
        await asyncio.sleep(0)
        await producer.shutdown(timeout_s=SHUTDOWN_S)
        await assert_reported([send])

    await leaves_nothing(port_of(loopback), live)


async def test_a_consumer_leaves_a_broker_that_has_fallen_silent(loopback: Loopback) -> None:

    async def live() -> None:
        consumer = consumer_of(loopback.url)
        await consumer.start()
        loopback.broker.put("orders", 0, b"x")
        fall_silent(loopback)
        await consumer.shutdown(timeout_s=SHUTDOWN_S)

    await leaves_nothing(port_of(loopback), live)


async def test_an_admin_leaves_while_its_call_is_not_answered(loopback: Loopback) -> None:

    async def live() -> None:
        admin = Admin(loopback.url)
        await admin.start()
        await admin.topic_list()
        fall_silent(loopback)
        call = asyncio.create_task(admin.topic_list())
        await asyncio.sleep(0)
        await admin.shutdown(timeout_s=SHUTDOWN_S)
        await assert_reported([call])

    await leaves_nothing(port_of(loopback), live)


@pytest.mark.parametrize("scheme", ["mq+frames", "mq+grpc"])
@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
async def test_a_port_that_takes_connections_and_never_speaks_is_left(kind: str, scheme: str) -> None:
    """What a process looks like that was stopped by SIGSTOP: the kernel still accepts for it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]

        async def live() -> None:
            url = f"{scheme}://127.0.0.1:{port}"
            made: Any = {"producer": Producer("shop", url), "consumer": consumer_of(url), "admin": Admin(url)}[kind]
            await made.start()
            await made.shutdown(timeout_s=SHUTDOWN_S)

        await leaves_nothing(port, live)


def test_after_the_last_client_of_a_program_no_thread_is_left() -> None:
    """gRPC's own poller included, which lives as long as anything of it does."""
    before = set(threading.enumerate())

    async def live() -> None:
        async with loopback_server() as loopback, Producer("shop", loopback.url) as producer:
            await producer.send(Message("orders", b"x"))

    asyncio.run(live())
    gc.collect()
    assert set(threading.enumerate()) <= before
