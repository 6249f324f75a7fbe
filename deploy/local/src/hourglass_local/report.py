"""The summary as tables for people."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from hourglass_local.books import kept_minor
from hourglass_local.plan import CURRENCY, RACE_MS, Pays
from hourglass_local.summary import Shopped, Summary


def print_report(console: Console, summary: Summary, shopped: Shopped, folder: Path) -> None:
    """The tables, and where to look further."""
    console.print(_outcome(summary, shopped), _invariants(shopped), _processes(summary), sep="\n")
    console.print(
        f"Look at {folder}/: summary.json, logs/, orders.db, payments.db and gateway.db (SQLite), broker-a-store/ (the"
        " commit log) and broker-a-s-store/ (the slave's).\n`make up` keeps it running; the shop's pages are then at"
        " http://127.0.0.1:8001/shop, its interfaces are described at http://127.0.0.1:8001/docs and"
        " http://127.0.0.1:8002/docs, and `.venv/bin/python -m mqadmin haStatus -n 127.0.0.1:9876` shows master and"
        " slave.",
        highlight=False,
        soft_wrap=True,
    )


def _outcome(summary: Summary, shopped: Shopped) -> Table:
    lateness, races = summary.close_lateness_ms, shopped.races
    gateway = shopped.books.payment_statistics.gateway
    table = Table()
    table.add_column("orders and payments")
    table.add_column("result", justify="right")
    table.add_row("orders placed", f"{summary.orders_placed:,}")
    table.add_row("ended paid", f"{summary.paid:,}")
    table.add_row("  shipped / completed", f"{summary.shipped:,} / {summary.completed:,}")
    table.add_row("closed by themselves", f"{summary.expired:,}")
    table.add_row(
        "cancelled by buyers / by the seller", f"{summary.cancelled_by_buyers:,} / {summary.cancelled_by_seller:,}"
    )
    table.add_row("still pending", f"{summary.pending:,}")
    table.add_row(f"paid within {RACE_MS} ms of the expiry (raced)", f"{summary.raced:,}")
    table.add_row("  won / refunded / refused", f"{races.won:,} / {races.refunded:,} / {races.refused:,}")
    table.add_row("paid twice with the same key, charged once", f"{summary.paid_twice_same_key:,}")
    table.add_row("paid long after the expiry, refused", f"{_refused_late(shopped):,}")
    table.add_row("payments declined", f"{summary.declined:,}")
    table.add_row("payments refunded / in part", f"{summary.refunded:,} / {summary.partly_refunded:,}")
    table.add_row("gateway captured - refunded", f"{_money(gateway.captured_minor)} - {_money(gateway.refunded_minor)}")
    table.add_row("what the paid orders come to", _money(kept_minor(shopped.books)))
    table.add_row("money conserved", "yes" if summary.money_conserved else "NO")
    table.add_row("units on sale before / after", f"{summary.stock_before:,} / {summary.stock_after:,}")
    table.add_row("stock conserved", "yes" if summary.stock_conserved else "NO")
    table.add_row("closed late by, p50 / p99 / max", f"{lateness.p50:,} / {lateness.p99:,} / {lateness.max:,} ms")
    table.add_row("messages stored", f"{summary.messages_stored:,}")
    table.add_row("log of broker-a / of its slave", f"{summary.log_bytes:,} / {summary.slave_log_bytes:,} bytes")
    table.add_row("both logs are the same, byte for byte", "yes" if summary.logs_identical else "NO")
    table.add_row("duration", f"{summary.duration_s:.1f} s")
    return table


def _refused_late(shopped: Shopped) -> int:
    return sum(attempt.planned.pays is Pays.TOO_LATE and attempt.payment is None for attempt in shopped.attempts)


def _money(minor: int) -> str:
    return f"{minor // 100:,}.{minor % 100:02} {CURRENCY}"


def _invariants(shopped: Shopped) -> Table:
    table = Table()
    table.add_column("standing invariant (what it says: tools/invariants)")
    table.add_column("violations", justify="right")
    for result in shopped.invariants:
        table.add_row(result.check.name.replace("_", " "), str(len(result.violations)))
    return table


def _processes(summary: Summary) -> Table:
    table = Table()
    table.add_column("process")
    table.add_column("memory, peak", justify="right")
    table.add_column("CPU", justify="right")
    for name, usage in summary.processes.items():
        table.add_row(name, f"{usage.rss_peak_mib:.0f} MiB", f"{usage.cpu_seconds:.1f} s")
    return table
