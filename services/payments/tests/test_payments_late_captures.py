"""The gateway takes the money of a payment that had ended without it: the capture is booked against that payment and
told as every other, and the money goes back once (ADR 144). Payments and the sandbox gateway over their wire.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from osenv import SimClock
from payments.adapters.http_gateway import HttpGateway
from payments.domain.payment import Payment, PaymentStatus
from payments.domain.refund import RefundStatus
from payments.service import events
from payments.service.gateway import ChargeRequest
from payments.service.resumer import ASK_AGAIN_AFTER_S
from payments.service.settlement import CHARGE_LATE_MAX_MS, ORDER_CLOSED
from payments.testing import BUYER, TOTAL_MINOR, RunningPayments, order_event, running_payments
from sandbox_gateway.domain import Failures
from sandbox_gateway.gateway import Behaviour
from sandbox_gateway.testing import API_KEY, URL, RecordingReceiver, RunningGateway, running_gateway
from servicekit.process.reconciler import REPEAT_AFTER_S
from servicekit.testing.databases import NewDatabaseUrl


@dataclass(slots=True)
class SlowWire(httpx.AsyncBaseTransport):
    """Keeps charges that are sent while it `stalls`, and loses the sender's connection; they arrive with `arrive`."""

    inner: httpx.AsyncBaseTransport
    stalls: bool = False
    kept: list[httpx.Request] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.stalls and request.method == "POST" and request.url.path == "/v1/charges":
            await request.aread()
            self.kept.append(request)
            raise httpx.ReadTimeout("no answer")
        return await self.inner.handle_async_request(request)

    async def arrive(self) -> None:
        """What was kept comes to the gateway now; its answers are not awaited."""
        for request in self.kept:
            assert (await self.inner.handle_async_request(request)).status_code == 202


@dataclass(slots=True)
class World:
    """Payments, the gateway, and the wire between them."""

    payments: RunningPayments
    sandbox: RunningGateway
    wire: SlowWire
    receiver: RecordingReceiver

    async def end_with_its_order(self, hold_ended_ms_ago: int = CHARGE_LATE_MAX_MS) -> Payment:
        """A payment whose charge is on its way when payments gives it up, because its order is over."""
        await self.payments.open_order()
        self.wire.stalls = True
        payment_id = (await self.payments.post_payment("key")).json()["payment_id"]
        await self.payments.tell(order_event(events.CLOSED_TAG))
        self.payments.orders.closed["order-1"] = hold_ended_ms_ago
        for _ in range(2):  # the gateway says that it knows of no charge, and says so after a while
            await self.payments.application.resumer.resume()
            await self.payments.clock.advance(CHARGE_LATE_MAX_MS / 1000)
        await self.payments.application.resumer.resume()
        payment = await self.payments.payment(payment_id)
        assert (payment.status, payment.decline_reason) == (PaymentStatus.DECLINED, ORDER_CLOSED)
        return payment

    async def webhooks(self) -> list[dict[str, Any]]:
        """What the gateway has told since this was asked last, undelivered."""
        await self.sandbox.pass_time(1)
        bodies = [json.loads(body) for body in self.receiver.taken]
        self.receiver.taken.clear()
        return bodies

    async def deliver(self, event: dict[str, Any], **changes: Any) -> str:
        answer = await self.payments.webhook(event, **changes)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["status"])

    async def refund_as_orders_asks(self, payment_id: str) -> None:
        await self.payments.request_refund(await self.payments.payment(payment_id), reason=ORDER_CLOSED)
        for event in await self.webhooks():
            await self.deliver(event)

    async def check_money_is_back(self, payment_id: str) -> None:
        """Taken once, given back once, told once, and visible in the API."""
        answer = (await self.payments.get(f"/payments/{payment_id}")).json()
        assert (answer["status"], answer["refunded_minor"]) == ("REFUNDED", TOTAL_MINOR)
        assert answer["decline_reason"] == ORDER_CLOSED
        changes = (await self.payments.get(f"/payments/{payment_id}/history")).json()["changes"]
        assert [change["new_status"] for change in changes] == ["CREATED", "DECLINED", "CAPTURED", "REFUNDED"]
        assert [refund.status for refund in await self.payments.refunds_of(payment_id)] == [RefundStatus.REFUNDED]
        statistics = await self.payments.application.use_cases.queries.statistics()
        assert statistics.captured_minor == statistics.refunded_minor == TOTAL_MINOR
        assert (statistics.gateway.captures, statistics.gateway.refunds) == (1, 1)
        assert statistics.ledger == {"gateway": 0, "buyer-funds": 0}
        assert statistics.refused_events == []
        assert len(self.payments.told(events.SUCCEEDED_TAG)) >= 1
        assert len(self.payments.told(events.REFUNDED_TAG)) == 1


