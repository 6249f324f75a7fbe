"""The results as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.run import Result, Spread
from hourglass_loadtest.workload import Kind, Slave, Workload

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
    for line in (*filter(None, map(_remark, results)), *comparisons(results), _machine(machine)):
        console.print(line, highlight=False, soft_wrap=True)


def _cell(spread: Spread | None, form: str) -> str:
    if spread is None:
        return ""
    return f"{form.format(spread.median)}\n[dim]{form.format(spread.min)}-{form.format(spread.max)}[/dim]"


def _remark(result: Result) -> str | None:
    """What has no column."""
    workload = result.workload
    make = _REMARKS.get(workload.kind)
    sentence = make(workload, result.spreads) if make else None
    return f"{workload.name}: {sentence}" if sentence else None


def _of_memory(workload: Workload, spreads: Mapping[str, Spread]) -> str:
    idle, stored = spreads["rss_idle_mib"].median, spreads["rss_stored_mib"].median
    return f"{idle:.0f} MiB idle, {stored:.0f} MiB with {workload.messages:,} messages stored"


def _of_lateness(workload: Workload, spreads: Mapping[str, Spread]) -> str | None:
    if "broker_p50_ms" not in spreads:
        return None
    sentence = (
        f"{spreads['early'].max:,.0f} of {workload.messages:,} messages came early; the broker delivered them "
        f"{spreads['broker_p50_ms'].median:.0f} / {spreads['broker_p99_ms'].median:.0f} ms late (p50 / p99), "
        f"and none arrived more than {spreads['max_ms'].max:.1f} ms late"
    )
    if workload.beside_per_s:
        before, meanwhile = spreads["send_before_p99_ms"].median, spreads["send_meanwhile_p99_ms"].median
        sentence += f"; {workload.beside_per_s} sends a second beside it took {before:.2f} ms (p99) before, and "
        sentence += f"{meanwhile:.2f} ms meanwhile"
    return sentence


def _of_waiting(workload: Workload, spreads: Mapping[str, Spread]) -> str:
    now = {name: spread.median for name, spread in spreads.items()}
    return (
        f"{now['rss_before_mib']:.0f} MiB before, {now['rss_waiting_mib']:.0f} MiB with {workload.messages:,} messages "
        f"waiting, {now['rss_restarted_mib']:.0f} MiB after a restart; started in {now['start_after_stop_s']:.2f} s "
        f"after a stop, {now['start_after_kill_s']:.2f} s after a kill, {now['start_empty_s']:.2f} s when empty; plain "
        f"messages {now['alone_msg_per_s']:,.0f} a second alone, {now['beside_msg_per_s']:,.0f} beside them"
    )


def _of_lag(workload: Workload, spreads: Mapping[str, Spread]) -> str:
    now = {name: spread.median for name, spread in spreads.items()}
    return (
        f"at {now['msg_per_s']:,.0f} messages a second the slave was {now['lag_p50_ms']:.1f} / {now['lag_p99_ms']:.1f} "
        f"ms behind (p50 / p99), {now['lag_p50_bytes'] / 1024:,.0f} / {now['lag_p99_bytes'] / 1024:,.0f} KiB; it was "
        f"asked every {now['look_p50_ms']:.1f} ms"
    )


def _of_catch_up(workload: Workload, spreads: Mapping[str, Spread]) -> str:
    now = {name: spread.median for name, spread in spreads.items()}
    return (
        f"an empty slave had all {now['log_mib']:,.0f} MiB {now['catch_up_s']:.1f} s after its start "
        f"({now['catch_up_max_s']:.1f} s at the most): {now['catch_up_mib_per_s']:,.0f} MiB a second"
    )


def comparisons(results: Sequence[Result]) -> list[str]:
    """What slaves cost, of all comparisons of which the variant without a slave was run too."""
    rates = [(one.workload, one.spreads["msg_per_s"].median) for one in results if one.workload.comparison]
    plain = {workload.comparison: rate for workload, rate in rates if workload.slave is Slave.NONE}
    return [
        f"{workload.name}: {1 - rate / plain[workload.comparison]:.0%} fewer messages a second than with no slave"
        for workload, rate in rates
        if workload.slave is not Slave.NONE and workload.comparison in plain
    ]


_REMARKS: Mapping[Kind, Callable[[Workload, Mapping[str, Spread]], str | None]] = {
    Kind.MEMORY: _of_memory,
    Kind.LATENCY: _of_lateness,
    Kind.DUE: _of_lateness,
    Kind.WAITING: _of_waiting,
    Kind.LAG: _of_lag,
    Kind.CATCH_UP: _of_catch_up,
}


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        "Medians, and smallest-largest run. CPU is in seconds for 1,000 messages, memory the broker's; latency counts "
        "from the intended time.\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, Python {machine['python']}, "
        f"grpcio {machine['grpcio']}, uvloop {machine['uvloop']}, fdatasync {machine['fdatasync_ms']} ms"
    )
