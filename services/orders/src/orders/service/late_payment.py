"""What orders asks payments before it closes an order that a payment has held: the news of its capture may be late.

Only such orders are asked about, because nothing is captured without a hold (ADR 122). A payment that has captured the
order's money pays for it now, and its message finds it paid.
"""

from __future__ import annotations

import enum

import structlog

from orders.domain.order import Order
from orders.domain.payment import Payment
from orders.service.accept_payment import AcceptPayment, PaymentOutcome
from orders.service.payment_desk import IN_PROGRESS, PaymentDesk
from orders.service.shop_errors import PaymentRefusedError, PaymentsUnavailableError
from servicekit.auth import PAYMENTS_READ, Caller

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
    """Asks payments, for the order's buyer and inside no unit of work."""

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
        except (PaymentsUnavailableError, PaymentRefusedError) as error:
            if isinstance(error, PaymentRefusedError) and error.problem == UNKNOWN_PAYMENT:
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
