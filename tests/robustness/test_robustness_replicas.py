"""Master and replica on a simulated network, under random histories of everything that may happen to them (figure
G6).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replica_histories import run_sample


@pytest.mark.mechanism("H6")
@pytest.mark.timeout(600)
def test_replicas_keep_their_promises_in_every_history(record_property: Callable[[str, object], None]) -> None:
    record_property("figure", run_sample())
