"""What can be read: each query sees one state of the database."""

from __future__ import annotations

from dataclasses import dataclass

from payments.domain.payment import Payment, StatusChange
from payments.domain.payment_status import PaymentStatus
from payments.service.gateway import GatewayBook, PatientGateway
from payments.service.unit_of_work import PageKey, PaymentCount, Units
from servicekit import page_cursor


@dataclass(frozen=True, slots=True)
class PaymentPage:
    """Part of a list; `next_cursor` leads to the next part and is None on the last."""

    items: list[Payment]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the database says, every status named, and what the gateway's own book says."""

    payments: dict[PaymentStatus, int]
    captured_minor: int
    refunded_minor: int
    gateway: GatewayBook


class Queries:
    """The questions behind the GET routes."""

    def __init__(self, units: Units, gateway: PatientGateway) -> None:
        self._units = units
        self._gateway = gateway

    async def payment(self, payment_id: str) -> Payment:
        """Raises UnknownPaymentError."""
        async with self._units.reading() as unit:
            return await unit.payments.get(payment_id)

    async def payments(self, order_id: str | None, limit: int, cursor: str | None) -> PaymentPage:
        """Payments, newest first. Raises InvalidCursorError."""
        after = None if cursor is None else _page_key(cursor)
        async with self._units.reading() as unit:
            found = await unit.payments.page(order_id, after, limit + 1)
        items = found[:limit]
        if len(found) <= limit:
            return PaymentPage(items, None)
        return PaymentPage(items, page_cursor.encode(str(items[-1].created_at_ms), items[-1].payment_id))

    async def history(self, payment_id: str) -> list[StatusChange]:
        """The payment's changes, oldest first. Raises UnknownPaymentError."""
        async with self._units.reading() as unit:
            await unit.payments.get(payment_id)
            return await unit.payments.history(payment_id)

    async def statistics(self) -> Statistics:
        """The sums of the database at one moment, then those of the gateway. Raises GatewayUnavailableError."""
        async with self._units.reading() as unit:
            counts = await unit.payments.count_by_status()
        none = PaymentCount(0, 0)
        refunded_minor = counts.get(PaymentStatus.REFUNDED, none).amount_minor
        return Statistics(
            payments={status: counts.get(status, none).payments for status in PaymentStatus},
            captured_minor=counts.get(PaymentStatus.CAPTURED, none).amount_minor + refunded_minor,
            refunded_minor=refunded_minor,
            gateway=await self._gateway.book(),
        )


def _page_key(cursor: str) -> PageKey:
    created_at_ms, payment_id = page_cursor.decode(cursor, 2)
    return PageKey(page_cursor.number(created_at_ms, cursor), payment_id)
