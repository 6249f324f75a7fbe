"""What Spark says of its tasks, from its event log: a file with a line of JSON for each event."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_GROUP = "spark.jobGroup.id"


def settings(folder: Path) -> dict[str, str]:
    """What makes Spark write one plain file into the folder."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.absolute().as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


@dataclass(slots=True)
class Tasks:
    """All tasks of a job group together; the peak is of one task."""

    count: int = 0
    run_s: float = 0.0
    cpu_s: float = 0.0
    gc_s: float = 0.0
    peak_execution_mib: float = 0.0
    spilled_mib: float = 0.0
    shuffled_mib: float = 0.0

    def add(self, metrics: dict[str, Any]) -> None:
        """A task that has ended."""
        self.count += 1
        self.run_s += metrics["Executor Run Time"] / 1000
        self.cpu_s += metrics["Executor CPU Time"] / 1e9
        self.gc_s += metrics["JVM GC Time"] / 1000
        self.peak_execution_mib = max(self.peak_execution_mib, metrics["Peak Execution Memory"] / 2**20)
        self.spilled_mib += metrics["Disk Bytes Spilled"] / 2**20
        self.shuffled_mib += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"] / 2**20


def read_tasks(folder: Path) -> dict[str, Tasks]:
    """By job group; those of no group under "". The session has to be stopped. Raises OSError, ValueError."""
    (file,) = folder.iterdir()
    with file.open(encoding="utf-8") as lines:
        return tasks_of(json.loads(line) for line in lines)


def tasks_of(events: Iterable[dict[str, Any]]) -> dict[str, Tasks]:
    """By job group, of the events of one application. A stage belongs to the group that has asked for it first."""
    groups: dict[int, str] = {}
    found: dict[str, Tasks] = {}
    for event in events:
        match event["Event"]:
            case "SparkListenerJobStart":
                for stage_id in event["Stage IDs"]:
                    groups.setdefault(stage_id, event["Properties"].get(_GROUP, ""))
            case "SparkListenerTaskEnd" if "Task Metrics" in event:  # a task that was lost has none
                group = groups.get(event["Stage ID"], "")
                found.setdefault(group, Tasks()).add(event["Task Metrics"])
    return found
