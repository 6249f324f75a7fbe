"""Counts of opcodes in place of times: a plugin of pytest that stands in for pytest-benchmark's fixture.

    python -m pytest -p no:benchmark -p hourglass_loadtest.counting --opcodes FILE loadtest/microbenchmarks

A benchmark's call is counted after `WARM_UPS` calls without: the opcodes that CPython executes in this thread, which
depend on neither the machine nor its load. What C code does inside of one opcode is not seen. The least of `ROUNDS`
calls counts, because a wait for another thread takes as many turns of the event loop as it takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

WARM_UPS, ROUNDS = 2, 3
_COUNTED = pytest.StashKey[dict[str, dict[str, Any]]]()


def opcodes_of(call: Callable[[], object]) -> tuple[int, object]:
    """How many opcodes the call executes in this thread, and its result."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
        else:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = call()
    finally:
        sys.settrace(before)
    return count, result


class CountingBenchmark:
    """What the microbenchmarks use of pytest-benchmark's fixture."""

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}
        self.opcodes = 0
        self.stats = SimpleNamespace(stats=SimpleNamespace(data=[]))

    def __call__(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return self.pedantic(function, setup=lambda: (arguments, keywords), rounds=ROUNDS, warmup_rounds=WARM_UPS)

    def pedantic(
        self,
        function: Callable[..., Any],
        *,
        setup: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]] | None,
        rounds: int,
        warmup_rounds: int,
    ) -> Any:
        """As often as there, with what `setup` gives each time, which is not counted; only the last rounds count."""
        result, counts = None, list[int]()
        for number in range(warmup_rounds + rounds):
            arguments, keywords = setup() if setup is not None else ((), {})
            if number < warmup_rounds + rounds - ROUNDS:
                result = function(*arguments, **keywords)
            else:
                count, result = opcodes_of(lambda: function(*arguments, **keywords))  # noqa: B023 - called at once
                counts.append(count)
        self.opcodes = min(counts)
        self.stats.stats.data = [float(count) for count in counts]
        return result


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--opcodes", type=Path, required=True, help="where the counts go, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_COUNTED] = {}


@pytest.fixture
def benchmark(request: pytest.FixtureRequest) -> Any:
    """Counts instead of timing."""
    counting = CountingBenchmark()
    yield counting
    name = request.node.name.removeprefix("bench_")
    opcodes = round(counting.opcodes / counting.extra_info["count"], 1)
    request.config.stash[_COUNTED][name] = {"unit": counting.extra_info["unit"], "opcodes": opcodes}


def pytest_sessionfinish(session: pytest.Session) -> None:
    counted = session.config.stash[_COUNTED]
    session.config.getoption("opcodes").write_text(json.dumps(counted), encoding="utf-8")
