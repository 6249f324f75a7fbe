"""Every kind of problem: its type, its status, what it says; and that the OpenAPI document knows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

import telemetry
from orders.api import problem
from orders.api.problem import PROBLEM_OF_ERROR
from orders.domain import errors
from orders.domain.product import Product
from orders.testing import RunningOrders
from orders.testing import running_orders as running_orders_on
from servicekit.auth import InvalidTokenError
from servicekit.config import SQLITE_PREFIX
from servicekit.errors import ConsumedBeforeError, ServiceError
from servicekit.http import problem as common
from servicekit.http.limits import RateLimit
from servicekit.http.problem import COMMON_PROBLEMS, MEDIA_TYPE, TYPE_PREFIX, ProblemType, problem_response
from servicekit.testing.openapi_faults import faults

SEAT = {"product_id": "seat", "name": "A seat", "price_minor": 15800, "currency": "CNY", "available": 10}
# Without those of the pages alone, which answer with pages.
OF_PAGES = set(problem.PAGE_PROBLEM_OF_ERROR.values()) - set(problem.STREAM_PROBLEM_OF_ERROR.values())
KINDS = list(
    {
        value.name: value
        for module in (problem, common)
        for value in vars(module).values()
        if isinstance(value, ProblemType) and value not in OF_PAGES
    }.values()
)


def running_orders(folder: Path, **settings: Any) -> AbstractAsyncContextManager[RunningOrders]:
    """No problem depends on the kind of database."""
    return running_orders_on(f"{SQLITE_PREFIX}{folder / 'orders.db'}", **settings)


def problem_of(answer: httpx.Response, kind: ProblemType) -> dict[str, Any]:
    """The answer's members, after the checks that hold for every problem."""
    assert answer.headers["Content-Type"] == MEDIA_TYPE, answer.text
    body: dict[str, Any] = answer.json()
    assert (body["type"], body["status"], body["title"]) == (kind.uri, kind.status, kind.title)
    assert answer.status_code == kind.status
    assert body["detail"]
    return body


def item(product_id: Any = "seat", quantity: Any = 1) -> dict[str, Any]:
    return {"product_id": product_id, "quantity": quantity}


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"items": [item(quantity=0)]}, "body.items.0.quantity", "greater than or equal to 1"),
        ({"items": [item(quantity=-3)]}, "body.items.0.quantity", "greater than or equal to 1"),
        ({"items": [item(quantity=10_001)]}, "body.items.0.quantity", "less than or equal to 10000"),
        ({"items": [item(quantity="2")]}, "body.items.0.quantity", "valid integer"),
        ({"items": [item(quantity=1.0)]}, "body.items.0.quantity", "valid integer"),
        ({"items": [item(quantity=True)]}, "body.items.0.quantity", "valid integer"),
        ({"items": [item(product_id="no spaces")]}, "body.items.0.product_id", "match pattern"),
        ({"items": []}, "body.items", "at least 1 item"),
        ({"items": [item(f"p{n}") for n in range(51)]}, "body.items", "at most 50 items"),
        ({"items": [item(), item()]}, "body.items", "named twice"),
        ({"items": None}, "body.items", "valid list"),
        ({"buyer_id": "buyer-1"}, "body.buyer_id", "not permitted"),  # the token says who buys
        ({"discount": 5}, "body.discount", "not permitted"),
    ],
)
async def test_an_invalid_order_is_rejected_with_the_field_and_what_is_allowed(
    tmp_path: Path, changes: dict[str, Any], field: str, message: str
) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        body = problem_of(await orders.post_order("k", **changes), common.INVALID_REQUEST)
        assert [found["field"] for found in body["errors"]] == [field]
        assert message in body["errors"][0]["message"]
        assert field in body["detail"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"price_minor": 0}, "body.price_minor"),
        ({"price_minor": -1}, "body.price_minor"),
        ({"price_minor": 158.0}, "body.price_minor"),
        ({"price_minor": 10**12 + 1}, "body.price_minor"),
        ({"available": -1}, "body.available"),
        ({"available": 10**9 + 1}, "body.available"),
        ({"currency": "yuan"}, "body.currency"),
        ({"name": ""}, "body.name"),
        ({"name": "n" * 201}, "body.name"),
        ({"name": "a\x00b"}, "body.name"),
        ({"product_id": "../etc"}, "body.product_id"),
        ({"sold": 1}, "body.sold"),
    ],
)
async def test_an_invalid_product_is_rejected_with_the_field(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    async with running_orders(tmp_path) as orders:
        answer = await orders.http.post("/products", json=SEAT | changes, headers=orders.headers("seller", "s"))
        body = problem_of(answer, common.INVALID_REQUEST)
        assert [found["field"] for found in body["errors"]] == [field]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/orders?limit=0", "query.limit"),
        ("/orders?limit=201", "query.limit"),
        ("/orders?status=LOST", "query.status"),
        ("/orders?buyer_id=%00", "query.buyer_id"),
        ("/orders?created_from_ms=-1", "query.created_from_ms"),
        ("/orders?created_before_ms=253402300800000", "query.created_before_ms"),
        ("/orders?created_before_ms=1e3", "query.created_before_ms"),
        ("/orders?buyer=b", "query.buyer"),
        ("/products?limit=x", "query.limit"),
        ("/orders/%00", "path.order_id"),
        ("/products/%20", "path.product_id"),
    ],
)
async def test_an_invalid_parameter_is_rejected_with_its_name(tmp_path: Path, path: str, field: str) -> None:
    async with running_orders(tmp_path) as orders:
        body = problem_of(await orders.http.get(path, headers=orders.headers()), common.INVALID_REQUEST)
        assert [found["field"] for found in body["errors"]] == [field]


