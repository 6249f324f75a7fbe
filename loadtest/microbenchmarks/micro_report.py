"""What a measurement says of itself, for the table and the JSON file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

SCALE_VARIABLE = "HOURGLASS_MICRO_SCALE"  # 1 for the real sizes; set by `micro --quick`


def describe(benchmark: BenchmarkFixture, work: str, *, unit: str, count: float, goal: str = "") -> None:
    """One round does `count` units of `work`; `goal` is a sentence with its source."""
    benchmark.extra_info.update(work=work, unit=unit, count=count, goal=goal)


def scaled(size: int, *, at_least: int = 1) -> int:
    """The size that is measured: the real one, or a part of it in a quick run."""
    return max(at_least, int(size * float(os.environ.get(SCALE_VARIABLE, "1"))))


def rounds(full: int) -> int:
    """How often it is measured."""
    return scaled(full, at_least=3)


def measure(
    benchmark: BenchmarkFixture,
    call: Callable[..., Any],
    *,
    rounds: int,
    setup: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]] | None = None,
    warm_up_rounds: int = 1,
) -> list[float]:
    """Call it so often, with what `setup` gives each time, which is not measured; returns what each took, seconds."""
    benchmark.pedantic(call, setup=setup, rounds=rounds, warmup_rounds=warm_up_rounds)  # type: ignore[no-untyped-call]
    if benchmark.stats is None:
        raise RuntimeError("benchmarks are switched off in this run of pytest")
    return list(benchmark.stats.stats.data)
