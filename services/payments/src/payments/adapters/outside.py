"""Adapters of payments beside the gateway: orders over HTTP, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import httpx
from opentelemetry.metrics import CallbackOptions, Observation

import telemetry
from osenv import Clock
from payments.domain.errors import OrderNotPayableError, OrdersUnavailableError
from payments.domain.payment import Payment, PaymentStatus
from payments.domain.refund import Refund
from payments.service.resumer import Resumer
from payments.service.use_case import Units
from servicekit.auth import ORDERS_HOLD, Tokens
from servicekit.background import StoredGauge
from servicekit.http.client import http_client

ANSWER_MAX_S = 3.0
TOKEN_LIFETIME_S = 60
CONNECTIONS_MAX = 32

_NOT_PAYABLE = "urn:hourglass:problem:order-not-payable"


class HttpOrders:
    """Implements `OrderHolds`. Its connections are closed when `run` ends, soon after `stop`.

    Orders over HTTP. Each request carries a token for the payment's buyer, which can do nothing but hold the order.

    Invariant: nothing but the port's errors comes out of here. Only orders' own 409 `order-not-payable` ends a payment;
    everything else that is no hold is OrdersUnavailableError, and the payment waits.
    """

    def __init__(self, url: str, tokens: Tokens, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` is for tests; without it requests go over the network."""
        self._tokens = tokens
        self._stopped = asyncio.Event()
        self._client = http_client(url, timeout=ANSWER_MAX_S, connections_max=CONNECTIONS_MAX, transport=transport)

    async def run(self) -> None:
        """Keep the connections until `stop`."""
        try:
            await self._stopped.wait()
        finally:
            await self._client.aclose()

    def stop(self) -> None:
        self._stopped.set()

    async def take(self, payment: Payment) -> None:
        answer = await self._send("PUT", payment)
        if not answer.is_success:
            problem = _members(answer)
            if answer.status_code == 409 and problem.get("type") == _NOT_PAYABLE:
                ended_ms_ago = problem.get("hold_ended_ms_ago")
                raise OrderNotPayableError(payment.order_id, None if ended_ms_ago is None else int(ended_ms_ago))
            raise _unavailable(answer)

    async def release(self, payment: Payment) -> None:
        answer = await self._send("DELETE", payment)
        if not answer.is_success:
            raise _unavailable(answer)

    async def _send(self, method: str, payment: Payment) -> httpx.Response:
        token = self._tokens.issue(payment.buyer_id, (ORDERS_HOLD,), TOKEN_LIFETIME_S)
        headers = {"Authorization": f"Bearer {token}"}
        telemetry.inject(headers)
        path = f"/orders/{payment.order_id}/holds/{payment.payment_id}"
        try:
            return await self._client.request(method, path, headers=headers)
        except httpx.TransportError as error:
            raise OrdersUnavailableError(f"orders does not answer: {error!r}") from error


def _members(answer: httpx.Response) -> dict[str, Any]:
    try:
        members = answer.json()
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}


def _unavailable(answer: httpx.Response) -> OrdersUnavailableError:
    return OrdersUnavailableError(
        f"orders answered {answer.status_code}: {_members(answer).get('detail', 'no problem')}"
    )


# A gateway decides at once, or tells by a webhook after a moment, or is asked when it has been silent.
SETTLEMENT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class OtelPaymentMeter:
    """Implements `PaymentMeter`."""

    def __init__(self) -> None:
        meter = telemetry.meter("payments")
        self._succeeded = meter.create_counter(
            "hourglass.payments.succeeded", unit="{payment}", description="payments that were captured"
        )
        self._failed = meter.create_counter(
            "hourglass.payments.failed", unit="{payment}", description="payments that were declined"
        )
        self._refunded = meter.create_counter(
            "hourglass.payments.refunded", unit="{refund}", description="refunds that were made, parts too"
        )
        self._duration = meter.create_histogram(
            "hourglass.payments.settlement.duration",
            unit="s",
            description="from the intent to pay to its end, captured or declined",
            explicit_bucket_boundaries_advisory=SETTLEMENT_BOUNDS_S,
        )

    def settled(self, payment: Payment, now_ms: int) -> None:
        (self._failed if payment.status is PaymentStatus.DECLINED else self._succeeded).add(1)
        self._duration.record(max(now_ms - payment.created_at_ms, 0) / 1000)

    def refunded(self, refund: Refund) -> None:
        self._refunded.add(1)


def failed_refunds(units: Units, clock: Clock) -> StoredGauge:
    """The gauge of refunds that the gateway has rejected."""

    async def read() -> dict[str, int]:
        async with units.snapshot() as unit:
            return {"failed": await unit.refunds.count_failed()}

    return StoredGauge(
        "hourglass.refunds.failed", read, clock, unit="{refund}", description="refunds that the gateway has rejected"
    )


def unfinished(resumer: Resumer) -> None:
    """The gauge of payments and refunds about which the gateway could not be asked."""

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(resumer.left)

    telemetry.meter("payments").create_observable_gauge(
        "hourglass.payments.unfinished",
        [observe],
        unit="{payment}",
        description="payments and refunds about which the gateway could not be asked",
    )


def outbox_waiting(units: Units, clock: Clock) -> StoredGauge:
    """The gauge of messages that wait for the queue."""

    async def read() -> dict[str, int]:
        async with units.snapshot() as unit:
            return {"waiting": await unit.outbox.count()}

    return StoredGauge(
        "hourglass.outbox.waiting", read, clock, unit="{message}", description="messages that wait for the queue"
    )
