"""Tests of applications on memory://: they wait for threads and for an idle queue, and mixed event loops are named."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from mq_broker.embedded import EmbeddedBroker
from mqclient import ConsumeFromWhere, ConsumeStatus, Message, MessageExt, Producer, PushConsumer
from mqclient.errors import IllegalStateError
from mqclient.fastapi import MQ
from osenv import SimClock

with warnings.catch_warnings(action="ignore"):  # starlette asks for httpx2
    from fastapi.testclient import TestClient


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """SQLite by aiosqlite, which works in a thread."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'orders.db'}")
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE closed (id TEXT PRIMARY KEY)"))
    yield engine
    await engine.dispose()


def shop(broker: EmbeddedBroker) -> tuple[FastAPI, MQ]:
    """An application that sends an order's closing half an hour ahead."""
    mq = MQ(broker.url)
    app = FastAPI(lifespan=mq.lifespan)

    shop = Depends(mq.producer("shop"))

    @app.post("/orders/{order_id}")
    async def place(order_id: str, producer: Producer = shop) -> None:
        await producer.send(Message("closings", b"{}", keys=order_id, delay_level=16))

    return app, mq


@asynccontextmanager
async def served(app: FastAPI, mq: MQ) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with mq.lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        yield http


@asynccontextmanager
async def consuming(broker: EmbeddedBroker, listener: Any) -> AsyncIterator[Producer]:
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = PushConsumer("readers", broker.url, consume_from_where=first)
    consumer.subscribe("orders")
    consumer.register_message_listener(listener)
    async with Producer("writers", broker.url) as producer:
        await producer.send(Message("orders", b"1"))
        async with consumer:
            yield producer


async def test_an_idle_queue_has_written_what_a_database_in_a_thread_takes(
    broker: EmbeddedBroker, clock: SimClock, engine: AsyncEngine
) -> None:
    app, mq = shop(broker)

    @mq.consumer("closers", "closings")
    async def close(message: MessageExt) -> None:
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO closed VALUES (:id)"), {"id": message.keys[0]})

    async with served(app, mq) as http:
        (await http.post("/orders/17")).raise_for_status()
        await clock.advance(30 * 60)
        await broker.idle()
        async with engine.connect() as connection:
            assert (await connection.scalars(text("SELECT id FROM closed"))).all() == ["17"]


async def test_time_stands_still_while_a_plain_handler_works_in_a_thread(
    broker: EmbeddedBroker, clock: SimClock
) -> None:
    may_end, closed_at = threading.Event(), list[float]()
    app, mq = shop(broker)

    @mq.consumer("closers", "closings")
    def close(_message: MessageExt) -> None:
        may_end.wait(10)
        closed_at.append(clock.monotonic())

    async with served(app, mq) as http:
        (await http.post("/orders/17")).raise_for_status()
        due = clock.monotonic() + 30 * 60
        threading.Timer(0.005, may_end.set).start()
        await clock.until(lambda: closed_at, within_s=3600)
        assert due <= closed_at[0] <= due + 1


async def test_a_queue_that_waits_for_the_clock_says_so(broker: EmbeddedBroker, clock: SimClock) -> None:
    async def listener(_messages: list[MessageExt]) -> ConsumeStatus:
        await clock.sleep(45)
        return ConsumeStatus.CONSUME_SUCCESS

    async with consuming(broker, listener):
        await clock.until(lambda: broker.clock.timers)
        with pytest.raises(TimeoutError, match=r"consumer readers: 1 listeners .*clock\.advance"):
            await broker.idle(within_s=0.01)
        await clock.advance(45)
        await broker.idle()


async def test_a_queue_is_idle_after_asynchronous_sends_have_their_callbacks(broker: EmbeddedBroker) -> None:
    heard = []

    class Callback:
        def on_success(self, result: object) -> None:
            heard.append(result)

        def on_exception(self, error: Exception) -> None:
            heard.append(error)

    async with Producer("writers", broker.url) as producer:
        producer.send_async(Message("orders", b"1"), Callback())
        await broker.idle()
        assert len(heard) == 1


async def test_a_test_client_with_a_loop_of_its_own_is_told_so(broker: EmbeddedBroker) -> None:
    app, _ = shop(broker)

    def ask() -> None:
        with TestClient(app) as http:
            http.post("/orders/17")

    with pytest.raises(IllegalStateError, match=r"another event loop.*ASGITransport.*TestClient"):
        ask()


async def test_a_request_on_another_loop_than_the_lifespans_is_told_so(broker: EmbeddedBroker) -> None:
    app, mq = shop(broker)
    async with mq.lifespan(app):
        with pytest.raises(IllegalStateError, match=r"another event loop.*ASGITransport"):
            await asyncio.to_thread(TestClient(app).post, "/orders/17")


async def test_a_client_on_another_loop_than_its_broker_is_told_so(broker: EmbeddedBroker) -> None:
    async def send() -> None:
        async with Producer("writers", broker.url) as producer:
            await producer.send(Message("orders", b"1"))

    with pytest.raises(IllegalStateError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, send())
