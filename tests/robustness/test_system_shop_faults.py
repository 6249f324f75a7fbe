"""Figure G10: 200 orders while orders, payments, gateway, broker and PostgreSQL are killed and paused
(shop_rounds.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from shop_plan import Deed
from shop_rounds import ROUND_ORDERS, play, victims

SEED = 1

pytestmark = [pytest.mark.needs("postgresql"), pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.mark.mechanism("X3", "U4")
def test_200_orders_under_faults_end_as_clients_were_told(record_property: Callable[[str, object], None]) -> None:
    outcome = play(SEED, ROUND_ORDERS, postgresql=True)
    assert outcome.violations == (), f"again: .venv/bin/python tests/robustness/runner.py --replay shop {SEED}"
    assert outcome.executed == ROUND_ORDERS
    for victim in victims(postgresql=True):
        for deed in Deed:
            assert outcome.counts[f"{deed.value} of {victim}"] >= 1
    met = Counter({name: count for name, count in outcome.counts.items() if count})
    for status in ("AWAITING_SHIPMENT", "COMPLETED", "CLOSED"):
        assert met[f"orders {status}"], met
    for status in ("CAPTURED", "DECLINED", "PARTIALLY_REFUNDED", "REFUNDED"):
        assert met[f"payments {status}"], met
    figures = ", ".join(f"{count} {name}" for name, count in sorted(met.items()))
    record_property("figure", f"G10: {figures}")
