"""The broker's process dies between two opcodes of its store: what was acknowledged is there at the next start."""

from __future__ import annotations

import gc

import pytest
from opcode_kills import count_opcodes, kill_at

from osenv import SeededRng

KILLS = 50


# What a killed process leaves behind has coroutines that are not awaited.
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_death_at_any_opcode_loses_nothing_acknowledged(seed: int) -> None:
    total, rng = count_opcodes(seed), SeededRng(seed)
    assert total > 5_000
    places = {kill_at(seed, rng.randrange(1, total + 1)) for _ in range(KILLS)}
    print(f"{KILLS} of {total:,} opcodes, in {len(places)} lines of {len({p.split(':')[0] for p in places})} files")
    assert len(places) > KILLS // 2
    gc.collect()  # here, and not in the next test
