"""Figure G4: every call of the disk fails, with every error, once and for ever;
the broker says so, and loses nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from fault_life import LAYOUT, SYNCS, Fault
from fault_sites import Seen, unreached
from fault_sweep import SCENARIOS, Run, SweepReport, recorded, sample, seen_in, sweep, syncs_of

from mq_broker.store.durability import Copies, Flusher
from mq_broker.store.message_store import MessageStore

SEED = 1
PARTS = 3  # of the longest scenario


def check(runs: list[Run]) -> SweepReport:
    report = sweep(runs)
    print(report)
    assert report.runs == len(runs) > 0
    assert not report.violations, "\n".join(map(str, report.violations[:20]))
    return report


@pytest.mark.parametrize("part", range(PARTS))
def test_a_new_store_on_a_failing_disk(part: int) -> None:
    report = check(sample(SEED)["new"][part::PARTS])
    assert report.rejected_starts
    assert report.fenced


def test_a_store_after_a_crash_on_a_failing_disk() -> None:
    report = check(sample(SEED)["crashed"])
    assert report.rejected_starts


def test_a_store_that_is_rebuilt_on_a_failing_disk() -> None:
    check(sample(SEED)["rebuilt"])


def test_a_store_that_is_cut_on_a_failing_disk() -> None:
    report = check(sample(SEED)["cut"])
    assert report.rejected_starts


def test_a_look_into_a_store_on_a_failing_disk() -> None:
    assert check(sample(SEED)["tools"]).rejected_looks


def test_every_place_that_calls_the_disk_is_reached() -> None:
    seen: set[Seen] = {place for name in SCENARIOS for place in recorded(name) if place is not None}
    only_after_a_failure = unreached(seen)
    runs = [run for seed in (SEED, SEED + 1) for run in sample(seed)["new"]]
    seen |= seen_in([run for run in runs if run.fault.mode == "DEAD" or is_cleaned_up(run)])
    print(f"{len(seen)} places; only after a failure: {', '.join(map(str, only_after_a_failure)) or 'none'}")
    assert [str(site) for site in unreached(seen)] == []


def is_cleaned_up(run: Run) -> bool:
    """Whether the disk still takes what is done after this failure: a run that could not be written is removed."""
    place = recorded(run.scenario)[run.fault.number]
    return run.fault.mode == "ONCE" and place is not None and place.file == "schedule/timer_runs.py"


def places_that_fail() -> set[Seen]:
    runs = [run for runs in sample(SEED).values() for run in runs]
    return {place for run in runs if (place := recorded(run.scenario)[run.fault.number]) is not None}


def test_every_place_that_is_reached_without_a_failure_fails_in_turn() -> None:
    assert {place for name in SCENARIOS for place in recorded(name)} - {None} == places_that_fail()


def failed_log_syncs() -> list[Run]:
    """Each sync of the log fails once: those of consume queues and snapshots come from the same line."""
    return [Run("new", Fault(number, "EIO", "ONCE")) for number in syncs_of("new", LAYOUT.commit_log)]


def forgive(self: Any, error: OSError) -> None:
    """Instead of a fence."""


def test_a_store_that_shrugs_off_a_failed_sync_of_the_log_is_found_out_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = failed_log_syncs()
    monkeypatch.setattr(Flusher, "stop", forgive)
    assert {violation.run for violation in sweep(runs).violations} == set(runs) != set()


def test_a_store_that_shrugs_off_other_failed_syncs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    once = [run for run in sample(SEED)["new"] if run.fault.kind == "EIO" and run.fault.mode == "ONCE"]
    syncs = [run for run in once if (place := recorded("new")[run.fault.number]) and place.method in SYNCS]
    monkeypatch.setattr(MessageStore, "fence", forgive)
    assert sweep(syncs).violations


def test_a_store_that_answers_before_the_sync_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: MessageStore, end: int) -> Copies:
        """No wait for the disk."""
        return await self.confirmation.wait(end, self.confirmation.deadline())

    runs = failed_log_syncs()
    monkeypatch.setattr(MessageStore, "wait_stored", at_once)
    assert any("missing" in violation.text for violation in sweep(runs).violations)
