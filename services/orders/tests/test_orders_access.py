"""Access: every route of the OpenAPI document, asked without a token, without the scope, by another buyer, and with
access. A route that is not in the table fails the test.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from orders.domain.order import Order
from orders.testing import RunningOrders, running_orders
from servicekit import auth
from servicekit.auth import SCOPES
from servicekit.config import SQLITE_PREFIX

OWNER, STRANGER = "buyer-1", "buyer-2"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"  # the same in every answer
ITEMS = {"items": [{"product_id": "seat", "quantity": 1}]}
NEW_PRODUCT = {"product_id": "new", "name": "New", "price_minor": 1, "currency": "CNY", "available": 1}
CLOSED, PENDING, PAID, SHIPPED = "closed", "pending", "paid", "shipped"


@dataclass(frozen=True, slots=True)
class Route:
    """What a route wants. `scopes`: one of them is enough, and none is needed if there are none.

    `state`: how the order stands that the path names. `of_buyer`: the order has to be the caller's own, whatever scopes
    he has. `json`: a body that is taken.
    """

    method: str
    path: str
    status: int
    scopes: tuple[str, ...] = ()
    state: str | None = None
    of_buyer: bool = False
    json: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


TABLE = (
    Route("GET", "/products", 200),
    Route("GET", "/products/{product_id}", 200),
    Route("POST", "/products", 201, (auth.PRODUCTS_WRITE,), json=NEW_PRODUCT),
    Route("PATCH", "/products/{product_id}", 200, (auth.PRODUCTS_WRITE,), json={"price_minor": 1}),
    Route("POST", "/orders", 201, (auth.ORDERS_WRITE,), json=ITEMS),
    Route("GET", "/orders", 200, (auth.ORDERS_READ,)),
    Route("GET", "/orders/{order_id}", 200, (auth.ORDERS_READ,), PENDING),
    Route("GET", "/orders/{order_id}/history", 200, (auth.ORDERS_READ,), PENDING),
    Route("GET", "/orders/{order_id}/events", 200, (auth.ORDERS_READ,), CLOSED),  # its stream ends by itself
    Route("POST", "/orders/{order_id}/cancel", 200, (auth.ORDERS_WRITE, auth.ORDERS_SHIP), PENDING),
    Route("POST", "/orders/{order_id}/ship", 200, (auth.ORDERS_SHIP,), PAID),
    Route("POST", "/orders/{order_id}/confirm", 200, (auth.ORDERS_WRITE,), SHIPPED, of_buyer=True),
    Route("PUT", "/orders/{order_id}/holds/{payment_id}", 200, (auth.ORDERS_HOLD,), PENDING),
    Route("DELETE", "/orders/{order_id}/holds/{payment_id}", 204, (auth.ORDERS_HOLD,), PENDING),
    Route("GET", "/statistics", 200, (auth.STATISTICS_READ,)),
    Route("GET", "/health/live", 200),
    Route("GET", "/health/ready", 200),
)
OF_AN_ORDER = [route for route in TABLE if route.state is not None]


def serving(folder: Path) -> Any:
    return running_orders(f"{SQLITE_PREFIX}{folder / 'orders.db'}")


async def ask(
    orders: RunningOrders, route: Route, subject: str | None, *scopes: str, order_id: str = "no-such-order"
) -> httpx.Response:
    """The route, asked with a token of exactly these scopes, or without one."""
    headers = {"Idempotency-Key": "k", "traceparent": TRACE}
    if subject is not None:
        headers["Authorization"] = f"Bearer {orders.application.tokens.issue(subject, scopes)}"
    path = route.path.format(order_id=order_id, product_id="seat", payment_id="a-payment")
    return await orders.http.request(route.method, path, headers=headers, json=route.json)


async def order_in(orders: RunningOrders, state: str) -> Order:
    """An order of OWNER's."""
    order = await orders.place(f"key of {state}", buyer_id=OWNER)
    if state == CLOSED:
        return await orders.cancel(order.order_id)
    if state == PAID:
        await orders.pay(order)
    elif state == SHIPPED:
        await orders.pay_and_ship(order)
    return await orders.order(order.order_id)


def kind(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).rpartition(":")[2]


