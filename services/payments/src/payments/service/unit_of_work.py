"""The port to the database: a unit of work that is committed as a whole or not at all.

Invariants: a unit that ends without `commit` changes nothing; a status changes by compare-and-set, so that of two units
that want the same change exactly one gets it; no network call is made inside a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from payments.domain.payable_order import PayableOrder, PayableStatus
from payments.domain.payment import Payment, StatusChange
from payments.domain.payment_status import PaymentStatus
from payments.domain.refund import Refund
from servicekit.idempotency import IdempotencyKeys
from servicekit.inbox import Inbox
from servicekit.transactions import TransactionRows


@dataclass(frozen=True, slots=True)
class PageKey:
    """The place of a payment in a list: lists run from the newest to the oldest, by creation time, then by id."""

    created_at_ms: int
    payment_id: str


@dataclass(frozen=True, slots=True)
class PaymentCount:
    """How many payments stand somewhere, and their amounts together."""

    payments: int
    amount_minor: int


class Payments(Protocol):
    """The payments with their history."""

    async def add(self, payment: Payment, first: StatusChange) -> None:
        """Write a new payment and the first row of its history.

        Raises PaymentInProgressError if the order has another payment that is not DECLINED: the database decides.
        """

    async def get(self, payment_id: str) -> Payment:
        """Raises UnknownPaymentError."""

    async def live(self, order_id: str) -> Payment | None:
        """The order's one payment that is not DECLINED, if there is one."""

    async def page(self, order_id: str | None, after: PageKey | None, limit: int) -> list[Payment]:
        """At most `limit` payments, newest first, from behind `after`; of any order if `order_id` is None."""

    async def change_status(self, changed: Payment, change: StatusChange) -> bool:
        """Compare-and-set with a history row; False, and nothing changed, if the payment left `old_status` before."""

    async def history(self, payment_id: str) -> list[StatusChange]:
        """The payment's changes, oldest first; none for an unknown payment."""

    async def count_by_status(self) -> Mapping[PaymentStatus, PaymentCount]:
        """Counts and sums; statuses without payments are left out."""

    async def unfinished(self, after: str, limit: int) -> list[str]:
        """At most `limit` ids of CREATED payments, ascending, from behind `after`."""


class Refunds(Protocol):
    """The refunds, one of a payment at most."""

    async def add(self, refund: Refund) -> None:
        """Raises StatusChangedError when another process has just written this payment's refund."""

    async def find(self, payment_id: str) -> Refund | None:
        """The payment's refund, if one was asked for."""

    async def unfinished(self, after: str, limit: int) -> list[str]:
        """At most `limit` ids of CAPTURED payments whose refund was asked for, ascending, from behind `after`."""


class PayableOrdersTable(Protocol):
    """The orders as the events told them."""

    async def find(self, order_id: str) -> PayableOrder | None:
        """None if no event has told of it yet."""

    async def add(self, order: PayableOrder) -> None:
        """Raises StatusChangedError when another process has just written this order."""

    async def change(self, old_status: PayableStatus, order: PayableOrder) -> bool:
        """Compare-and-set; False, and nothing changed, if the order left `old_status` before."""


class UnitOfWork(Protocol):
    """One database transaction."""

    @property
    def payments(self) -> Payments: ...

    @property
    def refunds(self) -> Refunds: ...

    @property
    def payable_orders(self) -> PayableOrdersTable: ...

    @property
    def keys(self) -> IdempotencyKeys: ...

    @property
    def transactions(self) -> TransactionRows: ...

    @property
    def inbox(self) -> Inbox: ...

    async def commit(self) -> None:
        """Make the unit's changes durable; without it they are rolled back."""


class Units(Protocol):
    """Opens units of work. Both raise StorageUnavailableError when the database does not answer."""

    def reading(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that only reads, and sees one state of the database."""

    def writing(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that may write."""
