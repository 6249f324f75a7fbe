"""Two checkouts side by side: the interval, and what is rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hourglass_loadtest.__main__ import main
from hourglass_loadtest.bench import ratio_of

SMALL = """\
name: small
description: a few messages
kind: produce
messages: 200
warm_up_messages: 10
in_flight: 4
runs: 3
"""


def test_with_six_pairs_the_interval_reaches_from_the_smallest_to_the_largest_ratio() -> None:
    ratio = ratio_of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0] * 6)  # 2 / 2**6 = 3 % lie outside
    assert (ratio.median, ratio.low, ratio.high) == (3.5, 1.0, 6.0)


def test_with_nine_pairs_one_outlier_at_each_end_is_left_out() -> None:
    ratio = ratio_of([0.01, 2, 2, 2, 2, 2, 2, 2, 100], [2] * 9)  # 2 * (1 + 9) / 2**9 = 4 % lie outside
    assert (ratio.median, ratio.low, ratio.high) == (1.0, 1.0, 1.0)


def test_pairs_are_compared_and_not_two_heaps_of_values() -> None:
    there = [1.0, 10.0, 100.0, 1000.0, 10.0, 1.0]
    assert ratio_of([2 * value for value in there], there).low == 2.0


def test_fewer_than_six_pairs_have_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 6 pairs"):
        ratio_of([1.0] * 5, [1.0] * 5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--pairs", "5"], "an interval needs at least 6"),
        (["--only", "nothing"], "there is no workload 'nothing'; there are: small"),
    ],
)
def test_what_cannot_be_compared_is_rejected_by_name(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    assert main(["compare", ".", "--workloads", str(tmp_path), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_checkout_without_its_packages_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path)]) == 2
    assert "has no .venv: run make setup there" in capsys.readouterr().err


def test_both_checkouts_run_in_turns_each_by_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    fast, slow = (_checkout(tmp_path, name, rate) for name, rate in (("fast", 300), ("slow", 100)))
    monkeypatch.chdir(fast)
    out = tmp_path / "out.json"
    assert main(["compare", str(slow), "--workloads", str(tmp_path), "--pairs", "6", "--out", str(out)]) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["ratios"]["small"]["msg_per_s"] == {"median": 3.0, "low": 3.0, "high": 3.0}
    order = (tmp_path / "order").read_text(encoding="utf-8").split()
    assert order == ["slow", "fast", "fast", "slow"] * 3


def test_a_bench_that_fails_ends_the_comparison_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    python = _checkout(tmp_path, "broken", 1) / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\necho the port is in use >&2\nexit 1\n", encoding="utf-8")
    monkeypatch.chdir(_checkout(tmp_path, "whole", 1))
    assert main(["compare", str(tmp_path / "broken"), "--workloads", str(tmp_path)]) == 1
    assert "the bench ended with code 1:\nthe port is in use" in capsys.readouterr().err


def _checkout(folder: Path, name: str, rate: int) -> Path:
    """A checkout whose bench notes that it ran, and has always the same result."""
    python = folder / name / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    results = json.dumps({"results": {"small": {"summary": {"msg_per_s": {"median": rate}}}}})
    python.write_text(
        f'#!/bin/sh\necho {name} >> {folder}/order\nfor out; do :; done\ncat > "$out" <<END\n{results}\nEND\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    return folder / name
