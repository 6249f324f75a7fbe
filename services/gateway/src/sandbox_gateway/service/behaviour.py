"""How the gateway behaves: how long it takes, what it declines, and which failures are set now."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox_gateway.domain.charge import ChargeTerms
from sandbox_gateway.domain.failures import BANK_REFUSED, NO_FAILURES, OVER_THE_LIMIT, Delivery, Failures
from sandbox_gateway.domain.webhook import Event

# Far above any order, and so low that the book's sums stay within 64 bits.
DECLINES_ABOVE_DEFAULT_MINOR = 10**12


@dataclass(slots=True)
class Behaviour:
    """Only `failures` changes while the gateway runs; it holds for whatever is decided from then on."""

    delay_ms: int = 50
    declines_above_minor: int = DECLINES_ABOVE_DEFAULT_MINOR
    seed: int = 1
    failures: Failures = NO_FAILURES

    def decline_reason(self, terms: ChargeTerms) -> str | None:
        """Why the charge is declined; None if its money is taken."""
        if terms.amount_minor > self.declines_above_minor:
            return OVER_THE_LIMIT
        return BANK_REFUSED if self.failures.declines(self.seed, terms.charge_id) else None

    def delivery(self, event: Event) -> Delivery:
        """How the event is told."""
        return self.failures.delivery(self.seed, event.charge_id, event.event_id)
