"""The payment gateway over HTTP: JSON, an API key, and errors as RFC 9457 problems.

    POST /v1/charges, GET /v1/charges/{payment_id}, POST /v1/refunds, GET /v1/refunds/{refund_id}, GET /v1/book

Invariant: nothing but the port's errors comes out of here. What contradicts the request is GatewayRejectedError: 409
and 422, and a charge or refund that the gateway keeps with other terms. Everything else that is no answer is
GatewayUnavailableError: then the outcome is unknown, and asking again changes nothing.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx

import telemetry
from payments.domain.errors import GatewayRejectedError, GatewayUnavailableError
from payments.service.gateway import Captured, ChargeRequest, Declined, GatewayBook, Pending, Refunded, RefundOrder
from servicekit.http.client import http_client

CONNECT_MAX_S = 2.0
# Of each read and write, and of the wait for a free connection; PatientGateway bounds the whole.
STEP_MAX_S = 5.0
CONNECTIONS_MAX = 32
ANSWER_MAX_BYTES = 64 * 1024
TEXT_MAX_CHARACTERS = 300
NUMBER_MAX = 2**63 - 1  # what the database holds

_PROBLEM_PREFIX = "urn:hourglass:problem:"
_REJECTIONS = (409, 422)


class HttpGateway:
    """Implements `PaymentGateway`; its owner closes it."""

    def __init__(self, url: str, api_key: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` is for tests; without it requests go over the network."""
        self._client = http_client(
            url,
            timeout=httpx.Timeout(STEP_MAX_S, connect=CONNECT_MAX_S),
            connections_max=CONNECTIONS_MAX,
            headers={"Authorization": f"Bearer {api_key}", "Accept": "application/json", "Accept-Encoding": "identity"},
            transport=transport,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def charge(self, request: ChargeRequest) -> Pending | Captured | Declined:
        return _charge(await self._command("/v1/charges", _terms_of_charge(request)))

    async def find_charge(self, request: ChargeRequest) -> Pending | Captured | Declined | None:
        answer = await self._find("/v1/charges", "charge", _terms_of_charge(request))
        return None if answer is None else _charge(answer)

    async def refund(self, order: RefundOrder) -> Pending | Refunded:
        return _refund(await self._command("/v1/refunds", _terms_of_refund(order)))

    async def find_refund(self, order: RefundOrder) -> Pending | Refunded | None:
        answer = await self._find("/v1/refunds", "refund", _terms_of_refund(order))
        return None if answer is None else _refund(answer)

    async def book(self) -> GatewayBook:
        answer = await self._send("GET", "/v1/book")
        answer.require_success()
        names = ("captured_minor", "refunded_minor", "captures", "refunds")
        return GatewayBook(*(answer.number(name) for name in names))

    async def _command(self, path: str, terms: dict[str, Any]) -> _Answer:
        answer = await self._send("POST", path, terms)
        if answer.status in _REJECTIONS:
            raise GatewayRejectedError(f"the gateway rejected POST {path}: {answer.complaint()}")
        answer.require_success()
        answer.require_terms(terms)
        return answer

    async def _find(self, path: str, what: str, terms: dict[str, Any]) -> _Answer | None:
        """None only if the gateway itself says that it does not know it; a 404 may come from a wrong address too."""
        its_id = f"{what}_id"
        answer = await self._send("GET", f"{path}/{quote(terms[its_id], safe='')}")
        if answer.status == 404 and answer.members.get("type") == f"{_PROBLEM_PREFIX}unknown-{what}":
            return None
        answer.require_success()
        answer.require_id(its_id, terms[its_id])
        answer.require_terms(terms)
        return answer

    async def _send(self, method: str, path: str, payload: dict[str, Any] | None = None) -> _Answer:
        headers: dict[str, str] = {}
        telemetry.inject(headers)
        what = f"{method} {path}"
        try:
            async with self._client.stream(method, path, json=payload, headers=headers) as response:
                body = await _body(response, what)
                return _Answer(what, response.status_code, _members(body))
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise GatewayUnavailableError(
                f"the gateway gave no answer to {what}: {type(error).__name__} {error}"
            ) from error


class _Answer:
    """A status and the members of a JSON object. What is not as agreed raises GatewayUnavailableError."""

    def __init__(self, what: str, status: int, members: dict[str, Any]) -> None:
        self.status = status
        self.members = members
        self._what = what

    def complaint(self) -> str:
        """What the answer says of itself."""
        detail = self.members.get("detail") or self.members.get("title")
        said = f": {detail}" if isinstance(detail, str) else ""
        return f"{self.status}{said[:TEXT_MAX_CHARACTERS]}"

    def require_success(self) -> None:
        if not 200 <= self.status < 300:
            raise GatewayUnavailableError(f"the gateway answered {self._what} with {self.complaint()}")

    def require_id(self, name: str, value: str) -> None:
        """An answer about something else is none."""
        if self.members.get(name) != value:
            raise self.unreadable(f"{name} is not {value!r}")

    def require_terms(self, terms: dict[str, Any]) -> None:
        """Raises GatewayRejectedError when what the gateway keeps is not what was asked for."""
        missing = [name for name in terms if name not in self.members]
        if missing:
            raise self.unreadable(f"it has no {', '.join(missing)}")
        wrong = [name for name, value in terms.items() if self.members[name] != value]
        if wrong:
            raise GatewayRejectedError(f"the gateway answered {self._what} with another {', '.join(wrong)}")

    def text(self, name: str) -> str:
        found = self.members.get(name)
        if not isinstance(found, str) or not found:
            raise self.unreadable(f"{name} is no text")
        # It is shown to people, and databases do not take every character.
        return "".join(character if character.isprintable() else "?" for character in found[:TEXT_MAX_CHARACTERS])

    def number(self, name: str) -> int:
        found = self.members.get(name)
        # Not isinstance: JSON's true is an int for Python.
        if type(found) is not int or not 0 <= found <= NUMBER_MAX:
            raise self.unreadable(f"{name} is no whole number from 0 to {NUMBER_MAX}")
        return found

    def unreadable(self, why: str) -> GatewayUnavailableError:
        """The error to raise."""
        return GatewayUnavailableError(f"the gateway's answer to {self._what} cannot be read: {why}")


def _terms_of_charge(request: ChargeRequest) -> dict[str, Any]:
    return {
        "charge_id": request.payment_id,
        "order_id": request.order_id,
        "amount_minor": request.amount_minor,
        "currency": request.currency,
        "method": str(request.method),
    }


def _terms_of_refund(order: RefundOrder) -> dict[str, Any]:
    return {
        "refund_id": order.refund_id,
        "charge_id": order.payment_id,
        "amount_minor": order.amount_minor,
        "currency": order.currency,
    }


def _charge(answer: _Answer) -> Pending | Captured | Declined:
    match answer.text("status"):
        case "pending":
            return Pending()
        case "captured":
            return Captured(answer.number("decided_at_ms"))
        case "declined":
            return Declined(answer.text("decline_reason"))
        case other:
            raise answer.unreadable(f"a charge is never {other!r}")


def _refund(answer: _Answer) -> Pending | Refunded:
    match answer.text("status"):
        case "pending":
            return Pending()
        case "refunded":
            return Refunded(answer.number("refunded_at_ms"))
        case other:
            raise answer.unreadable(f"a refund is never {other!r}")


async def _body(response: httpx.Response, what: str) -> bytes:
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > ANSWER_MAX_BYTES:
            raise GatewayUnavailableError(f"the gateway's answer to {what} has more than {ANSWER_MAX_BYTES} bytes")
    return body


def _members(body: bytes) -> dict[str, Any]:
    """The members of a JSON object; none if it is not one."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
