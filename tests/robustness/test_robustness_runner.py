"""The runner shares the time, hands out each seed once, and tells what it found and how to see it again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from ledger import Ledger
from runner import main, parse_seeds
from sweep import Outcome
from sweeps import SWEEPS
from worker import Worker

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sweep:
    """One that does nothing."""

    name: str
    share: int
    figure: str = "G0"
    unit: str = "tries"
    goal: int = 10

    def run(self, seed: int, deadline: float) -> Outcome:
        return Outcome(seed)


def test_seeds_are_numbers_and_ranges() -> None:
    assert parse_seeds("1-3,17") == [1, 2, 3, 17]
    with pytest.raises(ValueError, match="invalid literal"):
        parse_seeds("a few")


def test_time_goes_to_the_sweeps_by_their_shares_also_while_slices_run() -> None:
    ledger = Ledger([Sweep("much", 30), Sweep("little", 10)], None)
    turns = []
    for _ in range(40):
        names = [ledger.choose(1.0), ledger.choose(1.0)]
        for name in names:
            assert name is not None
            seed = ledger.take_seed(name)
            assert seed is not None
            ledger.record(name, seed, Outcome(1), time.monotonic() - 1.0)
            ledger.give_back(name, 1.0)
            turns.append(name)
    assert turns.count("much") == 60
    assert ledger.accounts["much"].seeds == list(range(1, 61))


def test_given_seeds_are_run_once_and_then_there_is_no_work() -> None:
    ledger = Ledger([Sweep("one", 1)], [5, 7])
    assert [ledger.choose(1.0), ledger.take_seed("one"), ledger.take_seed("one")] == ["one", 5, 7]
    assert (ledger.choose(1.0), ledger.take_seed("one")) == (None, None)


def test_violations_are_kept_with_their_seeds() -> None:
    ledger = Ledger([Sweep("one", 1)], None)
    ledger.record("one", 3, Outcome(9, counts={"a": 2}), time.monotonic())
    failed = [ledger.failed]
    ledger.record("one", 4, Outcome(1, ("lost",), {"a": 1}), time.monotonic())
    assert [*failed, ledger.failed] == [False, True]
    document = ledger.accounts["one"].to_json()
    assert (document["executed"], document["seeds_from"], document["seeds_to"]) == (10, 3, 4)
    assert (document["violations"], document["counts"]) == ([{"seed": 4, "what": "lost"}], {"a": 3})


def test_a_worker_that_dies_is_a_violation() -> None:
    worker = Worker("fuzz")
    worker.kill()
    outcome = worker.run(1, time.monotonic() + 10)
    worker.close()
    assert outcome.violations == ("its process died with code -9",)


def test_a_replay_runs_in_a_process_of_its_own_as_a_run_does(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SWEEPS, "fuzz", None)  # what is loaded here may make another history of a seed
    assert main(["--replay", "fuzz", "1"]) == 0
    assert capfd.readouterr().out.startswith("fuzz seed 1: 10,000 ")


def test_the_command_runs_seeds_and_writes_what_it_did(tmp_path: Path) -> None:
    out = tmp_path / "robustness.json"
    command = [sys.executable, str(HERE / "runner.py"), "--only", "fuzz", "--seeds", "1-2", "--out", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    document = json.loads(out.read_text())
    assert document["sweeps"].keys() == {"fuzz"}
    fuzz = document["sweeps"]["fuzz"]
    assert (fuzz["executed"], fuzz["seeds_from"], fuzz["seeds_to"], fuzz["violations"]) == (20_000, 1, 2, [])
    assert document.keys() >= {"commit", "dirty", "machine", "time", "duration_s"}


def test_the_readme_tells_every_sweep() -> None:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for sweep in SWEEPS.values():
        assert f"| {sweep.figure} | `{sweep.name}` |" in text
