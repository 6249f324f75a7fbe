"""MQ and the life of an application: what starts and stops when, on a broker in memory (mechanism Q3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request

from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    IllegalArgumentError,
    IllegalStateError,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConsumer,
    TransactionProducer,
    UnknownTransportError,
)
from mqclient.fastapi import MQ, ProducerDependency
from mqclient.testing import FakeCluster, RecordingTransactionListener
from osenv import until
from osenv.sim_clock import settle


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")


def add_sending_route(app: FastAPI, shop: ProducerDependency[Producer]) -> None:
    """POST /<body> sends it."""

    @app.post("/{body}")
    async def send(body: str, producer: Producer = Depends(shop)) -> str:  # noqa: B008 - `shop` is no global name
        return (await producer.send(Message("orders", body.encode()))).send_status.value


async def test_what_a_route_sends_a_consumer_gets(broker: EmbeddedBroker) -> None:
    mq = MQ(broker.url)
    app = FastAPI(lifespan=mq.lifespan)
    add_sending_route(app, mq.producer("shop"))
    got = []

    @mq.consumer("readers", "orders")
    async def read(message: MessageExt) -> None:
        got.append(message.body)

    async with mq.lifespan(app), client(app) as http:
        assert (await http.post("/17")).json() == "SEND_OK"
        await until(lambda: got)
    assert got == [b"17"]


async def test_a_consumer_gets_only_what_its_expression_says(broker: EmbeddedBroker) -> None:
    mq = MQ(broker.url)
    app = FastAPI(lifespan=mq.lifespan)
    shop = mq.producer("shop")
    got = []

    @mq.consumer("readers", "orders", "paid || closed")
    async def read(message: MessageExt) -> None:
        got.append(message.tag)

    async with mq.lifespan(app):
        for tag in ("created", "paid", "closed"):
            await (await shop()).send(Message("orders", b"17", tag=tag))
        await until(lambda: len(got) == 2)
    assert sorted(map(str, got)) == ["closed", "paid"]


async def test_an_application_lives_as_often_as_it_is_started(broker: EmbeddedBroker) -> None:
    mq = MQ("mq://nowhere:1")
    app = FastAPI(lifespan=mq.lifespan)
    add_sending_route(app, mq.producer("shop"))
    mq.url = broker.url
    for _ in range(2):
        async with mq.lifespan(app), client(app) as http:
            assert (await http.post("/17")).json() == "SEND_OK"


async def test_the_application_itself_enters_the_lifespan(broker: EmbeddedBroker) -> None:
    mq = MQ(broker.url)
    app = FastAPI(lifespan=mq.lifespan)
    shop = mq.producer("shop")
    async with app.router.lifespan_context(app):
        assert isinstance(await shop(), Producer)
    with pytest.raises(IllegalStateError, match=r"put `async with mq\.lifespan\(app\):` around the client"):
        await shop()


async def test_a_route_outside_the_lifespan_says_what_is_missing(broker: EmbeddedBroker) -> None:
    mq = MQ(broker.url)
    app = FastAPI(lifespan=mq.lifespan)
    add_sending_route(app, mq.producer("shop"))
    async with client(app) as http:
        with pytest.raises(IllegalStateError, match="runs inside the application's lifespan only"):
            await http.post("/17")


async def test_routers_and_mounted_applications_share_the_producer(broker: EmbeddedBroker) -> None:
    mq = MQ(broker.url)
    app, inner = FastAPI(lifespan=mq.lifespan), FastAPI()
    router = APIRouter(prefix="/routed")
    seen = []

    async def see(producer: Producer = Depends(mq.producer("shop"))) -> None:  # noqa: B008 - as above
        seen.append(producer)

    router.add_api_route("", see)
    inner.add_api_route("/inner", see)
    app.include_router(router)
    app.mount("/mounted", inner)
    async with mq.lifespan(app), client(app) as http:
        assert {(await http.get(path)).status_code for path in ("/routed", "/mounted/inner")} == {200}
    assert len(seen) == 2
    assert seen[0] is seen[1]


async def test_tests_override_a_producer_by_its_dependency() -> None:
    class FakeProducer:
        async def send(self, message: Message) -> None:
            raise ZeroDivisionError(message.body)

    mq = MQ("mq://nowhere:1")
    app = FastAPI(lifespan=mq.lifespan)
    add_sending_route(app, mq.producer("shop"))
    app.dependency_overrides[mq.producer("shop")] = FakeProducer
    async with client(app) as http:
        with pytest.raises(ZeroDivisionError, match="17"):
            await http.post("/17")


async def test_a_transaction_producer_is_asked_about_what_it_left_open(broker: EmbeddedBroker) -> None:
    listener = RecordingTransactionListener(LocalTransactionState.UNKNOW, LocalTransactionState.COMMIT_MESSAGE)
    mq = MQ(broker.url)
    app = FastAPI(lifespan=mq.lifespan)
    shop = mq.transaction_producer("shop", listener)
    got = []

    @mq.consumer("readers", "orders")
    async def read(message: MessageExt) -> None:
        got.append(message.body)

    async with mq.lifespan(app):
        producer = await shop()
        assert isinstance(producer, TransactionProducer)
        await producer.send_message_in_transaction(Message("orders", b"17"))
        assert await mq.producer("shop")() is producer
        for _ in range(70):
            await broker.clock.advance(1)
        await until(lambda: got)


# --------------------------------------------------------------------------------------------------------- the order


def note_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What starts and shuts down, in this order."""
    events: list[str] = []

    def noting(kind: type[Producer | PushConsumer], name: str) -> None:
        method: Callable[..., Awaitable[None]] = getattr(kind, name)

        async def note(service: Producer | PushConsumer, **arguments: Any) -> None:
            events.append(f"{name} {service.group}")
            await method(service, **arguments)

        monkeypatch.setattr(kind, name, note)

    for kind in (Producer, PushConsumer):
        for name in ("start", "shutdown"):
            noting(kind, name)
    return events


