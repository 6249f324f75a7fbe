"""The bench on real processes with next to nothing to do: every kind of workload works. No time is judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
BENCH = [sys.executable, "-m", "hourglass_loadtest", "bench"]
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
TIMEOUT_S = 60

pytestmark = pytest.mark.processes

CPU = {"broker_cpu_s_per_1000", "client_cpu_s_per_1000"}
LATENESS = {"p50_ms", "p99_ms", "max_ms", "early"}
BROKER_LATENESS = {"broker_p50_ms", "broker_p99_ms"}
SENDS_BESIDE = {f"send_{when}_{what}_ms" for when in ("before", "meanwhile") for what in ("p50", "p99", "max")}
MEMORY = {f"rss_{when}_mib" for when in ("idle", "before", "waiting", "restarted")}
STARTS = {f"start_{when}_s" for when in ("empty", "after_kill", "after_stop")}
PLAIN = {f"{when}_{metric}" for when in ("alone", "beside") for metric in ("msg_per_s", *CPU)}
METRICS = {
    "produce-64-sync": {"msg_per_s", "p50_ms", "p99_ms", "max_ms"} | CPU,
    "consume-backlog-50000": {"msg_per_s", "first_message_ms"} | CPU,
    "end-to-end-500-per-s": LATENESS | {"generator_p99_ms"} | CPU,
    "memory": {"rss_idle_mib", "rss_stored_mib"},
}
DELAY_METRICS = {
    "delay-lateness": LATENESS | BROKER_LATENESS | {"generator_p99_ms"} | CPU,
    "delay-timed-lateness": LATENESS | BROKER_LATENESS | {"broker_max_ms"} | CPU,
    "delay-same-millisecond": LATENESS | BROKER_LATENESS | {"broker_max_ms"} | SENDS_BESIDE,
    "delay-waiting-1000000": MEMORY
    | STARTS
    | PLAIN
    | {"waiting_msg_per_s", "work_after_kill_s", "stop_s", "work_after_stop_s"},
}
REPLICATION_METRICS = {
    "produce-64-sync-slave": {"msg_per_s", "p50_ms", "p99_ms", "max_ms"} | CPU,
    "replication-lag": {f"lag_{what}_{unit}" for what in ("p50", "p99", "max") for unit in ("ms", "bytes")}
    | {"msg_per_s", "look_p50_ms"}
    | CPU,
    "replication-catch-up": {"fill_msg_per_s", "log_mib", "catch_up_s", "catch_up_max_s", "catch_up_mib_per_s"},
}


def run(*arguments: str, cwd: Path = ROOT, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"TMPDIR": str(temporary)} if temporary else {})
    return subprocess.run(
        [*BENCH, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.mark.parametrize(
    "metrics", [METRICS, DELAY_METRICS, REPLICATION_METRICS], ids=["plain", "delayed", "replicated"]
)
def test_quick_bench_prints_a_table_and_writes_the_results(tmp_path: Path, metrics: dict[str, set[str]]) -> None:
    out, temporary = tmp_path / "results/bench.json", tmp_path / "stores"
    temporary.mkdir()
    only = [word for name in metrics for word in ("--only", name)]
    bench = run("--quick", "--out", str(out), *only, temporary=temporary)
    assert bench.returncode == 0, bench.stderr
    document = json.loads(out.read_text())
    assert document.keys() == {"time", "commit", "dirty", "machine", "results"}
    assert {"cpu", "cores", "ram_mib", "kernel", "python", "grpcio", "uvloop", "fdatasync_ms"} <= set(
        document["machine"]
    )
    assert document["results"].keys() == metrics.keys()
    for name, wanted in metrics.items():
        result = document["results"][name]
        assert result["workload"]["name"] == name
        (only_run,) = result["runs"]
        replica = {"slave_rss_peak_mib"} if result["workload"].get("slave", "NONE") != "NONE" else set()
        assert only_run.keys() == result["summary"].keys() == wanted | {"broker_rss_peak_mib"} | replica
        assert result["summary"]["broker_rss_peak_mib"]["median"] == only_run["broker_rss_peak_mib"] > 1
        assert only_run.get("early", 0) == 0
        assert name in bench.stdout
    assert list(temporary.iterdir()) == []


def test_profile_has_the_functions_of_broker_and_client(tmp_path: Path) -> None:
    out = tmp_path / "profile.txt"
    profile = run("--quick", "--profile", "--only", "produce-64", "--out", str(out))
    assert profile.returncode == 0, profile.stderr
    broker, _, client = out.read_text().partition("--- client ---")
    for half in (broker, client):
        assert "Ordered by: internal time" in half
        assert half.count(".py:") >= 3  # which functions come first depends on the machine


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "nothing"], "loadtest: there is no workload 'nothing'; there are: "),
        (["--profile"], "loadtest: --profile needs one --only NAME"),
        (["--profile", "--only", "memory"], "loadtest: memory is of kind memory; only produce workloads are profiled"),
        (["--workloads", "nowhere"], "loadtest: there is no workload file (*.yaml) in nowhere"),
    ],
)
def test_senseless_options_are_rejected_before_anything_runs(arguments: list[str], sentence: str) -> None:
    rejected = run(*arguments)
    assert (rejected.returncode, rejected.stdout) == (EXIT_USAGE, "")
    assert rejected.stderr.startswith(sentence)
    assert rejected.stderr.count("\n") == 1


def test_client_without_a_queue_says_so() -> None:
    workload = json.dumps({"name": "w", "kind": "produce", "messages": 1})
    client = [sys.executable, "-m", "hourglass_loadtest", "client", "mq://127.0.0.1:1", str(os.getpid()), workload]
    failed = subprocess.run(client, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (failed.returncode, failed.stdout) == (EXIT_FAILED, "")
    assert failed.stderr.startswith("loadtest: NoRouteError: ")
    assert "Traceback" not in failed.stderr


def test_interrupted_bench_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    bench = subprocess.Popen([*BENCH, "--only", "produce-1"], cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    process, children = psutil.Process(bench.pid), list[psutil.Process]()
    deadline = time.monotonic() + TIMEOUT_S
    while len(children) < 3 and time.monotonic() < deadline:  # name server, broker, client
        children = process.children()
    bench.send_signal(signal.SIGTERM)
    _, errors = bench.communicate(timeout=TIMEOUT_S)
    assert bench.returncode == EXIT_INTERRUPTED, errors
    assert not any(child.is_running() for child in children)
    assert list(tmp_path.iterdir()) == []
