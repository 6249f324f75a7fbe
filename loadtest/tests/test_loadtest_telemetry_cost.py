"""What telemetry costs, without running anything: turns, environments, the code of another commit, pairs of runs."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

import pytest

from hourglass_loadtest.run import RunError
from hourglass_loadtest.telemetry_cost import (
    ALL,
    BEFORE,
    METRICS,
    OFF,
    ONE_PERCENT,
    Cost,
    add_telemetry_parser,
    turns,
    unpack,
    variants,
)
from telemetry.settings import read_settings

ENDPOINT = "http://127.0.0.1:4317"


def test_variants_take_turns_forth_and_back() -> None:
    assert turns(["a", "b", "c"], 3) == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "traces", "metrics", "ratio"),
    [
        (OFF, False, set(), 1.0),
        (METRICS, False, {"otlp"}, 1.0),
        (ONE_PERCENT, True, {"otlp"}, 0.01),
        (ALL, True, {"otlp"}, 1.0),
    ],
)
def test_each_variant_asks_for_what_its_name_says(
    name: str, traces: bool, metrics: set[str], ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "9464")
    settings = read_settings(os.environ | variants(tmp_path, ENDPOINT)[name])
    assert (settings.traces, settings.metrics) == (traces, frozenset(metrics))
    assert settings.sampling_ratio == ratio
    assert settings.sampler != "always_off"


def test_the_code_before_is_found_first(tmp_path: Path) -> None:
    for folder in ("libs/mqclient/src", "services/mq-broker/src", "loadtest/src"):
        (tmp_path / folder).mkdir(parents=True)
    path = variants(tmp_path, ENDPOINT)[BEFORE]["PYTHONPATH"].split(os.pathsep)
    assert path == [str(tmp_path / one) for one in ("libs/mqclient/src", "services/mq-broker/src", "loadtest/src")]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in variants(tmp_path, ENDPOINT)[BEFORE]


def test_a_commit_is_unpacked_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    (tmp_path / "file").write_text("two")
    tree = unpack(tmp_path, "HEAD", tmp_path / "tree")
    assert (tree / "file").read_text() == "one"
    with pytest.raises(RunError, match="the code of 0000000 cannot be had"):
        unpack(tmp_path, "0000000", tmp_path / "other")


def test_costs_are_of_pairs_and_their_median_counts() -> None:
    def run(rate: float, cpu: float) -> dict[str, float]:
        return {"msg_per_s": rate, "client_cpu_s_per_1000": cpu, "broker_cpu_s_per_1000": 0.01}

    before = [run(100, 0.02), run(50, 0.02), run(200, 0.02)]
    cost = Cost.of([run(98, 0.021), run(49, 0.022), run(210, 0.02)], before)
    assert cost.throughput_median == pytest.approx(2.0)
    assert cost.throughput_min == pytest.approx(-5.0)
    assert cost.throughput_max == pytest.approx(2.0)
    assert cost.client_cpu_median == pytest.approx(5.0)
    assert cost.broker_cpu_median == 0.0


def test_the_command_has_defaults_that_are_evidence() -> None:
    parser = argparse.ArgumentParser()
    add_telemetry_parser(parser.add_subparsers(), Path("docs/evidence"))
    options = parser.parse_args(["telemetry"])
    assert (options.rounds, options.quick, options.out) == (9, False, None)
    assert options.evidence == Path("docs/evidence")
