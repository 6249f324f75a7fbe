"""Payments and the sandbox gateway over their wire, while charges are declined and webhooks come late, twice, out of
order or never.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx

from osenv import SimClock
from payments.adapters.http_gateway import HttpGateway
from payments.domain.gateway_event import EventStatus
from payments.domain.payment import PaymentStatus
from payments.domain.refund import RefundStatus
from payments.service import events
from payments.testing import TOTAL_MINOR, WEBHOOK_SECRET, RunningPayments, running_payments
from sandbox_gateway.domain import SIGNATURE_HEADER, DeliveryError, Failures, signature
from sandbox_gateway.gateway import Behaviour
from sandbox_gateway.testing import API_KEY, URL, RunningGateway, running_gateway
from servicekit.testing.databases import NewDatabaseUrl

ORDERS = 24
FAILURES = Failures(declined=0.2, late=0.3, late_ms=9_000, duplicated=0.4, reordered=0.5, never=0.3)


@dataclass(slots=True)
class Door:
    """Implements the gateway's `WebhookReceiver`: signs, and posts to payments."""

    clock: SimClock
    http: httpx.AsyncClient | None = None
    delivered: int = 0

    async def deliver(self, body: bytes) -> None:
        if self.http is None:
            raise DeliveryError("nothing listens yet")
        headers = {SIGNATURE_HEADER: signature([WEBHOOK_SECRET], body, self.clock.wall_ms() // 1000)}
        answer = await self.http.post("/webhooks/gateway", content=body, headers=headers)
        if answer.status_code != 200:
            raise DeliveryError(f"answered {answer.status_code}")
        self.delivered += 1


async def pass_until_quiet(sandbox: RunningGateway, payments: RunningPayments, resuming: asyncio.Task[None]) -> None:
    """Let time pass until nothing is undecided."""
    while True:
        statistics = await payments.application.use_cases.queries.statistics()
        if not statistics.payments[PaymentStatus.CREATED] and not statistics.refunds[RefundStatus.REQUESTED]:
            return
        assert not resuming.done(), resuming.exception()
        await sandbox.pass_time(1)


async def test_money_adds_up_whatever_becomes_of_the_webhooks(new_database_url: NewDatabaseUrl) -> None:
    clock = SimClock()
    door = Door(clock)
    behaviour = Behaviour(failures=FAILURES)
    async with running_gateway(new_database_url("gateway"), behaviour=behaviour, receiver=door, clock=clock) as sandbox:
        gateway = HttpGateway(URL, API_KEY, sandbox.transport)
        async with running_payments(new_database_url("payments"), gateway=gateway, clock=clock) as payments:
            door.http = payments.http
            resuming = asyncio.create_task(payments.application.resumer.run())
            for number in range(ORDERS):
                await payments.open_order(f"order-{number}")
                paid = await payments.pay(f"k{number}", f"order-{number}")
                assert paid.payment.status is PaymentStatus.CREATED
            await pass_until_quiet(sandbox, payments, resuming)
            captured = [one for one in await payments.payments() if one.status is PaymentStatus.CAPTURED]
            assert 0 < len(captured) < ORDERS
            for payment in captured[::2]:
                await payments.refund_part(payment.payment_id, f"part-{payment.payment_id}", 800)
                await payments.request_refund(payment)
            await pass_until_quiet(sandbox, payments, resuming)
            await sandbox.pass_time(30)  # what is late comes now
            statistics = await payments.application.use_cases.queries.statistics()
            assert statistics.captured_minor == statistics.gateway.captured_minor == len(captured) * TOTAL_MINOR
            assert statistics.refunded_minor == statistics.gateway.refunded_minor == len(captured[::2]) * TOTAL_MINOR
            assert sum(statistics.ledger.values()) == 0
            assert statistics.gateway_events[EventStatus.REFUSED] == 0
            assert statistics.gateway_events[EventStatus.HANDLED] > 0
            assert statistics.gateway_events[EventStatus.REPEATED] > 0  # the question came before the webhook
            assert door.delivered > statistics.gateway_events[EventStatus.HANDLED]
            assert len(payments.told(events.SUCCEEDED_TAG)) == len(captured)
            assert len(payments.told(events.REFUNDED_TAG)) == 2 * len(captured[::2])
            payments.application.resumer.stop()
            await resuming
        await gateway.close()
