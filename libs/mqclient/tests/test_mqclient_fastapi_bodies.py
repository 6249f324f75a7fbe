"""Handlers by tag, in order, with Pydantic models as bodies; and what a route answers that cannot send."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from mq_broker.embedded import EmbeddedBroker
from mqclient import ConsumerConfig, IllegalArgumentError, Message, MessageExt, MessageModel
from mqclient.errors import NoRouteError, RequestTimeoutError
from mqclient.fastapi import MQ


class OrderPaid(BaseModel):
    order_id: str
    amount_minor: int


PAID = OrderPaid(order_id="17", amount_minor=100)


class Application:
    def __init__(self, broker: EmbeddedBroker, **options: Any) -> None:
        self.clock = broker.clock
        self.mq = MQ(broker.url, **options)
        self.app = FastAPI(lifespan=self.mq.lifespan)
        self.shop = self.mq.producer("shop")

    async def deliver(self, *messages: Message, until: Any) -> None:
        """Send them to one queue, one behind the other, and let time pass until it is so."""
        async with self.mq.lifespan(self.app):
            producer = await self.shop()
            for message in messages:
                await producer.send(message, selector=lambda queues, *_: queues[0])
            await self.clock.until(until)


@pytest.fixture
def application(broker: EmbeddedBroker) -> Application:
    return Application(broker)


async def test_a_model_travels_as_json_and_comes_as_a_model(application: Application) -> None:
    got: list[tuple[OrderPaid, bytes]] = []

    @application.mq.consumer("readers", "orders")
    async def book(paid: OrderPaid, message: MessageExt) -> None:
        got.append((paid, message.body))

    await application.deliver(application.mq.message("orders", PAID, tag="paid", keys="17"), until=lambda: got)
    assert got == [(PAID, b'{"order_id":"17","amount_minor":100}')]


async def test_a_body_that_is_no_such_model_comes_again_and_is_a_dead_letter_in_the_end(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[OrderPaid] = []

    @application.mq.consumer("readers", "orders", consumer_config=ConsumerConfig(max_reconsume_times=1))
    def book(paid: OrderPaid) -> None:
        got.append(paid)

    wrong, right = Message("orders", b'{"order_id": 17}'), application.mq.message("orders", PAID)
    await application.deliver(wrong, right, until=lambda: caplog.text.count("amount_minor\n  Field required") >= 2)
    assert got == [PAID]


async def test_another_serializer_writes_and_reads_bodies(broker: EmbeddedBroker) -> None:
    class Reversed:
        def encode(self, body: object) -> bytes:
            assert isinstance(body, OrderPaid)
            return body.model_dump_json().encode()[::-1]

        def decode(self, body: bytes, type_: Any) -> Any:
            return type_.model_validate_json(body[::-1])

    got: list[OrderPaid] = []
    application = Application(broker, serializer=Reversed())

    @application.mq.consumer("readers", "orders")
    async def book(paid: OrderPaid) -> None:
        got.append(paid)

    message = application.mq.message("orders", PAID)
    assert message.body.startswith(b"}001:")
    await application.deliver(message, until=lambda: got)
    assert got == [PAID]


async def test_a_group_has_a_handler_for_each_tag(application: Application) -> None:
    got: list[tuple[str, bytes]] = []
    failures = [RuntimeError("not yet")]

    @application.mq.consumer("readers", "orders", "created || changed")
    async def created(message: MessageExt) -> None:
        got.append(("created", message.body))

    @application.mq.consumer("readers", "orders", "paid")
    async def paid(message: MessageExt) -> None:
        if failures:
            raise failures.pop()
        got.append(("paid", message.body))

    @application.mq.consumer("readers", "refunds")
    async def refunded(message: MessageExt) -> None:
        got.append(("refunded", message.body))

    tags = ("created", "paid", "changed", "ignored")
    messages = [Message("orders", tag.encode(), tag=tag) for tag in tags]
    await application.deliver(*messages, Message("refunds", b"back"), until=lambda: len(got) == 4)
    expected = [("created", b"changed"), ("created", b"created"), ("paid", b"paid"), ("refunded", b"back")]
    assert sorted(got) == expected


async def test_an_orderly_handler_gets_a_queue_in_its_order_whatever_fails(application: Application) -> None:
    got: list[bytes] = []
    failures = [RuntimeError("not yet")] * 2

    @application.mq.consumer("readers", "orders", orderly=True)
    async def read(message: MessageExt) -> None:
        if failures and message.body == b"2":
            raise failures.pop()
        got.append(message.body)

    await application.deliver(*(Message("orders", b"%d" % n) for n in (1, 2, 3)), until=lambda: len(got) == 3)
    assert got == [b"1", b"2", b"3"]


async def _read(message: MessageExt) -> None:
    """A handler."""


def test_unknown_options_are_named_at_the_decorator() -> None:
    options: dict[str, Any] = {"orderley": True, "batch": 2}
    with pytest.raises(IllegalArgumentError, match=r"no option batch, orderley; there are consumer_config, .*orderly"):
        MQ("mq://127.0.0.1:9876").consumer("readers", "orders", **options)
    with pytest.raises(IllegalArgumentError, match="orderly of consumer readers is True or False, not 'yes'"):
        MQ("mq://127.0.0.1:9876").consumer("readers", "orders", orderly="yes")  # type: ignore[arg-type]


def test_handlers_that_would_get_the_same_messages_are_rejected() -> None:
    mq = MQ("mq://127.0.0.1:9876")
    mq.consumer("readers", "orders", "created || paid", orderly=True)(_read)
    with pytest.raises(IllegalArgumentError, match="has a handler already for tag paid"):
        mq.consumer("readers", "orders", "paid || closed")(_read)
    with pytest.raises(IllegalArgumentError, match="has a handler already for topic orders"):
        mq.consumer("readers", "orders")(_read)
    with pytest.raises(IllegalArgumentError, match="other options already"):
        mq.consumer("readers", "orders", "closed", message_model=MessageModel.BROADCASTING)(_read)
    mq.consumer("readers", "orders", "closed", orderly=True)(_read)
    mq.consumer("readers", "refunds")(_read)


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [(NoRouteError("no broker at 10.0.0.7"), 503, "1"), (RequestTimeoutError("no answer of 10.0.0.7"), 504, None)],
)
async def test_a_route_that_cannot_send_answers_a_problem(
    broker: EmbeddedBroker, error: Exception, status: int, retry_after: str | None
) -> None:
    application = Application(broker)
    application.mq.install_error_handlers(application.app)

    @application.app.post("/orders")
    async def place() -> None:
        raise error

    transport = httpx.ASGITransport(application.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        answer = await http.post("/orders")
    assert (answer.status_code, answer.headers.get("Retry-After")) == (status, retry_after)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert "10.0.0.7" not in answer.text
