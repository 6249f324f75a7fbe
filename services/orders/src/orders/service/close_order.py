"""Closing an order: its buyer or its seller cancelled it, its time to pay is over, or its money is back."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

import structlog

from orders.domain.delay_levels import DelayLevels
from orders.domain.errors import PaymentNotHeardOfError, StatusChangedError, UnknownOrderError
from orders.domain.order import (
    DEFAULT_HOLD_LIMITS,
    ChangeReason,
    HoldLimits,
    Order,
    OrderStatus,
    Origin,
    Payment,
    RefundedPayment,
    RefundReason,
    RefundRequest,
)
from orders.service import events
from orders.service.events import OrderDeadline
from orders.service.payments import (
    IN_PROGRESS,
    AcceptPayment,
    PaymentDesk,
    PaymentOutcome,
    PaymentRejectedError,
    PaymentsUnavailableError,
)
from orders.service.status_commands import Command
from orders.service.use_case import NOT_METERED, OrderMeter, UnitOfWork, Units, in_trace_of, origin_of, require_buyer
from osenv import Clock
from servicekit.auth import ORDERS_SHIP, PAYMENTS_READ, Caller
from servicekit.errors import ConsumedBeforeError
from servicekit.message import MessagePublisher
from servicekit.sql.units import TransactionalPublisher, require_first

UNKNOWN_PAYMENT = "unknown-payment"

log = structlog.get_logger(__name__)


class LatePayment(enum.Enum):
    """What payments says of the payment that has held an order."""

    NONE = "keeps no money, and will not take any"
    PAID = "has paid the order"
    UNDECIDED = "may have captured the money"


async def not_asked(_order: Order) -> LatePayment:
    """Where there are no payments to ask."""
    return LatePayment.NONE


class LatePayments:
    """Asks payments, for the order's buyer and inside no unit of work.

    What orders asks payments before it closes an order that a payment has held: the news of its capture may be late.

    Only such orders are asked about, because nothing is captured without a hold (ADR 122). A payment that has captured
    the order's money pays for it now, and its message finds it paid.
    """

    def __init__(self, desk: PaymentDesk, accept_payment: AcceptPayment) -> None:
        self._desk = desk
        self._accept_payment = accept_payment

    async def __call__(self, order: Order) -> LatePayment:
        """Raises what AcceptPayment raises."""
        if order.hold is None:
            return LatePayment.NONE
        caller = Caller(order.buyer_id, frozenset({PAYMENTS_READ}))
        try:
            found = await self._desk.payment(caller, order.hold.payment_id)
        except (PaymentsUnavailableError, PaymentRejectedError) as error:
            if isinstance(error, PaymentRejectedError) and error.problem == UNKNOWN_PAYMENT:
                return LatePayment.NONE
            log.warning("payments does not say what became of a payment", order_id=order.order_id, error=str(error))
            return LatePayment.UNDECIDED
        if found.status == IN_PROGRESS:
            return LatePayment.UNDECIDED
        if not found.was_captured or found.captured_at_ms is None:
            return LatePayment.NONE
        outcome = await self._accept_payment(
            Payment(found.payment_id, order.order_id, found.amount_minor, found.currency, found.captured_at_ms)
        )
        log.info("a payment was asked for before its message came", order_id=order.order_id, outcome=outcome.value)
        is_sent_back = outcome in {PaymentOutcome.REFUND_REQUESTED, PaymentOutcome.REFUND_REQUESTED_BEFORE}
        return LatePayment.NONE if is_sent_back else LatePayment.PAID


CANCEL = "cancel order"


class ExpiryOutcome(enum.Enum):
    """The outcome for an order whose timeout arrived."""

    CLOSED = "closed"
    TOO_EARLY = "too early"
    HELD = "held by a payment in progress"
    ALREADY_DECIDED = "already decided"
    UNKNOWN_ORDER = "unknown order"


async def _go_on(_unit: UnitOfWork) -> None:
    """Nothing comes first."""


class CloseOrder:
    """The use cases behind POST /orders/{id}/cancel and behind the timeout message.

    Invariants: an order is closed once, by the first change of its status; in the same unit of work its units go back
    on sale and, if it was paid, its money is asked back; `closed` and `refund-requested` are told exactly for what was
    committed. No order is expired before expires_at_ms. The money of an order that closes because it was refunded is
    back already, and is not asked for. An order that a payment holds is never closed: the money may have been taken.
    """

    def __init__(
        self,
        units: Units,
        transactions: TransactionalPublisher[UnitOfWork],
        clock: Clock,
        meter: OrderMeter = NOT_METERED,
        *,
        late_payment: Callable[[Order], Awaitable[LatePayment]] = not_asked,
        hold_limits: HoldLimits = DEFAULT_HOLD_LIMITS,
    ) -> None:
        self._units = units
        self._hold_limits = hold_limits
        self._late_payment = late_payment
        self._transactions = transactions
        self._clock = clock
        self._meter = meter

    async def cancel(self, order_id: str, caller: Caller, version: int | None = None) -> Order:
        """Close the order: for its seller, if the caller may ship, else for its buyer.

        A buyer cancels until the order is paid, a seller until it is shipped; the money of a paid order goes back. A
        caller that has cancelled the order before is answered as then. Raises UnknownOrderError, VersionMismatchError,
        IllegalTransitionError, OrderHeldError, StatusChangedError, PublishError, TransactionGivenUpError,
        StorageUnavailableError.
        """
        reason = ChangeReason.SELLER_CANCELLED if caller.has(ORDERS_SHIP) else ChangeReason.CANCELLED

        async def carry_out(order: Order) -> Order:
            if reason is ChangeReason.CANCELLED:
                require_buyer(order, caller)
            with in_trace_of(order, CANCEL):
                return await self.close(order, reason, origin_of(caller.subject, self._clock, order))

        return await Command(order_id, caller, reason, version).once(self._units, carry_out)

    async def expire(self, order_id: str) -> ExpiryOutcome:
        """Close the order if it still waits for its payment and its time is over; calling it again is harmless.

        If a payment has held it, payments is asked first what became of that; no answer, or an undecided payment, keeps
        the order open for the limits' `past_expiry_max_ms` after its expiry.
        Raises PublishError, TransactionGivenUpError, StorageUnavailableError.
        """
        async with self._units.autocommit() as unit:
            try:
                order = await unit.orders.get(order_id)
            except UnknownOrderError:
                return ExpiryOutcome.UNKNOWN_ORDER
        if order.status is not OrderStatus.PENDING_PAYMENT:
            return ExpiryOutcome.ALREADY_DECIDED
        origin = origin_of(events.TIMEOUT_HANDLER_GROUP, self._clock, order)
        if not order.is_due(origin.at_ms):
            return ExpiryOutcome.TOO_EARLY
        if order.is_held(origin.at_ms):
            return ExpiryOutcome.HELD
        if order.hold is not None:
            late = await self._late_payment(order)
            if late is LatePayment.PAID:
                return ExpiryOutcome.ALREADY_DECIDED
            open_until_ms = order.expires_at_ms + self._hold_limits.past_expiry_max_ms
            if late is LatePayment.UNDECIDED and origin.at_ms < open_until_ms:
                return ExpiryOutcome.HELD

        async def consume(unit: UnitOfWork) -> None:
            await require_first(unit.inbox, events.TIMEOUT_HANDLER_GROUP, order_id, origin.at_ms)

        try:
            await self.close(order, ChangeReason.EXPIRED, origin, first=consume)
        except ConsumedBeforeError:
            return ExpiryOutcome.ALREADY_DECIDED
        except StatusChangedError:  # or a payment has let the order go: it waits still, and nothing else closes it
            return await self.expire(order_id)
        return ExpiryOutcome.CLOSED

    async def close(
        self,
        order: Order,
        reason: ChangeReason,
        origin: Origin,
        *,
        first: Callable[[UnitOfWork], Awaitable[None]] = _go_on,
    ) -> Order:
        """Close `order` as it was read, after `first` in the same unit; what that raises closes nothing.

        Raises IllegalTransitionError, OrderHeldError, and StatusChangedError if the order is not as it was read.
        """
        order.require_not_held(origin.at_ms)
        closed_order, change = order.changed(reason, origin)
        payment = order.payment()
        is_back = reason is ChangeReason.REFUNDED
        refund = None if payment is None or is_back else RefundRequest(payment, RefundReason.ORDER_CANCELLED)

        async def write(unit: UnitOfWork) -> None:
            await first(unit)
            await unit.orders.change_status(closed_order, change)
            if refund is not None:
                await unit.refunds.request(refund, origin.at_ms)

        messages = [events.closed(closed_order, change)]
        if refund is not None:
            messages.append(events.refund_requested(refund))
        await self._transactions.publish_all(messages, write)
        self._meter.changed(closed_order, change)
        return closed_order


LOOK_AGAIN_MS = 5_000  # at an order whose payment is in progress


class OrderTimeouts:
    """Sets the timer of every order, a delayed message that comes back when the time to pay is over, and acts on it.

    Both handlers may be called again with the same message: a second timer finds the order decided and ignores it.
    """

    def __init__(self, close_order: CloseOrder, publisher: MessagePublisher, clock: Clock, levels: DelayLevels) -> None:
        self._close_order = close_order
        self._publisher = publisher
        self._clock = clock
        self._levels = levels

    async def schedule(self, deadline: OrderDeadline) -> int:
        """Send the order's timer for the time that remains; returns the delay level. Raises PublishError."""
        return await self._send(deadline, deadline.expires_at_ms - self._clock.wall_ms())

    async def fire(self, deadline: OrderDeadline) -> ExpiryOutcome:
        """Close the order if it is due and unpaid; a timer that rings early is sent again for the rest.

        So is one that finds the order held by a payment in progress: it rings every few seconds until that has ended.

        Raises PublishError or StorageUnavailableError; the message must then be delivered again.
        """
        outcome = await self._close_order.expire(deadline.order_id)
        if outcome is ExpiryOutcome.TOO_EARLY:
            await self.schedule(deadline)
        elif outcome is ExpiryOutcome.HELD:
            await self._send(deadline, LOOK_AGAIN_MS)
        elif outcome is ExpiryOutcome.UNKNOWN_ORDER:
            # Orders are never deleted: this is a message of another database, or a lost one.
            log.warning("the timeout of an unknown order is ignored", order_id=deadline.order_id)
        return outcome

    async def _send(self, deadline: OrderDeadline, remaining_ms: int) -> int:
        level = self._levels.choose(remaining_ms)
        await self._publisher.publish(events.timeout(deadline, level))
        return level


