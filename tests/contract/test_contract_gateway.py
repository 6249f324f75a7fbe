"""The contract of payments' port to the payment gateway, kept by its fake and by the sandbox gateway over its wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from osenv import SimClock
from payments.adapters.http_gateway import HttpGateway
from payments.domain.errors import GatewayRejectedError, GatewayUnavailableError, InvalidSignatureError
from payments.domain.payment import PaymentMethod, PaymentStatus
from payments.service import events
from payments.service.gateway import (
    Captured,
    ChargeRequest,
    Declined,
    GatewayBook,
    PaymentGateway,
    Pending,
    Refunded,
    RefundOrder,
)
from payments.service.receive_event import HEADER, WINDOW_S, WebhookSignatures
from payments.testing import WEBHOOK_SECRET, ScriptedGateway, Step, running_payments
from sandbox_gateway.domain import DeliveryError, Failures
from sandbox_gateway.gateway import Behaviour
from sandbox_gateway.testing import API_KEY, URL, RecordingReceiver, RunningGateway, running_gateway
from sandbox_gateway.webhooks import HttpWebhooks
from servicekit.config import SQLITE_PREFIX

REQUEST = ChargeRequest("p", "o", 100, "CNY", PaymentMethod.CARD)


class World(Protocol):
    """A gateway behind its port, whose decisions the test makes."""

    @property
    def gateway(self) -> PaymentGateway: ...

    @property
    def clock(self) -> SimClock: ...

    async def decide(self, its_id: str, *, declines: bool = False) -> dict[str, Any]:
        """Decide a charge or a refund that pends; returns its webhook."""


class ScriptedWorld:
    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.gateway = ScriptedGateway(clock, otherwise=Step.PEND)

    async def decide(self, its_id: str, *, declines: bool = False) -> dict[str, Any]:
        return self.gateway.decide(its_id, declines=declines)


class SandboxWorld:
    def __init__(self, sandbox: RunningGateway, receiver: RecordingReceiver, gateway: HttpGateway) -> None:
        self.clock = sandbox.clock
        self.gateway = gateway
        self._sandbox = sandbox
        self._receiver = receiver

    async def decide(self, its_id: str, *, declines: bool = False) -> dict[str, Any]:
        self._sandbox.application.behaviour.failures = Failures(declined=float(declines))
        await self._sandbox.pass_time(1)
        events: list[dict[str, Any]] = [json.loads(body) for body in self._receiver.taken]
        (event,) = [one for one in events if its_id == one["data"].get("refund_id", one["data"]["charge_id"])]
        return event


@asynccontextmanager
async def scripted_world(_folder: Path) -> AsyncIterator[World]:
    yield ScriptedWorld(SimClock())


@asynccontextmanager
async def sandbox_world(folder: Path) -> AsyncIterator[World]:
    receiver = RecordingReceiver()
    async with running_gateway(f"{SQLITE_PREFIX}{folder / 'gateway.db'}", receiver=receiver) as sandbox:
        gateway = HttpGateway(URL, API_KEY, sandbox.transport)
        try:
            yield SandboxWorld(sandbox, receiver, gateway)
        finally:
            await gateway.close()


OpenWorld = Callable[[Path], AbstractAsyncContextManager[World]]
WORLDS = pytest.mark.parametrize("open_world", [scripted_world, sandbox_world])


@WORLDS
async def test_a_charge_pends_and_is_captured_once_however_often_it_is_asked_for(
    tmp_path: Path, open_world: OpenWorld
) -> None:
    async with open_world(tmp_path) as world:
        gateway = world.gateway
        assert await gateway.charge(REQUEST) == Pending()
        assert await gateway.find_charge(REQUEST) == Pending()
        assert await gateway.book() == GatewayBook(0, 0, 0, 0)
        await world.decide("p")
        first = await gateway.find_charge(REQUEST)
        assert isinstance(first, Captured)
        await world.clock.advance(5)
        assert set(await asyncio.gather(*(gateway.charge(REQUEST) for _ in range(5)))) == {first}
        assert await gateway.find_charge(REQUEST) == first
        assert await gateway.book() == GatewayBook(100, 0, 1, 0)


@WORLDS
async def test_a_decline_is_for_ever_and_moves_no_money(tmp_path: Path, open_world: OpenWorld) -> None:
    async with open_world(tmp_path) as world:
        gateway = world.gateway
        await gateway.charge(REQUEST)
        await world.decide("p", declines=True)
        first = await gateway.find_charge(REQUEST)
        assert isinstance(first, Declined)
        assert await gateway.charge(REQUEST) == first
        with pytest.raises(GatewayRejectedError):
            await gateway.refund(RefundOrder("r", "p", 100, "CNY"))
        assert await gateway.find_refund(RefundOrder("r", "p", 100, "CNY")) is None
        assert await gateway.book() == GatewayBook(0, 0, 0, 0)


@WORLDS
async def test_what_it_has_never_heard_of_is_said_to_be_unknown(tmp_path: Path, open_world: OpenWorld) -> None:
    async with open_world(tmp_path) as world:
        assert await world.gateway.find_charge(REQUEST) is None
        assert await world.gateway.find_refund(RefundOrder("refund-ghost", "ghost", 100, "CNY")) is None


@WORLDS
async def test_a_refund_pends_and_happens_once_however_often_it_is_asked_for(
    tmp_path: Path, open_world: OpenWorld
) -> None:
    async with open_world(tmp_path) as world:
        gateway, order = world.gateway, RefundOrder("refund-p", "p", 100, "CNY")
        await gateway.charge(REQUEST)
        await world.decide("p")
        assert await gateway.refund(order) == Pending()
        assert await gateway.find_refund(order) == Pending()
        await world.decide("refund-p")
        first = await gateway.find_refund(order)
        assert isinstance(first, Refunded)
        await world.clock.advance(5)
        assert set(await asyncio.gather(*(gateway.refund(order) for _ in range(5)))) == {first}
        assert await gateway.book() == GatewayBook(100, 100, 1, 1)


@WORLDS
async def test_no_charge_gives_back_more_than_it_took(tmp_path: Path, open_world: OpenWorld) -> None:
    async with open_world(tmp_path) as world:
        gateway = world.gateway
        await gateway.charge(REQUEST)
        with pytest.raises(GatewayRejectedError):
            await gateway.refund(RefundOrder("r1", "p", 1, "CNY"))  # nothing was taken yet
        await world.decide("p")
        await gateway.refund(RefundOrder("r1", "p", 60, "CNY"))
        for terms in (("p", 41, "CNY"), ("p", 10, "EUR"), ("ghost", 1, "CNY")):
            with pytest.raises(GatewayRejectedError):
                await gateway.refund(RefundOrder("r2", *terms))
        await world.decide("r1")
        with pytest.raises(GatewayRejectedError):
            await gateway.refund(RefundOrder("r2", "p", 41, "CNY"))
        await gateway.refund(RefundOrder("r2", "p", 40, "CNY"))
        await world.decide("r2")
        assert await gateway.book() == GatewayBook(100, 100, 1, 2)


@WORLDS
async def test_an_id_names_one_thing_for_ever(tmp_path: Path, open_world: OpenWorld) -> None:
    async with open_world(tmp_path) as world:
        gateway = world.gateway
        for charge_id in ("p", "p2"):
            await gateway.charge(ChargeRequest(charge_id, "o", 100, "CNY", PaymentMethod.CARD))
            await world.decide(charge_id)
        await gateway.refund(RefundOrder("r", "p", 60, "CNY"))
        for other in (
            ChargeRequest("p", "o", 99, "CNY", PaymentMethod.CARD),
            ChargeRequest("p", "o", 100, "EUR", PaymentMethod.CARD),
            ChargeRequest("p", "o2", 100, "CNY", PaymentMethod.CARD),
            ChargeRequest("p", "o", 100, "CNY", PaymentMethod.WALLET),
        ):
            with pytest.raises(GatewayRejectedError):
                await gateway.charge(other)
        for terms in (("p2", 60, "CNY"), ("p", 61, "CNY"), ("p", 60, "EUR")):
            with pytest.raises(GatewayRejectedError):
                await gateway.refund(RefundOrder("r", *terms))
        await world.decide("r")
        assert await gateway.book() == GatewayBook(200, 60, 2, 1)


async def test_the_fakes_webhooks_are_those_of_the_sandbox(tmp_path: Path) -> None:
    """But for the id of the event, member by member."""
    told: list[list[dict[str, Any]]] = []
    for open_world in (scripted_world, sandbox_world):
        async with open_world(tmp_path) as world:
            await world.gateway.charge(REQUEST)
            events = [await world.decide("p")]
            await world.gateway.refund(RefundOrder("r", "p", 60, "CNY"))
            events.append(await world.decide("r"))
            await world.gateway.charge(ChargeRequest("p2", "o2", 7, "EUR", PaymentMethod.WALLET))
            events.append(await world.decide("p2", declines=True))
            for event in events:
                assert isinstance(event.pop("event_id"), str)
                assert isinstance(event.pop("occurred_at_ms"), int)
            assert isinstance(events[-1]["data"].pop("decline_reason"), str)
            told.append(events)
    assert told[0] == told[1]


async def test_payments_verifies_what_the_sandbox_signs() -> None:
    clock, secrets = SimClock(), ("n" * 32, "o" * 32)
    sent: list[httpx.Request] = []

    def keep(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200)

    webhooks = HttpWebhooks("http://payments/webhooks/gateway", secrets, clock, httpx.MockTransport(keep))
    await webhooks.deliver(b'{"any": "body"}')
    await webhooks.close()
    header, body = sent[0].headers[HEADER], sent[0].content
    for accepted in (secrets, secrets[:1], secrets[1:], ("x" * 32, secrets[1])):
        WebhookSignatures(accepted, clock).verify(header, body)
    with pytest.raises(InvalidSignatureError):
        WebhookSignatures(("x" * 32,), clock).verify(header, body)
    with pytest.raises(InvalidSignatureError):
        WebhookSignatures(secrets, clock).verify(header, body + b" ")
    await clock.advance(WINDOW_S + 1)
    with pytest.raises(InvalidSignatureError):
        WebhookSignatures(secrets, clock).verify(header, body)


async def test_a_wrong_key_a_broken_file_and_a_wrong_address_are_no_answer(tmp_path: Path) -> None:
    async with running_gateway(f"{SQLITE_PREFIX}{tmp_path / 'gateway.db'}") as sandbox:
        for url, key in ((URL, "wrong"), (URL + "/v2", API_KEY)):
            gateway = HttpGateway(url, key, sandbox.transport)
            for asking in (
                gateway.charge(REQUEST),
                gateway.find_charge(REQUEST),
                gateway.find_refund(RefundOrder("r", "p", 100, "CNY")),
                gateway.book(),
            ):
                with pytest.raises(GatewayUnavailableError):
                    await asking
            await gateway.close()
        async with sandbox.database.writing() as connection:
            await connection.exec_driver_sql("ALTER TABLE charges RENAME TO lost")
            await connection.commit()
        gateway = HttpGateway(URL, API_KEY, sandbox.transport)
        for asking in (gateway.charge(REQUEST), gateway.find_charge(REQUEST), gateway.book()):
            with pytest.raises(GatewayUnavailableError, match="503"):
                await asking
        await gateway.close()


class ToPayments:
    """Implements `WebhookReceiver`: to payments over its wire, as soon as payments is there."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.webhooks: HttpWebhooks | None = None

    def connect(self, payments: httpx.ASGITransport) -> None:
        url = "http://payments/webhooks/gateway"
        self.webhooks = HttpWebhooks(url, (WEBHOOK_SECRET,), self._clock, payments)

    async def deliver(self, body: bytes) -> None:
        if self.webhooks is None:
            raise DeliveryError("payments is not there yet")
        await self.webhooks.deliver(body)


