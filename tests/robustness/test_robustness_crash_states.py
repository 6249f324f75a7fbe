"""Figure G1: power cuts and kills at the I/O boundaries of random lives; nothing acknowledged is lost, nothing comes
back.

The sweep goes on from here with more seeds: crash_states.py says how to see one state again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from crash_states import DEEP, CrashReport, Place, explore, replay

from mq_broker.store.commit_log import SegmentFiles
from mq_broker.store.message_store import FlushDiskType
from osenv import SimDisk

STATES = 1_000


def show(report: CrashReport) -> None:
    print(report)
    assert not report.violations, "\n".join(map(str, report.violations))


@pytest.mark.parametrize("seed", [1, 2])
def test_every_power_cut_leaves_what_was_acknowledged(seed: int) -> None:
    report = explore(seed, STATES)
    show(report)
    assert report.states >= STATES
    assert report.inside_recovery > STATES // 5
    assert report.recoveries >= 1.5 * report.states  # equal states are recovered once


def test_under_async_flush_only_what_was_not_flushed_is_lost() -> None:
    report = explore(5, STATES, flush=FlushDiskType.ASYNC_FLUSH)
    show(report)
    assert report.states >= STATES


def test_all_subsets_at_some_boundaries() -> None:
    report = explore(6, STATES // 2, sampling=DEEP)
    show(report)
    assert report.states >= STATES // 2


def test_a_run_is_repeated_from_its_seed() -> None:
    first, second = explore(7, 60), explore(7, 60)
    assert (first.states, first.repeated, first.boundaries) == (second.states, second.repeated, second.boundaries)


def nothing(*_: object) -> None:
    """Instead of what a store must not forget."""


def no_sync(*_: object) -> Callable[[], None]:
    return nothing


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        pytest.param(SegmentFiles, "take_sync", no_sync, id="acknowledges-without-a-sync"),
        pytest.param(SimDisk, "sync_dir", nothing, id="never-syncs-a-folder"),
        pytest.param(SegmentFiles, "distrust", nothing, id="trusts-the-page-cache-of-a-dead-process"),
        pytest.param(SegmentFiles, "cut", nothing, id="does-not-cut-a-torn-tail"),
    ],
)
def test_a_store_that_forgets_its_duty_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, broken)
    report = explore(11, 4 * STATES, violations_max=1)
    assert len(report.violations) == 1, f"{name} does nothing, unnoticed"
    place = report.violations[0].place
    assert replay(place).violations[0].place == place
    print(report.violations[0])


def test_a_replay_of_a_sound_state_finds_nothing() -> None:
    assert explore(8, 50).violations == []
    assert replay(Place("wide", 8, 0, 0, 1, 0)).violations == []
