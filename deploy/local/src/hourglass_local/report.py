"""The summary as tables for people."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from hourglass_local.summary import Summary


def print_report(console: Console, summary: Summary, folder: Path) -> None:
    """Both tables, and where to look further."""
    console.print(_outcome(summary), _processes(summary), sep="\n")
    console.print(
        f"Look at {folder}/: summary.json, logs/, orders.db (SQLite), broker-a-store/ (the commit log).\n"
        "`make up` keeps it running; the shop's interface is then described at http://127.0.0.1:8001/docs.",
        highlight=False,
        soft_wrap=True,
    )


def _outcome(summary: Summary) -> Table:
    lateness = summary.close_lateness_ms
    table = Table()
    table.add_column("orders that nobody paid")
    table.add_column("result", justify="right")
    table.add_row("orders placed", f"{summary.orders_placed:,}")
    table.add_row("closed by themselves", f"{summary.closed:,}")
    table.add_row("still pending", f"{summary.pending:,}")
    table.add_row("units on sale before / after", f"{summary.stock_before:,} / {summary.stock_after:,}")
    table.add_row("stock conserved", "yes" if summary.stock_conserved else "NO")
    table.add_row("closed late by, p50 / p99 / max", f"{lateness.p50:,} / {lateness.p99:,} / {lateness.max:,} ms")
    table.add_row("messages stored", f"{summary.messages_stored:,}")
    table.add_row("duration", f"{summary.duration_s:.1f} s")
    return table


def _processes(summary: Summary) -> Table:
    table = Table()
    table.add_column("process")
    table.add_column("memory, peak", justify="right")
    table.add_column("CPU", justify="right")
    for name, usage in summary.processes.items():
        table.add_row(name, f"{usage.rss_peak_mib:.0f} MiB", f"{usage.cpu_seconds:.1f} s")
    return table
