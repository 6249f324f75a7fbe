"""Messages that wait, under random histories of everything that may happen to their broker (issue 7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from delay_histories import PARTS, run_part


@pytest.mark.parametrize("part", range(PARTS))
def test_delays_keep_their_promises_in_every_history(part: int, record_property: Callable[[str, object], None]) -> None:
    record_property("figure", run_part(part))
