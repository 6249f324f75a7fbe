"""Consumer groups under random histories, and under members that come and go (figure G18)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from churn import churn
from group_histories import GroupHistory, run_sample
from group_model import InvariantError
from group_world import GroupWorld


@pytest.mark.mechanism("C20", "O2")
@pytest.mark.timeout(600)
def test_groups_keep_their_promises_in_every_history(record_property: Callable[[str, object], None]) -> None:
    record_property("figure", run_sample())


def test_a_history_ends_with_the_violation_of_its_step_and_not_with_what_that_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(world: GroupWorld, *_: object) -> None:
        raise InvariantError("of the step")

    async def unsettled(world: GroupWorld) -> None:
        raise InvariantError("of the end")

    monkeypatch.setattr(GroupWorld, "release", fail)
    monkeypatch.setattr(GroupWorld, "finish", unsettled)
    history = GroupHistory()
    with pytest.raises(InvariantError, match="of the step"):
        history.release()
    history.teardown()


@pytest.mark.mechanism("C13")
@pytest.mark.processes
async def test_members_that_come_and_go_leave_nothing_unconsumed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The short form of `churn.py`'s run of a minute."""
    report = await churn(tmp_path, members=4, rate=300, seconds=6.0, seed=1)
    record_property("figure", f"churn: {report}")
    assert (report.unconsumed, report.not_acknowledged) == (0, 0)
    assert report.sent >= 1_500
    assert report.consumed == report.sent
