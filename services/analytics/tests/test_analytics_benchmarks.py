"""What measurements read: Spark's own account of its tasks, and what readers say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analytics.benchmarks import ReaderTime, append_time, read_times, tasks_of


def job(stages: list[int], group: str | None) -> dict[str, Any]:
    properties = {} if group is None else {"spark.jobGroup.id": group}
    return {"Event": "SparkListenerJobStart", "Stage IDs": stages, "Properties": properties}


def task(stage: int, run_ms: int, peak_mib: int) -> dict[str, Any]:
    metrics = {
        "Executor Run Time": run_ms,
        "Executor CPU Time": run_ms * 500_000,
        "JVM GC Time": 10,
        "Peak Execution Memory": peak_mib * 2**20,
        "Disk Bytes Spilled": 2**20,
        "Shuffle Write Metrics": {"Shuffle Bytes Written": 2**19},
    }
    return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Metrics": metrics}


def test_tasks_are_added_up_by_job_group() -> None:
    lost = {"Event": "SparkListenerTaskEnd", "Stage ID": 1}
    found = tasks_of([job([1, 2], "run"), task(1, 2000, 3), task(2, 1000, 7), lost, job([3], None), task(3, 500, 1)])
    assert (found["run"].count, found[""].count) == (2, 1)
    assert (found["run"].run_s, found["run"].cpu_s) == pytest.approx((3.0, 1.5))
    assert (found["run"].peak_execution_mib, found["run"].spilled_mib, found["run"].shuffled_mib) == (7.0, 2.0, 1.0)


def test_a_stage_counts_for_the_job_that_ran_it_first() -> None:
    found = tasks_of([job([1], "first"), task(1, 1000, 1), job([1, 2], "second"), task(2, 1000, 1)])
    assert (found["first"].count, found["second"].count) == (1, 1)


def test_readers_add_their_lines_to_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    assert read_times(path) == []
    for rows in (5, 7):
        time = ReaderTime(rows=rows, batches=1)
        with time.inside():
            pass
        append_time(path, time)
    found = read_times(path)
    assert [time.rows for time in found] == [5, 7]
    assert all(time.inside_s >= 0.0 for time in found)
