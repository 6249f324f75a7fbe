"""Captures on which orders has not acted: they are told again, and the money of a closed order goes back (ADR 120).

    order OPEN     `succeeded` was lost on its way, or the answer to it was: it is told again
    order CLOSED   nobody asked for the money, or the request was lost: it is told again, and the refund is made

Invariant: nothing is done here that a message would not do. Orders knows a payment by its id, and the refund of a
closed order is the one that orders would ask for, so that it is made once, whoever is first.
"""

from __future__ import annotations

from collections.abc import Mapping

from osenv import Clock
from payments.domain.gateway_event import PayableOrder, PayableStatus
from payments.domain.payment import Payment
from payments.domain.refund import WholeRefundRequest
from payments.service import events
from payments.service.payment_meter import in_trace_of
from payments.service.refund_payment import RefundPayment
from payments.service.unit_of_work import PageKey, PaymentFilter, Units
from servicekit.message import MessagePublisher
from servicekit.process.reconciler import Finding, Sweep

TELL_AGAIN = "tell again"  # the name of a span
ORDER_CLOSED = "order-closed"  # the reason that orders gives


class CapturesCheck:
    """Implements `Check`, over the payments from the newest to the oldest."""

    def __init__(
        self,
        units: Units,
        publisher: MessagePublisher,
        refund_payment: RefundPayment,
        clock: Clock,
        *,
        after_ms: int,
        window_ms: int | None,
    ) -> None:
        """A capture is looked at when it is `after_ms` old; payments older than `window_ms`, if it is set, are not."""
        self._units = units
        self._publisher = publisher
        self._refund_payment = refund_payment
        self._clock = clock
        self._after_ms = after_ms
        self._window_ms = window_ms
        self._sweep = Sweep(self._page)

    @property
    def has_more(self) -> bool:
        return self._sweep.has_more

    async def find(self, limit: int) -> list[Finding]:
        captured = [one for one in await self._sweep.next(limit) if self._is_settled(one)]
        async with self._units.reading() as unit:
            orders = await unit.payable_orders.find_all([one.order_id for one in captured])
        return [finding for one in captured if (finding := self._finding(one, orders)) is not None]

    async def _page(self, after: Payment | None, limit: int) -> list[Payment]:
        place = None if after is None else PageKey(after.created_at_ms, after.payment_id)
        async with self._units.reading() as unit:
            found = await unit.payments.page(PaymentFilter(), place, limit)
        since_ms = 0 if self._window_ms is None else self._clock.wall_ms() - self._window_ms
        return [one for one in found if one.created_at_ms >= since_ms]

    def _is_settled(self, payment: Payment) -> bool:
        """Whether money is here that nobody has asked back, and messages have had their time."""
        captured_at_ms = payment.captured_at_ms
        is_kept = captured_at_ms is not None and payment.refundable_minor > 0
        return is_kept and self._clock.wall_ms() - (captured_at_ms or 0) >= self._after_ms

    def _finding(self, payment: Payment, orders: Mapping[str, PayableOrder]) -> Finding | None:
        order = orders.get(payment.order_id)
        status = PayableStatus.OPEN if order is None else order.status
        if status is PayableStatus.PAID:
            return None
        which = f"payment {payment.payment_id} of order {payment.order_id} is {payment.status}"
        if status is PayableStatus.OPEN:
            return Finding(f"{which}, and the order neither paid nor closed: tell orders", lambda: self._tell(payment))
        return Finding(f"{which}, and the order closed: send the money back", lambda: self._send_back(payment))

    async def _tell(self, payment: Payment) -> bool:
        with in_trace_of(payment, TELL_AGAIN):
            await self._publisher.publish(events.succeeded(payment))
        return True

    async def _send_back(self, payment: Payment) -> bool:
        """Orders is told first, so that its books have the request too."""
        await self._tell(payment)
        await self._refund_payment(
            WholeRefundRequest(
                payment.order_id, payment.payment_id, payment.amount_minor, payment.currency, ORDER_CLOSED
            )
        )
        return True
