"""MQ and the handlers of messages: dependencies, failures, and what is rejected (mechanism Q3)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Request

from mq_broker.embedded import EmbeddedBroker
from mqclient import ConsumerConfig, ConsumeStatus, IllegalArgumentError, Message, MessageExt
from mqclient.fastapi import MQ
from osenv.sim_clock import settle

FIRST_RETRY_S = 10  # mechanism R1


class Session:
    """A database transaction, as a dependency that yields gives it; what becomes of it is noted."""

    notes: list[str]
    rejects_commit = False


async def session() -> AsyncIterator[Session]:
    opened = Session()
    try:
        yield opened
    except Exception:
        Session.notes.append("rolled back")
        raise
    if Session.rejects_commit:
        Session.rejects_commit = False
        raise ConnectionError("the commit failed")
    Session.notes.append("committed")


def plain_dependency() -> Iterator[int]:
    yield threading.get_ident()


async def shop_name(request: Request) -> str:
    return str(request.app.state.shop_name)


@pytest.fixture(autouse=True)
def _no_notes() -> None:
    Session.notes, Session.rejects_commit = [], False


class Application:
    """One consumer with a handler; `consumed` are the tries so far."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.mq = MQ(broker.url)
        self.app = FastAPI(lifespan=self.mq.lifespan)
        self.shop = self.mq.producer("shop")

    async def deliver(self, is_met: Callable[[], object]) -> None:
        """Send one message and let time pass until the condition is met; then the group has nothing left to do."""
        async with self.mq.lifespan(self.app):
            await (await self.shop()).send(Message("orders", b"17", keys=["ORDERID_17"]))
            async with asyncio.timeout(20):
                while not is_met():
                    await self.broker.clock.advance(1)
            await self.broker.clock.advance(10 * FIRST_RETRY_S)


@pytest.fixture
def application(broker: EmbeddedBroker) -> Application:
    return Application(broker)


@pytest.mark.mechanism("Q3")
async def test_a_handler_has_dependencies_as_a_route_has_them(application: Application) -> None:
    application.app.state.shop_name = "seats"
    got: list[tuple[object, ...]] = []

    @application.mq.consumer("readers", "orders")
    async def read(
        message: MessageExt,
        opened: Annotated[Session, Depends(session)],
        plain: Annotated[int, Depends(plain_dependency)],
        name: Annotated[str, Depends(shop_name)],
        background: BackgroundTasks,
        default: str = "default",
    ) -> None:
        background.add_task(Session.notes.append, "told")
        got.append((message.keys, type(opened), type(plain), name, default))

    await application.deliver(lambda: got)
    assert got == [(("ORDERID_17",), Session, int, "seats", "default")]
    assert sorted(Session.notes) == ["committed", "told"]


async def test_overrides_of_the_application_hold_for_handlers(application: Application) -> None:
    got = []

    async def another_name() -> str:
        return "overridden"

    @application.mq.consumer("readers", "orders")
    async def read(message: MessageExt, name: Annotated[str, Depends(shop_name)]) -> None:
        got.append(name)

    application.app.dependency_overrides[shop_name] = another_name
    await application.deliver(lambda: got)
    assert got == ["overridden"]


async def test_a_plain_handler_runs_in_a_thread(application: Application) -> None:
    got = []

    @application.mq.consumer("readers", "orders")
    def read(message: MessageExt) -> None:
        got.append((message.body, threading.get_ident() == threading.main_thread().ident))

    await application.deliver(lambda: got)
    assert got == [(b"17", False)]


class Rejections:
    """The first try ends in the given way, the others well."""

    def __init__(self, first: BaseException) -> None:
        self._first = first
        self.tries: list[int] = []

    def run(self, message: MessageExt) -> None:
        self.tries.append(message.reconsume_times)
        if len(self.tries) == 1:
            raise self._first


@pytest.mark.parametrize(
    "error", [ValueError("x"), HTTPException(409), HTTPException(200), ExceptionGroup("x", [OSError()])]
)
async def test_a_message_whose_handler_raises_comes_again(application: Application, error: Exception) -> None:
    rejections = Rejections(error)

    @application.mq.consumer("readers", "orders")
    async def read(message: MessageExt, _: Annotated[Session, Depends(session)]) -> None:
        rejections.run(message)

    await application.deliver(lambda: len(rejections.tries) == 2)
    assert rejections.tries == [0, 1]
    assert Session.notes == ["rolled back", "committed"]


