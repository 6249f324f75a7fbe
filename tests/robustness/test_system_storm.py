"""Figure G15: storms on a replicated pair, more of them than in `make test`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from histories import executed
from runner import replay_command
from storm_histories import STORM_SWEEP
from worker import Worker

SEEDS = range(3, 11)  # `make test` has those before


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A process where a seed is the same storm each time."""
    process = Worker(STORM_SWEEP.name)
    yield process
    process.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_pair_and_its_clients_keep_their_promises_in_the_storm(
    worker: Worker, seed: int, record_property: Callable[[str, object], None]
) -> None:
    outcome = worker.run(seed, time.monotonic() + 200)
    assert outcome.violations == (), f"again: {replay_command(STORM_SWEEP.name, seed)}"
    assert outcome.counts["consumed"] > 0
    record_property("figure", f"storm {seed}: {executed(Counter(outcome.counts))}")
