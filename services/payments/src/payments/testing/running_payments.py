"""One composed application and the hands on its outside. A second one on the same database, with the same gateway and
queue, is the process after its restart.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from osenv import SeededRng, SimClock
from payments.app import MIGRATIONS
from payments.bootstrap import Application, bootstrap
from payments.config import Config
from payments.domain.payment import Payment, PaymentMethod, PaymentRequest
from payments.domain.refund import Refund, RefundRequest
from payments.service import events, receive_event
from payments.service.gateway import PaymentGateway
from payments.service.pay_order import Paid
from payments.service.refund_payment import PartRefunded
from payments.service.unit_of_work import PaymentFilter
from payments.testing.scripted_gateway import ScriptedGateway
from payments.testing.scripted_orders import ScriptedOrders
from servicekit.auth import ROLES, Caller
from servicekit.message import OutgoingMessage, encode_body
from servicekit.sql.database import Database
from servicekit.testing import RecordingPublisher, deliver
from servicekit.testing.migrations import migrate

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
    """Payments, composed; nothing runs by itself."""

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
        """The gateway, if nobody has brought another one."""
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
        """The Authorization header of somebody with this role."""
        return {"Authorization": f"Bearer {self.application.tokens.issue(subject, ROLES[role])}"}

    async def get(self, path: str, role: str = "operator", subject: str = OPERATOR.subject) -> httpx.Response:
        """What somebody with this role is answered."""
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
