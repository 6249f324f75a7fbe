"""The services that http_sweep.py asks: composed as in production, with orders and payments in every state, so that
requests find something; and what of a request has to be right for it to get past the door.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import requests

import telemetry
from orders.domain.product import Product
from orders.testing import RunningOrders, running_orders
from payments.domain.payment import Payment
from payments.service import receive_event
from payments.testing import WEBHOOK_SECRET, RunningPayments, running_payments
from servicekit.auth import ROLES, SCOPES, Tokens
from servicekit.config import SQLITE_PREFIX

CALLER = "buyer-1"
STREAMS = "/events"
SIGNED_PATH = "/webhooks/gateway"


@dataclass(slots=True)
class Served:
    """A service, what it knows, and who asks it."""

    name: str
    http: httpx.AsyncClient
    document: dict[str, Any]
    tokens: Tokens
    known: dict[str, Sequence[str]]  # path parameter -> ids that exist
    ended: Sequence[str] = field(default=())  # orders whose streams end by themselves
    now_s: int = 0

    @property
    def base_url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    def places(self, path: str) -> list[dict[str, str]]:
        """Path parameters that lead to something."""
        for name, ids in self.known.items():
            if f"{{{name}}}" in path:
                return [{name: one} for one in (self.ended if path.endswith(STREAMS) else ids)]
        return []

    def fill_in(self, case: Any, choice: int) -> None:
        """The caller: mostly one with all scopes; and in most bodies ids that exist."""
        bearer = self._bearer(choice % 16)
        case.headers.pop("Authorization", None)
        if bearer is not None:
            case.headers["Authorization"] = bearer
        if choice % 4 != 3 and isinstance(case.body, dict):
            case.body = self._with_known_ids(case.body, choice)

    def sign(self, prepared: requests.PreparedRequest, choice: int) -> None:
        """Most webhooks are signed as the gateway signs them."""
        if choice % 8 == 7 or not (prepared.url or "").endswith(SIGNED_PATH):
            return
        raw = body_of(prepared)
        value = f"t={self.now_s},v1={receive_event.sign(WEBHOOK_SECRET, str(self.now_s), raw)}"
        prepared.headers[receive_event.HEADER] = value

    def _bearer(self, which: int) -> str | None:
        if which == 15:
            return None
        if which == 14:
            return "Bearer x"
        scopes = {13: ROLES["buyer"], 12: ROLES["operator"]}.get(which, frozenset(SCOPES))
        return f"Bearer {self.tokens.issue(CALLER, scopes)}"

    def _with_known_ids(self, body: dict[str, Any], choice: int) -> dict[str, Any]:
        """The body with ids that exist where it names ids at all; neighbours in a list get different ones."""

        def replaced(value: Any, name: str, place: int) -> Any:
            if isinstance(value, dict):
                return {key: replaced(one, key, place) for key, one in value.items()}
            if isinstance(value, list):
                return [replaced(one, name, place + number) for number, one in enumerate(value)]
            ids = self.known.get(name)
            return ids[place % len(ids)] if ids and isinstance(value, str) else value

        found: dict[str, Any] = replaced(body, "", choice)
        return found


def body_of(prepared: requests.PreparedRequest) -> bytes:
    """The bytes that are sent."""
    body = prepared.body or b""
    if isinstance(body, str):
        return body.encode()
    if not isinstance(body, bytes):
        raise TypeError(f"{type(body).__name__} is no body that a sweep sends")
    return body


@asynccontextmanager
async def served_orders(seed: int) -> AsyncIterator[Served]:
    """Orders, with products and with orders in each state."""
    telemetry.configure("orders", "CRITICAL")
    with tempfile.TemporaryDirectory() as folder:
        async with running_orders(f"{SQLITE_PREFIX}{Path(folder) / 'orders.db'}", seed=seed) as orders:
            products = ("seat", *(f"product-{number}" for number in range(20)))
            for product_id in products:
                await orders.add_product(Product(product_id, product_id, 100, "CNY", available=1_000_000))
            by_state = await _orders_in_each_state(orders)
            yield Served(
                "orders",
                orders.http,
                json.loads((await orders.http.get("/openapi.json")).text),
                orders.application.tokens,
                {"order_id": tuple(by_state.values()), "product_id": products},
                ended=(by_state["CLOSED"], by_state["COMPLETED"]),
            )


async def _orders_in_each_state(orders: RunningOrders) -> dict[str, str]:
    found = {}
    for number, wanted in enumerate(("PENDING_PAYMENT", "AWAITING_SHIPMENT", "SHIPPED", "COMPLETED", "CLOSED")):
        order = await orders.place(f"served-{number}")
        if wanted == "CLOSED":
            await orders.cancel(order.order_id)
        elif wanted == "AWAITING_SHIPMENT":
            await orders.pay(order, f"payment-{number}")
        elif wanted != "PENDING_PAYMENT":
            await orders.pay_and_ship(order, f"payment-{number}")
        if wanted == "COMPLETED":
            answer = await orders.http.post(f"/orders/{order.order_id}/confirm", headers=orders.headers())
            answer.raise_for_status()
        status = (await orders.order(order.order_id)).status
        if status != wanted:
            raise RuntimeError(f"the order is {status}; {wanted} was wanted")
        found[wanted] = order.order_id
    return found


@asynccontextmanager
async def served_payments(seed: int) -> AsyncIterator[Served]:
    """Payments, with orders to be paid and payments that were made."""
    telemetry.configure("payments", "CRITICAL")
    with tempfile.TemporaryDirectory() as folder:
        async with running_payments(f"{SQLITE_PREFIX}{Path(folder) / 'payments.db'}", seed=seed) as payments:
            order_ids = tuple(f"order-{number}" for number in range(20))
            for order_id in order_ids:
                await payments.open_order(order_id, buyer_id=CALLER)
            made = await _payments_in_some_states(payments)
            yield Served(
                "payments",
                payments.http,
                json.loads((await payments.http.get("/openapi.json")).text),
                payments.application.tokens,
                {
                    "payment_id": tuple(payment.payment_id for payment in made),
                    "charge_id": tuple(payment.payment_id for payment in made),
                    "order_id": order_ids,
                },
                now_s=payments.clock.wall_ms() // 1000,
            )


async def _payments_in_some_states(payments: RunningPayments) -> list[Payment]:
    made = [(await payments.pay(f"served-{number}", f"order-{number}")).payment for number in range(3)]
    await payments.refund_part(made[1].payment_id, "served", 100)
    return made
