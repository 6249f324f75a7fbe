"""The measurements of the pipeline run from end to end, with little to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hourglass_loadtest.__main__ import main

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(600)]


def test_both_measurements_say_what_they_found(tmp_path: Path) -> None:
    out = tmp_path / "pipeline-benchmarks.json"
    sizes = ["--events", "2000", "--events", "6000"]
    assert main(["pipeline", "--messages", "3000", *sizes, "--runs", "1", "--out", str(out)]) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    (run,) = document["source"]["runs"]
    assert run["rows"] == 3000
    assert 0.0 < run["outside_reader_share"] < 1.0
    found = document["silver"]["sizes"]
    assert [round(one["events"], -3) for one in found] == [2000, 6000]
    assert all(one["median"]["memory_peak_mib"] > one["median"]["java_memory_peak_mib"] > 100 for one in found)
    assert document["silver"]["growth"]["wall_s"]["events_times"] == pytest.approx(3.0, rel=0.1)
    assert document["machine"]["pyspark"]