def an_mq_of_four(url: str) -> MQ:
    mq = MQ(url)
    for group in ("p1", "p2"):
        mq.producer(group)
    for group in ("c1", "c2"):

        @mq.consumer(group, "orders")
        async def read(message: MessageExt) -> None:
            """Consumes."""

    return mq


@pytest.mark.mechanism("Q3")
async def test_producers_start_first_and_end_last(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    events = note_calls(monkeypatch)
    mq = an_mq_of_four(broker.url)
    async with mq.lifespan(FastAPI()):
        assert events == ["start p1", "start p2", "start c1", "start c2"]
        events.clear()
    assert events == ["shutdown c1", "shutdown c2", "shutdown p2", "shutdown p1"]


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ("p1", []),
        ("p2", ["shutdown p1"]),
        ("c1", ["shutdown p2", "shutdown p1"]),
        ("c2", ["shutdown c1", "shutdown p2", "shutdown p1"]),
    ],
)
async def test_a_start_that_fails_shuts_down_what_had_started(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, failing: str, expected: list[str]
) -> None:
    for kind in (Producer, PushConsumer):
        start: Callable[[Any], Awaitable[None]] = kind.start

        async def start_or_fail(service: Any, start: Callable[[Any], Awaitable[None]] = start) -> None:
            if service.group == failing:
                raise ZeroDivisionError(failing)
            await start(service)

        monkeypatch.setattr(kind, "start", start_or_fail)
    events = note_calls(monkeypatch)
    mq = an_mq_of_four(broker.url)
    with pytest.raises(ZeroDivisionError, match=failing):
        await mq.lifespan(FastAPI()).__aenter__()
    assert [event for event in events if event.startswith("shutdown")] == expected
    monkeypatch.undo()
    async with mq.lifespan(FastAPI()):  # nothing of the failure is left
        assert await mq.problems() == []


