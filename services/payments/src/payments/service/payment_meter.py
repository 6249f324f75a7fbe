"""Paying an order, and what metrics and traces say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import telemetry
from payments.domain.payment import Payment
from payments.domain.refund import Refund

# ----------------------------------------------------------------------------------------------------------------------
# The port to whoever counts what happens to payments; the database, and not a counter, is what decides anything.


class PaymentMeter(Protocol):
    """Told once for each change that this process has made, after it was committed."""

    def settled(self, payment: Payment, now_ms: int) -> None:
        """The payment was captured or declined; `now_ms` is when this was written down."""

    def refunded(self, refund: Refund) -> None:
        """The refund's money went back."""


class NotMetered:
    """Implements `PaymentMeter`: nobody counts."""

    def settled(self, payment: Payment, now_ms: int) -> None:
        """Forget it."""

    def refunded(self, refund: Refund) -> None:
        """Forget it."""


NOT_METERED = NotMetered()


# ----------------------------------------------------------------------------------------------------------------------
# The trace of a payment is that of its order: whoever moves its money, and whenever, does so in the order's trace.
#
# A request to pay has a trace of its own, its caller's. What it does to the payment is a span in the order's trace,
# linked with the request's; so is what the resumer does by itself, which belongs to no request.


@contextmanager
def in_trace_of(payment: Payment, what: str, refund: Refund | None = None) -> Iterator[None]:
    """What is done inside is the span `what` in the order's trace; of an order without one, in the current trace."""
    attributes = {telemetry.names.ORDER_ID: payment.order_id, telemetry.names.PAYMENT_ID: payment.payment_id}
    if refund is not None:
        attributes[telemetry.names.REFUND_ID] = refund.refund_id
    with telemetry.joined_span(what, payment.traceparent, attributes=attributes):
        yield
