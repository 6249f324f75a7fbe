"""Adapters of orders: payments over HTTP, the dead letters of its queue, and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import httpx
import structlog

import telemetry
from mqclient import Admin
from mqclient.admin import DeadLetter, DeadLetterFilter
from mqclient.errors import IllegalStateError
from orders.domain.order import ChangeReason, Order, OrderStatus, StatusChange
from orders.service.payments import (
    OrderToPay,
    PaymentRejectedError,
    PaymentsUnavailableError,
    PaymentView,
    RefundPage,
    RefundView,
    UnknownDeadLetterError,
)
from orders.service.queries import DeadLettersOfGroup, DeadLetterView, Queries
from osenv import Clock
from servicekit.auth import Caller, Tokens
from servicekit.background import StoredGauge
from servicekit.http.client import http_client
from servicekit.process.queue import asking_queue

ANSWER_MAX_S = 5.0
CONNECTIONS_MAX = 100
TOKEN_LIFETIME_S = 60
REPEAT_FOR_S = 3.0
REPEAT_INTERVAL_S = 0.2
PAGE_SIZE = 50
PROBLEM_PREFIX = "urn:hourglass:problem:"
KEY_HEADER = "Idempotency-Key"

TOO_MANY_REQUESTS = 429

T = TypeVar("T")

log = structlog.get_logger(__name__)


class HttpPayments:
    """Implements `PaymentDesk`; its owner closes it.

    Payments over HTTP. Each request carries a token that is issued for its caller, with no more than the caller's
    scopes and for a minute only, so that payments checks access as for a direct request.

    A request that is rejected with Retry-After is repeated, with the key of its first try, while it may help: an order
    that was placed a moment ago may not have reached payments yet.
    """

    def __init__(
        self, url: str, tokens: Tokens, clock: Clock, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """`transport` is for tests; without it requests go over the network."""
        self._tokens = tokens
        self._clock = clock
        self._client = http_client(url, timeout=ANSWER_MAX_S, connections_max=CONNECTIONS_MAX, transport=transport)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def methods(self, caller: Caller) -> tuple[str, ...]:
        answer = await self._ask(caller, "GET", "/payments/methods")
        return _read(lambda: tuple(str(one) for one in answer.json()["methods"]))

    async def pay(self, caller: Caller, order: OrderToPay, method: str, key: str) -> PaymentView:
        body = {
            "order_id": order.order_id,
            "amount_minor": order.amount_minor,
            "currency": order.currency,
            "method": method,
        }
        answer = await self._ask(caller, "POST", "/payments", key=key, body=body)
        return _read(lambda: _payment(answer.json()))

    async def payments_of(self, caller: Caller, order_id: str) -> tuple[PaymentView, ...]:
        answer = await self._ask(caller, "GET", "/payments", parameters={"order_id": order_id, "limit": PAGE_SIZE})
        return _read(lambda: tuple(_payment(one) for one in answer.json()["items"]))

    async def payment(self, caller: Caller, payment_id: str) -> PaymentView:
        answer = await self._ask(caller, "GET", f"/payments/{payment_id}")
        return _read(lambda: _payment(answer.json()))

    async def heard_of(self, caller: Caller, order_ids: Sequence[str]) -> dict[str, str]:
        answer = await self._ask(caller, "GET", "/payable-orders", parameters={"order_id": list(order_ids)})
        return _read(lambda: {str(one["order_id"]): str(one["status"]) for one in answer.json()["items"]})

    async def refunds_of(self, caller: Caller, payment_id: str) -> tuple[RefundView, ...]:
        answer = await self._ask(caller, "GET", f"/payments/{payment_id}/refunds")
        return _read(lambda: tuple(_refund(one) for one in answer.json()["items"]))

    async def refund(self, caller: Caller, payment_id: str, amount_minor: int, reason: str, key: str) -> RefundView:
        body = {"amount_minor": amount_minor, "reason": reason}
        answer = await self._ask(caller, "POST", f"/payments/{payment_id}/refunds", key=key, body=body)
        return _read(lambda: _refund(answer.json()))

    async def retry_refund(self, caller: Caller, payment_id: str, refund_id: str) -> RefundView:
        answer = await self._ask(caller, "POST", f"/payments/{payment_id}/refunds/{refund_id}/retry")
        return _read(lambda: _refund(answer.json()))

    async def refunds(self, caller: Caller, cursor: str | None, status: str | None = None) -> RefundPage:
        wanted = {"cursor": cursor, "status": status}
        parameters: dict[str, str | int] = {"limit": PAGE_SIZE}
        parameters |= {name: text for name, text in wanted.items() if text is not None}
        answer = await self._ask(caller, "GET", "/refunds", parameters=parameters)
        return _read(
            lambda: RefundPage(tuple(_refund(one) for one in answer.json()["items"]), answer.json()["next_cursor"])
        )

    async def _ask(
        self,
        caller: Caller,
        method: str,
        path: str,
        *,
        key: str | None = None,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, str | int | list[str]] | None = None,
    ) -> httpx.Response:
        """The answer that is no rejection. Raises PaymentRejectedError, PaymentsUnavailableError."""
        headers = {"Authorization": f"Bearer {self._tokens.issue(caller.subject, caller.scopes, TOKEN_LIFETIME_S)}"}
        if key is not None:
            headers[KEY_HEADER] = key
        telemetry.inject(headers)
        until = self._clock.monotonic() + REPEAT_FOR_S
        while True:
            try:
                answer = await self._client.request(method, path, headers=headers, json=body, params=parameters)
            except httpx.TransportError as error:
                log.warning("payments does not answer", method=method, path=path, error=repr(error))
                raise PaymentsUnavailableError("payments does not answer; nothing was lost, try again") from error
            if answer.is_success:
                return answer
            rejected = _rejection(answer)
            may_help = "Retry-After" in answer.headers and answer.status_code != TOO_MANY_REQUESTS
            if not may_help or self._clock.monotonic() >= until:
                raise rejected
            await self._clock.sleep(REPEAT_INTERVAL_S)


def _rejection(answer: httpx.Response) -> PaymentRejectedError | PaymentsUnavailableError:
    try:
        members = answer.json()
        problem = str(members["type"]).removeprefix(PROBLEM_PREFIX)
        detail = str(members["detail"])
    except (ValueError, KeyError, TypeError):
        return PaymentsUnavailableError(f"payments answered {answer.status_code} and said nothing that can be read")
    if answer.is_server_error or answer.status_code == TOO_MANY_REQUESTS:
        return PaymentsUnavailableError(f"payments cannot do this now: {detail}")
    return PaymentRejectedError(problem, answer.status_code, detail)


def _read(read: Callable[[], T]) -> T:
    """What `read` makes of an answer. Raises PaymentsUnavailableError when it is not what was promised."""
    try:
        return read()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PaymentsUnavailableError(f"payments gave an answer that cannot be read: {error!r}") from error


def _payment(members: Mapping[str, Any]) -> PaymentView:
    return PaymentView(
        payment_id=members["payment_id"],
        order_id=members["order_id"],
        amount_minor=members["amount_minor"],
        refunded_minor=members["refunded_minor"],
        currency=members["currency"],
        method=members["method"],
        status=members["status"],
        created_at_ms=members["created_at_ms"],
        captured_at_ms=members["captured_at_ms"],
        decline_reason=members["decline_reason"],
    )


def _refund(members: Mapping[str, Any]) -> RefundView:
    return RefundView(
        refund_id=members["refund_id"],
        payment_id=members["payment_id"],
        amount_minor=members["amount_minor"],
        currency=members["currency"],
        reason=members["reason"],
        requested_by=members["requested_by"],
        status=members["status"],
        requested_at_ms=members["requested_at_ms"],
        refunded_at_ms=members["refunded_at_ms"],
        failure=members.get("failure"),  # payments of the version before has none
    )


LETTERS_MAX = 20  # of one group on one page
BODY_MAX_CHARACTERS = 2_000


class MqDeadLetters:
    """Implements `DeadLetters`."""

    def __init__(self, url: str, groups: Sequence[str], clock: Clock) -> None:
        self._url = url
        self._groups = tuple(groups)
        self._clock = clock

    async def open_letters(self) -> tuple[DeadLettersOfGroup, ...]:
        async with asking_queue(self._url, self._clock) as admin:
            return tuple([await _of_group(admin, group) for group in self._groups])

    async def replay(self, group: str, letter_id: str) -> None:
        if group not in self._groups:
            raise UnknownDeadLetterError(group, letter_id)
        async with asking_queue(self._url, self._clock) as admin:
            wanted = DeadLetterFilter(ids=frozenset({letter_id}))
            async with aclosing(admin.dead_letters(group, wanted)) as letters:
                letter = await anext(letters, None)
            if letter is None:
                raise UnknownDeadLetterError(group, letter_id)
            try:
                await admin.replay_dead_letter(letter)
            except IllegalStateError as error:  # another operator was faster
                raise UnknownDeadLetterError(group, letter_id) from error


async def _of_group(admin: Admin, group: str) -> DeadLettersOfGroup:
    views: list[DeadLetterView] = []
    async with aclosing(admin.dead_letters(group)) as letters:
        async for letter in letters:
            if len(views) == LETTERS_MAX:
                return DeadLettersOfGroup(group, tuple(views), has_more=True)
            views.append(_view(letter))
    return DeadLettersOfGroup(group, tuple(views), has_more=False)


def _view(letter: DeadLetter) -> DeadLetterView:
    message = letter.message
    return DeadLetterView(
        group=letter.group,
        letter_id=message.offset_message_id or message.message_id,
        topic=letter.topic,
        tag=message.tag or "",
        keys=message.keys,
        body=message.body.decode(errors="replace")[:BODY_MAX_CHARACTERS],
        dead_since_ms=letter.dead_since_ms,
    )


REASON = "hourglass.order.close.reason"
STATUS = "hourglass.order.status"

# A timer is late by milliseconds; by seconds when something was down meanwhile.
LATENESS_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def orders_by_status(queries: Queries, clock: Clock) -> StoredGauge:
    """The gauge of all orders in the database, by status; every process of orders tells the same."""
    return StoredGauge(
        "hourglass.orders.by_status",
        queries.orders_by_status,
        clock,
        unit="{order}",
        description="orders in the database, by status",
        attribute=STATUS,
    )


class OtelOrderMeter:
    """Implements `OrderMeter`."""

    def __init__(self) -> None:
        meter = telemetry.meter("orders")
        self._placed = meter.create_counter(
            "hourglass.orders.placed", unit="{order}", description="orders that were placed"
        )
        self._paid = meter.create_counter("hourglass.orders.paid", unit="{order}", description="orders that were paid")
        self._closed = meter.create_counter(
            "hourglass.orders.closed", unit="{order}", description="orders that were closed, by reason"
        )
        self._lateness = meter.create_histogram(
            "hourglass.orders.close.lateness",
            unit="s",
            description="from the end of the time to pay to the closing, of orders that expired",
            explicit_bucket_boundaries_advisory=LATENESS_BOUNDS_S,
        )

    def changed(self, order: Order, change: StatusChange) -> None:
        if change.reason is ChangeReason.PLACED:
            self._placed.add(1)
        elif change.reason is ChangeReason.PAID:
            self._paid.add(1)
        elif change.new_status is OrderStatus.CLOSED:
            self._closed.add(1, {REASON: change.reason.value})
            if change.reason is ChangeReason.EXPIRED:
                self._lateness.record((change.at_ms - order.expires_at_ms) / 1000)
