"""Two instances of orders and of payments, a pair of brokers and PostgreSQL, and outages longer than every time-out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shop_plan import BROKER, GATEWAY, POSTGRESQL, REPLICA, Deed
from shop_rounds import ROUND_ORDERS, play

SEED = 1
OUTAGES = [
    (Deed.KILL, (POSTGRESQL,)),
    (Deed.KILL, (GATEWAY,)),
    (Deed.KILL, (BROKER, REPLICA)),
]

pytestmark = [pytest.mark.needs("postgresql"), pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.mark.mechanism("X3", "U4")
def test_outages_longer_than_every_time_out_are_settled_without_an_operator(
    record_property: Callable[[str, object], None],
) -> None:
    """Afterwards every invariant holds, nothing is parked or dead, and all are ready; one orders is 400 s ahead."""
    outcome = play(SEED, ROUND_ORDERS, postgresql=True, outages=OUTAGES)
    figures = ", ".join(f"{count} {name}" for name, count in sorted(outcome.counts.items()))
    record_property("figure", f"outages: {figures}")
    assert outcome.violations == ()
    assert outcome.executed == ROUND_ORDERS
    happened = {name for name, count in outcome.counts.items() if count}
    away = [name for _, victims in OUTAGES for name in victims]
    assert {f"long kill -9 of {name}" for name in away} <= happened, figures
    assert {f"captured before {name} went" for name in away} <= happened, figures
    assert {f"captured without {name}" for name in away if name != GATEWAY} <= happened, figures
    assert {f"expired and closed without {name}" for name in away} <= happened, figures
    assert {"orders AWAITING_SHIPMENT", "orders COMPLETED", "orders CLOSED"} <= happened, figures