class RefundOutcome(enum.Enum):
    """The outcome for an order whose money went back."""

    CLOSED = "closed"
    KEPT = "kept"  # money of it is left, it is on its way, or another payment has paid it
    CONSUMED_BEFORE = "consumed before"


class AcceptRefund:
    """The use case behind `payment-events`/`refunded`.

    Invariants: of a refund and a shipping exactly one gets the order, by compare-and-set; what is on its way or with
    its buyer stays as it is, because money that goes back then is between the buyer and the operator.
    """

    def __init__(self, units: Units, close_order: CloseOrder, clock: Clock) -> None:
        self._units = units
        self._close_order = close_order
        self._clock = clock

    async def __call__(self, refunded: RefundedPayment) -> RefundOutcome:
        """Close the order if this has been all of its money; calling it again is harmless.

        Raises UnknownOrderError, PaymentNotHeardOfError, PublishError, TransactionGivenUpError and
        StorageUnavailableError; the message must then be delivered again.
        """
        # The loser of a race reads the order again. That ends: a status only moves forward.
        while True:
            async with self._units.autocommit() as unit:
                order = await unit.orders.get(refunded.order_id)
                if order.status is OrderStatus.PENDING_PAYMENT:
                    if await unit.refunds.is_requested(refunded.payment_id):
                        return RefundOutcome.KEPT  # it did not pay: its amount was wrong
                    raise PaymentNotHeardOfError(refunded.order_id, refunded.payment_id)
            is_whole = refunded.refunded_minor >= order.total_minor
            is_kept = order.status is not OrderStatus.AWAITING_SHIPMENT or order.payment_id != refunded.payment_id
            if is_kept or not is_whole:
                return RefundOutcome.KEPT
            try:
                await self._close(order)
            except ConsumedBeforeError:  # by another delivery of it, since the order was read
                return RefundOutcome.CONSUMED_BEFORE
            except StatusChangedError:
                continue
            return RefundOutcome.CLOSED

    async def _close(self, order: Order) -> None:
        origin = origin_of(events.REFUND_HANDLER_GROUP, self._clock, order)

        async def consume(unit: UnitOfWork) -> None:
            await require_first(unit.inbox, events.REFUND_HANDLER_GROUP, order.order_id, origin.at_ms)

        await self._close_order.close(order, ChangeReason.REFUNDED, origin, first=consume)
