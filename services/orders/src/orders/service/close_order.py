"""Closing an order: its buyer or its seller cancelled it, or its time to pay is over.

Invariants: an order is closed once, by whoever changes its status first; in the same unit of work its units go back on
sale and, if it was paid, its money is asked back; `closed` and `refund-requested` are told exactly for what was
committed. No order is expired before expires_at_ms. The money of an order that closes because it was refunded is back
already, and is not asked for. An order that a payment holds is not closed, by nobody: the money may have been taken.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

from orders.domain.errors import StatusChangedError, UnknownOrderError
from orders.domain.order import Order
from orders.domain.order_status import ChangeReason, OrderStatus
from orders.domain.payment import RefundReason, RefundRequest
from orders.domain.payment_hold import DEFAULT_HOLD_LIMITS, HoldLimits
from orders.domain.status_change import Origin
from orders.service import events
from orders.service.asked_change import Command
from orders.service.late_payment import LatePayment, not_asked
from orders.service.order_access import origin_of, require_buyer
from orders.service.order_meter import NOT_METERED, OrderMeter
from orders.service.order_trace import in_trace_of
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock
from servicekit.auth import ORDERS_SHIP, Caller
from servicekit.errors import ConsumedBeforeError
from servicekit.inbox import require_first
from servicekit.transactions import TransactionalPublisher

CANCEL = "cancel order"


class ExpiryOutcome(enum.Enum):
    """What became of an order whose timeout arrived."""

    CLOSED = "closed"
    TOO_EARLY = "too early"
    HELD = "held by a payment in progress"
    ALREADY_DECIDED = "already decided"
    UNKNOWN_ORDER = "unknown order"


async def _go_on(_unit: UnitOfWork) -> None:
    """Nothing comes first."""


class CloseOrder:
    """The use cases behind POST /orders/{id}/cancel and behind the timeout message."""

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

        A buyer cancels until the order is paid, a seller until it is shipped; the money of a paid order goes back. Who
        has cancelled the order before is answered as then.
        Raises UnknownOrderError, VersionMismatchError, IllegalTransitionError, OrderHeldError, StatusChangedError,
        PublishError, TransactionGivenUpError, StorageUnavailableError.
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
        async with self._units.looking() as unit:
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
            put_back = unit.products.release if payment is None else unit.products.take_back
            for line in order.lines_by_product():
                await put_back(line.product_id, line.quantity)

        messages = [events.closed(closed_order, change)]
        if refund is not None:
            messages.append(events.refund_requested(refund))
        await self._transactions.publish_all(messages, write)
        self._meter.changed(closed_order, change)
        return closed_order
