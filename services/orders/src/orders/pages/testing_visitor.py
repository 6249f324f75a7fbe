"""A browser without eyes for tests of the pages: it keeps cookies, says where forms come from, and finds form fields.

async with shop_of(new_database_url("orders")) as shop, shop.visitor("ann") as ann:
    order_id = await ann.order("seat")
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from orders.domain.product import Product
from orders.testing import RunningOrders, running_orders

ROOT = "/shop"
SEAT = Product("seat", "A seat", 15800, "CNY", available=10)
SNACK = Product("snack", "Rice & <beans>", 1250, "CNY", available=3)
IMPORT = Product("import", "An import", 500, "USD", available=3)


@dataclass(frozen=True, slots=True)
class PageVisitor:
    """One person at one browser."""

    http: httpx.AsyncClient

    async def sign_in(self, subject: str = "buyer-1", role: str = "buyer") -> None:
        answer = await self.send("/session/sandbox", subject=subject, role=role)
        _require_redirect(answer)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """GET below /shop; headers are written with underscores."""
        return await self.http.get(ROOT + path, headers=_named(headers))

    async def send(self, path: str, **fields: str | list[str]) -> httpx.Response:
        """POST a form as a browser of today does from a page of the shop."""
        return await self.http.post(ROOT + path, data=fields, headers={"Sec-Fetch-Site": "same-origin"})

    async def form(self, path: str, action: str) -> dict[str, str]:
        """The hidden fields of the form on the page that is sent to `action`."""
        text = (await self.get(path)).text
        found = re.search(rf'<form method="post" action="{re.escape(ROOT + action)}".*?</form>', text, re.DOTALL)
        if found is None:
            raise AssertionError(f"no form for {action} on {path}")
        return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', found[0]))

    async def order(self, product_id: str, quantity: int = 1) -> str:
        """Put it into the cart and place the order; its id."""
        await self.send("/cart/add", product_id=product_id, quantity=str(quantity))
        answer = await self.send("/orders", **await self.form("/cart", "/orders"))
        _require_redirect(answer)
        return answer.headers["Location"].rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Shop:
    """Running orders with some products, and people in front of its pages."""

    orders: RunningOrders

    @asynccontextmanager
    async def visitor(self, subject: str | None = "buyer-1", role: str = "buyer") -> AsyncIterator[PageVisitor]:
        """A visitor with a browser of their own, signed in unless `subject` is None."""
        transport = httpx.ASGITransport(self.orders.application.api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://orders") as http:
            visitor = PageVisitor(http)
            if subject is not None:
                await visitor.sign_in(subject, role)
            yield visitor


@asynccontextmanager
async def shop_of(database_url: str, **settings: Any) -> AsyncIterator[Shop]:
    """A shop in which visitors may sign in under any name; `settings` are fields of Config."""
    async with running_orders(database_url, **{"sandbox_sign_in": True} | settings) as orders:
        for product in (SEAT, SNACK, IMPORT):
            await orders.add_product(product)
        yield Shop(orders)


def _require_redirect(answer: httpx.Response) -> None:
    if answer.status_code != 303:
        raise AssertionError(f"{answer.status_code} and not 303: {answer.text}")


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
