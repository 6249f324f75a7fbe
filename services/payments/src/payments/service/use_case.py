"""The base of all use cases: units of work, the meter, and the trace of a payment, which is that of its order.

Invariants: a unit that ends without `commit` changes nothing; a status changes by compare-and-set, so that of two units
that want the same change exactly one gets it; no network call is made inside a unit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import telemetry
from payments.domain.gateway_event import EventStatus, GatewayEvent, Judgement, PayableOrder, PayableStatus
from payments.domain.ledger import Account, Posting
from payments.domain.payment import Payment, PaymentStatus, StatusChange
from payments.domain.refund import Refund, RefundStatus
from servicekit.sql.outbox import Outbox
from servicekit.sql.units import IdempotencyKeys, Inbox, TransactionRows


@dataclass(frozen=True, slots=True)
class PageKey:
    """The place of a payment or refund in a list: lists run from the newest to the oldest, by time, then by id."""

    at_ms: int
    id: str


@dataclass(frozen=True, slots=True)
class PaymentFilter:
    """Which payments a list has: those that fit everything that is not None."""

    order_id: str | None = None
    buyer_id: str | None = None
    status: PaymentStatus | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedPayment:
    """A payment that the gateway has not decided, as far as this service knows."""

    payment_id: str
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class UnfinishedRefund:
    """A refund that the gateway has not made, as far as this service knows."""

    refund_id: str
    requested_at_ms: int


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """An event of the gateway as it was taken note of."""

    event: GatewayEvent
    judgement: Judgement
    received_at_ms: int


class Payments(Protocol):
    """The payments with their history."""

    async def add(self, payment: Payment, first: StatusChange) -> None:
        """Write a new payment and the first row of its history.

        Raises PaymentInProgressError if the order has another payment that was never declined: the database decides.
        """

    async def get(self, payment_id: str) -> Payment:
        """Raises UnknownPaymentError."""

    async def find(self, payment_id: str) -> Payment | None:
        """None for an unknown payment."""

    async def live(self, order_id: str) -> Payment | None:
        """The order's newest payment that is not DECLINED, if there is one."""

    async def page(self, wanted: PaymentFilter, after: PageKey | None, limit: int) -> list[Payment]:
        """At most `limit` payments, newest first, from behind `after`."""

    async def change_status(self, changed: Payment, change: StatusChange, old_refunded_minor: int) -> bool:
        """Compare-and-set with a history row, on the old status and the old sum of what was given back.

        False, and nothing changed, if another task has changed one of them before.
        """

    async def reserve_refund(self, payment_id: str, amount_minor: int) -> bool:
        """Count so much more as asked back; False, and nothing changed, if that would be more than was captured."""

    async def history(self, payment_id: str) -> list[StatusChange]:
        """The payment's changes, oldest first; none for an unknown payment."""

    async def count_by_status(self) -> dict[PaymentStatus, int]:
        """Counts; every status is named."""

    async def unfinished(self, after: str, limit: int) -> list[UnfinishedPayment]:
        """At most `limit` CREATED payments by ascending id, from behind `after`."""


class Refunds(Protocol):
    """The refunds."""

    async def add(self, refund: Refund) -> None:
        """Raises StatusChangedError when another process has just written this refund."""

    async def find(self, refund_id: str) -> Refund | None:
        """None for an unknown refund."""

    async def change(self, old_status: RefundStatus, changed: Refund) -> bool:
        """Compare-and-set; False, and nothing changed, if the refund left `old_status` before."""

    async def page(
        self, payment_id: str | None, after: PageKey | None, limit: int, status: RefundStatus | None = None
    ) -> list[Refund]:
        """At most `limit` refunds, newest first, from behind `after`; of any payment, in any status if that is None."""

    async def count_failed(self) -> int:
        """How many refunds are FAILED."""

    async def count_by_status(self) -> dict[RefundStatus, int]:
        """Counts; every status is named."""

    async def unfinished(self, after: str, limit: int) -> list[UnfinishedRefund]:
        """At most `limit` REQUESTED refunds by ascending id, from behind `after`."""


class Ledger(Protocol):
    """The ledger; what is in it stays in it."""

    async def post(self, posting: Posting) -> None:
        """Write the posting's entries. Raises PostedBeforeError when it is there already: a fault of the code."""

    async def balances(self) -> dict[Account, int]:
        """What all entries of each account sum to, over all currencies; every account is named."""

    async def captured_and_refunded_minor(self) -> tuple[int, int]:
        """What was ever taken, and what was ever given back."""


class GatewayEvents(Protocol):
    """The events of the gateway. An id is remembered for ever."""

    async def find(self, event_id: str) -> KnownEvent | None:
        """None if no such event was taken note of."""

    async def add(self, known: KnownEvent) -> None:
        """Raises EventKnownError when another delivery of the same event was faster: the database decides."""

    async def count_by_status(self) -> dict[EventStatus, int]:
        """Counts; every status is named."""

    async def rejected(self, limit: int) -> list[KnownEvent]:
        """The latest REFUSED events, newest first."""


class PayableOrdersTable(Protocol):
    """The orders as the events told them."""

    async def find(self, order_id: str) -> PayableOrder | None:
        """None if no event has told of it yet."""

    async def find_all(self, order_ids: Collection[str]) -> Mapping[str, PayableOrder]:
        """Those of the orders that events have told of, by id."""

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
    def ledger(self) -> Ledger: ...

    @property
    def gateway_events(self) -> GatewayEvents: ...

    @property
    def payable_orders(self) -> PayableOrdersTable: ...

    @property
    def keys(self) -> IdempotencyKeys: ...

    @property
    def transactions(self) -> TransactionRows: ...

    @property
    def inbox(self) -> Inbox: ...

    @property
    def outbox(self) -> Outbox: ...

    async def commit(self) -> None:
        """Make the unit's changes durable; without it they are rolled back."""


class Units(Protocol):
    """Opens units of work. Both raise StorageUnavailableError when the database does not answer."""

    def snapshot(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that only reads, and sees one state of the database."""

    def writing(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that may write."""


class PaymentMeter(Protocol):
    """Told once for each change that this process has made, after it was committed."""

    def settled(self, payment: Payment, now_ms: int) -> None:
        """The payment was captured or declined; `now_ms` is when this was written down."""

    def refunded(self, refund: Refund) -> None:
        """The refund's money went back."""


class NotMetered:
    """Implements `PaymentMeter`: counts nothing."""

    def settled(self, payment: Payment, now_ms: int) -> None:
        """Forget it."""

    def refunded(self, refund: Refund) -> None:
        """Forget it."""


NOT_METERED = NotMetered()


@contextmanager
def in_trace_of(payment: Payment, what: str, refund: Refund | None = None) -> Iterator[None]:
    """What is done inside is the span `what` in the order's trace; of an order without one, in the current trace.

    A request to pay has a trace of its own, its caller's. What it does to the payment is a span in the order's trace,
    linked with the request's; so is what the resumer does by itself, which belongs to no request.
    """
    attributes = {telemetry.names.ORDER_ID: payment.order_id, telemetry.names.PAYMENT_ID: payment.payment_id}
    if refund is not None:
        attributes[telemetry.names.REFUND_ID] = refund.refund_id
    with telemetry.joined_span(what, payment.traceparent, attributes=attributes):
        yield