async def test_a_handler_at_work_finishes_and_can_still_send(broker: EmbeddedBroker) -> None:
    mq = MQ(broker.url)
    shop = mq.producer("shop")
    at_work, done = asyncio.Event(), []

    @mq.consumer("readers", "orders")
    async def read(message: MessageExt) -> None:
        at_work.set()
        await settle()
        await (await shop()).send(Message("receipts", message.body))
        done.append(message.body)

    async with mq.lifespan(FastAPI()):
        await (await shop()).send(Message("orders", b"17"))
        await at_work.wait()
        assert done == []
    assert done == [b"17"]


async def test_two_lives_at_once_are_rejected(broker: EmbeddedBroker) -> None:
    mq = an_mq_of_four(broker.url)
    async with mq.lifespan(FastAPI()):
        with pytest.raises(IllegalStateError, match="runs already"):
            await mq.lifespan(FastAPI()).__aenter__()
        with pytest.raises(IllegalStateError, match="declare before its lifespan"):
            mq.producer("late")
        with pytest.raises(IllegalStateError, match="declare before its lifespan"):
            mq.consumer("late", "orders")(lambda: None)
        assert await mq.problems() == []


async def test_another_lifespan_stays_around_this_one(broker: EmbeddedBroker) -> None:
    events: list[str] = []
    mq = MQ(broker.url)
    shop = mq.producer("shop")

    async def is_running() -> bool:
        try:
            return isinstance(await shop(), Producer)
        except IllegalStateError:
            return False

    @asynccontextmanager
    async def database(_app: FastAPI) -> AsyncIterator[dict[str, str]]:
        events.append(f"open, queue {await is_running()}")
        yield {"database": "here"}
        events.append(f"closed, queue {await is_running()}")

    app = FastAPI(lifespan=mq.around(database))

    @app.get("/")
    async def read(request: Request) -> str:
        return f"{request.state.database} {await is_running()}"

    async with app.router.lifespan_context(app) as state:
        events.append(f"{state} {await is_running()}")
    assert events == ["open, queue False", "{'database': 'here'} True", "closed, queue False"]


# -------------------------------------------------------------------------------------------------------- the rest


async def test_readiness_asks_the_broker(broker: EmbeddedBroker) -> None:
    mq = MQ(broker.url)
    app = FastAPI(lifespan=mq.lifespan)
    app.add_api_route("/ready", lambda: "ready", dependencies=[Depends(mq.ready)])
    async with client(app) as http:
        answer = await http.get("/ready")
        assert (answer.status_code, answer.json()) == (
            503,
            {"detail": ["the application's lifespan has not begun, or is over"]},
        )
        async with mq.lifespan(app):
            assert ((await http.get("/ready")).status_code, await mq.problems()) == (200, [])


async def test_a_broker_that_goes_and_comes_back_is_seen() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    mq = MQ(cluster.url)
    mq.producer("shop")
    async with mq.lifespan(FastAPI()):
        assert await mq.problems() == []
        broker.down = True
        assert await mq.problems() == ["no master is registered in any cluster"]
        broker.down = False
        assert await mq.problems() == []


async def test_an_application_starts_without_a_broker_and_is_not_ready() -> None:
    cluster = FakeCluster()
    mq = MQ(cluster.url)
    mq.producer("shop")
    async with mq.lifespan(FastAPI()):
        assert await mq.problems() == ["no master is registered in any cluster"]
        cluster.add_broker("broker-a")
        assert await mq.problems() == []


async def test_an_unknown_url_fails_the_start() -> None:
    mq = an_mq_of_four("carrier-pigeon://roof")
    life: AbstractAsyncContextManager[None] = mq.lifespan(FastAPI())
    with pytest.raises(UnknownTransportError):
        await life.__aenter__()


def test_a_group_is_declared_once() -> None:
    mq = MQ("mq://nowhere:1")
    configured = mq.producer("shop", producer_config=ProducerConfig(send_msg_timeout_s=1.0))
    assert mq.producer("shop") is configured
    with pytest.raises(IllegalArgumentError, match="producer shop is declared already"):
        mq.producer("shop", producer_config=ProducerConfig())
    with pytest.raises(IllegalArgumentError, match="producer shop is declared already"):
        mq.transaction_producer("shop", RecordingTransactionListener())
