"""Money has arrived: the order is paid, or the money goes back.

Invariants: a payment that is delivered again changes nothing, by the inbox; of a payment and a closing exactly one gets
the order, by compare-and-set; the payment that lost is refunded exactly once, by the primary key of its refund request.
"""

from __future__ import annotations

import enum

from orders.domain.errors import RefundRequestedError, StatusChangedError
from orders.domain.order import Order, Payment, RefundReason, RefundRequest, Verdict, judge
from orders.service import events
from orders.service.order_access import NOT_METERED, OrderMeter, origin_of
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock
from servicekit.errors import ConsumedBeforeError
from servicekit.sql.units import TransactionalPublisher, require_first


class PaymentOutcome(enum.Enum):
    """What became of a payment."""

    PAID = "paid"
    PAID_BEFORE = "paid before"
    REFUND_REQUESTED = "refund requested"
    REFUND_REQUESTED_BEFORE = "refund requested before"
    CONSUMED_BEFORE = "consumed before"


class AcceptPayment:
    """The use case behind `payment-events`/`succeeded`."""

    def __init__(
        self,
        units: Units,
        transactions: TransactionalPublisher[UnitOfWork],
        clock: Clock,
        meter: OrderMeter = NOT_METERED,
    ) -> None:
        self._units = units
        self._transactions = transactions
        self._clock = clock
        self._meter = meter

    async def __call__(self, payment: Payment) -> PaymentOutcome:
        """Carry the payment's consequences out; calling it again is harmless.

        Raises UnknownOrderError (the order's own transaction may not be visible yet), PublishError,
        TransactionGivenUpError and StorageUnavailableError; the message must then be delivered again.
        """
        # Whoever lost the order reads it again. That ends: a status only moves forward.
        while True:
            async with self._units.looking() as unit:
                order = await unit.orders.get(payment.order_id)
                verdict = judge(order, payment)
                # Only such a payment can have been refused before: a verdict other than PAY is final.
                if isinstance(verdict, RefundReason) and await unit.refunds.is_requested(payment.payment_id):
                    return PaymentOutcome.REFUND_REQUESTED_BEFORE
            if verdict is Verdict.IGNORE:
                return PaymentOutcome.PAID_BEFORE
            try:
                if isinstance(verdict, RefundReason):
                    return await self._request_refund(RefundRequest(payment, verdict))
                return await self._pay(order, payment)
            except ConsumedBeforeError:  # by another delivery of it, since the order was read
                return PaymentOutcome.CONSUMED_BEFORE
            except StatusChangedError:
                continue

    async def _pay(self, order: Order, payment: Payment) -> PaymentOutcome:
        paid_order, change = order.paid(payment, origin_of(events.PAYMENT_HANDLER_GROUP, self._clock, order))

        async def write(unit: UnitOfWork) -> None:
            await _consume(unit, payment, change.at_ms)
            await unit.orders.change_status(paid_order, change)
            for line in order.lines_by_product():
                await unit.products.sell(line.product_id, line.quantity)

        await self._transactions.publish(events.paid(paid_order), write)
        self._meter.changed(paid_order, change)
        return PaymentOutcome.PAID

    async def _request_refund(self, refund: RefundRequest) -> PaymentOutcome:
        now_ms = self._clock.wall_ms()

        async def write(unit: UnitOfWork) -> None:
            await _consume(unit, refund.payment, now_ms)
            await unit.refunds.request(refund, now_ms)

        try:
            await self._transactions.publish(events.refund_requested(refund), write)
        except RefundRequestedError:
            return PaymentOutcome.REFUND_REQUESTED_BEFORE
        return PaymentOutcome.REFUND_REQUESTED


async def _consume(unit: UnitOfWork, payment: Payment, now_ms: int) -> None:
    """Raises ConsumedBeforeError.

    The key names order and payment: a payment that comes for another order is no repetition, and must not be taken for
    one. The database refuses it, and it ends where an operator finds it.
    """
    key = f"{payment.order_id}/{payment.payment_id}"
    await require_first(unit.inbox, events.PAYMENT_HANDLER_GROUP, key, now_ms)
