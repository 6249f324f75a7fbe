"""The demonstration as a newcomer runs it, only smaller."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from hourglass_local.ports import PortInUseError, check_free

pytestmark = pytest.mark.processes

PROGRAM = [sys.executable, "-m", "hourglass_local"]
COMMAND = [*PROGRAM, "demo"]


def leftovers(folder: Path) -> list[list[str]]:
    """Command lines of living processes that name the folder, or work in it."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()) or process.cwd() == str(folder):
                found.append(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_demo_pays_or_closes_every_order_and_leaves_no_process(tmp_path: Path) -> None:
    environment = os.environ | {"DEMO_ORDERS": "20"}
    run = subprocess.run(
        COMMAND, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert leftovers(tmp_path) == []

    summary = json.loads((tmp_path / ".demo/summary.json").read_text())
    assert summary["orders_placed"] == summary["paid"] + summary["closed"] == 20
    assert summary["paid"] >= 5  # those that are paid soon after they were placed, and not cancelled
    assert summary["expired"] >= 6  # those that are not paid, or too late
    assert summary["cancelled_by_buyers"] == 1
    assert summary["cancelled_by_seller"] >= 1
    assert summary["completed"] == summary["shipped"] >= 3
    assert summary["raced"] == 4
    assert summary["cancelled_by_seller"] <= summary["refunded"] <= summary["cancelled_by_seller"] + summary["raced"]
    assert summary["partly_refunded"] >= 1
    assert summary["paid_twice_same_key"] == 2
    assert summary["invariants_checked"] >= 20
    assert summary["invariants_violated"] == 0
    assert summary["pending"] == summary["closed_early"] == 0
    assert summary["stock_conserved"] is summary["money_conserved"] is True
    assert summary["stock_before"] > summary["stock_after"] > 0
    assert summary["leftover_processes"] == summary["killed_processes"] == 0
    assert summary["messages_stored"] >= 4 * 20  # half, created, waiting, due
    lateness = summary["close_lateness_ms"]
    assert 0 <= lateness["p50"] <= lateness["p99"] <= lateness["max"]
    assert summary["logs_identical"] is True
    assert summary["log_bytes"] == summary["replica_log_bytes"] > 0
    assert summary["processes"].keys() == {*("name-server", "broker-a", "broker-a-s", "orders", "gateway", "payments")}
    for usage in summary["processes"].values():
        assert usage["rss_peak_mib"] > 10
        assert usage["cpu_seconds"] > 0
    assert 10 < summary["duration_s"] < 60

    for row in (
        "closed by themselves",
        "ledger balances",
        "won / refunded / rejected",
        "money conserved",
        "units on sale before / after",
        "both logs are the same, byte for byte",
    ):
        assert row in run.stdout
    for name in summary["processes"]:
        assert (tmp_path / f".demo/logs/{name}.log").stat().st_size > 0


@pytest.mark.parametrize(
    ("orders", "sentence"),
    [
        ("many", "hourglass: DEMO_ORDERS='many' is not a whole number of 6 to 100000\n"),
        ("5", "hourglass: DEMO_ORDERS=5: allowed are 6 to 100000\n"),
    ],
)
def test_demo_rejects_a_bad_number_of_orders(tmp_path: Path, orders: str, sentence: str) -> None:
    environment = os.environ | {"DEMO_ORDERS": orders}
    run = subprocess.run(
        COMMAND, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (2, sentence)
    assert list(tmp_path.iterdir()) == []


def test_demo_that_is_interrupted_stops_everything(tmp_path: Path) -> None:
    with subprocess.Popen(COMMAND, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith(
            "Started name-server, broker-a, broker-a-s, orders, gateway, payments in"
        )
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
    assert running.returncode == 130
    assert rest.endswith("Interrupted; everything has been stopped.\n")
    assert leftovers(tmp_path) == []


def first_of_free_ports(count: int) -> int:
    """The first of so many free ports in a row, of those that the kernel gives and the cluster is not dealt."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        with contextlib.suppress(PortInUseError):
            check_free(range(first, first + count))
            return first


def test_up_runs_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    command = [*PROGRAM, "up", "--free-ports", "--folder", "here"]
    metrics = os.environ | {"OTEL_EXPORTER_PROMETHEUS_PORT": str(first_of_free_ports(6))}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=metrics) as running:
        assert running.stdout is not None
        banner = ""
        while not banner.endswith("Ctrl-C stops everything.\n"):
            line = running.stdout.readline()
            assert line, banner
            banner += line
        services = re.findall(r"(?:orders|payments) +(http://\S+) +described at (http://\S+)", banner)
        assert len(services) == 2
        for url, docs_url in services:
            assert httpx.get(f"{url}/health/ready").status_code == 200
            (openapi_path,) = re.findall('href="(.*?)"', httpx.get(docs_url).raise_for_status().text)
            assert httpx.get(f"{url}{openapi_path}").json()["openapi"].startswith("3.")
        (shop_url,) = re.findall(r"shop +(http://\S+) ", banner)
        assert "Window seat, train G7" in httpx.get(shop_url, follow_redirects=True).raise_for_status().text
        pages = re.findall(r"(\S+) (http://\S+/metrics)", banner)
        assert [name for name, _ in pages] == ["name-server", "broker-a", "broker-a-s", "orders", "gateway", "payments"]
        for _, url in pages:
            assert "# TYPE" in httpx.get(url).raise_for_status().text
        (replica,) = [one for one in psutil.Process(running.pid).children() if "brokerId=1" in one.cmdline()]
        replica.kill()
        assert running.stdout.readline().startswith("broker-a-s has ended with code -9; starting it again.")
        assert running.stdout.readline().startswith("broker-a-s is ready again after")
        running.terminate()
        rest = running.stdout.read()
    assert running.returncode == 0
    assert "An unpaid order closes after 0:30:00 h." in banner
    assert rest == "Everything has stopped.\n"
    assert leftovers(tmp_path) == []
