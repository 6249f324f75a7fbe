"""The pipeline as `make pipeline` runs it, over what a real demonstration has left (mechanisms Y6, Y7, Y9)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from hourglass_local.ports import free_ports
from hourglass_local.waiting import eventually

ROOT = Path(__file__).parents[3]
ORDERS = 40
TIMEOUT_S = 900
# What a report says differently although nothing new was read.
OF_THE_MOMENT = {"made_at", "as_of", "warehouse"}
GOLD = (
    "order_totals", "funnel", "revenue_per_minute", "time_to_pay", "close_lateness", "lateness_classes",
    "stock_turnover", "abandoned_rate", "event_counts", "reconciliation",
)  # fmt: skip

pytestmark = [
    pytest.mark.system,
    pytest.mark.processes,
    pytest.mark.needs("java"),
    pytest.mark.timeout(TIMEOUT_S + 60),
]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def reopened(demo: Path, *arguments: str) -> list[str]:
    """As the Makefile has it."""
    return ["hourglass_local", "reopen", "--folder", str(demo), "--", sys.executable, "-m", "analytics", *arguments]


def pipeline(demo: Path, command: str, warehouse: Path, *more: str) -> subprocess.CompletedProcess[str]:
    books = ["--orders", "{orders}", "--payments", "{payments}", "--broker-lateness", "{lateness}", "--at-rest"]
    arguments = [command, "--namesrv-addr", "{namesrv}", "--warehouse", str(warehouse), *books, *more]
    return run(*reopened(demo, *arguments))


def started(arguments: list[str], log_path: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log_path.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT, env=os.environ | environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip


def summary(warehouse: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((warehouse / "report/summary.json").read_text())
    return document


def rows(table: Path) -> list[str]:
    """Every row as text, sorted: what a table says, in however many files it lies."""
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in pq.read_table(table).to_pylist())


def asked(database: Path, question: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(question).fetchall()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline") / "demo"
    done = run("hourglass_local", "demo", "--folder", str(folder), DEMO_ORDERS=str(ORDERS))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def warehouse(demo: Path) -> Path:
    """After the first run, which has found nothing wrong."""
    folder = demo.parent / "warehouse"
    done = pipeline(demo, "run", folder, "--source", "{source}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reconciliation found 0, all figures equal to the databases'" in done.stdout
    return folder


@pytest.mark.mechanism("Y6")
def test_counts_totals_revenue_and_stock_are_those_of_sql_over_the_databases(demo: Path, warehouse: Path) -> None:
    (totals,) = summary(warehouse)["totals"]
    orders_db, payments_db = demo / "orders.db", demo / "payments.db"
    statuses = dict(asked(orders_db, "SELECT lower(status), count(*) FROM orders GROUP BY status"))
    assert sum(statuses.values()) == totals["orders"] == ORDERS
    assert {name: totals[name] for name in statuses} == statuses
    assert asked(orders_db, "SELECT count(*), sum(total_minor) FROM orders WHERE payment_id IS NOT NULL") == [
        (totals["paid"], totals["revenue_minor"])
    ]
    assert asked(
        payments_db, "SELECT sum(amount_minor), sum(refunded_minor) FROM payments WHERE captured_at_ms IS NOT NULL"
    ) == [(totals["captured_minor"], totals["refunded_minor"])]
    stock = {product["product_id"]: product for product in summary(warehouse)["stock"]}
    for product_id, reserved, sold in asked(orders_db, "SELECT product_id, reserved, sold FROM products"):
        units = stock.get(product_id, {"units_waiting": 0, "units_kept": 0})
        assert (units["units_waiting"], units["units_kept"]) == (reserved, sold), product_id
    reasons = dict(
        asked(
            orders_db,
            "SELECT reason, count(*) FROM order_history WHERE new_status = 'CLOSED' GROUP BY reason",
        )
    )
    assert {f"closed_{reason.replace('-', '_')}": count for reason, count in reasons.items()} == {
        name: totals[name] for name in ("closed_expired", "closed_cancelled", "closed_seller_cancelled") if totals[name]
    }


@pytest.mark.mechanism("Y7")
def test_reconciliation_is_empty_and_every_figure_equals_the_databases(warehouse: Path) -> None:
    document = summary(warehouse)
    assert document["findings"] == {"count": 0, "by_kind": {}, "first": []}
    assert document["messages"]["rejected"] == 0
    assert len(document["books"]) >= 12
    assert all(one["equal"] for one in document["books"])


@pytest.mark.mechanism("Y6")
def test_lateness_is_the_brokers_own_within_its_resolution(demo: Path, warehouse: Path) -> None:
    """On a busy machine an order that was seen late waits by shorter levels, and is delivered more than once."""
    levels = summary(warehouse)["lateness"]
    told = json.loads((demo / "summary.json").read_text())["lateness_ms_by_level"]
    assert {str(one["level"]) for one in levels} == told.keys() - {"-1"}  # by itself waits what completes orders
    assert sum(one["count"] for one in levels) >= ORDERS
    for one in levels:
        assert one["agrees"], one
        broker = told[str(one["level"])]
        assert one["count"] == broker["delivered"]
        for name in ("p50", "p99", "max"):
            assert one[f"{name}_ms"] - 2 <= broker[name] <= one[f"{name}_ms"] * 9 / 8, one


@pytest.mark.mechanism("Y9")
def test_report_is_one_page_with_its_pictures(warehouse: Path) -> None:
    page = (warehouse / "report/report.html").read_text()
    assert "Reconciliation found nothing" in page
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", page)
    pictures = sorted(path.name for path in (warehouse / "report").glob("*.png"))
    assert pictures == sorted(
        f"{name}.png"
        for name in (
            "abandoned", "close-lateness", "delivery", "findings", "funnel", "orders", "revenue", "stock", "time-to-pay"
        )
    )  # fmt: skip


@pytest.mark.mechanism("Y9")
def test_second_run_adds_nothing_and_says_the_same(demo: Path, warehouse: Path) -> None:
    before, tables = summary(warehouse), {name: rows(warehouse / "gold" / name) for name in GOLD}
    done = pipeline(demo, "run", warehouse, "--source", "{source}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bronze: 0 new messages in 0 batches" in done.stdout
    after = summary(warehouse)
    assert {name: after[name] for name in after.keys() - OF_THE_MOMENT} == {
        name: before[name] for name in before.keys() - OF_THE_MOMENT
    }
    assert {name: rows(warehouse / "gold" / name) for name in GOLD} == tables


def test_backfill_from_before_the_first_message_gives_the_same_gold(demo: Path, warehouse: Path) -> None:
    filled = demo.parent / "filled"
    for _ in range(2):  # the second one adds nothing
        done = pipeline(demo, "backfill", filled, "--from", "2020-01-01T00:00Z")
        assert done.returncode == 0, done.stdout + done.stderr
    assert {name: rows(filled / "gold" / name) for name in GOLD} == {
        name: rows(warehouse / "gold" / name) for name in GOLD
    }
    assert summary(filled)["tables"] == summary(warehouse)["tables"]


@pytest.mark.mechanism("Y7")
def test_database_that_says_something_else_is_found_and_shown(demo: Path, warehouse: Path) -> None:
    other = demo.parent / "other"
    shutil.copytree(warehouse, other)
    for name in ("orders.db", "payments.db"):
        shutil.copy(demo / name, other / name)
    with closing(sqlite3.connect(other / "orders.db")) as connection:
        (paid,) = connection.execute("SELECT order_id FROM orders WHERE payment_id IS NOT NULL LIMIT 1").fetchone()
        connection.execute("UPDATE orders SET total_minor = total_minor + 100 WHERE order_id = ?", (paid,))
        connection.commit()
    urls = [f"sqlite+aiosqlite:///{other}/{name}.db" for name in ("orders", "payments")]
    options = ["--warehouse", str(other), "--orders", urls[0], "--payments", urls[1], "--at-rest"]
    done = run("analytics", "report", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"order {paid}" in done.stdout
    assert "FOUND: revenue minor CNY" in done.stdout
    assert "Reconciliation found nothing" not in (other / "report/report.html").read_text()


async def test_live_shows_its_progress_as_metrics_and_stops_cleanly(demo: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    options = ["live", "--namesrv-addr", "{namesrv}", "--warehouse", str(tmp_path / "live"), "--trigger", "1"]
    variables = {"OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1", "OTEL_EXPORTER_PROMETHEUS_PORT": str(port)}
    live = started(reopened(demo, *options), tmp_path / "log", variables)
    try:
        async with httpx.AsyncClient() as client:

            async def caught_up() -> Sequence[str]:
                assert live.poll() is None, (tmp_path / "log").read_text()
                try:
                    page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
                except httpx.TransportError:
                    return []
                lags = re.findall(r'hourglass_pipeline_lag\{messaging_destination_name="(.+)"\} 0\.0', page)
                return page.splitlines() if "order-events" in lags else []

            page = await eventually(caught_up, TIMEOUT_S / 2, "live has read everything", interval_s=0.5)
        offsets = {line.split("{")[1]: line for line in page if line.startswith("hourglass_pipeline_offset{")}
        assert 'messaging_destination_name="payment-events"}' in "".join(offsets)
        for name in ("input_rate", "processed_rate", "batch_duration_seconds", "messages_total", "batches_total"):
            assert any(line.startswith(f"hourglass_pipeline_{name}") for line in page), name
    finally:
        live.send_signal(signal.SIGTERM)
        code = live.wait(120)
    said = (tmp_path / "log").read_text()
    assert code == 0, said
    assert "Stopped;" in said
    assert "Traceback" not in said
    assert pq.read_table(tmp_path / "live/bronze/events").num_rows >= ORDERS
