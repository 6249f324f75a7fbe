"""What can be read: each query sees one state of the database, and no caller sees what is not theirs.

Invariant: another buyer's payment is answered as one that is not there, unless the caller may see the payments of all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from payments.domain.errors import UnknownPaymentError
from payments.domain.gateway_event import EventStatus, PayableOrder
from payments.domain.ledger import Account
from payments.domain.payment import Payment, PaymentStatus, StatusChange
from payments.domain.refund import Refund, RefundStatus
from payments.service.gateway import GatewayBook, PaymentGateway
from payments.service.use_case import KnownEvent, PageKey, PaymentFilter, UnitOfWork, Units
from servicekit.auth import PAYMENTS_ALL, Caller
from servicekit.identifiers import cursor_number, decode_cursor, encode_cursor

REJECTED_EVENTS_SHOWN = 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list; `next_cursor` leads to the next part and is None on the last."""

    items: list[T]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the database says, every status named, and what the gateway's own book says. Sums are in minor units."""

    payments: dict[PaymentStatus, int]
    refunds: dict[RefundStatus, int]
    captured_minor: int
    refunded_minor: int
    ledger: dict[Account, int]
    gateway_events: dict[EventStatus, int]
    refused_events: list[KnownEvent]
    outbox_messages: int
    gateway: GatewayBook


class Queries:
    """The questions behind the GET routes."""

    def __init__(self, units: Units, gateway: PaymentGateway) -> None:
        self._units = units
        self._gateway = gateway

    async def payment(self, payment_id: str, caller: Caller) -> Payment:
        """Raises UnknownPaymentError."""
        async with self._units.snapshot() as unit:
            return await visible(unit, payment_id, caller)

    async def payments(self, wanted: PaymentFilter, caller: Caller, limit: int, cursor: str | None) -> Page[Payment]:
        """Payments that the caller may see, newest first. Raises InvalidCursorError."""
        after = None if cursor is None else _page_key(cursor)
        if not caller.has(PAYMENTS_ALL):
            if wanted.buyer_id not in (None, caller.subject):
                return Page([], None)
            wanted = replace(wanted, buyer_id=caller.subject)
        async with self._units.snapshot() as unit:
            found = await unit.payments.page(wanted, after, limit + 1)
        return _page(found, limit, lambda payment: PageKey(payment.created_at_ms, payment.payment_id))

    async def history(self, payment_id: str, caller: Caller) -> list[StatusChange]:
        """The payment's changes, oldest first. Raises UnknownPaymentError."""
        async with self._units.snapshot() as unit:
            await visible(unit, payment_id, caller)
            return await unit.payments.history(payment_id)

    async def refunds_of(self, payment_id: str, caller: Caller, limit: int, cursor: str | None) -> Page[Refund]:
        """The payment's refunds, newest first. Raises UnknownPaymentError, InvalidCursorError."""
        after = None if cursor is None else _page_key(cursor)
        async with self._units.snapshot() as unit:
            await visible(unit, payment_id, caller)
            found = await unit.refunds.page(payment_id, after, limit + 1)
        return _page(found, limit, _place_of_refund)

    async def refunds(self, status: RefundStatus | None, limit: int, cursor: str | None) -> Page[Refund]:
        """The refunds of all payments, newest first, for callers that may see them. Raises InvalidCursorError."""
        after = None if cursor is None else _page_key(cursor)
        async with self._units.snapshot() as unit:
            found = await unit.refunds.page(None, after, limit + 1, status)
        return _page(found, limit, _place_of_refund)

    async def payable_orders(self, order_ids: Collection[str]) -> list[PayableOrder]:
        """What events have told of these orders, for callers that may see all payments; unknown ones are left out."""
        async with self._units.snapshot() as unit:
            found = await unit.payable_orders.find_all(order_ids)
        return [found[order_id] for order_id in sorted(found)]

    async def statistics(self) -> Statistics:
        """The sums of the database at one moment, then those of the gateway. Raises GatewayUnavailableError."""
        async with self._units.snapshot() as unit:
            payments = await unit.payments.count_by_status()
            refunds = await unit.refunds.count_by_status()
            captured_minor, refunded_minor = await unit.ledger.captured_and_refunded_minor()
            balances = await unit.ledger.balances()
            events = await unit.gateway_events.count_by_status()
            rejected = await unit.gateway_events.rejected(REJECTED_EVENTS_SHOWN)
            outbox_messages = await unit.outbox.count()
        return Statistics(
            payments=payments,
            refunds=refunds,
            captured_minor=captured_minor,
            refunded_minor=refunded_minor,
            ledger=balances,
            gateway_events=events,
            refused_events=rejected,
            outbox_messages=outbox_messages,
            gateway=await self._gateway.book(),
        )


async def visible(unit: UnitOfWork, payment_id: str, caller: Caller) -> Payment:
    """The payment, if the caller may know of it. Raises UnknownPaymentError."""
    payment = await unit.payments.get(payment_id)
    if payment.buyer_id != caller.subject and not caller.has(PAYMENTS_ALL):
        raise UnknownPaymentError(payment_id)
    return payment


def _place_of_refund(refund: Refund) -> PageKey:
    return PageKey(refund.requested_at_ms, refund.refund_id)


def _page(found: list[T], limit: int, place_of: Callable[[T], PageKey]) -> Page[T]:
    """The first `limit`, and where the next ones begin, if there are more."""
    items = found[:limit]
    if len(found) <= limit:
        return Page(items, None)
    last = place_of(items[-1])
    return Page(items, encode_cursor(str(last.at_ms), last.id))


def _page_key(cursor: str) -> PageKey:
    at_ms, its_id = decode_cursor(cursor, 2)
    return PageKey(cursor_number(at_ms, cursor), its_id)
