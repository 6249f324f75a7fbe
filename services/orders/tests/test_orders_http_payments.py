"""Payments as the pages call it: the requests, their tokens, and each kind of answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from orders.adapters.outside import REPEAT_FOR_S, HttpPayments
from orders.service.payments import OrderToPay, PaymentRejectedError, PaymentsUnavailableError
from orders.testing import AUTH_KEYS, BUYER, caller
from osenv import SimClock
from servicekit.auth import Tokens

PAYMENT = {
    "payment_id": "p-1",
    "order_id": "o-1",
    "buyer_id": "buyer-1",
    "amount_minor": 15800,
    "currency": "CNY",
    "method": "card",
    "status": "PARTIALLY_REFUNDED",
    "created_at_ms": 1,
    "captured_at_ms": 2,
    "refunded_minor": 800,
    "refunded_at_ms": None,
    "decline_reason": None,
}
REFUND = {
    "refund_id": "r-1",
    "payment_id": "p-1",
    "amount_minor": 800,
    "currency": "CNY",
    "reason": "late",
    "requested_by": "operator-1",
    "requested_at_ms": 3,
    "status": "REFUNDED",
    "refunded_at_ms": 4,
}
ORDER = OrderToPay("o-1", 15800, "CNY")
Answering = Callable[[httpx.Request], httpx.Response]


def problem(status: int, name: str, **headers: str) -> httpx.Response:
    body = {"type": f"urn:hourglass:problem:{name}", "title": "no", "status": status, "detail": "it says no"}
    return httpx.Response(status, json=body, headers={name.replace("_", "-"): text for name, text in headers.items()})


class Wire:
    """Plays payments: `answer` may be a response, or a function of the request."""

    def __init__(self, answer: httpx.Response | Answering | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self.clock = SimClock()
        self.tokens = Tokens(AUTH_KEYS, self.clock)
        self._answer = answer
        self.desk = HttpPayments("http://payments", self.tokens, self.clock, transport=httpx.MockTransport(self._take))

    def _take(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer(request) if callable(self._answer) else self._answer


async def test_a_payment_is_asked_for_in_the_buyers_name_with_the_forms_key() -> None:
    wire = Wire(httpx.Response(202, json=PAYMENT | {"status": "CREATED"}, headers={"Retry-After": "1"}))
    payment = await wire.desk.pay(BUYER, ORDER, "card", "the-key")
    assert (payment.payment_id, payment.status) == ("p-1", "CREATED")
    (request,) = wire.requests
    assert (request.method, request.url.path, request.headers["Idempotency-Key"]) == ("POST", "/payments", "the-key")
    assert json.loads(request.content) == {
        "order_id": "o-1",
        "amount_minor": 15800,
        "currency": "CNY",
        "method": "card",
    }
    token = request.headers["Authorization"].removeprefix("Bearer ")
    assert wire.tokens.verify(token) == BUYER  # with the buyer's scopes, and no others
    await wire.clock.advance(120)
    with pytest.raises(Exception, match="expired"):
        wire.tokens.verify(token)


async def test_what_payments_tells_is_read_whole() -> None:
    operator = caller("operator", "op")
    answers: dict[str, Any] = {
        "/payments/methods": {"methods": ["card", "wallet"]},
        "/payments": {"items": [PAYMENT], "next_cursor": None},
        "/payments/p-1": PAYMENT,
        "/payments/p-1/refunds": {"items": [REFUND], "next_cursor": None},
        "/refunds": {"items": [REFUND], "next_cursor": "more"},
        "/payments/p-1/refunds/r-1/retry": REFUND | {"status": "FAILED", "refunded_at_ms": None, "failure": "no"},
        "/payable-orders": {"items": [{"order_id": "o-1", "status": "PAID"}]},
    }
    wire = Wire(lambda request: httpx.Response(200, json=answers[request.url.path]))
    assert await wire.desk.methods(operator) == ("card", "wallet")
    (payment,) = await wire.desk.payments_of(operator, "o-1")
    assert (payment.was_captured, payment.refunded_minor, payment.captured_at_ms) == (True, 800, 2)
    assert await wire.desk.payment(operator, "p-1") == payment
    assert wire.requests[1].url.params["order_id"] == "o-1"
    (refund,) = await wire.desk.refunds_of(operator, "p-1")
    assert (refund.reason, refund.requested_by, refund.refunded_at_ms) == ("late", "operator-1", 4)
    page = await wire.desk.refunds(operator, "here")
    assert (page.items, page.next_cursor) == ((refund,), "more")
    assert wire.requests[-1].url.params["cursor"] == "here"
    retried = await wire.desk.retry_refund(operator, "p-1", "r-1")
    assert (retried.has_failed, retried.failure) == (True, "no")
    await wire.desk.refunds(operator, None, "FAILED")
    assert wire.requests[-1].url.query == b"limit=50&status=FAILED"
    assert await wire.desk.heard_of(operator, ["o-1", "o-2"]) == {"o-1": "PAID"}
    assert wire.requests[-1].url.query == b"order_id=o-1&order_id=o-2"


async def test_a_part_is_given_back_with_the_forms_key() -> None:
    wire = Wire(httpx.Response(201, json=REFUND))
    refund = await wire.desk.refund(caller("operator", "op"), "p-1", 800, "late", "k")
    assert refund.amount_minor == 800
    (request,) = wire.requests
    assert (request.url.path, request.headers["Idempotency-Key"]) == ("/payments/p-1/refunds", "k")
    assert json.loads(request.content) == {"amount_minor": 800, "reason": "late"}


async def test_an_order_that_has_not_reached_payments_yet_is_asked_for_again() -> None:
    wire = Wire(
        lambda _request: (
            problem(404, "unknown-order", Retry_After="1")
            if len(wire.requests) < 3
            else httpx.Response(201, json=PAYMENT)
        )
    )
    paying = wire.desk.pay(BUYER, ORDER, "card", "k")
    assert (await in_time(wire, paying)).payment_id == "p-1"
    assert [request.headers["Idempotency-Key"] for request in wire.requests] == ["k"] * 3


async def test_what_stays_rejected_is_rejected_in_the_end() -> None:
    wire = Wire(problem(404, "unknown-order", Retry_After="1"))
    with pytest.raises(PaymentRejectedError) as caught:
        await in_time(wire, wire.desk.pay(BUYER, ORDER, "card", "k"))
    assert (caught.value.problem, caught.value.status) == ("unknown-order", 404)
    assert wire.clock.monotonic() >= REPEAT_FOR_S


@pytest.mark.parametrize(("status", "name"), [(402, "payment-declined"), (409, "order-closed"), (403, "forbidden")])
async def test_a_rejection_keeps_its_kind_and_is_not_repeated(status: int, name: str) -> None:
    wire = Wire(problem(status, name))
    with pytest.raises(PaymentRejectedError, match="it says no") as caught:
        await wire.desk.pay(BUYER, ORDER, "card", "k")
    assert (caught.value.problem, caught.value.status, len(wire.requests)) == (name, status, 1)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("silence"),
        problem(500, "internal-error"),
        problem(429, "rate-limited", Retry_After="60"),
        httpx.Response(502, text="<html>a proxy</html>"),
        httpx.Response(404, json=["what"]),
        httpx.Response(200, text="not JSON"),
        httpx.Response(200, json={"items": [{"payment_id": "p-1"}]}),
        httpx.Response(200, json=[]),
    ],
    ids=repr,
)
async def test_no_usable_answer_is_said_to_be_none(answer: httpx.Response | Exception) -> None:
    wire = Wire(answer)
    with pytest.raises(PaymentsUnavailableError):
        await wire.desk.payments_of(BUYER, "o-1")
    assert len(wire.requests) == 1


async def in_time(wire: Wire, paying: Any) -> Any:
    """What `paying` gives, with the clock moving while it waits."""
    task = asyncio.ensure_future(paying)
    while not task.done():
        await wire.clock.advance(0.1)
    return await task