@pytest.mark.mechanism("U3")
async def test_the_table_has_every_route_of_the_document_and_its_scopes(tmp_path: Path) -> None:
    async with serving(tmp_path) as orders:
        document = (await orders.http.get("/openapi.json")).json()
    documented = {
        f"{method.upper()} {path}": tuple(scope for one in operation["security"] for scope in one["bearer"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert {str(route): route.scopes for route in TABLE} == documented


@pytest.mark.parametrize("route", TABLE, ids=str)
async def test_without_a_token_only_the_open_routes_answer(route: Route, tmp_path: Path) -> None:
    async with serving(tmp_path) as orders:
        await orders.add_product()
        answer = await ask(orders, route, None)
        if not route.scopes:
            assert answer.status_code == route.status
            return
        assert (answer.status_code, kind(answer)) == (401, "unauthenticated")
        forged = {"Authorization": "Bearer eyJhbGciOiJub25lIn0.e30."}
        again = await orders.http.request(route.method, answer.url.path, headers=forged, json=route.json)
        assert (again.status_code, kind(again)) == (401, "unauthenticated")


@pytest.mark.parametrize("route", [route for route in TABLE if route.scopes], ids=str)
async def test_every_other_scope_together_opens_nothing(route: Route, tmp_path: Path) -> None:
    async with serving(tmp_path) as orders:
        await orders.add_product()
        order_id = (await order_in(orders, route.state)).order_id if route.state else ""
        before = await orders.application.use_cases.queries.statistics()
        answer = await ask(orders, route, OWNER, *(set(SCOPES) - set(route.scopes)), order_id=order_id)
        assert (answer.status_code, kind(answer)) == (403, "forbidden")
        assert answer.json()["scopes"] == list(route.scopes)
        assert await orders.application.use_cases.queries.statistics() == before


@pytest.mark.mechanism("U3")
@pytest.mark.parametrize("route", OF_AN_ORDER, ids=str)
async def test_an_order_of_another_buyer_is_answered_as_one_that_does_not_exist(route: Route, tmp_path: Path) -> None:
    """Not only the status: nothing in the answer but the id that was asked for tells the two apart."""
    async with serving(tmp_path) as orders:
        await orders.add_product()
        order = await order_in(orders, str(route.state))
        scopes = set(SCOPES) - {auth.ORDERS_ALL}
        others = await ask(orders, route, STRANGER, *scopes, order_id=order.order_id)
        nobodys = await ask(orders, route, STRANGER, *scopes)
        assert (others.status_code, kind(others)) == (404, "unknown-order")
        assert others.text.replace(order.order_id, "no-such-order") == nobodys.text
        assert {name: value for name, value in others.headers.items() if name != "content-length"} == {
            name: value for name, value in nobodys.headers.items() if name != "content-length"
        }
        assert await orders.order(order.order_id) == order


@pytest.mark.parametrize("route", OF_AN_ORDER, ids=str)
async def test_a_caller_that_may_see_all_orders_reaches_them_but_does_nothing_that_is_the_buyers(
    route: Route, tmp_path: Path
) -> None:
    async with serving(tmp_path) as orders:
        await orders.add_product()
        order = await order_in(orders, str(route.state))
        answer = await ask(orders, route, STRANGER, *SCOPES, order_id=order.order_id)
        assert answer.status_code == (404 if route.of_buyer else route.status)
        if route.of_buyer:
            assert await orders.order(order.order_id) == order


@pytest.mark.parametrize(("route", "scope"), [(route, scope) for route in TABLE for scope in route.scopes], ids=str)
async def test_one_right_scope_is_enough_for_ones_own(route: Route, scope: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as orders:
        await orders.add_product()
        order_id = (await order_in(orders, route.state)).order_id if route.state else ""
        answer = await ask(orders, route, OWNER, scope, order_id=order_id)
        assert answer.status_code == route.status, answer.text


async def test_a_seller_without_the_scope_of_all_orders_cancels_none_of_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as orders:
        await orders.add_product()
        order = await order_in(orders, PENDING)
        route = next(route for route in TABLE if route.path.endswith("/cancel"))
        for scopes in ((auth.ORDERS_SHIP,), (auth.ORDERS_WRITE,), (auth.ORDERS_WRITE, auth.ORDERS_ALL)):
            answer = await ask(orders, route, STRANGER, *scopes, order_id=order.order_id)
            assert (answer.status_code, kind(answer)) == (404, "unknown-order")
        answer = await ask(orders, route, STRANGER, auth.ORDERS_SHIP, auth.ORDERS_ALL, order_id=order.order_id)
        assert answer.status_code == 200
