"""Figure G13 in small: 300 hostile clients beside well-behaved ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from budget import run_budget, run_shop_budget

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", [1, 2])
async def test_hostile_clients_cost_the_documented_memory_and_delay_no_others(tmp_path: Path, seed: int) -> None:
    outcome = await run_budget(tmp_path, seed, 100)
    assert outcome.violations == (), f"{outcome.counts}; again: the sweep `budget`, see README.md"
    assert outcome.counts["sends"] > 300


async def test_hostile_http_clients_cost_the_documented_memory_and_delay_no_buyer(tmp_path: Path) -> None:
    outcome = await run_shop_budget(tmp_path, 3, 100)
    assert outcome.violations == (), f"{outcome.counts}; again: the sweep `budget`, see README.md"
    assert outcome.counts["sends"] > 200
