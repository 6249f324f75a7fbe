"""Answers that are lost: 250 runs of the production client and broker, and a broker that forgets is seen."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import pytest
from repeats import RepeatSweep, explore

from mq_broker.core.producer_sequences import ProducerSequences

RUNS = 250


def test_no_message_is_lost_or_doubled_when_its_answer_is_lost() -> None:
    outcome = explore(1, RUNS, math.inf)
    assert outcome.violations == (), "again: .venv/bin/python tests/robustness/runner.py --replay repeats SEED"
    assert outcome.executed == RUNS
    accidents = {name: count for name, count in outcome.counts.items() if name != "messages"}
    assert len(accidents) == 5, accidents  # each kind has happened
    assert sum(accidents.values()) > outcome.executed // 2


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        ("stored_before", lambda self, batch_sequence, topic, queue_id, count: []),
        ("recovered_run", lambda self, sender, run, store_ms: None),
    ],
    ids=["a broker that recognises nothing", "a broker that reads nothing from its log"],
)
def test_a_broker_that_forgets_is_seen(
    monkeypatch: pytest.MonkeyPatch, method: str, broken: Callable[..., object]
) -> None:
    monkeypatch.setattr(ProducerSequences, method, broken)
    outcome = explore(1, 100, math.inf)
    assert any("stands there 2 times" in violation for violation in outcome.violations)


def test_a_seed_of_the_sweep_is_a_hundred_runs_and_its_counts_travel_as_json() -> None:
    outcome = RepeatSweep().run(12, math.inf)
    assert (outcome.executed, outcome.violations) == (100, ())
    assert json.loads(json.dumps(dataclasses.asdict(outcome)))["counts"] == outcome.counts
    assert RepeatSweep().run(12, 0.0).executed == 0  # the deadline was over before the first
