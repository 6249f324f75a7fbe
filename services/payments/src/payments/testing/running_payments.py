"""One composed application and the hands on its outside. A second one on the same folder, with the same gateway and
queue, is the process after its restart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from osenv import SeededRng, SimClock
from payments.app import MIGRATIONS
from payments.bootstrap import Application, bootstrap
from payments.domain.payment import Payment, PaymentMethod, PaymentRequest
from payments.service import events
from payments.service.gateway import PaymentGateway
from payments.service.pay_order import Paid
from payments.testing.scripted_gateway import ScriptedGateway
from servicekit import message_body
from servicekit.adapters.database import Database
from servicekit.config import SQLITE_PREFIX
from servicekit.message import OutgoingMessage
from servicekit.testing import RecordingPublisher, deliver

BUYER = "buyer-1"
TOTAL_MINOR = 15800
CURRENCY = "CNY"

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
    body = message_body.encode({name: value for name, value in members.items() if value is not None})
    return OutgoingMessage(events.ORDER_EVENTS_TOPIC, tag, order_id, body)


@dataclass(frozen=True, slots=True)
class RunningPayments:
    """Payments, composed; nothing runs by itself."""

    application: Application
    database: Database
    gateway: PaymentGateway
    queue: RecordingPublisher
    clock: SimClock
    http: httpx.AsyncClient

    async def tell(self, *messages: OutgoingMessage) -> None:
        """Hand messages to the groups that read them; what handlers raise comes out."""
        await deliver(list(messages), self.application.subscriptions)

    async def open_order(self, order_id: str = "order-1", **changes: Any) -> None:
        await self.tell(order_event(events.CREATED_TAG, order_id, **changes))

    async def pay(self, key: str, order_id: str = "order-1") -> Paid:
        request = PaymentRequest(order_id, BUYER, TOTAL_MINOR, CURRENCY, PaymentMethod.CARD)
        return await self.application.use_cases.pay_order(request, key)

    async def post_payment(self, key: str | None, **changes: Any) -> httpx.Response:
        """POST /payments for order-1; `changes` replace members of the payload."""
        payload = {
            "order_id": "order-1",
            "buyer_id": BUYER,
            "amount_minor": TOTAL_MINOR,
            "currency": CURRENCY,
            "method": "card",
        } | changes
        return await self.http.post("/payments", json=payload, headers={} if key is None else {"Idempotency-Key": key})

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
        body = message_body.encode(members)
        await self.tell(OutgoingMessage(events.ORDER_EVENTS_TOPIC, events.REFUND_REQUESTED_TAG, payment.order_id, body))

    async def payment(self, payment_id: str) -> Payment:
        return await self.application.use_cases.queries.payment(payment_id)

    async def check_back(self) -> None:
        """Let the queue ask about every open half message."""
        await self.queue.check_back(self.application.check)

    def told(self, tag: str) -> list[OutgoingMessage]:
        """What consumers of `payment-events` can see."""
        return self.queue.taken(events.PAYMENT_EVENTS_TOPIC, tag)


@asynccontextmanager
async def running_payments(
    folder: Path,
    *,
    gateway: PaymentGateway | None = None,
    queue: RecordingPublisher | None = None,
    clock: SimClock | None = None,
    seed: int = 1,
) -> AsyncIterator[RunningPayments]:
    """Payments on the database in `folder`, which is made and migrated when it is not there.

    Applications on one folder need different seeds: their ids come from them.
    """
    clock = clock or SimClock()
    gateway = gateway or ScriptedGateway(clock)
    queue = queue or RecordingPublisher()
    database = Database(f"{SQLITE_PREFIX}{folder / 'payments.db'}")
    try:
        await MIGRATIONS.upgrade(database)
        application = bootstrap(
            database,
            gateway,
            queue,
            clock,
            SeededRng(seed),
            is_queue_there=lambda: not queue.is_down,
            health_parts={},
        )
        transport = httpx.ASGITransport(application.api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://payments") as http:
            yield RunningPayments(application, database, gateway, queue, clock, http)
    finally:
        await database.dispose()