@asynccontextmanager
async def running_world(new_database_url: NewDatabaseUrl, **failures: float) -> AsyncIterator[World]:
    clock, receiver = SimClock(), RecordingReceiver()
    behaviour = Behaviour(failures=Failures(**failures))  # type: ignore[arg-type]
    async with running_gateway(
        new_database_url("gateway"), behaviour=behaviour, receiver=receiver, clock=clock
    ) as sandbox:
        wire = SlowWire(sandbox.transport)
        gateway = HttpGateway(URL, API_KEY, wire)
        async with running_payments(new_database_url("payments"), gateway=gateway, clock=clock) as payments:
            yield World(payments, sandbox, wire, receiver)
        await gateway.close()


async def test_a_capture_that_comes_after_the_end_is_booked_told_and_goes_back(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_world(new_database_url) as world:
        payment = await world.end_with_its_order()
        await world.wire.arrive()
        (captured,) = await world.webhooks()
        assert await world.deliver(captured) == "HANDLED"
        assert (await world.payments.payment(payment.payment_id)).status is PaymentStatus.CAPTURED
        (told,) = world.payments.told(events.SUCCEEDED_TAG)
        assert json.loads(told.body)["payment_id"] == payment.payment_id
        # The buyer is told the truth too, with each repeated request.
        answer = await world.payments.post_payment("key")
        assert (answer.status_code, answer.json()["status"]) == (201, "CAPTURED")
        await world.refund_as_orders_asks(payment.payment_id)
        await world.check_money_is_back(payment.payment_id)


async def test_a_late_capture_that_is_told_again_changes_nothing_before_or_after_its_refund(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_world(new_database_url) as world:
        payment = await world.end_with_its_order()
        await world.wire.arrive()
        (captured,) = await world.webhooks()
        assert await world.deliver(captured) == await world.deliver(captured) == "HANDLED"
        assert await world.deliver(captured | {"event_id": "anew"}) == "REPEATED"
        for _ in range(2):
            await world.refund_as_orders_asks(payment.payment_id)
        assert await world.deliver(captured | {"event_id": "after-the-refund"}) == "REPEATED"
        await world.check_money_is_back(payment.payment_id)
        assert len(world.payments.told(events.SUCCEEDED_TAG)) == 1


@pytest.mark.parametrize("webhook_first", [True, False])
async def test_the_reconciler_sends_a_late_capture_back_whichever_learns_of_it_first(
    new_database_url: NewDatabaseUrl, webhook_first: bool
) -> None:
    """The message that tells orders is lost; the webhook comes before the reconciler's question, or after it."""
    async with running_world(new_database_url) as world:
        payment = await world.end_with_its_order()
        await world.payments.application.reconciler.round()  # asked too early: the gateway knows of no charge
        await world.wire.arrive()
        (captured,) = await world.webhooks()
        if webhook_first:
            assert await world.deliver(captured) == "HANDLED"
        await world.payments.clock.advance(ASK_AGAIN_AFTER_S)
        for _ in range(2):
            await world.payments.application.reconciler.round()
            await world.payments.clock.advance(world.payments.config.reconcile_after_ms / 1000)
        if not webhook_first:
            assert await world.deliver(captured) == "REPEATED"
        for event in await world.webhooks():
            await world.deliver(event)
        await world.check_money_is_back(payment.payment_id)


async def test_a_late_capture_of_which_no_webhook_ever_tells_is_found_and_goes_back(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_world(new_database_url, never=1.0) as world:
        payment = await world.end_with_its_order()
        await world.wire.arrive()
        assert await world.webhooks() == []
        seen = await world.payments.application.reconciler.reconcile(is_dry_run=True)
        assert seen.found == (
            f"payment {payment.payment_id} of order order-1 ended with its order, and the gateway has taken the money:"
            " book it",
        )
        assert (await world.payments.payment(payment.payment_id)).status is PaymentStatus.DECLINED
        await world.payments.clock.advance(REPEAT_AFTER_S)
        await world.payments.application.reconciler.round()
        await world.payments.clock.advance(world.payments.config.reconcile_after_ms / 1000)
        await world.payments.application.reconciler.round()
        assert await world.webhooks() == []
        assert await world.payments.application.resumer.resume() == 0
        await world.check_money_is_back(payment.payment_id)


async def test_the_gateway_is_not_asked_again_and_again_about_payments_that_ended(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payments.orders.closed["order-1"] = None
        await payments.pay("key")
        for _ in range(3):
            await payments.application.reconciler.round()
        assert payments.scripted.calls == 1
        await payments.clock.advance(ASK_AGAIN_AFTER_S)
        payments.scripted.is_away = True
        for calls in (2, 3):  # what had no answer is asked again
            await payments.application.reconciler.round()
            assert payments.scripted.calls == calls


async def test_a_charge_with_other_terms_keeps_no_other_late_capture_from_being_found(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        for order_id in ("order-1", "order-2", "order-3"):
            await payments.open_order(order_id)
            payments.orders.closed[order_id] = None
            payment = (await payments.pay(f"key-{order_id}", order_id)).payment
            await payments.scripted.charge(ChargeRequest.of(payment))
            if order_id == "order-2":
                payments.scripted.change_charge(payment.payment_id, amount_minor=1)
        await payments.application.reconciler.round()
        statuses = {one.order_id: one.status for one in await payments.payments()}
        captured, declined = PaymentStatus.CAPTURED, PaymentStatus.DECLINED
        assert statuses == {"order-1": captured, "order-2": declined, "order-3": captured}


async def test_a_late_capture_of_another_amount_is_kept_for_a_person(new_database_url: NewDatabaseUrl) -> None:
    async with running_world(new_database_url) as world:
        payment = await world.end_with_its_order()
        await world.wire.arrive()
        (captured,) = await world.webhooks()
        lie = captured | {"event_id": "another-amount"}
        assert await world.deliver(lie, amount_minor=TOTAL_MINOR - 1) == "REFUSED"
        (rejected,) = (await world.payments.get("/statistics")).json()["refused_events"]
        assert rejected["reason"] == f"the payment is of {TOTAL_MINOR}, not {TOTAL_MINOR - 1}"
        assert (await world.payments.payment(payment.payment_id)).status is PaymentStatus.DECLINED
        assert world.payments.told(events.SUCCEEDED_TAG) == []
        assert await world.deliver(captured) == "HANDLED"


async def test_the_refund_of_a_late_capture_that_the_gateway_does_not_know_fails_and_can_be_tried_again(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_world(new_database_url) as world:
        payment = await world.end_with_its_order()
        (request,) = world.wire.kept
        charge = json.loads(request.content)
        data = {name: charge[name] for name in ("charge_id", "order_id", "amount_minor", "currency")}
        captured = {"event_id": "e", "type": "charge.captured", "occurred_at_ms": world.payments.clock.wall_ms()}
        assert await world.deliver(captured | {"data": data}) == "HANDLED"
        await world.refund_as_orders_asks(payment.payment_id)
        (failed,) = (await world.payments.get("/refunds?status=FAILED")).json()["items"]
        assert "the gateway rejected" in failed["failure"]
        # The gateway has its charge after all, and an operator tries again.
        await world.wire.arrive()
        (captured,) = await world.webhooks()
        assert await world.deliver(captured) == "REPEATED"
        path = f"/payments/{payment.payment_id}/refunds/{failed['refund_id']}/retry"
        answer = await world.payments.http.post(path, headers=world.payments.headers("operator", "operator-1"))
        assert answer.status_code in (200, 202)
        for event in await world.webhooks():
            await world.deliver(event)
        await world.check_money_is_back(payment.payment_id)


@pytest.mark.parametrize("number", range(4))
async def test_two_instances_that_learn_of_a_late_capture_at_once_book_it_once(
    new_database_url: NewDatabaseUrl, number: int
) -> None:
    url = new_database_url("payments")
    clock, receiver = SimClock(), RecordingReceiver()
    async with running_gateway(new_database_url("gateway"), receiver=receiver, clock=clock) as sandbox:
        wire = SlowWire(sandbox.transport)
        gateway = HttpGateway(URL, API_KEY, wire)
        async with (
            running_payments(url, gateway=gateway, clock=clock) as payments,
            running_payments(url, gateway=gateway, clock=clock, queue=payments.queue, seed=2) as other,
        ):
            world = World(payments, sandbox, wire, receiver)
            payment = await world.end_with_its_order()
            await wire.arrive()
            (captured,) = await world.webhooks()
            doers = [
                lambda: payments.webhook(captured),
                lambda: other.webhook(captured),
                lambda: other.webhook(captured | {"event_id": "anew"}),
                other.application.reconciler.round,
            ]
            order = list(itertools.permutations(doers))[number * 5]
            await asyncio.gather(*(do() for do in order))
            assert len(payments.told(events.SUCCEEDED_TAG)) == 1
            refunds = [
                running.request_refund(await payments.payment(payment.payment_id)) for running in (payments, other)
            ]
            await asyncio.gather(*refunds, return_exceptions=True)
            await world.refund_as_orders_asks(payment.payment_id)
            await world.check_money_is_back(payment.payment_id)
        await gateway.close()


async def test_a_late_capture_stands_beside_the_payment_that_the_buyer_made_instead(
    new_database_url: NewDatabaseUrl,
) -> None:
    """Declined, paid anew, and then the first charge is captured: orders asks the money of the loser back."""
    async with running_world(new_database_url, declined=1.0) as world:
        await world.payments.open_order()
        first_id = (await world.payments.post_payment("first")).json()["payment_id"]
        (declined,) = await world.webhooks()
        assert await world.deliver(declined) == "HANDLED"
        assert (await world.sandbox.http.put("/v1/failures", json={})).status_code == 200
        second_id = (await world.payments.post_payment("second")).json()["payment_id"]
        late = {name: value for name, value in declined.items() if name != "data"} | {
            "event_id": "second-thoughts",
            "type": "charge.captured",
            "data": {name: value for name, value in declined["data"].items() if name != "decline_reason"},
        }
        assert await world.deliver(late) == "HANDLED"
        for event in await world.webhooks():
            assert await world.deliver(event) == "HANDLED"
        page = (await world.payments.get("/payments?order_id=order-1")).json()["items"]
        assert {one["payment_id"]: one["status"] for one in page} == {first_id: "CAPTURED", second_id: "CAPTURED"}
        told = [json.loads(message.body)["payment_id"] for message in world.payments.told(events.SUCCEEDED_TAG)]
        assert sorted(told) == sorted([first_id, second_id])
        # Orders is paid by one of them; that it has heard of the other is not known here, until the money goes back.
        await world.payments.tell(order_event(events.PAID_TAG))
        await world.payments.clock.advance(REPEAT_AFTER_S)
        for _ in range(2):
            await world.payments.application.reconciler.round()
        assert len(world.payments.told(events.SUCCEEDED_TAG)) == 4
        await world.payments.request_refund(await world.payments.payment(second_id), reason="already-paid")
        await world.payments.clock.advance(REPEAT_AFTER_S)
        await world.payments.application.reconciler.round()
        assert len(world.payments.told(events.SUCCEEDED_TAG)) == 4
        answer = await world.payments.post_payment("third", subject=BUYER)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:hourglass:problem:already-paid")


async def test_an_answer_that_comes_after_another_process_has_ended_the_payment_is_booked(
    new_database_url: NewDatabaseUrl,
) -> None:
    """The process that charges stands still; the other one ends the payment meanwhile. No webhook comes."""
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        held = asyncio.Event()
        take = payments.orders.take

        async def stand_still(payment: Payment) -> None:
            payments.orders.take = take  # type: ignore[method-assign]
            await take(payment)
            payments.orders.closed["order-1"] = None
            await payments.application.use_cases.pay_order._settlement.charge(payment)  # the other process
            held.set()

        payments.orders.take = stand_still  # type: ignore[method-assign]
        answer = await payments.post_payment("key")
        assert held.is_set()
        assert (answer.status_code, answer.json()["status"]) == (201, "CAPTURED")
        (payment,) = await payments.payments("order-1")
        assert (payment.status, payment.decline_reason) == (PaymentStatus.CAPTURED, ORDER_CLOSED)
        assert len(payments.told(events.SUCCEEDED_TAG)) == 1
