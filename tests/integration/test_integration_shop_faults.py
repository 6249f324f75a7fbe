"""Broker, orders, payments and gateway are killed and paused while orders are placed, paid, closed, shipped, refunded
(docs/reference/faults.md#application): tests/robustness/shop_rounds.py, a short round on SQLite, in which nothing is
away for long.

HOURGLASS_SEEDS=17 plays seed 17 instead of the usual one, HOURGLASS_SEEDS=1-100 a hundred of them. With PostgreSQL and
more orders it is tests/robustness/test_system_shop_faults.py.
"""

from __future__ import annotations

import os

import pytest
from runner import parse_seeds
from shop_plan import Deed
from shop_rounds import play, victims

USUAL_SEEDS = "1"
ORDERS = 80

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", parse_seeds(os.environ.get("HOURGLASS_SEEDS", USUAL_SEEDS)))
def test_shop_survives_what_is_done_to_its_processes(seed: int) -> None:
    outcome = play(seed, ORDERS, postgresql=False, long_outages=0)
    assert outcome.violations == (), f"again: HOURGLASS_SEEDS={seed} .venv/bin/python -m pytest {__file__}"
    assert outcome.executed == ORDERS
    for victim in victims(postgresql=False):
        for deed in Deed:
            assert outcome.counts[f"{deed.value} of {victim}"] >= 1