@pytest.mark.parametrize("text", ["", "late=1:3000", "duplicated=1", "reordered=1", "never=1", "declined=1"])
async def test_payments_and_the_sandbox_agree_in_the_end_whatever_goes_wrong(tmp_path: Path, text: str) -> None:
    clock = SimClock()
    receiver, behaviour = ToPayments(clock), Behaviour(failures=Failures.parse(text))
    sandbox_url, payments_url = (f"{SQLITE_PREFIX}{tmp_path / name}.db" for name in ("gateway", "payments"))
    async with running_gateway(sandbox_url, behaviour=behaviour, receiver=receiver, clock=clock) as sandbox:
        gateway = HttpGateway(URL, API_KEY, sandbox.transport)
        async with running_payments(payments_url, gateway=gateway, clock=clock) as payments:
            receiver.connect(httpx.ASGITransport(payments.application.api))
            await payments.open_order()
            answer = await payments.post_payment("key")
            payment_id = answer.json()["payment_id"]
            assert (answer.status_code, answer.json()["status"]) == (202, "CREATED")
            await sandbox.pass_time(4)
            assert await payments.application.resumer.resume() == 0
            payment = await payments.payment(payment_id)
            assert (payment.status is PaymentStatus.DECLINED) == (text == "declined=1")
            if payment.status is PaymentStatus.CAPTURED:
                assert (await payments.post_refund(payment_id, "part", 100)).status_code in (201, 202)
                await payments.request_refund(payment)
                await payments.application.resumer.resume()
                await sandbox.pass_time(4)
                await payments.application.resumer.resume()
                assert len(payments.told(events.SUCCEEDED_TAG)) == 1
                assert len(payments.told(events.REFUNDED_TAG)) == 2
                assert (await payments.payment(payment_id)).status is PaymentStatus.REFUNDED
            statistics = (await payments.get("/statistics")).json()
            book = statistics["gateway"]
            taken_minor = 0 if text == "declined=1" else payment.amount_minor
            assert (book["captured_minor"], book["refunded_minor"]) == (taken_minor, taken_minor)
            assert (statistics["captured_minor"], statistics["refunded_minor"]) == (taken_minor, taken_minor)
        await gateway.close()
        if receiver.webhooks is not None:
            await receiver.webhooks.close()
