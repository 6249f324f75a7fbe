"""What the pipeline costs, without running it: growth, and the memory of a tree of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from hourglass_loadtest.pipeline import METRICS, Watch, growth


def size(events: int, **values: float) -> dict[str, Any]:
    return {"events": events, "median": dict.fromkeys(METRICS, 1.0) | values}


def test_growth_tells_how_steeply_time_rises_with_the_events() -> None:
    found = growth([size(n * 1_000_000, wall_s=10.0 * n, memory_peak_mib=500.0 * n**0.5) for n in (1, 4, 9)])
    assert found["wall_s"] == pytest.approx(
        {"times": 9.0, "events_times": 9.0, "exponent": 1.0, "per_million_events": 10.0}
    )
    assert found["memory_peak_mib"]["exponent"] == pytest.approx(0.5)
    assert found["cpu_s"]["exponent"] == pytest.approx(0.0)


def test_growth_of_one_size_says_nothing() -> None:
    assert growth([size(1_000_000)]) == {}


def test_a_watched_process_is_counted_with_its_children_also_when_they_have_ended() -> None:
    watch = Watch(os.getpid())
    child = subprocess.Popen(
        [sys.executable, "-c", "sum(range(30_000_000)); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    watch.sample()
    with_child_s, with_child_mib = watch.cpu_s, watch.peak_mib
    child.communicate(b"\n")
    alone = Watch(os.getpid())
    alone.sample()
    watch.sample()
    assert alone.peak_mib < with_child_mib == watch.peak_mib
    assert alone.cpu_s < with_child_s <= watch.cpu_s
    assert watch.peak_mib_of["java"] == 0.0


def test_a_process_that_is_gone_uses_nothing_more() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    watch = Watch(child.pid)
    watch.sample()
    assert (watch.cpu_s, watch.peak_mib) == (0.0, 0.0)
