"""What happens to payments, as OpenTelemetry metrics."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Observation

import telemetry
from osenv import Clock
from payments.domain.payment import Payment
from payments.domain.payment_status import PaymentStatus
from payments.domain.refund import Refund
from payments.service.resumer import Resumer
from payments.service.unit_of_work import Units
from servicekit.background import StoredGauge

# A gateway decides at once, or tells by a webhook after a moment, or is asked when it has been silent.
SETTLEMENT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class OtelPaymentMeter:
    """Implements `PaymentMeter`."""

    def __init__(self) -> None:
        meter = telemetry.meter("payments")
        self._succeeded = meter.create_counter(
            "hourglass.payments.succeeded", unit="{payment}", description="payments that were captured"
        )
        self._failed = meter.create_counter(
            "hourglass.payments.failed", unit="{payment}", description="payments that were declined"
        )
        self._refunded = meter.create_counter(
            "hourglass.payments.refunded", unit="{refund}", description="refunds that were made, parts too"
        )
        self._duration = meter.create_histogram(
            "hourglass.payments.settlement.duration",
            unit="s",
            description="from the intent to pay to its end, captured or declined",
            explicit_bucket_boundaries_advisory=SETTLEMENT_BOUNDS_S,
        )

    def settled(self, payment: Payment, now_ms: int) -> None:
        (self._failed if payment.status is PaymentStatus.DECLINED else self._succeeded).add(1)
        self._duration.record(max(now_ms - payment.created_at_ms, 0) / 1000)

    def refunded(self, refund: Refund) -> None:
        self._refunded.add(1)


def failed_refunds(units: Units, clock: Clock) -> StoredGauge:
    """The gauge of refunds that the gateway has refused."""

    async def read() -> dict[str, int]:
        async with units.reading() as unit:
            return {"failed": await unit.refunds.count_failed()}

    return StoredGauge(
        "hourglass.refunds.failed", read, clock, unit="{refund}", description="refunds that the gateway has refused"
    )


def unfinished(resumer: Resumer) -> None:
    """The gauge of payments and refunds about which the gateway could not be asked."""

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(resumer.left)

    telemetry.meter("payments").create_observable_gauge(
        "hourglass.payments.unfinished",
        [observe],
        unit="{payment}",
        description="payments and refunds about which the gateway could not be asked",
    )


def outbox_waiting(units: Units, clock: Clock) -> StoredGauge:
    """The gauge of messages that wait for the queue."""

    async def read() -> dict[str, int]:
        async with units.reading() as unit:
            return {"waiting": await unit.outbox.count()}

    return StoredGauge(
        "hourglass.outbox.waiting", read, clock, unit="{message}", description="messages that wait for the queue"
    )
