"""Each route of the OpenAPI document wants exactly the scopes that it names. What roles and other buyers are answered
is in test_payments_access.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from payments.testing import RunningPayments, running_payments
from servicekit import auth
from servicekit.auth import SCOPES
from servicekit.config import SQLITE_PREFIX
from servicekit.testing.openapi_faults import faults

OWNER, STRANGER = "buyer-1", "buyer-2"
PAYMENT = {"order_id": "order-new", "amount_minor": 15800, "currency": "CNY", "method": "card"}
REFUND = {"amount_minor": 100, "reason": "the seat did not recline"}


@dataclass(frozen=True, slots=True)
class Route:
    """What a route wants. `scopes`: one of them is enough, and none is needed if there are none. `json` is taken."""

    method: str
    path: str
    status: int
    scopes: tuple[str, ...] = ()
    json: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


PAY = Route("POST", "/payments", 201, (auth.PAYMENTS_WRITE,), PAYMENT)
WEBHOOK = Route("POST", "/webhooks/gateway", 401)  # signed, and no matter of tokens: test_payments_webhooks.py
TABLE = (
    PAY,
    Route("GET", "/payments", 200, (auth.PAYMENTS_READ,)),
    Route("GET", "/payments/methods", 200, (auth.PAYMENTS_READ,)),
    Route("GET", "/payments/{payment_id}", 200, (auth.PAYMENTS_READ,)),
    Route("GET", "/payments/{payment_id}/history", 200, (auth.PAYMENTS_READ,)),
    Route("GET", "/payments/{payment_id}/refunds", 200, (auth.PAYMENTS_READ,)),
    Route("POST", "/payments/{payment_id}/refunds", 201, (auth.REFUNDS_WRITE,), REFUND),
    Route("POST", "/payments/{payment_id}/refunds/{refund_id}/retry", 404, (auth.REFUNDS_WRITE,)),
    Route("GET", "/refunds", 200, (auth.PAYMENTS_ALL,)),
    Route("GET", "/payable-orders?order_id=order-1", 200, (auth.PAYMENTS_ALL,)),
    Route("GET", "/statistics", 200, (auth.STATISTICS_READ,)),
    Route("GET", "/health/live", 200),
    Route("GET", "/health/ready", 200),
    WEBHOOK,
)
GUARDED = [route for route in TABLE if route.scopes]


def serving(folder: Path) -> Any:
    return running_payments(f"{SQLITE_PREFIX}{folder / 'payments.db'}")


async def ask(
    payments: RunningPayments, route: Route, subject: str, *scopes: str, payment_id: str = ""
) -> httpx.Response:
    """The route, asked with a token of exactly these scopes."""
    token = payments.application.tokens.issue(subject, scopes)
    headers = {"Idempotency-Key": "k", "Authorization": f"Bearer {token}"}
    path = route.path.format(payment_id=payment_id, refund_id="r")
    return await payments.http.request(route.method, path, headers=headers, json=route.json)


async def paid_by_owner(payments: RunningPayments) -> str:
    """The id of a captured payment of OWNER's; another order of theirs can be paid."""
    for order_id in ("order-1", "order-new"):
        await payments.open_order(order_id, buyer_id=OWNER)
    return (await payments.pay("key of the owner")).payment.payment_id


def kind(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).rpartition(":")[2]


async def test_the_table_has_every_route_of_the_document_and_its_scopes(tmp_path: Path) -> None:
    async with serving(tmp_path) as payments:
        document = (await payments.http.get("/openapi.json")).json()
    documented = {
        f"{method.upper()} {path}": tuple(scope for one in operation["security"] for scope in one["bearer"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert {str(route).partition("?")[0]: route.scopes for route in TABLE} == documented


async def test_the_openapi_document_owes_its_readers_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as payments:
        assert faults((await payments.http.get("/openapi.json")).json()) == []


@pytest.mark.parametrize("route", GUARDED, ids=str)
async def test_every_other_scope_together_opens_nothing(route: Route, tmp_path: Path) -> None:
    async with serving(tmp_path) as payments:
        payment_id = await paid_by_owner(payments)
        before = await payments.application.use_cases.queries.statistics()
        answer = await ask(payments, route, OWNER, *(set(SCOPES) - set(route.scopes)), payment_id=payment_id)
        assert (answer.status_code, kind(answer)) == (403, "forbidden")
        assert answer.json()["scopes"] == list(route.scopes)
        assert await payments.application.use_cases.queries.statistics() == before


@pytest.mark.parametrize("route", GUARDED, ids=str)
async def test_one_right_scope_is_enough_for_ones_own(route: Route, tmp_path: Path) -> None:
    async with serving(tmp_path) as payments:
        payment_id = await paid_by_owner(payments)
        answer = await ask(payments, route, OWNER, *route.scopes, payment_id=payment_id)
        assert answer.status_code == route.status, answer.text


async def test_no_token_opens_the_way_of_the_gateway(tmp_path: Path) -> None:
    async with serving(tmp_path) as payments:
        answer = await ask(payments, WEBHOOK, OWNER, *SCOPES)
        assert (answer.status_code, kind(answer)) == (401, "invalid-signature")


async def test_no_scope_lets_a_caller_pay_the_order_of_another_buyer(tmp_path: Path) -> None:
    async with serving(tmp_path) as payments:
        await paid_by_owner(payments)
        answer = await ask(payments, PAY, STRANGER, *SCOPES)
        assert (answer.status_code, kind(answer)) == (404, "unknown-order")
        assert len(await payments.payments()) == 1
