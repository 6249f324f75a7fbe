"""Every kind of problem: its type, its status, what it says; and that the OpenAPI document knows it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import telemetry
from osenv import SimClock
from payments.api import problem
from payments.api.problem import PROBLEM_OF_ERROR
from payments.domain import errors
from payments.domain.errors import GatewayUnavailableError
from payments.service import events
from payments.service.gateway import GatewayBook
from payments.testing import TOTAL_MINOR, RunningPayments, ScriptedGateway, Step, order_event, running_payments
from servicekit.config import SQLITE_PREFIX
from servicekit.errors import RejectedError, ServiceError, TryAgainError
from servicekit.http import problem as common
from servicekit.http.problem import COMMON_PROBLEMS, MEDIA_TYPE, TYPE_PREFIX, ProblemType, problem_response
from servicekit.testing import until
from servicekit.testing.databases import NewDatabaseUrl

OWN_KINDS = [value for name, value in vars(problem).items() if isinstance(value, ProblemType)]
KINDS = {kind.name: kind for kind in (*vars(common).values(), *OWN_KINDS) if isinstance(kind, ProblemType)}


@pytest.fixture
def new_database_url(tmp_path: Path) -> NewDatabaseUrl:
    """What is rejected is rejected alike on every database: one kind is enough here."""
    return lambda name: f"{SQLITE_PREFIX}{tmp_path / name}.db"


def problem_of(answer: httpx.Response, kind: ProblemType) -> dict[str, Any]:
    """The answer's members, after the checks that hold for every problem."""
    assert answer.headers["Content-Type"] == MEDIA_TYPE, answer.text
    body: dict[str, Any] = answer.json()
    assert (body["type"], body["status"], body["title"]) == (kind.uri, kind.status, kind.title)
    assert answer.status_code == kind.status
    assert body["detail"]
    return body


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"amount_minor": 0}, "body.amount_minor", "greater than or equal to 1"),
        ({"amount_minor": -1}, "body.amount_minor", "greater than or equal to 1"),
        ({"amount_minor": 2**63}, "body.amount_minor", "less than or equal to"),
        ({"amount_minor": "15800"}, "body.amount_minor", "valid integer"),
        ({"amount_minor": 15800.0}, "body.amount_minor", "valid integer"),
        ({"amount_minor": True}, "body.amount_minor", "valid integer"),
        ({"amount_minor": None}, "body.amount_minor", "valid integer"),
        ({"currency": "yuan"}, "body.currency", "match pattern"),
        ({"currency": "cny"}, "body.currency", "match pattern"),
        ({"method": "cash"}, "body.method", "'card', 'wallet' or 'bank_transfer'"),
        ({"method": None}, "body.method", "'card', 'wallet' or 'bank_transfer'"),
        ({"order_id": ""}, "body.order_id", "match pattern"),
        ({"order_id": "../etc"}, "body.order_id", "match pattern"),
        ({"order_id": "a\x00b"}, "body.order_id", "match pattern"),
        ({"order_id": "o" * 65}, "body.order_id", "match pattern"),
        ({"order_id": 7}, "body.order_id", "valid string"),
        ({"status": "CAPTURED"}, "body.status", "not permitted"),
    ],
)
async def test_an_invalid_payment_is_rejected_with_the_field_and_what_is_allowed(
    new_database_url: NewDatabaseUrl, changes: dict[str, Any], field: str, message: str
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        body = problem_of(await payments.post_payment("k", **changes), common.INVALID_REQUEST)
        assert [found["field"] for found in body["errors"]] == [field]
        assert message in body["errors"][0]["message"]
        assert await payments.gateway.book() == GatewayBook(0, 0, 0, 0)


@pytest.mark.parametrize("missing", ["order_id", "amount_minor", "currency", "method"])
async def test_a_payment_without_one_of_its_members_is_rejected(new_database_url: NewDatabaseUrl, missing: str) -> None:
    payload = {"order_id": "o", "amount_minor": 1, "currency": "CNY", "method": "card"}
    del payload[missing]
    async with running_payments(new_database_url("payments")) as payments:
        headers = payments.headers() | {"Idempotency-Key": "k"}
        answer = await payments.http.post("/payments", json=payload, headers=headers)
        body = problem_of(answer, common.INVALID_REQUEST)
        assert [found["field"] for found in body["errors"]] == [f"body.{missing}"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/payments?limit=0", "query.limit"),
        ("/payments?limit=201", "query.limit"),
        ("/payments?limit=x", "query.limit"),
        ("/payments?order_id=%00", "query.order_id"),
        ("/payments/%00", "path.payment_id"),
        ("/payments/%20/history", "path.payment_id"),
    ],
)
async def test_an_invalid_parameter_is_rejected_with_its_name(
    new_database_url: NewDatabaseUrl, path: str, field: str
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        body = problem_of(await payments.get(path), common.INVALID_REQUEST)
        assert [found["field"] for found in body["errors"]] == [field]


@pytest.mark.parametrize("cursor", ["x", "%%%", "é", "MTIz", "LTEfbw", "OTk5OTk5OTk5OTk5OTk5OTk5OTkfbw"])
async def test_a_made_up_cursor_is_rejected(new_database_url: NewDatabaseUrl, cursor: str) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        answer = await payments.get(f"/payments?{httpx.QueryParams(cursor=cursor)}")
        problem_of(answer, common.INVALID_CURSOR)


async def test_idempotency_keys_are_required_limited_and_bound_to_their_payload(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        problem_of(await payments.post_payment(None), common.MISSING_IDEMPOTENCY_KEY)
        for unusable in ("", '"a', "k" * 256):
            problem_of(await payments.post_payment(unusable), common.INVALID_IDEMPOTENCY_KEY)
        assert (await payments.post_payment("k" * 255)).status_code == 201
        for changes in ({"method": "wallet"}, {"amount_minor": 1}, {"order_id": "order-2"}):
            problem_of(await payments.post_payment("k" * 255, **changes), common.KEY_REUSED)


async def test_what_does_not_pay_the_order_is_rejected_and_says_why(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        unknown = await payments.post_payment("k", order_id="ghost")
        assert problem_of(unknown, problem.UNKNOWN_ORDER)["order_id"] == "ghost"
        assert unknown.headers["Retry-After"] == "1"
        body = problem_of(await payments.post_payment("k", amount_minor=TOTAL_MINOR - 1), problem.WRONG_AMOUNT)
        assert (body["amount_minor"], body["total_minor"]) == (TOTAL_MINOR - 1, TOTAL_MINOR)
        body = problem_of(await payments.post_payment("k", currency="EUR"), problem.WRONG_CURRENCY)
        assert (body["currency"], body["order_currency"]) == ("EUR", "CNY")
        await payments.tell(order_event(events.CLOSED_TAG, "order-2"), order_event(events.PAID_TAG, "order-3"))
        problem_of(await payments.post_payment("k", order_id="order-2"), problem.ORDER_CLOSED)
        problem_of(await payments.post_payment("k", order_id="order-3"), problem.ALREADY_PAID)
        assert await payments.gateway.book() == GatewayBook(0, 0, 0, 0)
        assert (await payments.post_payment("k")).status_code == 201  # none of them has used up the key
        problem_of(await payments.post_payment("k2"), problem.ALREADY_PAID)


async def test_a_second_payment_and_a_second_request_are_told_apart_while_the_first_is_in_hand(
    new_database_url: NewDatabaseUrl,
) -> None:
    gateway = ScriptedGateway(SimClock(), Step.HOLD)
    async with running_payments(new_database_url("payments"), gateway=gateway) as payments:
        await payments.open_order()
        first = asyncio.create_task(payments.post_payment("k"))
        await until(lambda: gateway.calls == 1)
        for key, kind in (("k", common.REQUEST_IN_FLIGHT), ("k2", problem.PAYMENT_IN_PROGRESS)):
            rejected = await payments.post_payment(key)
            problem_of(rejected, kind)
            assert rejected.headers["Retry-After"] == "1"
        gateway.release.set()
        assert (await first).status_code == 201


async def test_a_declined_payment_says_so_again_when_it_is_repeated(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(
        new_database_url("payments"), gateway=ScriptedGateway(SimClock(), Step.DECLINE)
    ) as payments:
        await payments.open_order()
        first = await payments.post_payment("k")
        body = problem_of(first, problem.PAYMENT_DECLINED)
        assert (body["order_id"], body["decline_reason"]) == ("order-1", "no money")
        assert first.headers["Location"] == f"/payments/{body['payment_id']}"
        again = await payments.post_payment("k")
        assert again.json() | {"trace_id": None} == body | {"trace_id": None}
        assert (again.status_code, again.headers["Idempotency-Replayed"]) == (402, "true")
        read = (await payments.get(first.headers["Location"])).json()
        assert (read["status"], read["decline_reason"]) == ("DECLINED", "no money")
        assert (await payments.post_payment("k2")).status_code == 201


async def test_a_queue_that_is_away_is_said_to_be_away_before_money_moves(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payments.queue.is_down = True
        rejected = await payments.post_payment("k")
        problem_of(rejected, common.QUEUE_UNAVAILABLE)
        assert rejected.headers["Retry-After"] == "1"
        assert await payments.gateway.book() == GatewayBook(0, 0, 0, 0)
        payments.queue.is_down = False
        assert (await payments.post_payment("k")).status_code == 201


async def test_a_gateway_that_does_not_answer_is_said_not_to(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_gateway: ScriptedGateway) -> GatewayBook:
        raise GatewayUnavailableError("the line is cut")

    async with running_payments(new_database_url("payments")) as payments:
        monkeypatch.setattr(ScriptedGateway, "book", fail)
        body = problem_of(await payments.get("/statistics"), problem.GATEWAY_UNAVAILABLE)
        assert body["detail"] == "the line is cut"
        assert (await payments.get("/health/ready")).status_code == 200


async def test_what_is_not_there_is_unknown(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        for path in ("/payments/x", "/payments/x/history"):
            assert problem_of(await payments.get(path), problem.UNKNOWN_PAYMENT)["payment_id"] == "x"
        problem_of(await payments.get("/nowhere"), common.NO_SUCH_ROUTE)
        problem_of(await payments.http.delete("/payments"), common.METHOD_NOT_ALLOWED)
        headers = payments.headers() | {"Idempotency-Key": "k", "Content-Type": "application/json"}
        for content in (b"{", b"\xff\xfe", b'{"a": NaNa}'):
            answer = await payments.http.post("/payments", content=content, headers=headers)
            problem_of(answer, common.MALFORMED_REQUEST)
        answer = await payments.http.post("/payments", content=b" " * 65_537, headers=headers)
        problem_of(answer, common.BODY_TOO_LARGE)


async def test_every_problem_names_the_trace_of_its_request(new_database_url: NewDatabaseUrl) -> None:
    telemetry.configure("payments", "CRITICAL")
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    gateway = ScriptedGateway(SimClock(), Step.DECLINE)
    async with running_payments(new_database_url("payments"), gateway=gateway) as payments:
        await payments.open_order()
        payments.http.headers["traceparent"] = f"00-{trace_id}-00f067aa0ba902b7-01"
        for answer in (
            await payments.get("/payments/x"),
            await payments.get("/payments?limit=0"),
            await payments.post_payment(None),
            await payments.post_payment("k", order_id="ghost"),
            await payments.post_payment("k"),
        ):
            assert answer.status_code >= 400
            assert answer.json()["trace_id"] == trace_id


def test_every_error_that_a_route_can_raise_has_a_kind_of_problem() -> None:
    own = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, ServiceError) and value.__module__ == errors.__name__
    }
    assert own - {RejectedError, TryAgainError} - set(PROBLEM_OF_ERROR) == {
        # These stay between the service, the queue and the gateway; the webhook's route answers for the signature.
        errors.RefundMismatchError,
        errors.GatewayRejectedError,
        errors.OrderNotPayableError,
        errors.OrdersUnavailableError,
        errors.EventKnownError,
        errors.PostedBeforeError,
        errors.InvalidSignatureError,
    }
    assert not set(PROBLEM_OF_ERROR) & set(COMMON_PROBLEMS)


@pytest.mark.parametrize("kind", OWN_KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_a_stable_type_and_an_error_status(kind: ProblemType) -> None:
    assert kind.uri == f"{TYPE_PREFIX}{kind.name}"
    assert 400 <= kind.status <= 599
    assert problem_response(kind, "because").status_code == kind.status


async def openapi(payments: RunningPayments) -> dict[str, Any]:
    document: dict[str, Any] = (await payments.get("/openapi.json")).json()
    return document


async def test_the_openapi_document_describes_every_problem_of_every_route(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        document = await openapi(payments)
    described = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            for status, answer in operation["responses"].items():
                if int(status) >= 400 and not path.startswith("/health"):
                    schema = answer["content"][MEDIA_TYPE]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Problem"}
                    described |= {name for name, kind in KINDS.items() if f"`{kind.uri}`" in answer["description"]}
            if not path.startswith(("/health", "/payments/methods")):
                assert "503" in operation["responses"], (method, path)
    # What no route of payments answers, and what none causes by itself: a wrong address or method, a mistake.
    never = {"no-such-route", "method-not-allowed", "internal-error", "transaction-given-up", "precondition-failed"}
    assert described == set(KINDS) - never
    assert set(document["paths"]["/payments"]["post"]["responses"]) == {
        *("201", "202", "400", "401", "402", "403", "404", "408", "409", "413", "422", "429", "503")
    }


async def test_every_reference_in_the_openapi_document_leads_somewhere(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        document = await openapi(payments)

    def references(part: Any) -> set[str]:
        if isinstance(part, dict):
            own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
            return own.union(*(references(value) for value in part.values()))
        return set().union(*(references(value) for value in part)) if isinstance(part, list) else set()

    known = {f"#/components/{kind}/{name}" for kind, names in document["components"].items() for name in names}
    assert references(document) <= known