@pytest.mark.parametrize("cursor", ["x", "%%%", "é", "MTIz", "LTEfbw", "OTk5OTk5OTk5OTk5OTk5OTk5OTkfbw", "MR9vH28"])
async def test_a_made_up_cursor_is_rejected(tmp_path: Path, cursor: str) -> None:
    async with running_orders(tmp_path) as orders:
        answer = await orders.http.get("/orders", params={"cursor": cursor}, headers=orders.headers())
        problem_of(answer, common.INVALID_CURSOR)


async def test_idempotency_keys_are_required_limited_and_bound_to_their_payload(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        problem_of(await orders.post_order(None), common.MISSING_IDEMPOTENCY_KEY)
        for unusable in ("", "a b", "k" * 256):
            problem_of(await orders.post_order(unusable), common.INVALID_IDEMPOTENCY_KEY)
        assert (await orders.post_order("k" * 255)).status_code == 201
        await orders.post_order("k")
        problem_of(await orders.post_order("k", items=[item(quantity=2)]), common.KEY_REUSED)


async def test_a_request_in_flight_is_told_apart(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        answers = await asyncio.gather(orders.post_order("k"), orders.post_order("k"))
        (rejected,) = [answer for answer in answers if answer.status_code != 201]
        problem_of(rejected, common.REQUEST_IN_FLIGHT)
        assert rejected.headers["Retry-After"] == "1"


async def test_rejections_carry_what_a_program_needs(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        await orders.add_product(Product("tea", "Tea", 100, "EUR", available=5))
        body = problem_of(await orders.post_order("k", items=[item("ghost")]), problem.UNKNOWN_PRODUCT)
        assert body["product_id"] == "ghost"
        body = problem_of(await orders.post_order("k", items=[item(quantity=11)]), problem.INSUFFICIENT_STOCK)
        assert (body["product_id"], body["quantity"], body["available"]) == ("seat", 11, 10)
        body = problem_of(await orders.post_order("k", items=[item(), item("tea")]), problem.MIXED_CURRENCIES)
        assert body["currencies"] == ["CNY", "EUR"]
        answer = await orders.http.post("/products", json=SEAT, headers=orders.headers("seller", "s"))
        assert problem_of(answer, problem.PRODUCT_EXISTS)["product_id"] == "seat"
        problem_of(await orders.http.get("/products/ghost"), problem.UNKNOWN_PRODUCT)
        order = await orders.place("k")
        await orders.cancel(order.order_id)
        answer = await orders.http.post(f"/orders/{order.order_id}/cancel", headers=orders.headers("seller"))
        body = problem_of(answer, problem.ILLEGAL_TRANSITION)
        assert (body["status"], body["order_status"]) == (409, "CLOSED")


async def test_an_order_that_does_not_exist_is_unknown_to_every_route(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        for method, path, role in (
            ("GET", "/orders/x", "buyer"),
            ("GET", "/orders/x/history", "buyer"),
            ("GET", "/orders/x/events", "buyer"),
            ("POST", "/orders/x/cancel", "buyer"),
            ("POST", "/orders/x/cancel", "seller"),
            ("POST", "/orders/x/ship", "seller"),
            ("POST", "/orders/x/confirm", "buyer"),
        ):
            for more in ({}, {"If-Match": '"x.1"'}, {"If-Match": '"x.1", "x.2"'}, {"If-None-Match": "*"}):
                answer = await orders.http.request(method, path, headers=orders.headers(role) | more)
                assert problem_of(answer, problem.UNKNOWN_ORDER)["order_id"] == "x"


async def test_a_condition_that_cannot_be_read_is_rejected(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        for method, path, name in (("GET", "/orders/x", "If-None-Match"), ("POST", "/orders/x/cancel", "If-Match")):
            answer = await orders.http.request(method, path, headers=orders.headers() | {name: "x.1"})
            assert name in problem_of(answer, common.MALFORMED_REQUEST)["detail"]


async def test_what_is_not_an_api_call_is_a_problem_too(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        problem_of(await orders.http.get("/nowhere"), common.NO_SUCH_ROUTE)
        rejected = await orders.http.delete("/orders")
        problem_of(rejected, common.METHOD_NOT_ALLOWED)
        assert rejected.headers["Allow"]
        headers = orders.headers() | {"Idempotency-Key": "k", "Content-Type": "application/json"}
        for body in (b"{", b"\xff\xfe", b'{"a": NaNa}'):
            answer = await orders.http.post("/orders", content=body, headers=headers)
            problem_of(answer, common.MALFORMED_REQUEST)


async def test_a_body_that_is_too_large_is_rejected_with_and_without_a_declared_length(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * 8192

    async with running_orders(tmp_path) as orders:
        headers = orders.headers() | {"Idempotency-Key": "k", "Content-Type": "application/json"}
        answer = await orders.http.post("/orders", content=b" " * 65_537, headers=headers)
        problem_of(answer, common.BODY_TOO_LARGE)
        problem_of(await orders.http.post("/orders", content=chunks(), headers=headers), common.BODY_TOO_LARGE)


async def test_a_mistake_of_the_service_says_nothing_but_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry.configure("orders", "CRITICAL")
    async with running_orders(tmp_path) as orders:

        def fail(_order: object) -> None:
            raise ZeroDivisionError("secret")

        await orders.add_product()
        monkeypatch.setattr("orders.api.routes.tag_of", fail)
        body = problem_of(await orders.post_order("k"), common.INTERNAL_ERROR)
        assert "secret" not in str(body)
        assert len(body["trace_id"]) == 32


async def test_every_problem_names_the_trace_of_its_request(tmp_path: Path) -> None:
    telemetry.configure("orders", "CRITICAL")
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with running_orders(tmp_path, rate_limit=RateLimit(9, 60)) as orders:
        orders.http.headers["traceparent"] = f"00-{trace_id}-00f067aa0ba902b7-01"
        headers = orders.headers()
        orders.publisher.is_down = True
        await orders.add_product()
        answers = [
            await orders.http.get("/orders"),
            await orders.http.get("/statistics", headers=headers),
            await orders.http.get("/orders/x", headers=headers),
            await orders.http.delete("/orders", headers=headers),
            await orders.http.post("/orders", content=b" " * 65_537, headers=headers),
            await orders.http.get("/orders?limit=0", headers=headers),
            await orders.post_order(None),
            await orders.post_order("k"),
            await orders.http.post("/orders/x/cancel", headers=headers | {"If-Match": "x"}),
            await orders.http.get("/nowhere", headers=headers),
            await orders.http.get("/orders", headers=headers),
        ]
    assert [answer.status_code for answer in answers] == [401, 403, 404, 405, 413, 422, 400, 503, 400, 404, 429]
    assert {answer.json()["trace_id"] for answer in answers} == {trace_id}


def test_every_error_that_a_route_can_raise_has_a_kind_of_problem() -> None:
    def leaves(error: type[Exception]) -> set[type[Exception]]:
        # Not those of others: a test of this process may have made one of its own.
        below = [kind for kind in error.__subclasses__() if kind.__module__ == "servicekit.errors"]
        return {error} if not below else set().union(*(leaves(kind) for kind in below))

    of_orders = {
        error for error in vars(errors).values() if isinstance(error, type) and error.__module__ == errors.__name__
    }
    # A refund that is requested again or overtakes its payment, and a message that comes again, stay between the
    # service and the queue.
    assert set(PROBLEM_OF_ERROR) == of_orders - {errors.RefundRequestedError, errors.PaymentNotHeardOfError}
    assert set(COMMON_PROBLEMS) == leaves(ServiceError) - {ConsumedBeforeError} | {InvalidTokenError}
    assert len({kind.uri for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_a_stable_type_and_an_error_status(kind: ProblemType) -> None:
    assert kind.uri == f"{TYPE_PREFIX}{kind.name}"
    assert 400 <= kind.status <= 599
    assert problem_response(kind, "because").status_code == kind.status


async def openapi(orders: RunningOrders) -> dict[str, Any]:
    document: dict[str, Any] = (await orders.http.get("/openapi.json")).json()
    return document


@pytest.mark.mechanism("U3")
async def test_the_openapi_document_describes_every_problem_of_every_route(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        document = await openapi(orders)
    assert set(document["components"]["schemas"]["Problem"]["required"]) == {
        "type",
        "title",
        "status",
        "detail",
        "trace_id",
    }
    assert "FieldError" in document["components"]["schemas"]
    described = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            for status, answer in operation["responses"].items():
                if int(status) >= 400 and not path.startswith("/health"):
                    schema = answer["content"][MEDIA_TYPE]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Problem"}
                    described |= {kind.name for kind in KINDS if f"`{kind.uri}`" in answer["description"]}
            if not path.startswith("/health"):
                assert "503" in operation["responses"], (method, path)
    # What no route causes by itself: a wrong address or method, and the service's own mistakes.
    assert described == {kind.name for kind in KINDS} - {"no-such-route", "method-not-allowed", "internal-error"}


async def test_the_openapi_document_owes_its_readers_nothing(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        assert faults(await openapi(orders)) == []
