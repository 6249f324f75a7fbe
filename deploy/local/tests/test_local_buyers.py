"""Buyers and their HTTP client against a shop that is a function."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from hourglass_local.buyers import Buyers, Deed
from hourglass_local.http_client import HttpClient, RejectedError, ShopError
from hourglass_local.plan import Pays, PlannedOrder, Then
from hourglass_local.shop import PaymentDesk, Shop
from hourglass_local.testing import BADGES
from osenv import RealClock
from servicekit.auth import Tokens

Answer = Callable[[httpx.Request], httpx.Response]
URL = "http://shop"


def problem(status: int, kind: str, *, again: bool = False, **members: str) -> httpx.Response:
    headers = {"Content-Type": "application/problem+json"} | ({"Retry-After": "1"} if again else {})
    return httpx.Response(status, headers=headers, json={"type": f"urn:hourglass:problem:{kind}"} | members)


def client(
    *answers: Answer | httpx.Response | Exception,
    asked: list[httpx.Request] | None = None,
    give_up_after_s: float = 0.3,
) -> HttpClient:
    """Gives one answer after the other, and the last one for ever."""
    left = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        if asked is not None:
            asked.append(request)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)

    return HttpClient(URL, BADGES, give_up_after_s=give_up_after_s, transport=httpx.MockTransport(handle))


async def test_request_is_repeated_with_its_key_until_it_has_its_last_word() -> None:
    asked: list[httpx.Request] = []
    answers: list[httpx.Response | Exception] = [
        httpx.ConnectError("nothing listens"),
        problem(503, "queue-unavailable", again=True),
        problem(404, "unknown-order", again=True),
        problem(429, "rate-limited", again=True),
        httpx.Response(201, json={"a": 1}),
    ]
    async with client(*answers, asked=asked, give_up_after_s=10) as asking:
        assert (await asking.post("/payments", "token", {"b": 2}, "key-1")).json() == {"a": 1}
    assert len(asked) == 5
    sent = {
        (request.headers["Idempotency-Key"], request.headers["Authorization"], request.content) for request in asked
    }
    assert sent == {("key-1", "Bearer token", b'{"b":2}')}


async def test_of_several_addresses_each_try_takes_the_next() -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return problem(503, "storage-unavailable", again=True) if len(asked) < 3 else httpx.Response(200, json={})

    async with HttpClient(["http://a", "http://b"], BADGES, transport=httpx.MockTransport(handle)) as asking:
        await asking.get("/orders", "")
    assert asked == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(409, "order-closed"), "order-closed"),
        (problem(404, "unknown-order"), "unknown-order"),
        (httpx.Response(404, text="Not Found"), ""),
    ],
)
async def test_rejection_is_not_asked_for_again(answer: httpx.Response, kind: str) -> None:
    asked: list[httpx.Request] = []
    async with client(answer, asked=asked) as asking:
        with pytest.raises(RejectedError, match=f"POST /payments was answered {answer.status_code}") as rejected:
            await asking.post("/payments", "token", {})
    assert rejected.value.problem == kind
    assert len(asked) == 1


async def test_shop_that_never_answers_is_given_up_with_what_it_said() -> None:
    async with client(problem(503, "storage-unavailable", again=True)) as asking:
        with pytest.raises(ShopError, match=r"(?s)GET /orders was answered 503.*given up after 0\.3 s"):
            await asking.get("/orders", "token")


async def test_list_is_read_page_by_page() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if "cursor" in request.url.params:
            return httpx.Response(200, json={"items": [{"n": 2}], "next_cursor": None})
        return httpx.Response(200, json={"items": [{"n": 1}], "next_cursor": "two"})

    async with client(answer) as asking:
        assert await asking.all_pages("/orders", "token") == [{"n": 1}, {"n": 2}]


class PretendedShop:
    """Orders and payments in one; orders expire after 300 ms, and the gateway decides at the second look."""

    def __init__(self) -> None:
        self.paid = Counter[str]()  # requests by idempotency key
        self.paid_at_ms: dict[str, float] = {}
        self.expiries_ms: dict[str, int] = {}
        self.looks = Counter[str]()  # by payment id
        self.commands: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        path, buyer_id = request.url.path, self._subject(request)
        if request.method == "GET":
            return self._look(path)
        if path in ("/orders", "/payments"):
            body, key = json.loads(request.content), request.headers["Idempotency-Key"]
            return self._order(buyer_id, body, key) if path == "/orders" else self._payment(buyer_id, body, key)
        self.commands.append(f"{buyer_id}: {path}")
        if path in ("/orders/closed/cancel", "/orders/completed/confirm"):
            return problem(409, "illegal-transition", order_status=path.split("/")[2].upper())
        if path.endswith("/refunds"):
            return httpx.Response(201, json={"refund_id": "r", "payment_id": "p", "amount_minor": 1, "status": "R"})
        return httpx.Response(200, json=self._order_members(path.split("/")[2], "SHIPPED"))

    def _subject(self, request: httpx.Request) -> str:
        return Tokens([("test", 32 * "s")], RealClock()).verify(request.headers["Authorization"][7:]).subject

    def _order(self, buyer_id: str, body: dict[str, Any], key: str) -> httpx.Response:
        self.expiries_ms[key] = int(time.time() * 1000) + 300
        return httpx.Response(201, json=self._order_members(key, "PENDING_PAYMENT") | {"buyer_id": buyer_id})

    def _order_members(self, order_id: str, status: str) -> dict[str, Any]:
        order = {"order_id": order_id, "buyer_id": "buyer-1", "status": status, "items": [], "total_minor": 700}
        times = {"expires_at_ms": self.expiries_ms[order_id], "closed_at_ms": None}
        return order | times | {"currency": "CNY", "payment_id": None}

    def _payment(self, buyer_id: str, body: dict[str, Any], key: str) -> httpx.Response:
        assert (body["amount_minor"], body["currency"], body["method"]) == (700, "CNY", "card")
        if buyer_id == "late":
            return problem(409, "order-closed")
        if buyer_id == "robbed":
            return problem(422, "wrong-amount")
        self.paid[key] += 1
        self.paid_at_ms.setdefault(body["order_id"], time.time() * 1000)
        headers = {"Idempotency-Replayed": "true"} if self.paid[key] > 1 else {}
        if buyer_id == "poor" and key.endswith("-1"):
            headers["Content-Type"] = "application/problem+json"
            declined = {"type": "urn:hourglass:problem:payment-declined", "payment_id": key}
            return httpx.Response(402, headers=headers, json=declined)
        return httpx.Response(202, headers=headers | {"Retry-After": "1"}, json=self._payment_members(key, "CREATED"))

    def _look(self, path: str) -> httpx.Response:
        name = path.rpartition("/")[2]
        if path.startswith("/orders"):
            return httpx.Response(200, json=self._order_members(name, "AWAITING_SHIPMENT"))
        self.looks[name] += 1
        decided = "DECLINED" if name == "poor-payment-1" else "CAPTURED"
        return httpx.Response(200, json=self._payment_members(name, decided if self.looks[name] > 1 else "CREATED"))

    def _payment_members(self, payment_id: str, status: str) -> dict[str, Any]:
        members = {"payment_id": payment_id, "order_id": payment_id.partition("-payment")[0], "amount_minor": 700}
        return members | {"status": status, "captured_at_ms": None}


def planned(
    key: str, pays: Pays, pay_after_ms: int, buyer_id: str = "buyer-1", then: Then = Then.WAITS
) -> PlannedOrder:
    return PlannedOrder(buyer_id, {"G1-first": 1}, key, pays, pay_after_ms, then)


async def trade(pretended: PretendedShop, *orders: PlannedOrder) -> Buyers:
    transport = httpx.MockTransport(pretended.answer)
    async with (
        Shop(URL, BADGES, transport=transport) as shop,
        PaymentDesk(URL, BADGES, transport=transport) as desk,
        Buyers(shop, desk, 2) as buyers,
    ):
        await buyers.place(orders)
        assert buyers.placed.keys() == {order.key for order in orders}
    return buyers


async def test_buyers_pay_when_and_as_they_planned() -> None:
    pretended = PretendedShop()
    buyers = await trade(
        pretended,
        planned("never", Pays.NEVER, 0),
        planned("soon", Pays.SOON, 10),
        planned("twice", Pays.TWICE, 10),
        planned("race", Pays.AT_EXPIRY, -50),
        planned("late", Pays.TOO_LATE, 50, "late"),
        planned("cancels", Pays.CANCELS, 10),
    )
    assert pretended.paid == Counter({"soon-payment-1": 1, "twice-payment-1": 2, "race-payment-1": 1})
    told = {key: (attempt.payment is not None, attempt.replayed) for key, attempt in buyers.attempts.items()}
    assert told == {"soon": (True, False), "twice": (True, True), "race": (True, False), "late": (False, False)}
    assert buyers.cancelled == {"cancels"}
    assert pretended.commands == ["buyer-1: /orders/cancels/cancel"]
    assert pretended.paid_at_ms["soon"] < pretended.expiries_ms["soon"] - 50
    assert pretended.paid_at_ms["race"] >= pretended.expiries_ms["race"] - 51


async def test_buyer_looks_until_the_gateway_has_decided_and_tries_again_when_it_declines() -> None:
    pretended = PretendedShop()
    buyers = await trade(pretended, planned("poor", Pays.SOON, 0, "poor"))
    attempt = buyers.attempts["poor"]
    assert attempt.payment is not None
    assert (attempt.payment.payment_id, attempt.payment.status, attempt.declined) == ("poor-payment-2", "CAPTURED", 1)
    assert pretended.paid == Counter({"poor-payment-1": 1, "poor-payment-2": 1})


@pytest.mark.parametrize(
    ("then", "commands", "deeds"),
    [
        (Then.WAITS, [], set()),
        (Then.SHIPPED, ["seller-1: /orders/x/ship"], {Deed.SHIPPED}),
        (Then.RECEIVED, ["seller-1: /orders/x/ship", "buyer-1: /orders/x/confirm"], {Deed.SHIPPED, Deed.CONFIRMED}),
        (Then.CANCELLED, ["seller-1: /orders/x/cancel"], {Deed.CANCELLED}),
        (
            Then.PARTLY_REFUNDED,
            ["seller-1: /orders/x/ship", "operator-1: /payments/x-payment-1/refunds"],
            {Deed.SHIPPED, Deed.PARTLY_REFUNDED},
        ),
    ],
)
async def test_what_follows_a_payment_is_done_by_callers_that_may(
    then: Then, commands: list[str], deeds: set[Deed]
) -> None:
    pretended = PretendedShop()
    buyers = await trade(pretended, planned("x", Pays.SOON, 0, then=then))
    assert pretended.commands == commands
    assert {deed for deed in Deed if buyers.endings.ids(deed)} == deeds


async def test_an_order_that_closed_before_its_buyer_cancelled_it_is_not_counted_as_cancelled() -> None:
    buyers = await trade(PretendedShop(), planned("closed", Pays.CANCELS, 0))
    assert buyers.cancelled == set()


async def test_an_order_that_completed_before_its_buyer_confirmed_it_is_not_counted_as_confirmed() -> None:
    buyers = await trade(PretendedShop(), planned("completed", Pays.SOON, 0, then=Then.RECEIVED))
    assert buyers.endings.done == {"completed": {Deed.SHIPPED}}


async def test_unplanned_rejection_ends_the_buying() -> None:
    with pytest.raises(RejectedError, match="wrong-amount"):
        await trade(PretendedShop(), planned("x", Pays.SOON, 0, "robbed"), planned("y", Pays.AT_EXPIRY, 60_000))
