"""Buyers and their HTTP client against a shop that is a function."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from hourglass_local.buyers import Buyers
from hourglass_local.http_client import HttpClient, RefusedError, ShopError
from hourglass_local.payment_desk import PaymentDesk
from hourglass_local.plan import Pays, PlannedOrder
from hourglass_local.shop import Shop

Answer = Callable[[httpx.Request], httpx.Response]
URL = "http://shop"
PAYMENT = {"payment_id": "p", "amount_minor": 700, "status": "CAPTURED", "captured_at_ms": 1}


def problem(status: int, kind: str, *, again: bool = False) -> httpx.Response:
    headers = {"Content-Type": "application/problem+json"} | ({"Retry-After": "1"} if again else {})
    return httpx.Response(status, headers=headers, json={"type": f"urn:hourglass:problem:{kind}"})


def client(*answers: Answer | httpx.Response | Exception, asked: list[httpx.Request] | None = None) -> HttpClient:
    """Gives one answer after the other, and the last one for ever."""
    left = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        if asked is not None:
            asked.append(request)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)

    return HttpClient(URL, give_up_after_s=0.3, transport=httpx.MockTransport(handle))


async def test_request_is_repeated_with_its_key_until_it_has_its_last_word() -> None:
    asked: list[httpx.Request] = []
    answers: list[httpx.Response | Exception] = [
        httpx.ConnectError("nobody is there"),
        problem(503, "queue-unavailable", again=True),
        problem(404, "unknown-order", again=True),
        httpx.Response(202, headers={"Retry-After": "1"}, json={}),
        httpx.Response(201, json={"a": 1}),
    ]
    async with client(*answers, asked=asked) as asking:
        asking._give_up_after_s = 10
        assert (await asking.post("/payments", {"b": 2}, "key-1")).json() == {"a": 1}
    assert len(asked) == 5
    assert {(request.headers["Idempotency-Key"], request.content) for request in asked} == {("key-1", b'{"b":2}')}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(409, "order-closed"), "order-closed"),
        (problem(404, "unknown-order"), "unknown-order"),
        (httpx.Response(404, text="Not Found"), ""),
    ],
)
async def test_refusal_is_not_asked_for_again(answer: httpx.Response, kind: str) -> None:
    asked: list[httpx.Request] = []
    async with client(answer, asked=asked) as asking:
        with pytest.raises(RefusedError, match=f"POST /payments was answered {answer.status_code}") as refused:
            await asking.post("/payments", {})
    assert refused.value.problem == kind
    assert len(asked) == 1


async def test_shop_that_never_answers_is_given_up_with_what_it_said() -> None:
    async with client(problem(503, "storage-unavailable", again=True)) as asking:
        with pytest.raises(ShopError, match=r"(?s)GET /orders was answered 503.*given up after 0\.3 s"):
            await asking.get("/orders")


async def test_list_is_read_page_by_page() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if "cursor" in request.url.params:
            return httpx.Response(200, json={"items": [{"n": 2}], "next_cursor": None})
        return httpx.Response(200, json={"items": [{"n": 1}], "next_cursor": "two"})

    async with client(answer) as asking:
        assert await asking.all_pages("/orders") == [{"n": 1}, {"n": 2}]


class PretendedShop:
    """Orders and payments in one; orders expire after 300 ms."""

    def __init__(self) -> None:
        self.paid = Counter[str]()
        self.paid_at_ms: dict[str, float] = {}
        self.expiries_ms: dict[str, int] = {}

    def answer(self, request: httpx.Request) -> httpx.Response:
        body, key = json.loads(request.content), request.headers["Idempotency-Key"]
        return self._order(body, key) if request.url.path == "/orders" else self._payment(body, key)

    def _order(self, body: dict[str, Any], key: str) -> httpx.Response:
        expires_at_ms = int(time.time() * 1000) + 300
        self.expiries_ms[key] = expires_at_ms
        order = {"order_id": key, "buyer_id": body["buyer_id"], "status": "PENDING_PAYMENT", "items": body["items"]}
        order |= {"total_minor": 700, "currency": "CNY", "expires_at_ms": expires_at_ms}
        return httpx.Response(201, json=order | {"closed_at_ms": None, "payment_id": None})

    def _payment(self, body: dict[str, Any], key: str) -> httpx.Response:
        assert (body["amount_minor"], body["currency"], body["method"]) == (700, "CNY", "card")
        if body["buyer_id"] == "late":
            return problem(409, "order-closed")
        if body["buyer_id"] == "robbed":
            return problem(422, "wrong-amount")
        self.paid[key] += 1
        self.paid_at_ms[body["order_id"]] = time.time() * 1000
        headers = {"Idempotency-Replayed": "true"} if self.paid[key] > 1 else {}
        return httpx.Response(201, headers=headers, json=PAYMENT | {"order_id": body["order_id"]})


def planned(key: str, pays: Pays, pay_after_ms: int, buyer_id: str = "buyer-1") -> PlannedOrder:
    return PlannedOrder(buyer_id, {"G1-first": 1}, key, pays, pay_after_ms)


async def test_buyers_pay_when_and_as_they_planned() -> None:
    pretended = PretendedShop()
    transport = httpx.MockTransport(pretended.answer)
    orders = [
        planned("never", Pays.NEVER, 0),
        planned("soon", Pays.SOON, 10),
        planned("twice", Pays.TWICE, 10),
        planned("race", Pays.AT_EXPIRY, -50),
        planned("late", Pays.TOO_LATE, 50, "late"),
    ]
    async with (
        Shop(URL, transport=transport) as shop,
        PaymentDesk(URL, transport=transport) as desk,
        Buyers(shop, desk, 2) as buyers,
    ):
        await buyers.place(orders)
        assert buyers.placed.keys() == {"never", "soon", "twice", "race", "late"}
    assert pretended.paid == Counter({"soon-payment": 1, "twice-payment": 2, "race-payment": 1})
    told = {key: (attempt.payment is not None, attempt.replayed) for key, attempt in buyers.attempts.items()}
    assert told == {"soon": (True, False), "twice": (True, True), "race": (True, False), "late": (False, False)}
    assert pretended.paid_at_ms["soon"] < pretended.expiries_ms["soon"] - 50
    assert pretended.paid_at_ms["race"] >= pretended.expiries_ms["race"] - 51


async def test_refusal_that_nobody_planned_ends_the_buying() -> None:
    transport = httpx.MockTransport(PretendedShop().answer)
    async with Shop(URL, transport=transport) as shop, PaymentDesk(URL, transport=transport) as desk:
        with pytest.raises(RefusedError, match="wrong-amount"):
            async with Buyers(shop, desk, 1) as buyers:
                await buyers.place([planned("x", Pays.SOON, 0, "robbed"), planned("y", Pays.AT_EXPIRY, 60_000)])
