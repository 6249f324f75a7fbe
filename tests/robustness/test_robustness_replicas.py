"""Master and slave on a simulated network, under random histories of everything that may happen to them (figure G6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replica_histories import PARTS, run_part


@pytest.mark.mechanism("H6")
@pytest.mark.parametrize("part", range(PARTS // 2))
def test_replicas_keep_their_promises_in_every_history(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    """The other half is in test_robustness_replicas_too.py, so that two workers share them."""
    record_property("figure", run_part(part))