async def test_a_message_whose_dependency_fails_on_the_way_out_comes_again(application: Application) -> None:
    Session.rejects_commit = True
    tries = []

    @application.mq.consumer("readers", "orders")
    async def read(message: MessageExt, _: Annotated[Session, Depends(session)]) -> None:
        tries.append(message.reconsume_times)

    await application.deliver(lambda: len(tries) == 2)
    assert (tries, Session.notes) == ([0, 1], ["committed"])


async def test_a_dependency_that_wants_a_query_parameter_fails_aloud(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    async def limit(limit: int) -> int:
        return limit

    @application.mq.consumer("readers", "orders")
    async def read(message: MessageExt, limit: int = Depends(limit)) -> None:
        raise AssertionError("never called")

    await application.deliver(lambda: "RequestValidationError" in caplog.text)
    assert "'limit'" in caplog.text


async def test_a_handler_that_returns_something_is_told_so(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    """A status that is taken for success would lose the message."""

    @application.mq.consumer("readers", "orders")  # type: ignore[type-var]
    async def read(message: MessageExt) -> ConsumeStatus:
        return ConsumeStatus.RECONSUME_LATER

    await application.deliver(lambda: "TypeError" in caplog.text)
    assert "a handler of messages returns nothing, and raises to have the message again" in caplog.text


async def test_a_cancelled_handler_is_cancelled_and_its_message_comes_again(application: Application) -> None:
    tries = []

    @application.mq.consumer("readers", "orders")
    async def read(message: MessageExt) -> None:
        tries.append(message.body)
        if len(tries) == 1:
            await asyncio.Event().wait()

    async with application.mq.lifespan(application.app):
        await (await application.shop()).send(Message("orders", b"17"))
        async with asyncio.timeout(10):
            while not tries:
                await settle()
        ending = asyncio.create_task(application.broker.clock.advance(30))
    await ending
    async with application.mq.lifespan(application.app), asyncio.timeout(10):
        while len(tries) < 2:
            await application.broker.clock.advance(1)


def test_the_function_stays_what_it_is() -> None:
    mq = MQ("mq://nowhere:1")

    async def read(message: MessageExt) -> None:
        """Consumes."""

    assert mq.consumer("readers", "orders")(read) is read


def no_message() -> None:
    """Nothing to consume."""


def two_messages(one: MessageExt, other: MessageExt) -> None:
    """Too much to consume."""


def many_messages(messages: list[MessageExt]) -> None:
    """A listener of batches."""


class Reader:
    async def __call__(self, message: MessageExt) -> None:
        """Consumes."""

    async def read(self, message: MessageExt) -> None:
        """Consumes."""


@pytest.mark.parametrize(("handler", "count"), [(no_message, 0), (two_messages, 2), (many_messages, 0), (Reader(), 0)])
def test_a_handler_has_one_message(handler: Any, count: int) -> None:
    mq = MQ("mq://nowhere:1")
    with pytest.raises(IllegalArgumentError, match=f"has {count} parameters annotated MessageExt"):
        mq.consumer("readers", "orders")(handler)
    mq.consumer("readers", "orders")(Reader().read)  # a method does, and the group is still free


def test_a_message_has_one_handler_in_a_group() -> None:
    mq = MQ("mq://nowhere:1")
    mq.consumer("readers", "orders")(Reader().read)
    with pytest.raises(IllegalArgumentError, match="consumer readers has a handler already for topic orders"):
        mq.consumer("readers", "orders", "paid")(Reader().read)


def test_batches_are_rejected() -> None:
    mq = MQ("mq://nowhere:1")
    config = ConsumerConfig(consume_message_batch_max_size=32)
    with pytest.raises(IllegalArgumentError, match="consume_message_batch_max_size has to be 1"):
        mq.consumer("readers", "orders", consumer_config=config)(Reader().read)
