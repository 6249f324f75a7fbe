"""Short loads of a whole shop with real processes: every order ends, and every invariant holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
INVARIANTS = len(list((ROOT / "tools/invariants/src/hourglass_invariants/sql").glob("*.sql")))
TIMEOUT_S = 400

pytestmark = [pytest.mark.system, pytest.mark.processes, pytest.mark.timeout(TIMEOUT_S + 20)]


def loaded(folder: Path, command: str, *options: str, **environment: str) -> dict[str, Any]:
    """What the report of this load says. It has gone well."""
    arguments = [sys.executable, "-m", "hourglass_loadtest", command, "--folder", str(folder), *options]
    run = subprocess.run(
        [*arguments, "--payment-window", "4s", "--out", str(folder / "evidence.json")],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert (folder / "report.html").read_text().count("<svg") == 1
    assert (folder / "report.png").stat().st_size > 10_000
    document = json.loads((folder / "evidence.json").read_text())
    assert document == json.loads((folder / "report.json").read_text())
    assert {"commit", "dirty", "machine", "time", "run"} <= document.keys()
    results: dict[str, Any] = document["results"]
    assert results["invariants"] == {"checked": INVARIANTS, "violations": []}
    assert set(results["orders_by_status"]) == {"AWAITING_SHIPMENT", "CLOSED"}
    assert sum(results["orders_by_status"].values()) >= results["orders_placed"] > 0
    return results


@pytest.mark.mechanism("U7")
def test_after_a_load_every_order_has_ended_and_every_invariant_holds(tmp_path: Path) -> None:
    results = loaded(tmp_path, "load", "--stages", "4x5,8x7")
    assert set(results["visits"]["kinds"]) == {"Browser", "Payer", "Abandoner", "LastSecondPayer", "DoubleClicker"}
    assert results["wrong_answers"] == []
    assert results["close_lateness_ms"]["count"] > 0
    assert {"order-timeout-handler", "payable-orders"} <= results["message_lag"].keys()
    assert {"broker-a", "orders", "payments", "locust"} <= results["processes"].keys()
    assert len(results["stages"]) == 2


@pytest.mark.mechanism("U7")
def test_an_overloaded_shop_says_why_and_when_and_its_messages_go_on(tmp_path: Path) -> None:
    """One request at a time, and a millisecond of patience."""
    results = loaded(
        tmp_path, "load", "--stages", "12x10", ORDERS_ADMISSION_LIMIT="1/1", PAYMENTS_ADMISSION_LIMIT="1/1"
    )
    rejected = {answer for answer in results["answers"] if answer.startswith(("503", "429"))}
    assert "503 overloaded" in rejected
    assert "503" not in rejected
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    told = {record[7] for record in records if record[0] == "request" and record[5] == "503 overloaded"}
    assert told <= {"1", "2", "3", "4", "5"}


@pytest.mark.mechanism("U7")
@pytest.mark.needs("postgresql")
def test_a_killed_broker_and_a_restarted_database_leave_every_invariant_intact(tmp_path: Path) -> None:
    results = loaded(tmp_path, "chaos", "--stages", "4x40", "--database", "postgresql")
    assert [fault["what"] for fault in results["faults"]] == [
        "broker: kill -9", "PostgreSQL: restart", "broker: kill -9", "PostgreSQL: kill -9",
    ]  # fmt: skip
    assert "postgresql" in results["processes"]
