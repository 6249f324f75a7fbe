"""The gateway over HTTP: what is asked, how each answer is understood, and that only the port's errors come out.

tests/contract holds it against the sandbox gateway itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from payments.adapters.http_gateway import ANSWER_MAX_BYTES, HttpGateway
from payments.domain.errors import GatewayRejectedError, GatewayUnavailableError
from payments.domain.payment import PaymentMethod
from payments.service.gateway import Captured, ChargeRequest, Declined, GatewayBook, Pending, Refunded, RefundOrder

REQUEST = ChargeRequest("p-1", "o-1", 15800, "CNY", PaymentMethod.CARD)
ORDER = RefundOrder("r-1", "p-1", 100, "CNY")
CHARGE = {"charge_id": "p-1", "order_id": "o-1", "amount_minor": 15800, "currency": "CNY", "method": "card"}
REFUND = {"refund_id": "r-1", "charge_id": "p-1", "amount_minor": 100, "currency": "CNY"}
PENDING_CHARGE = CHARGE | {"status": "pending", "decided_at_ms": None, "decline_reason": None}
CAPTURED = PENDING_CHARGE | {"status": "captured", "decided_at_ms": 17}
DECLINED = CAPTURED | {"status": "declined", "decline_reason": "no money"}
PENDING_REFUND = REFUND | {"status": "pending", "refunded_at_ms": None}
REFUNDED = REFUND | {"status": "refunded", "refunded_at_ms": 18}
BOOK = {"captured_minor": 4, "refunded_minor": 3, "captures": 2, "refunds": 1}

Ask = Callable[[HttpGateway], Awaitable[object]]
ASKS: dict[str, Ask] = {
    "charge": lambda gateway: gateway.charge(REQUEST),
    "find_charge": lambda gateway: gateway.find_charge(REQUEST),
    "refund": lambda gateway: gateway.refund(ORDER),
    "find_refund": lambda gateway: gateway.find_refund(ORDER),
    "book": lambda gateway: gateway.book(),
}
COMMANDS = ("charge", "refund")
EVERY_ASK = pytest.mark.parametrize("ask", ASKS)


def problem(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": f"urn:hourglass:problem:{kind}", "title": "a title", "status": 0, "detail": "why"} | members


async def asked(ask: str, answer: httpx.Response | httpx.HTTPError) -> tuple[object, list[httpx.Request]]:
    """What came out, result or error, and what was asked."""
    requests: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    gateway = HttpGateway("http://gateway/base", "the-key", httpx.MockTransport(respond))
    try:
        return await ASKS[ask](gateway), requests
    except (GatewayRejectedError, GatewayUnavailableError) as error:
        return error, requests
    finally:
        await gateway.close()


@pytest.mark.parametrize(
    ("ask", "answer", "expected"),
    [
        ("charge", PENDING_CHARGE, Pending()),
        ("charge", CAPTURED, Captured(17)),
        ("charge", DECLINED, Declined("no money")),
        ("find_charge", PENDING_CHARGE, Pending()),
        ("find_charge", CAPTURED, Captured(17)),
        ("find_charge", DECLINED, Declined("no money")),
        ("refund", PENDING_REFUND, Pending()),
        ("refund", REFUNDED, Refunded(18)),
        ("find_refund", PENDING_REFUND, Pending()),
        ("find_refund", REFUNDED, Refunded(18)),
        ("book", BOOK, GatewayBook(4, 3, 2, 1)),
    ],
)
async def test_each_answer_is_understood(ask: str, answer: dict[str, Any], expected: object) -> None:
    for status in (200, 201, 202):
        found, _ = await asked(ask, httpx.Response(status, json=answer | {"something": "new"}))
        assert found == expected


@pytest.mark.parametrize(
    ("ask", "method", "path", "payload"),
    [
        ("charge", "POST", "/base/v1/charges", CHARGE),
        ("find_charge", "GET", "/base/v1/charges/p-1", None),
        ("refund", "POST", "/base/v1/refunds", REFUND),
        ("find_refund", "GET", "/base/v1/refunds/r-1", None),
        ("book", "GET", "/base/v1/book", None),
    ],
)
async def test_each_question_is_asked_as_agreed_and_once(
    ask: str, method: str, path: str, payload: dict[str, Any] | None
) -> None:
    _, requests = await asked(ask, httpx.Response(500))
    (request,) = requests
    assert (request.method, request.url.path) == (method, path)
    assert request.headers["Authorization"] == "Bearer the-key"
    assert (json.loads(request.content) if request.content else None) == payload


@pytest.mark.parametrize(("ask", "kind"), [("find_charge", "unknown-charge"), ("find_refund", "unknown-refund")])
async def test_only_the_gateway_itself_can_say_that_it_does_not_know(ask: str, kind: str) -> None:
    found, _ = await asked(ask, httpx.Response(404, json=problem(kind)))
    assert found is None
    others: list[object] = [problem("no-such-route"), problem("unknown-order"), {}, [], "gone"]
    for other in others:
        found, _ = await asked(ask, httpx.Response(404, json=other))
        assert isinstance(found, GatewayUnavailableError), other


@pytest.mark.parametrize("ask", COMMANDS)
@pytest.mark.parametrize("status", [409, 422])
async def test_what_contradicts_the_gateway_is_rejected_in_its_own_words(ask: str, status: int) -> None:
    found, _ = await asked(ask, httpx.Response(status, json=problem("other-terms", detail="other terms")))
    assert isinstance(found, GatewayRejectedError)
    assert f"{status}: other terms" in str(found)


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        ("charge", CAPTURED | {"amount_minor": 1}),
        ("charge", CAPTURED | {"order_id": "another"}),
        ("charge", CAPTURED | {"charge_id": "another"}),
        ("find_charge", CAPTURED | {"amount_minor": 1}),
        ("find_charge", CAPTURED | {"order_id": "another"}),
        ("refund", REFUNDED | {"amount_minor": 1}),
        ("refund", REFUNDED | {"charge_id": "another"}),
        ("find_refund", REFUNDED | {"amount_minor": 1}),
        ("find_refund", REFUNDED | {"currency": "EUR"}),
    ],
)
async def test_a_charge_or_refund_with_other_terms_is_none_of_ours(ask: str, answer: dict[str, Any]) -> None:
    found, _ = await asked(ask, httpx.Response(202, json=answer))
    assert isinstance(found, GatewayRejectedError)


@EVERY_ASK
@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 405, 429, 500, 502, 503])
async def test_every_other_status_is_no_answer(ask: str, status: int) -> None:
    found, requests = await asked(
        ask, httpx.Response(status, json=problem("any"), headers={"Location": "http://elsewhere/"})
    )
    assert isinstance(found, GatewayUnavailableError)
    assert f"{status}: why" in str(found)
    assert len(requests) == 1


@EVERY_ASK
@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.ReadTimeout("slow"),
        httpx.PoolTimeout("full"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("closed"),
        httpx.DecodingError("zip"),
        httpx.TooManyRedirects("round and round"),
    ],
)
async def test_a_failure_of_the_network_is_no_answer(ask: str, error: httpx.HTTPError) -> None:
    found, _ = await asked(ask, error)
    assert isinstance(found, GatewayUnavailableError)
    assert type(error).__name__ in str(found)


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        ("charge", {name: value for name, value in CAPTURED.items() if name != "amount_minor"}),
        ("charge", CAPTURED | {"status": "lost"}),
        ("charge", CAPTURED | {"decided_at_ms": None}),
        ("charge", CAPTURED | {"decided_at_ms": True}),
        ("charge", CAPTURED | {"decided_at_ms": 1.5}),
        ("charge", CAPTURED | {"decided_at_ms": 2**63}),
        ("charge", CAPTURED | {"decided_at_ms": -1}),
        ("charge", DECLINED | {"decline_reason": None}),
        ("charge", DECLINED | {"decline_reason": ""}),
        ("find_charge", CAPTURED | {"charge_id": "another"}),
        ("find_charge", {"charge_id": "p-1"}),
        ("refund", REFUNDED | {"status": "captured"}),
        ("refund", REFUNDED | {"refunded_at_ms": "18"}),
        ("find_refund", REFUNDED | {"refund_id": "another"}),
        ("book", BOOK | {"captures": None}),
        ("book", {}),
        ("book", []),
    ],
)
async def test_an_answer_that_is_not_as_agreed_is_none(ask: str, answer: object) -> None:
    found, _ = await asked(ask, httpx.Response(202, json=answer))
    assert isinstance(found, GatewayUnavailableError)


async def test_a_reason_is_made_fit_for_people_and_databases() -> None:
    answer = json.dumps(DECLINED | {"decline_reason": "no\x00 \ud800 money" + "!" * 5000})
    found, _ = await asked("charge", httpx.Response(202, content=answer.encode()))
    assert isinstance(found, Declined)
    assert found.reason.startswith("no? ? money!!")
    assert len(found.reason) == 300


async def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    read = 0

    async def endless() -> Any:
        nonlocal read
        while True:
            read += 4096
            yield b" " * 4096

    found, _ = await asked("book", httpx.Response(200, content=endless()))
    assert isinstance(found, GatewayUnavailableError)
    assert read <= ANSWER_MAX_BYTES + 2 * 4096


bodies = st.one_of(
    st.binary(max_size=60),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from([*CAPTURED, *REFUNDED, *BOOK, "type", "detail"]), inner, max_size=6),
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
    st.just(b"[" * 30_000),
    st.just(b'{"captures": ' + b"9" * 5_000 + b"}"),
)


@given(st.sampled_from(sorted(ASKS)), st.integers(200, 599), bodies)
def test_whatever_comes_back_only_the_ports_errors_come_out(ask: str, status: int, body: bytes) -> None:
    found, _ = asyncio.run(asked(ask, httpx.Response(status, content=body)))
    assert found is None or isinstance(
        found,
        Pending | Captured | Declined | Refunded | GatewayBook | GatewayUnavailableError
        if ask == "book"
        else Pending | Captured | Declined | Refunded | GatewayUnavailableError | GatewayRejectedError,
    )


async def test_a_connection_is_used_again() -> None:
    connections, questions, is_over = 0, 0, asyncio.Event()
    body = json.dumps(BOOK).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, questions
        connections += 1
        while await reader.readline():
            while await reader.readline() != b"\r\n":
                pass
            questions += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        is_over.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        gateway = HttpGateway(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "key")
        for _ in range(5):
            assert await gateway.book() == GatewayBook(4, 3, 2, 1)
        await gateway.close()
        await is_over.wait()
    assert (connections, questions) == (1, 5)


async def test_a_gateway_that_is_not_there_is_unavailable() -> None:
    gateway = HttpGateway("http://127.0.0.1:1", "key")  # nothing listens on port 1
    with pytest.raises(GatewayUnavailableError, match="ConnectError"):
        await gateway.charge(REQUEST)
    await gateway.close()
