"""Transactions under random histories, with a crash in every gap of the protocol (figure G19)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transaction_database import ShopDatabase
from transaction_histories import TransactionHistory, run_sample
from transaction_world import TransactionWorld

from mq_broker.store.message_store import FlushDiskType


@pytest.mark.mechanism("T1")
@pytest.mark.timeout(600)
def test_a_message_is_visible_if_and_only_if_its_local_transaction_committed(
    record_property: Callable[[str, object], None],
) -> None:
    record_property("figure", run_sample())


def test_a_history_ends_with_the_violation_of_its_step_and_not_with_what_that_leads_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fail(world: TransactionWorld, *_: object) -> None:
        raise AssertionError("of the step")

    async def unsettled(world: TransactionWorld) -> None:
        raise AssertionError("of the end")

    monkeypatch.setattr(TransactionWorld, "advance", fail)
    monkeypatch.setattr(TransactionWorld, "finish", unsettled)
    monkeypatch.setattr(TransactionHistory, "database", ShopDatabase(tmp_path / "shop.db"), raising=False)
    history = TransactionHistory()
    history.open(flush=FlushDiskType.SYNC_FLUSH, seed=1)
    with pytest.raises(AssertionError, match="of the step"):
        history.advance(1.0)
    history.teardown()
