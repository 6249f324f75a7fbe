"""The other half of the histories of test_robustness_replicas.py: two files, so that two workers share them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replica_histories import PARTS, run_part


@pytest.mark.parametrize("part", range(PARTS // 2, PARTS))
def test_replicas_keep_their_promises_in_every_history(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("figure", run_part(part))
