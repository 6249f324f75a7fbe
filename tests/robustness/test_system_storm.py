"""G15: storms on a replicated pair, more of them than in `make test`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from histories import executed
from storm_histories import run_histories

SEEDS = range(4, 12)  # `make test` has those before


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_pair_and_its_clients_keep_their_promises_in_the_storm(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    ran = run_histories(1, seed)
    assert ran["consumed"] > ran["sent: SEND_OK"]
    record_property("figure", f"storm {seed}: {executed(ran)}")
