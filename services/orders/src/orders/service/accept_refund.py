"""Money has gone back: an order that has none left, and waits for its shipment, is closed.

Invariants: of a refund and a shipping exactly one gets the order, by compare-and-set; what is on its way or with its
buyer stays as it is, because money that goes back then is between the buyer and the operator.
"""

from __future__ import annotations

import enum

from orders.domain.errors import PaymentNotHeardOfError, StatusChangedError
from orders.domain.order import Order
from orders.domain.order_status import ChangeReason, OrderStatus
from orders.domain.payment import RefundedPayment
from orders.service import events
from orders.service.close_order import CloseOrder
from orders.service.order_access import origin_of
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock
from servicekit.errors import ConsumedBeforeError
from servicekit.inbox import require_first


class RefundOutcome(enum.Enum):
    """What became of an order whose money went back."""

    CLOSED = "closed"
    KEPT = "kept"  # money of it is left, it is on its way, or another payment has paid it
    CONSUMED_BEFORE = "consumed before"


class AcceptRefund:
    """The use case behind `payment-events`/`refunded`."""

    def __init__(self, units: Units, close_order: CloseOrder, clock: Clock) -> None:
        self._units = units
        self._close_order = close_order
        self._clock = clock

    async def __call__(self, refunded: RefundedPayment) -> RefundOutcome:
        """Close the order if this has been all of its money; calling it again is harmless.

        Raises UnknownOrderError, PaymentNotHeardOfError, PublishError, TransactionGivenUpError and
        StorageUnavailableError; the message must then be delivered again.
        """
        # Whoever lost the order reads it again. That ends: a status only moves forward.
        while True:
            async with self._units.looking() as unit:
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
