"""A client of the shop's HTTP interface, as a buyer's program would be: whoever gets no answer asks again.

Invariant: a request is repeated with the key of its first try, so that an order is placed once whatever breaks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

REQUEST_TIMEOUT_S = 5.0
GIVE_UP_AFTER_S = 30.0
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.05, 1.0
PAGE_SIZE = 200
CONNECTIONS_MAX = 64

_IN_FLIGHT = "urn:hourglass:problem:request-in-flight"


class ShopError(RuntimeError):
    """The shop refused, or gave no usable answer for too long; the message says what it said."""


@dataclass(frozen=True, slots=True)
class Product:
    """What is on sale; `available` is given back by the shop together with what it has done with the units."""

    product_id: str
    name: str
    price_minor: int
    currency: str
    available: int
    reserved: int = 0
    sold: int = 0

    @property
    def units(self) -> int:
        return self.available + self.reserved + self.sold


@dataclass(frozen=True, slots=True)
class Order:
    """Times are wall-clock milliseconds."""

    order_id: str
    status: str
    expires_at_ms: int
    closed_at_ms: int | None

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Self:
        return cls(members["order_id"], members["status"], members["expires_at_ms"], members["closed_at_ms"])


@dataclass(frozen=True, slots=True)
class Statistics:
    """Where all orders are; `unpublished_messages` still wait in the shop's database for the queue."""

    orders: Mapping[str, int]
    unpublished_messages: int


class Shop:
    """An async context manager around one connection pool."""

    def __init__(self, url: str, *, give_up_after_s: float = GIVE_UP_AFTER_S) -> None:
        self._give_up_after_s = give_up_after_s
        self._client = httpx.AsyncClient(
            base_url=url, timeout=REQUEST_TIMEOUT_S, limits=httpx.Limits(max_connections=CONNECTIONS_MAX)
        )

    async def add_product(self, product: Product) -> None:
        """Raises ShopError."""
        body = {
            "product_id": product.product_id,
            "name": product.name,
            "price_minor": product.price_minor,
            "currency": product.currency,
            "available": product.available,
        }
        await self._ask("POST", "/products", json=body)

    async def place_order(self, buyer_id: str, items: Mapping[str, int], key: str) -> Order:
        """Order `items` (product id -> quantity), once for each `key`. Raises ShopError."""
        lines = [{"product_id": product_id, "quantity": quantity} for product_id, quantity in items.items()]
        body = {"buyer_id": buyer_id, "items": lines}
        return Order.of(await self._ask("POST", "/orders", json=body, headers={"Idempotency-Key": key}))

    async def statistics(self) -> Statistics:
        """Raises ShopError."""
        answer = await self._ask("GET", "/statistics")
        return Statistics(answer["orders"], answer["unpublished_messages"])

    async def products(self) -> dict[str, Product]:
        """All, by id. Raises ShopError."""
        return {members["product_id"]: Product(**members) for members in await self._all_pages("/products")}

    async def orders(self) -> dict[str, Order]:
        """All, by id. Raises ShopError."""
        return {members["order_id"]: Order.of(members) for members in await self._all_pages("/orders")}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def _all_pages(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        parameters: dict[str, str | int] = {"limit": PAGE_SIZE}
        while True:
            page = await self._ask("GET", path, params=parameters)
            items += page["items"]
            if page["next_cursor"] is None:
                return items
            parameters = {"limit": PAGE_SIZE, "cursor": page["next_cursor"]}

    async def _ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        deadline = time.monotonic() + self._give_up_after_s
        pause_s = BACKOFF_FIRST_S
        while True:
            try:
                response = await self._client.request(method, path, **request)
                if response.is_success:
                    return dict(response.json())
                complaint = f"{method} {path} was answered {response.status_code}: {response.text[:500]}"
                if not _may_help_to_ask_again(response):
                    raise ShopError(complaint)
            except httpx.TransportError as error:
                complaint = f"{method} {path} failed: {error!r}"
            if time.monotonic() + pause_s > deadline:
                raise ShopError(f"{complaint}; given up after {self._give_up_after_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)


def _may_help_to_ask_again(response: httpx.Response) -> bool:
    return response.is_server_error or (
        response.status_code == httpx.codes.CONFLICT and response.json().get("type") == _IN_FLIGHT
    )
