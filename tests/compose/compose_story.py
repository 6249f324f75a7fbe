"""What a shop does, through the published ports: told by those who buy in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
from compose_stack import JAEGER, ORDERS, PAYMENTS
from trace_checks import Life, check_life, spans_of_jaeger

from hourglass_local.http_client import AccessTokens
from hourglass_local.shop import CLOSED, PAID, REFUNDED, Order, PaymentDesk, Product, Shop
from telemetry.trace_tree import ReceivedSpan

BUYER = "buyer-1"
WAIT_S, LOOK_EVERY_S, BEFORE_EXPIRY_S = 60.0, 0.25, 1.5


@dataclass(slots=True)
class Story:
    """One product, and the orders for it. Every method raises TimeoutError for what does not happen in time."""

    shop: Shop
    desk: PaymentDesk
    product_id: str = field(default_factory=lambda: f"mug-{uuid4().hex[:8]}")

    async def stock_up(self) -> None:
        await self.shop.add_product(Product(self.product_id, "Mug", 1_000, "CNY", 100))

    async def place(self, quantity: int = 1) -> Order:
        return await self.shop.place_order(BUYER, {self.product_id: quantity}, uuid4().hex)

    async def stock(self) -> tuple[int, int, int]:
        """(available, reserved, sold)."""
        product = (await self.shop.products())[self.product_id]
        return product.available, product.reserved, product.sold

    async def paid(self, order: Order) -> Order:
        await self.desk.pay(order, uuid4().hex)
        return await self._reaches(order, PAID)

    async def closed(self, order: Order) -> Order:
        return await self._reaches(order, CLOSED)

    async def given_back(self, order: Order) -> str:
        """The status of a payment that is begun just before the expiry, when the seller has cancelled the order."""
        await asyncio.sleep(max(0.0, order.expires_at_ms / 1000 - BEFORE_EXPIRY_S - time.time()))
        payment_id = (await self.desk.pay(order, uuid4().hex)).payment.payment_id
        await self._reaches(order, PAID)
        await self.shop.cancel_as_seller(order.order_id)
        await self.closed(order)

        async def refunded() -> bool:
            payment = await self.desk.payment(payment_id, self.desk.badges.buyer(BUYER))
            return payment.status == REFUNDED

        await eventually(refunded, f"payment {payment_id} is given back")
        return REFUNDED

    async def trace_id(self, order: Order) -> str:
        history = await self.shop.get(f"/orders/{order.order_id}/history", self.shop.badges.operator)
        [trace_id] = {change["trace_id"] for change in history["changes"]}
        return str(trace_id)

    async def _reaches(self, order: Order, status: str) -> Order:
        async def reached() -> bool:
            return (await self.shop.order(order.order_id)).status == status

        await eventually(reached, f"order {order.order_id} is {status}")
        return await self.shop.order(order.order_id)


@asynccontextmanager
async def story(badges: AccessTokens, *, give_up_after_s: float = WAIT_S) -> AsyncIterator[Story]:
    async with (
        Shop(ORDERS, badges, give_up_after_s=give_up_after_s) as shop,
        PaymentDesk(PAYMENTS, badges, give_up_after_s=give_up_after_s) as desk,
    ):
        yield Story(shop, desk)


async def whole_trace(trace_id: str, life: Life) -> list[ReceivedSpan]:
    """As soon as Jaeger has all of it. Raises AssertionError with what is missing when the time is over."""
    async with httpx.AsyncClient() as client:
        deadline = time.monotonic() + WAIT_S
        while True:
            answer: Mapping[str, Any] = (await client.get(f"{JAEGER}/api/traces/{trace_id}")).json()
            spans = spans_of_jaeger(answer)
            try:
                check_life(spans, life)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                return spans


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_S
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_S:g} s: {what}")
        await asyncio.sleep(LOOK_EVERY_S)
