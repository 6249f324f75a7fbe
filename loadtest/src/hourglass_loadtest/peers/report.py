"""The results of all rounds: medians with the smallest and the largest, ratios, the page of the guide, and its plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.peers.registry import OURS, OURS_DURABLE
from hourglass_loadtest.run import Spread
from hourglass_loadtest.shop.page import PICTURE_STYLE

WIDTH_MIN = 150

# Column -> figure, metric, how it is written, and whether more is better.
COLUMNS: Mapping[str, tuple[str, str, str, bool]] = {
    "1 in flight, msg/s": ("produce_1", "msg_per_s", "{:,.0f}", True),
    "64 in flight, msg/s": ("produce_64", "msg_per_s", "{:,.0f}", True),
    "drain, msg/s": ("drain", "msg_per_s", "{:,.0f}", True),
    "end to end p50, ms": ("end_to_end", "p50_ms", "{:.2f}", False),
    "end to end p99, ms": ("end_to_end", "p99_ms", "{:.2f}", False),
    "late p50, ms": ("delay", "p50_ms", "{:.1f}", False),
    "late p99, ms": ("delay", "p99_ms", "{:.1f}", False),
    "idle, MiB": ("memory", "idle_mib", "{:.0f}", False),
}
USE: Mapping[str, tuple[str, str, str]] = {
    "server CPU, 1": ("produce_1", "server_cpu_s_per_1000", "{:.3f}"),
    "client CPU, 1": ("produce_1", "client_cpu_s_per_1000", "{:.3f}"),
    "fsyncs, 1": ("produce_1", "syncs_per_message", "{:.3f}"),
    "server CPU, 64": ("produce_64", "server_cpu_s_per_1000", "{:.4f}"),
    "client CPU, 64": ("produce_64", "client_cpu_s_per_1000", "{:.4f}"),
    "fsyncs, 64": ("produce_64", "syncs_per_message", "{:.3f}"),
    "server CPU, drain": ("drain", "server_cpu_s_per_1000", "{:.4f}"),
    "peak MiB": ("memory", "peak_mib", "{:.0f}"),
}
PLOTTED = (
    "1 in flight, msg/s",
    "64 in flight, msg/s",
    "drain, msg/s",
    "end to end p99, ms",
    "late p99, ms",
    "idle, MiB",
)
OWN_COLOUR, OTHER_COLOUR = "#2563eb", "#94a3b8"


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """By figure and metric the median, the smallest and the largest of the rounds that have it."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for figure, metrics in run["figures"].items():
            for metric, value in metrics.items():
                found.setdefault(figure, {}).setdefault(metric, []).append(value)
    return {
        figure: {
            metric: asdict(Spread(statistics.median(values), min(values), max(values)))
            for metric, values in metrics.items()
        }
        for figure, metrics in found.items()
    }


def median(peer: Mapping[str, Any], figure: str, metric: str) -> float | None:
    """Of all rounds; None when the peer has no such figure."""
    spread = peer["figures"].get(figure, {}).get(metric)
    return None if spread is None else float(spread["median"])


