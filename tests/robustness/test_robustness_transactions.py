"""Transactions under random histories, with a crash in every gap of the protocol (issue 7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transaction_histories import PARTS, run_part


@pytest.mark.parametrize("part", range(PARTS))
def test_a_message_is_visible_if_and_only_if_its_local_transaction_committed(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("figure", run_part(part))
