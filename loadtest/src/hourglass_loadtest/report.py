"""The results as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.results import Result, Spread
from hourglass_loadtest.workload import Kind

WIDTH_MIN = 120  # also where the output is no terminal

# Column -> the metric in it, and how it is written.
_COLUMNS = {
    "msg/s": ("msg_per_s", "{:,.0f}"),
    "p50 ms": ("p50_ms", "{:.2f}"),
    "p99 ms": ("p99_ms", "{:.2f}"),
    "broker CPU": ("broker_cpu_s_per_1000", "{:.4f}"),
    "client CPU": ("client_cpu_s_per_1000", "{:.4f}"),
    "peak MiB": ("broker_rss_peak_mib", "{:.0f}"),
}


def print_report(console: Console, results: Sequence[Result], machine: Mapping[str, Any]) -> None:
    """Of each workload the median, and below it the smallest and the largest of its runs."""
    console.width = max(console.width, WIDTH_MIN)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("workload", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        spreads = result.spreads
        table.add_row(
            f"{result.workload.name}\n[dim]{len(result.runs)} runs[/dim]",
            *(_cell(spreads.get(metric), form) for metric, form in _COLUMNS.values()),
        )
    console.print(table)
    for line in (*filter(None, map(_remark, results)), _machine(machine)):
        console.print(line, highlight=False, soft_wrap=True)


def _cell(spread: Spread | None, form: str) -> str:
    if spread is None:
        return ""
    return f"{form.format(spread.median)}\n[dim]{form.format(spread.min)}-{form.format(spread.max)}[/dim]"


def _remark(result: Result) -> str | None:
    """What has no column."""
    spreads, workload = result.spreads, result.workload
    if workload.kind is Kind.MEMORY:
        idle, stored = spreads["rss_idle_mib"].median, spreads["rss_stored_mib"].median
        return f"{workload.name}: {idle:.0f} MiB idle, {stored:.0f} MiB with {workload.messages:,} messages stored"
    if workload.delay_level:
        return f"{workload.name}: {spreads['early'].max:,.0f} of {workload.messages:,} messages came early"
    return None


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        "Medians, and smallest-largest run. CPU is in seconds for 1,000 messages, memory the broker's; latency counts "
        "from the intended time.\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, Python {machine['python']}, "
        f"grpcio {machine['grpcio']}, uvloop {machine['uvloop']}, fdatasync {machine['fdatasync_ms']} ms"
    )
