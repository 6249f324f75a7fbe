"""Payments as tests want it: composed as in production, on a database of its own, with a gateway, a queue and a clock
that the test holds.

    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("key")).payment
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from osenv import Clock, SeededRng, SimClock
from payments.app import MIGRATIONS
from payments.bootstrap import Application, bootstrap
from payments.config import Config
from payments.domain.errors import (
    GatewayRejectedError,
    GatewayUnavailableError,
    OrderNotPayableError,
    OrdersUnavailableError,
)
from payments.domain.payment import Payment, PaymentMethod, PaymentRequest
from payments.domain.refund import Refund, RefundRequest
from payments.service import events, receive_event
from payments.service.gateway import (
    Captured,
    ChargeRequest,
    Declined,
    GatewayBook,
    PaymentGateway,
    Pending,
    Refunded,
    RefundOrder,
)
from payments.service.pay_order import Paid
from payments.service.refund_payment import PartRefunded
from payments.service.use_case import PaymentFilter
from servicekit.auth import ROLES, Caller
from servicekit.message import OutgoingMessage, encode_body
from servicekit.sql.database import Database
from servicekit.testing import RecordingPublisher, deliver
from servicekit.testing.migrations import migrate

NO_MONEY = "no money"


class Step(enum.Enum):
    """What happens to one charge or refund."""

    SUCCEED = "succeed"
    DECLINE = "decline"  # a charge, and for ever
    PEND = "take note, and decide when the test says so"
    FAIL_BEFORE = "fail before the effect"
    FAIL_AFTER = "fail after the effect"
    REJECT = "reject for good"
    HOLD = "wait for `release`, then succeed"


class ScriptedGateway:
    """Implements `PaymentGateway`. Each charge and refund takes the next step of `script`, then all do `otherwise`.

    `calls` counts charges, refunds and questions. `decide` decides what pends, `events_of` makes its webhooks.

    A gateway for tests: keeps its book in memory, does what its script says, and makes the bodies of its webhooks.
    """

    def __init__(self, clock: Clock, *script: Step, otherwise: Step = Step.SUCCEED) -> None:
        self.script = list(script)
        self.otherwise = otherwise
        self.charges: dict[str, tuple[ChargeRequest, Pending | Captured | Declined]] = {}
        self.refunds: dict[str, tuple[RefundOrder, Pending | Refunded]] = {}
        self.calls = 0
        self.is_away = False
        self.release = asyncio.Event()
        self._clock = clock

    async def charge(self, request: ChargeRequest) -> Pending | Captured | Declined:
        async with self._step() as step:
            known, answer = self.charges.setdefault(request.payment_id, (request, self._answer(step)))
            if known != request:
                raise GatewayRejectedError(f"{request.payment_id!r} was charged with other terms")
        return answer

    async def find_charge(self, request: ChargeRequest) -> Pending | Captured | Declined | None:
        self._count_call()
        known, answer = self.charges.get(request.payment_id, (request, None))
        if known != request:
            raise GatewayRejectedError(f"{request.payment_id!r} was charged with other terms")
        return answer

    async def refund(self, order: RefundOrder) -> Pending | Refunded:
        async with self._step() as step:
            if order.refund_id not in self.refunds:
                self._check_refundable(order)
                answer = Pending() if step is Step.PEND else Refunded(self._clock.wall_ms())
                self.refunds[order.refund_id] = (order, answer)
            known, answer = self.refunds[order.refund_id]
            if known != order:
                raise GatewayRejectedError(f"{order.refund_id!r} was used for another refund")
        return answer

    async def find_refund(self, order: RefundOrder) -> Pending | Refunded | None:
        self._count_call()
        known, answer = self.refunds.get(order.refund_id, (order, None))
        if known != order:
            raise GatewayRejectedError(f"{order.refund_id!r} was used for another refund")
        return answer

    async def book(self) -> GatewayBook:
        taken = [request.amount_minor for request, answer in self.charges.values() if isinstance(answer, Captured)]
        given_back = [order.amount_minor for order, answer in self.refunds.values() if isinstance(answer, Refunded)]
        return GatewayBook(sum(taken), sum(given_back), len(taken), len(given_back))

    def decide(self, its_id: str, *, declines: bool = False) -> dict[str, Any]:
        """Decide a charge or refund that pends; returns the body of its webhook."""
        now_ms = self._clock.wall_ms()
        if its_id in self.refunds:
            self.refunds[its_id] = (self.refunds[its_id][0], Refunded(now_ms))
        else:
            answer = Declined(NO_MONEY) if declines else Captured(now_ms)
            self.charges[its_id] = (self.charges[its_id][0], answer)
        return self.event_of(its_id)

    def event_of(self, its_id: str) -> dict[str, Any]:
        """The body of the webhook of a charge or refund that is decided; the same each time.

        Raises ValueError for one that pends, which has no decision yet.
        """
        if its_id in self.refunds:
            order, refunded = self.refunds[its_id]
            request = self.charges[order.payment_id][0]
            event = self._event("refund.refunded", its_id, request, refunded)
            event["data"] |= {"refund_id": order.refund_id, "amount_minor": order.amount_minor}
            return event
        request, decision = self.charges[its_id]
        if isinstance(decision, Declined):
            event = self._event("charge.declined", its_id, request, decision)
            event["data"]["decline_reason"] = decision.reason
            return event
        return self._event("charge.captured", its_id, request, decision)

    def _event(
        self, kind: str, its_id: str, request: ChargeRequest, decision: Pending | Captured | Declined | Refunded
    ) -> dict[str, Any]:
        if isinstance(decision, Pending):
            raise ValueError(f"{its_id!r} is not decided")  # noqa: TRY004 - of the right type, at the wrong time
        data = {
            "charge_id": request.payment_id,
            "order_id": request.order_id,
            "amount_minor": request.amount_minor,
            "currency": request.currency,
        }
        at_ms = self._clock.wall_ms() if isinstance(decision, Declined) else decision.at_ms
        return {"event_id": f"{kind}/{its_id}", "type": kind, "occurred_at_ms": at_ms, "data": data}

    def change_charge(self, payment_id: str, **changes: Any) -> None:
        """The gateway keeps other terms than it was told."""
        request, answer = self.charges[payment_id]
        self.charges[payment_id] = (replace(request, **changes), answer)

    @asynccontextmanager
    async def _step(self) -> AsyncIterator[Step]:
        self._count_call()
        step = self.script.pop(0) if self.script else self.otherwise
        if step is Step.HOLD:
            await self.release.wait()
        if step is Step.REJECT:
            raise GatewayRejectedError("the account is closed")
        if step is Step.FAIL_BEFORE:
            raise GatewayUnavailableError("the gateway does not answer")
        yield step
        if step is Step.FAIL_AFTER:
            raise GatewayUnavailableError("the gateway does not answer any more")

    def _count_call(self) -> None:
        self.calls += 1
        if self.is_away:
            raise GatewayUnavailableError("the gateway is away")

    def _answer(self, step: Step) -> Pending | Captured | Declined:
        if step is Step.PEND:
            return Pending()
        return Declined(NO_MONEY) if step is Step.DECLINE else Captured(self._clock.wall_ms())

    def _check_refundable(self, order: RefundOrder) -> None:
        request, answer = self.charges.get(order.payment_id, (None, None))
        if request is None or not isinstance(answer, Captured):
            raise GatewayRejectedError(f"no money was taken for {order.payment_id!r}")
        taken = [other.amount_minor for other, _ in self.refunds.values() if other.payment_id == order.payment_id]
        if order.currency != request.currency or sum(taken) + order.amount_minor > request.amount_minor:
            raise GatewayRejectedError(
                f"{order.payment_id!r} has no {order.amount_minor} {order.currency} left to give back"
            )


class ScriptedOrders:
    """Implements `OrderHolds`. `holds` are payments by order; `closed` are orders that are over, with how long ago the
    hold of the payment that asks ended, None if it had none.

    Orders for tests: remembers the holds, and rejects or is away when it is told to.
    """

    def __init__(self) -> None:
        self.holds: dict[str, str] = {}
        self.closed: dict[str, int | None] = {}
        self.is_away = False
        self.calls = 0

    async def take(self, payment: Payment) -> None:
        self._answer()
        if payment.order_id in self.closed:
            raise OrderNotPayableError(payment.order_id, self.closed[payment.order_id])
        self.holds[payment.order_id] = payment.payment_id

    async def release(self, payment: Payment) -> None:
        self._answer()
        self.holds.pop(payment.order_id, None)

    def _answer(self) -> None:
        self.calls += 1
        if self.is_away:
            raise OrdersUnavailableError("orders is away")


BUYER = "buyer-1"
TOTAL_MINOR = 15800
CURRENCY = "CNY"
AUTH_KEYS = (("test", "a secret that is known to tests only"),)
WEBHOOK_SECRET = "a webhook secret that tests know of"  # noqa: S105 - as it says
OPERATOR = Caller("operator-1", ROLES["operator"])

_MOMENT_OF_TAG = {
    events.CREATED_TAG: "created_at_ms",
    events.PAID_TAG: "paid_at_ms",
    events.CLOSED_TAG: "closed_at_ms",
}


def order_event(tag: str, order_id: str = "order-1", **changes: Any) -> OutgoingMessage:
    """What orders tells of an order; `changes` replace members, and None takes them away."""
    members = {
        "version": 1,
        "order_id": order_id,
        "buyer_id": BUYER,
        "total_minor": TOTAL_MINOR,
        "currency": CURRENCY,
        "expires_at_ms": 1_700_001_800_000,
        _MOMENT_OF_TAG[tag]: 1_700_000_000_000,
    } | changes
    body = encode_body({name: value for name, value in members.items() if value is not None})
    return OutgoingMessage(events.ORDER_EVENTS_TOPIC, tag, order_id, body)


@dataclass(frozen=True, slots=True)
class RunningPayments:
    """Payments, composed; nothing runs by itself.

    One composed application and the hands on its outside. A second one on the same database, with the same gateway and
    queue, is the process after its restart.
    """

    application: Application
    database: Database
    gateway: PaymentGateway
    queue: RecordingPublisher
    clock: SimClock
    orders: ScriptedOrders
    config: Config
    http: httpx.AsyncClient

    @property
    def scripted(self) -> ScriptedGateway:
        """The gateway, if it is the default one."""
        if not isinstance(self.gateway, ScriptedGateway):
            raise TypeError("these payments run on another gateway")
        return self.gateway

    async def tell(self, *messages: OutgoingMessage) -> None:
        """Hand messages to the groups that read them; what handlers raise comes out."""
        await deliver(list(messages), self.application.subscriptions)

    async def open_order(self, order_id: str = "order-1", **changes: Any) -> None:
        await self.tell(order_event(events.CREATED_TAG, order_id, **changes))

    async def pay(self, key: str, order_id: str = "order-1") -> Paid:
        request = PaymentRequest(order_id, BUYER, TOTAL_MINOR, CURRENCY, PaymentMethod.CARD)
        return await self.application.use_cases.pay_order(request, key)

    def headers(self, role: str = "buyer", subject: str = BUYER) -> dict[str, str]:
        """The Authorization header of a caller with this role."""
        return {"Authorization": f"Bearer {self.application.tokens.issue(subject, ROLES[role])}"}

    async def get(self, path: str, role: str = "operator", subject: str = OPERATOR.subject) -> httpx.Response:
        """The answer to a caller with this role."""
        return await self.http.get(path, headers=self.headers(role, subject))

    async def post_payment(
        self, key: str | None, subject: str = BUYER, role: str = "buyer", **changes: Any
    ) -> httpx.Response:
        """POST /payments for order-1; `changes` replace members of the payload."""
        payload = {
            "order_id": "order-1",
            "amount_minor": TOTAL_MINOR,
            "currency": CURRENCY,
            "method": "card",
        } | changes
        headers = self.headers(role, subject) | ({} if key is None else {"Idempotency-Key": key})
        return await self.http.post("/payments", json=payload, headers=headers)

    async def post_refund(
        self, payment_id: str, key: str | None, amount_minor: int = 100, role: str = "operator", **changes: Any
    ) -> httpx.Response:
        """POST /payments/{payment_id}/refunds; `changes` replace members of the payload."""
        payload = {"amount_minor": amount_minor, "reason": "the seat did not recline"} | changes
        headers = self.headers(role, OPERATOR.subject) | ({} if key is None else {"Idempotency-Key": key})
        return await self.http.post(f"/payments/{payment_id}/refunds", json=payload, headers=headers)

    async def refund_part(self, payment_id: str, key: str, amount_minor: int) -> PartRefunded:
        """What an operator asks for."""
        request = RefundRequest(payment_id, amount_minor, "the seat did not recline")
        return await self.application.use_cases.refund_part(request, OPERATOR, key)

    async def request_refund(self, payment: Payment, **changes: Any) -> None:
        """Hand over orders' request for the payment's money; what the handler raises comes out."""
        members = {
            "version": 1,
            "order_id": payment.order_id,
            "payment_id": payment.payment_id,
            "amount_minor": payment.amount_minor,
            "currency": payment.currency,
            "reason": "the order had closed",
        } | changes
        body = encode_body(members)
        await self.tell(OutgoingMessage(events.ORDER_EVENTS_TOPIC, events.REFUND_REQUESTED_TAG, payment.order_id, body))

    async def webhook(self, event: dict[str, Any], **changes: Any) -> httpx.Response:
        """The gateway's webhook with this event, signed now; `changes` replace members of its `data`."""
        return await self.signed(json.dumps(event | {"data": event["data"] | changes}).encode())

    async def signed(self, body: bytes, secret: str = WEBHOOK_SECRET, late_s: int = 0) -> httpx.Response:
        """A webhook that was signed `late_s` seconds ago, with any body."""
        time_text = str(self.clock.wall_ms() // 1000 - late_s)
        header = f"t={time_text},v1={receive_event.sign(secret, time_text, body)}"
        return await self.http.post("/webhooks/gateway", content=body, headers={receive_event.HEADER: header})

    async def payment(self, payment_id: str) -> Payment:
        return await self.application.use_cases.queries.payment(payment_id, OPERATOR)

    async def payments(self, order_id: str | None = None) -> list[Payment]:
        """All payments, or those of an order, newest first."""
        wanted = PaymentFilter(order_id=order_id)
        return (await self.application.use_cases.queries.payments(wanted, OPERATOR, 1000, None)).items

    async def refunds_of(self, payment_id: str) -> list[Refund]:
        """The payment's refunds, newest first."""
        return (await self.application.use_cases.queries.refunds_of(payment_id, OPERATOR, 1000, None)).items

    async def check_back(self) -> None:
        """Let the queue ask about every open half message."""
        await self.queue.check_back(self.application.transactions.check)

    def told(self, tag: str) -> list[OutgoingMessage]:
        """What consumers of `payment-events` can see."""
        return self.queue.taken(events.PAYMENT_EVENTS_TOPIC, tag)


@asynccontextmanager
async def running_payments(
    database_url: str,
    *,
    gateway: PaymentGateway | None = None,
    queue: RecordingPublisher | None = None,
    clock: SimClock | None = None,
    orders: ScriptedOrders | None = None,
    seed: int = 1,
    **settings: Any,
) -> AsyncIterator[RunningPayments]:
    """Payments on this database, which is migrated. `settings` are fields of Config.

    Applications on one database need different seeds: their ids come from them.
    """
    config = Config(
        **{
            "database_url": database_url,
            "auth_keys": AUTH_KEYS,
            "rate_limit": None,
            "gateway_api_key": "not used",
            "webhook_secrets": (WEBHOOK_SECRET,),
        }
        | settings
    )
    clock = clock or SimClock()
    gateway = gateway or ScriptedGateway(clock)
    queue = queue or RecordingPublisher()
    orders = orders or ScriptedOrders()
    database = Database(config.database_url)
    try:
        await migrate(database, config.database_url, MIGRATIONS)
        application = bootstrap(
            config,
            database,
            gateway,
            queue,
            clock,
            SeededRng(seed),
            parked=queue,
            order_holds=orders,
            is_queue_there=lambda: not queue.is_down,
            health_parts={},
        )
        transport = httpx.ASGITransport(application.api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://payments") as http:
            yield RunningPayments(application, database, gateway, queue, clock, orders, config, http)
    finally:
        await database.dispose()
