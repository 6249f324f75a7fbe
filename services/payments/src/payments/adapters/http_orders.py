"""Orders over HTTP. Each request carries a token for the payment's buyer, which can do nothing but hold the order.

Invariant: nothing but the port's errors comes out of here. Only orders' own 409 `order-not-payable` ends a payment;
everything else that is no hold is OrdersUnavailableError, and the payment waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

import telemetry
from payments.domain.errors import OrderNotPayableError, OrdersUnavailableError
from payments.domain.payment import Payment
from servicekit.auth import ORDERS_HOLD, Tokens
from servicekit.http.client import http_client

ANSWER_MAX_S = 3.0
TOKEN_LIFETIME_S = 60
CONNECTIONS_MAX = 32

_NOT_PAYABLE = "urn:hourglass:problem:order-not-payable"


class HttpOrders:
    """Implements `OrderHolds`. Its connections are closed when `run` ends, soon after `stop`."""

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
