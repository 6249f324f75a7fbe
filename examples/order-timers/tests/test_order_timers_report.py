"""The command, and what is kept of it: docs/evidence/order-timers.json, and the output in README.md."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from order_timers import comparison
from order_timers.__main__ import main
from order_timers.comparison import POLLER_AT_30, Comparison, LastSeat, Scanned, show
from order_timers.designs import DELAY_QUEUE, DESIGNS, POLLER
from order_timers.order_book import Outcome
from order_timers.scenarios import CALM, SCENARIOS, Workload
from order_timers.simulation import simulate

ROOT = Path(__file__).parents[3]
EVIDENCE = json.loads((ROOT / "docs" / "evidence" / "order-timers.json").read_text(encoding="utf-8"))
README = (ROOT / "examples" / "order-timers" / "README.md").read_text(encoding="utf-8")


def kept() -> Comparison:
    return Comparison(
        Workload(**EVIDENCE["workload"]),
        Scanned(**EVIDENCE["forty_five_minutes"]),
        [LastSeat(**seat) for seat in EVIDENCE["last_seat"]],
        [Outcome(**outcome) for outcome in EVIDENCE["outcomes"]],
    )


def test_the_evidence_has_every_design_in_every_scenario() -> None:
    wanted = {
        (design.name, scenario.name)
        for scenario in SCENARIOS
        for design in DESIGNS
        if design.needs_queue or not scenario.needs_queue
    }
    assert {(outcome.design, outcome.scenario) for outcome in kept().outcomes} == wanted
    assert kept().document() == EVIDENCE


@pytest.mark.parametrize("design", [design for design in DESIGNS if not design.needs_queue], ids=lambda one: one.name)
async def test_the_evidence_is_what_the_simulation_says(design: Any) -> None:
    """All but the runs with a broker, which take seconds; test_order_timers_comparison plays some of them."""
    workload = Workload(**EVIDENCE["workload"])
    scenarios = [scenario for scenario in SCENARIOS if not scenario.needs_queue]
    played = [await simulate(design, scenario, workload) for scenario in scenarios]
    assert played == [outcome for outcome in kept().outcomes if outcome.design == design.name]


@pytest.mark.mechanism("X4")
def test_the_readme_shows_the_evidence() -> None:
    shown = io.StringIO()
    show(kept(), Console(file=shown, width=120))
    for line in shown.getvalue().splitlines():
        assert line.rstrip() in README.splitlines(), line


@pytest.fixture
def short_comparison(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two designs in one scenario, for the options of the command."""
    monkeypatch.setattr(comparison, "DESIGNS", (POLLER, DELAY_QUEUE))
    monkeypatch.setattr(comparison, "SCENARIOS", (CALM,))
    monkeypatch.setattr(comparison, "SEAT_DESIGNS", (POLLER_AT_30,))
    monkeypatch.setattr("order_timers.comparison.SCENARIOS", (CALM,))
    return ["--orders", "5", "--minutes", "2"]


def test_the_command_prints_tables_and_writes_its_document(
    short_comparison: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*short_comparison, "--out", str(tmp_path / "out.json")]) == 0
    assert "An order of 45 minutes, a scan every minute: read 45 times, 44 of them in vain." in capsys.readouterr().out
    document = json.loads((tmp_path / "out.json").read_text())
    assert [(one["design"], one["orders"]) for one in document["outcomes"]] == [("poller, 60 s", 5), ("delay queue", 5)]


def test_the_command_prints_its_document_as_json(
    short_comparison: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*short_comparison, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workload"]["orders"] == 5


def test_a_file_that_cannot_be_written_ends_with_1(
    short_comparison: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*short_comparison, "--out", str(tmp_path / "nowhere" / "out.json")]) == 1
    assert "could not be written" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_number_that_makes_no_sense_is_wrong_usage(value: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--orders", value])
