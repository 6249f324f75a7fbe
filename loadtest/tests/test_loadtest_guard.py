"""The guard of the hot path: what it counts, and that nothing of the hot path has become more."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from hourglass_loadtest.counting import CountingBenchmark, opcodes_of
from hourglass_loadtest.guard import PYTHON, Guarded, compare, count_opcodes, print_table, run_guard, stored_counts
from hourglass_loadtest.run import RunError

ROOT = Path(__file__).parents[2]
MICROBENCHMARKS, EVIDENCE = ROOT / "loadtest" / "microbenchmarks", ROOT / "docs" / "evidence" / "opcodes.json"


def add_up(count: int) -> int:
    total = 0
    for number in range(count):
        total += number
    return total


def test_opcodes_are_those_of_the_call_and_of_what_it_calls() -> None:
    few, result = opcodes_of(lambda: add_up(10))
    many, _ = opcodes_of(lambda: add_up(20))
    more, _ = opcodes_of(lambda: add_up(30))
    assert result == 45
    assert many - few == more - many > 0
    assert opcodes_of(lambda: add_up(10))[0] == few


def test_a_coroutine_counts_whenever_it_goes_on() -> None:
    async def work(pauses: int) -> None:
        for _ in range(pauses):
            await asyncio.sleep(0)

    with asyncio.Runner() as runner:
        counts = [opcodes_of(partial(runner.run, work(pauses)))[0] for pauses in (1, 2, 3)]
    assert counts[0] < counts[1] < counts[2]


def test_a_call_that_fails_is_not_traced_any_more() -> None:
    with pytest.raises(ZeroDivisionError):
        opcodes_of(lambda: 1 / 0)
    assert opcodes_of(lambda: None)[0] < 5


def test_a_benchmark_counts_its_last_rounds_without_the_setup() -> None:
    done = list[int]()
    counting = CountingBenchmark()

    def setup() -> tuple[tuple[int], dict[str, int]]:
        add_up(1_000)
        return (10,), {}

    assert counting.pedantic(done.append, setup=setup, rounds=5, warmup_rounds=4) is None
    assert done == [10] * 9
    assert counting.opcodes < 50


@pytest.mark.parametrize(
    ("opcodes", "stored", "in_order", "said"),
    [
        (102.9, 100.0, True, ""),
        (104.0, 100.0, False, "put executes 4.0% more opcodes for each message; 3% are allowed"),
        (50.0, 100.0, True, ""),
        (100.0, None, False, "put is new: store its count with --store"),
    ],
)
def test_more_than_3_percent_more_is_too_much(opcodes: float, stored: float | None, in_order: bool, said: str) -> None:
    now = {"put": {"unit": "message", "opcodes": opcodes}}
    before = {} if stored is None else {"put": {"unit": "message", "opcodes": stored}}
    rows = compare(now, before)
    assert rows == [Guarded("put", "message", opcodes, stored)]
    assert rows[0].is_in_order is in_order
    console = Console(width=120)
    with console.capture() as captured:
        print_table(console, rows)
    assert captured.get().splitlines()[-1].strip() == said


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (None, r"opcodes\.json is not there; make it with --store"),
        ({"python": "2.7", "results": {}}, rf"has the counts of Python 2\.7; those of {PYTHON} differ"),
    ],
)
def test_without_counts_of_this_python_the_guard_says_what_to_do(
    tmp_path: Path, document: dict[str, object] | None, sentence: str
) -> None:
    evidence = tmp_path / "opcodes.json"
    if document is not None:
        evidence.write_text(json.dumps(document))
    with pytest.raises(RunError, match=sentence):
        stored_counts(evidence)


def test_a_benchmark_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text((MICROBENCHMARKS / "pytest.ini").read_text())
    (tmp_path / "bench_wrong.py").write_text("def bench_wrong(benchmark):\n    raise ValueError('no such thing')\n")
    with pytest.raises(RunError, match="no such thing"):
        count_opcodes(tmp_path)


@pytest.mark.skipif(
    json.loads(EVIDENCE.read_text(encoding="utf-8"))["python"] != PYTHON, reason="counts differ with Python's version"
)
def test_the_hot_path_executes_no_more_opcodes_than_stored() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        in_order = run_guard(MICROBENCHMARKS, EVIDENCE, console, store=False)
    assert in_order, captured.get()
    assert captured.get().count("message") > 15
