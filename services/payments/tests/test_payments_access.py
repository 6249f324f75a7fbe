"""Access: every route with every kind of caller; no caller learns of what is not theirs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from osenv import SimClock
from payments.domain.payment import Payment, PaymentStatus
from payments.service import events
from payments.testing import BUYER, TOTAL_MINOR, RunningPayments, ScriptedGateway, Step, order_event, running_payments
from servicekit.auth import PAYMENTS_READ, REFUNDS_WRITE
from servicekit.testing.databases import NewDatabaseUrl

STRANGER = "buyer-2"
PAYLOAD = {"order_id": "order-1", "amount_minor": TOTAL_MINOR, "currency": "CNY", "method": "card"}
REFUND = {"amount_minor": 1, "reason": "why"}

# Every route with a token: what it takes, and which roles may come in.
ROUTES: list[tuple[str, str, dict[str, Any] | None, set[str]]] = [
    ("POST", "/payments", PAYLOAD, {"buyer"}),
    ("GET", "/payments", None, {"buyer", "operator"}),
    ("GET", "/payments/methods", None, {"buyer", "operator"}),
    ("GET", "/payments/{payment_id}", None, {"buyer", "operator"}),
    ("GET", "/payments/{payment_id}/history", None, {"buyer", "operator"}),
    ("POST", "/payments/{payment_id}/refunds", REFUND, {"operator"}),
    ("POST", "/payments/{payment_id}/refunds/{refund_id}/retry", None, {"operator"}),
    ("GET", "/payments/{payment_id}/refunds", None, {"buyer", "operator"}),
    ("GET", "/refunds", None, {"operator"}),
    ("GET", "/payable-orders?order_id=order-1", None, {"operator"}),
    ("GET", "/statistics", None, {"seller", "operator"}),
]
OF_ONE_PAYMENT = [(method, path, payload) for method, path, payload, _ in ROUTES if "{payment_id}" in path]


async def paid(payments: RunningPayments) -> Payment:
    await payments.open_order()
    return (await payments.pay("k")).payment


async def ask(
    payments: RunningPayments, method: str, path: str, payload: dict[str, Any] | None, headers: dict[str, str]
) -> httpx.Response:
    return await payments.http.request(method, path, json=payload, headers={"Idempotency-Key": "new"} | headers)


async def test_the_table_of_routes_is_complete(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        document = (await payments.http.get("/openapi.json")).json()
    open_to_all = {"/health/live", "/health/ready", "/webhooks/gateway"}
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {route for route in documented if route[1] not in open_to_all} == {
        (method, path.partition("?")[0]) for method, path, _, _ in ROUTES
    }
    for path in open_to_all:
        assert all(operation["security"] == [] for operation in document["paths"][path].values())


def name_of(part: object) -> str:
    """The same in every process: a set has an order of its own in each."""
    return "-".join(sorted(part)) if isinstance(part, set) else str(part)[:40]


@pytest.mark.mechanism("U3")
@pytest.mark.parametrize(("method", "path", "payload", "roles"), ROUTES, ids=name_of)
async def test_each_route_lets_its_roles_in_and_no_others(
    new_database_url: NewDatabaseUrl, method: str, path: str, payload: dict[str, Any] | None, roles: set[str]
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await paid(payments)
        path = path.replace("{payment_id}", payment.payment_id).replace("{refund_id}", "r")
        anonymous = await ask(payments, method, path, payload, {})
        assert (anonymous.status_code, anonymous.json()["type"]) == (401, "urn:hourglass:problem:unauthenticated")
        forged = await ask(payments, method, path, payload, {"Authorization": "Bearer x.y.z"})
        assert forged.status_code == 401
        for role in ("buyer", "seller", "operator"):
            answer = await ask(payments, method, path, payload, payments.headers(role, BUYER))
            is_in = answer.status_code not in (401, 403)
            assert is_in == (role in roles), (role, answer.text)
            if not is_in:
                assert answer.json()["type"] == "urn:hourglass:problem:forbidden"


@pytest.mark.parametrize(("method", "path", "payload"), OF_ONE_PAYMENT)
async def test_another_buyers_payment_is_answered_as_one_that_is_not_there(
    new_database_url: NewDatabaseUrl, method: str, path: str, payload: dict[str, Any] | None
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await paid(payments)
        # Every scope but the one that shows the payments of all.
        token = payments.application.tokens.issue(STRANGER, {PAYMENTS_READ, REFUNDS_WRITE})
        headers = {"Authorization": f"Bearer {token}"}
        of_another = await ask(
            payments, method, path.format(payment_id=payment.payment_id, refund_id="r"), payload, headers
        )
        of_ghost = await ask(payments, method, path.format(payment_id="ghost", refund_id="r"), payload, headers)
        assert (of_another.status_code, of_ghost.status_code) == (404, 404)
        hidden = {"trace_id": None, "detail": None, "payment_id": None}
        assert of_another.json() | hidden == of_ghost.json() | hidden
        assert of_another.json()["detail"] == of_ghost.json()["detail"].replace("ghost", payment.payment_id)
        assert (await payments.payment(payment.payment_id)).refund_requested_minor == 0


async def test_another_buyers_order_is_answered_as_one_that_is_not_known(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        await payments.tell(order_event(events.CLOSED_TAG, "order-2"), order_event(events.PAID_TAG, "order-3"))
        ghost = (await payments.post_payment("k", STRANGER, order_id="ghost")).json()
        for order_id in ("order-1", "order-2", "order-3"):
            for changes in ({}, {"amount_minor": 1}, {"currency": "EUR"}):
                answer = await payments.post_payment("k", STRANGER, order_id=order_id, **changes)
                hidden = {"trace_id": None, "detail": ghost["detail"], "order_id": "ghost"}
                assert answer.json() | hidden == ghost | hidden
        assert await payments.payments() == []


async def test_a_list_shows_own_payments_and_operators_see_all(new_database_url: NewDatabaseUrl) -> None:
    gateway = ScriptedGateway(SimClock(), Step.DECLINE)
    async with running_payments(new_database_url("payments"), gateway=gateway) as payments:
        own = [await paid(payments), await paid_again(payments)]
        await payments.open_order("order-2", buyer_id=STRANGER)
        answer = await payments.post_payment("k", STRANGER, order_id="order-2")
        other_id = answer.json()["payment_id"]

        async def listed(role: str, subject: str, query: str = "") -> set[str]:
            found = (await payments.get(f"/payments{query}", role, subject)).json()["items"]
            return {payment["payment_id"] for payment in found}

        own_ids = {payment.payment_id for payment in own}
        assert await listed("buyer", BUYER) == own_ids
        assert await listed("buyer", STRANGER) == {other_id}
        assert await listed("buyer", BUYER, f"?buyer_id={STRANGER}") == set()
        assert await listed("buyer", BUYER, "?order_id=order-2") == set()
        assert await listed("operator", "operator-1") == {*own_ids, other_id}
        assert await listed("operator", "operator-1", f"?buyer_id={STRANGER}") == {other_id}
        assert await listed("operator", "operator-1", "?order_id=order-1") == own_ids
        assert await listed("operator", "operator-1", "?status=DECLINED") == {own[0].payment_id}
        assert await listed("operator", "operator-1", f"?status=CAPTURED&buyer_id={BUYER}") == {own[1].payment_id}


async def paid_again(payments: RunningPayments) -> Payment:
    """Of an order whose first payment was declined."""
    payment = (await payments.pay("again")).payment
    assert payment.status is PaymentStatus.CAPTURED
    return payment


async def test_two_buyers_may_use_one_key(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        await payments.open_order("order-2", buyer_id=STRANGER)
        first = await payments.post_payment("k")
        second = await payments.post_payment("k", STRANGER, order_id="order-2")
        assert (first.status_code, second.status_code) == (201, 201)
        assert first.json()["payment_id"] != second.json()["payment_id"]
        assert "Idempotency-Replayed" not in second.headers


async def test_a_payload_cannot_name_a_buyer(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        answer = await payments.post_payment("k", STRANGER, buyer_id=BUYER)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "body.buyer_id")