def ratios(peers: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """By column and peer, Hourglass by frames divided by the peer: synced by what is on disk before its answer."""
    found: dict[str, dict[str, float]] = {}
    for column, (figure, metric, _, _) in COLUMNS.items():
        for name, peer in peers.items():
            own = OURS_DURABLE if peer["durable"] else OURS
            if name == own or own not in peers:
                continue
            mine, theirs = median(peers[own], figure, metric), median(peer, figure, metric)
            if mine is not None and theirs:
                found.setdefault(column, {})[name] = mine / theirs
    return found


def lost(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """By column, the peers that are ahead of Hourglass."""
    behind = {
        column: [name for name, ratio in found.items() if (ratio < 1) == COLUMNS[column][3] and ratio != 1]
        for column, found in document["ratios"].items()
    }
    return {column: names for column, names in behind.items() if names}


def _cell(peer: Mapping[str, Any], figure: str, metric: str, text: str) -> tuple[str, str]:
    """The median, and the range."""
    spread = peer["figures"].get(figure, {}).get(metric)
    if spread is None:
        return "-", ""
    return text.format(spread["median"]), f"{text.format(spread['min'])} to {text.format(spread['max'])}"


def print_table(console: Console, document: Mapping[str, Any]) -> None:
    """Medians, and below each the range; what was left out, and why."""
    console.width = max(console.width, WIDTH_MIN)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("queue", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, peer in document["peers"].items():
        cells = [_cell(peer, figure, metric, text) for figure, metric, text, _ in COLUMNS.values()]
        durable = "on disk before the answer" if peer["durable"] else ""
        table.add_row(f"{name}\n[dim]{durable}[/dim]", *(f"{middle}\n[dim]{span}[/dim]" for middle, span in cells))
    console.print(table)
    for what in ("left_out", "failed"):
        for name, why in document[what].items():
            console.print(f"{what.replace('_', ' ')}: {name}: {why}", highlight=False, markup=False)


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def figures_of(document: Mapping[str, Any], plot: str) -> str:
    """The generated part of the page, in Markdown."""
    peers, machine = document["peers"], document["machine"]
    loads = [run["load_average_before"] for peer in peers.values() for run in peer["runs"]]
    lines = [
        f"Measured {document['time']} at commit {document['commit'][:8] if document['commit'] else 'unknown'} on "
        f"{machine['cores']} cores ({machine['cpu']}), {document['filesystem']}, Python {machine['python']}, seed "
        f"{document['seed']}, {len(document['rounds'])} rounds of {document['seconds']:g} s a figure. One fdatasync "
        f"takes {machine['fdatasync_ms']:.2f} ms. The load average before a server's start was "
        f"{min(loads, default=0):.1f} to {max(loads, default=0):.1f}.",
        "",
        f"![Medians of all rounds]({plot})",
        "",
        "Medians; the rows with (d) have every message on disk before its answer.",
        "",
        *_rows(
            ["queue", *COLUMNS],
            [
                [
                    name + (" (d)" if peer["durable"] else ""),
                    *(_cell(peer, figure, metric, text)[0] for figure, metric, text, _ in COLUMNS.values()),
                ]
                for name, peer in peers.items()
            ],
        ),
        "",
        "The smallest to the largest round:",
        "",
        *_rows(
            ["queue", *COLUMNS],
            [
                [name, *(_cell(peer, figure, metric, text)[1] or "-" for figure, metric, text, _ in COLUMNS.values())]
                for name, peer in peers.items()
            ],
        ),
        "",
        "Hourglass by frames divided by each queue, (d) by the synced one. Rates above 1 and times below 1 are ahead:",
        "",
        *_rows(
            ["queue", *COLUMNS],
            [
                [name, *(_ratio(document["ratios"].get(column, {}).get(name)) for column in COLUMNS)]
                for name in peers
                if name not in (OURS, OURS_DURABLE)
            ],
        ),
        "",
        "Where Hourglass is behind:",
        "",
        *(f"- {column}: behind {', '.join(names)}." for column, names in lost(document).items()),
        "",
        "CPU is in seconds for 1,000 messages, user and system mode; fsyncs are calls of fsync, fdatasync and msync "
        "for a message; the peak is of the server's memory:",
        "",
        *_rows(
            ["queue", *USE],
            [[name, *(_cell(peer, *column)[0] for column in USE.values())] for name, peer in peers.items()],
        ),
        "",
        *_rows(
            ["queue", "server", "client", "settings"],
            [
                [
                    name,
                    peer["versions"]["server"],
                    peer["versions"]["client"],
                    "; ".join(f"{key}: {value}" for key, value in peer["settings"].items()),
                ]
                for name, peer in peers.items()
            ],
        ),
        "",
    ]
    for name, why in document["left_out"].items():
        lines += [f"Left out: {name}: {why}.", ""]
    for name, reasons in document["failed"].items():
        lines += [f"Failed: {name}, {len(reasons)} rounds; peers.json has the reasons.", ""]
    return "\n".join(lines)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def write_page(page: Path, plot: Path, document: Mapping[str, Any]) -> None:
    """Tables and plot of the results, beside them. Raises OSError."""
    page.write_text(f"# Hourglass beside other queues\n\n{figures_of(document, plot.name)}\n", encoding="utf-8")
    draw(plot, document)


def draw(path: Path, document: Mapping[str, Any]) -> None:
    """A bar a queue with the range of its rounds, for each of PLOTTED, as SVG; on a scale of powers of ten."""
    with mpl.rc_context(PICTURE_STYLE):
        figure = Figure(figsize=(12.0, 13.0), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, column in zip(figure.subplots(3, 2).flat, PLOTTED, strict=True):
            name_of, metric, text, more = COLUMNS[column]
            found = [
                (name, peer["figures"][name_of][metric])
                for name, peer in document["peers"].items()
                if metric in peer["figures"].get(name_of, {})
            ]
            found.sort(key=lambda one: one[1]["median"], reverse=not more)
            values = [spread["median"] for _, spread in found]
            errors = [
                [spread["median"] - spread["min"] for _, spread in found],
                [spread["max"] - spread["median"] for _, spread in found],
            ]
            colours = [OWN_COLOUR if name in (OURS, OURS_DURABLE) else OTHER_COLOUR for name, _ in found]
            axes.barh([name for name, _ in found], values, xerr=errors, color=colours, height=0.7)
            axes.set_xscale("log")
            axes.set_title(f"{column} ({'more' if more else 'less'} is better)")
            axes.bar_label(axes.containers[-1], [text.format(value) for value in values], padding=4, fontsize=7)
            axes.margins(x=0.15)
        figure.savefig(path, format="svg", metadata={"Date": None})
