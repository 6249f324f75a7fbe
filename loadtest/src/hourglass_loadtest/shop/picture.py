"""The charts of a load, as one picture: PNG to look at, SVG for the page."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hourglass_loadtest.measure.percentiles import percentile
from hourglass_loadtest.shop.summary import LOCUST, REFUSED_FOR_LOAD, Evidence
from hourglass_loadtest.users.plan import PLACE_ORDER
from hourglass_loadtest.users.records import Request

BUCKETS = 100
BUCKET_MIN_S = 1.0
COLOURS = ("#2563eb", "#16a34a", "#d97706", "#9333ea", "#0891b2", "#be123c", "#65a30d", "#475569")
GOOD, LATER, OTHER, BAD, INTENDED = "#16a34a", "#d97706", "#64748b", "#be123c", "#0f172a"
INK, GRID = "#334155", "#e2e8f0"
GROUPS_SHOWN_MAX = 7
_STYLE: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.titlecolor": INTENDED,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "hourglass",  # the same load, the same file
}


def draw(evidence: Evidence, document: Mapping[str, Any], png: Path) -> str:
    """Write the PNG, and return the SVG. Raises OSError."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(14.0, 12.5), layout="constrained")
        FigureCanvasAgg(figure)
        places = figure.subplots(3, 2)
        _answers(places[0, 0], evidence)
        _orders(places[0, 1], evidence)
        _latency(places[1, 0], evidence)
        _close_lateness(places[1, 1], evidence)
        _lag(places[2, 0], evidence)
        _processor(places[2, 1], evidence)
        for axes in (places[0, 0], places[0, 1], places[1, 0], places[2, 0], places[2, 1]):
            _mark(axes, evidence)
        figure.suptitle(_headline(document), x=0.01, ha="left", fontsize=13, fontweight="bold", color=INTENDED)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout, which takes the time, is made once
        figure.savefig(png, dpi=110)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()[svg.getvalue().index("<svg") :]


def _headline(document: Mapping[str, Any]) -> str:
    results = document["results"]
    placed = f"{results['orders_placed']:,} orders, {results['orders_per_s']:.1f}/s"
    return f"Hourglass, {document['title']}: {placed} over {results['seconds']:.0f} s"


class _Clock:
    """Seconds since the begin in buckets of a width that suits the load."""

    def __init__(self, evidence: Evidence) -> None:
        last = max((one.begun + one.seconds for one in evidence.records.requests), default=evidence.begun)
        self.begun = evidence.begun
        self.width_s = max(BUCKET_MIN_S, (last - self.begun) / BUCKETS)
        self.count = max(1, int((last - self.begun) / self.width_s) + 1)
        self.times = [number * self.width_s for number in range(self.count)]

    def bucket(self, at: float) -> int:
        return min(self.count - 1, max(0, int((at - self.begun) / self.width_s)))

    def rates(self, times: Sequence[float]) -> list[float]:
        """How many a second, by bucket."""
        counts = Counter(self.bucket(at) for at in times)
        return [counts[number] / self.width_s for number in range(self.count)]


def _answers(axes: Axes, evidence: Evidence) -> None:
    clock = _Clock(evidence)
    kinds: dict[str, list[float]] = {
        "served": [],
        "told to come back later": [],
        "refused for a reason": [],
        "failed": [],
    }
    for one in evidence.records.requests:
        kinds[_kind(one)].append(one.begun + one.seconds)
    shown = {name: times for name, times in kinds.items() if times}
    colours = dict(zip(kinds, (GOOD, LATER, OTHER, BAD), strict=True))
    if shown:
        axes.stackplot(
            clock.times,
            [clock.rates(times) for times in shown.values()],
            labels=list(shown),
            colors=[colours[name] for name in shown],
            alpha=0.75,
            linewidth=0,
        )
    axes.set_title("Answers a second")
    _finish(axes, "requests/s")


def _orders(axes: Axes, evidence: Evidence) -> None:
    clock, requests = _Clock(evidence), evidence.records.requests
    intended = [one.intended for one in requests if one.name == PLACE_ORDER and one.number == 1]
    placed = [one.begun + one.seconds for one in requests if one.name == PLACE_ORDER and one.answer == "201"]
    refused = [
        one.begun + one.seconds for one in requests if one.name == PLACE_ORDER and one.answer in REFUSED_FOR_LOAD
    ]
    axes.plot(clock.times, clock.rates(intended), color=INTENDED, linewidth=1.2, linestyle="--", label="intended")
    axes.plot(clock.times, clock.rates(placed), color=GOOD, linewidth=1.8, label="placed")
    if refused:
        axes.plot(clock.times, clock.rates(refused), color=LATER, linewidth=1.2, label="refused: too much work")
    axes.set_title("Orders a second")
    _finish(axes, "orders/s")


def _latency(axes: Axes, evidence: Evidence) -> None:
    clock = _Clock(evidence)
    buckets: list[list[Request]] = [[] for _ in range(clock.count)]
    for one in evidence.records.requests:
        if one.name == PLACE_ORDER and one.is_new:
            buckets[clock.bucket(one.intended)].append(one)
    filled = [(at, bucket) for at, bucket in zip(clock.times, buckets, strict=True) if bucket]
    times = [at for at, _ in filled]
    for percent, style in ((50, "-"), (99, "-")):
        sent = [percentile([one.seconds for one in bucket], percent) * 1000 for _, bucket in filled]
        intended = [percentile([one.since_intended for one in bucket], percent) * 1000 for _, bucket in filled]
        width = 1.8 if percent == 99 else 1.0
        axes.plot(times, intended, style, color=COLOURS[0], linewidth=width, label=f"p{percent} from intended")
        axes.plot(times, sent, "--", color=COLOURS[2], linewidth=width, label=f"p{percent} from sending")
    axes.set_yscale("log")
    axes.set_title("Placing an order: time until it is there")
    _finish(axes, "ms")


def _close_lateness(axes: Axes, evidence: Evidence) -> None:
    lateness = [] if evidence.ending is None else [seconds * 1000 for seconds in evidence.ending.close_lateness_s]
    axes.set_title("Unpaid orders: from expiry to close")
    if lateness:
        ordered = sorted(lateness)
        shares = [(number + 1) / len(ordered) * 100 for number in range(len(ordered))]
        axes.plot(ordered, shares, color=COLOURS[3], linewidth=1.8)
        for percent in (50, 99):
            value = percentile(ordered, percent)
            axes.axvline(value, color=INK, linewidth=0.8, linestyle=":")
            axes.annotate(f" p{percent} {value:.0f} ms", (value, 8 if percent == 50 else 20), color=INK, fontsize=8)
        if ordered[-1] > 50 * max(1.0, percentile(ordered, 50)):
            axes.set_xscale("log")
    else:
        axes.text(0.5, 0.5, "none has closed by itself", ha="center", va="center", transform=axes.transAxes, color=INK)
    axes.set_xlabel("ms after the expiry")
    axes.set_ylabel("% of them closed")


def _lag(axes: Axes, evidence: Evidence) -> None:
    lags = sorted(evidence.watched.lags.items(), key=lambda item: -max(lag for _, lag in item[1]))
    for number, (group, samples) in enumerate(lags[:GROUPS_SHOWN_MAX]):
        times = [at - evidence.begun for at, _ in samples]
        axes.plot(times, [lag for _, lag in samples], color=COLOURS[number], linewidth=1.4, label=group)
    if not lags:
        axes.text(0.5, 0.5, "the queue was not asked", ha="center", va="center", transform=axes.transAxes, color=INK)
    axes.set_title("Messages that wait, by consumer group")
    _finish(axes, "messages")


def _processor(axes: Axes, evidence: Evidence) -> None:
    watched = evidence.watched
    names = sorted(watched.processes, key=lambda name: -watched.cpu_seconds(name))[: len(COLOURS)]
    for number, name in enumerate(names):
        shares = watched.cpu_shares(name)
        dashes = "--" if name == LOCUST else "-"
        memory = max(sample.rss_mib for sample in watched.processes[name])
        axes.plot(
            [at - evidence.begun for at, _ in shares],
            [share * 100 for _, share in shares],
            dashes,
            color=COLOURS[number],
            linewidth=1.3,
            label=f"{name}, {memory:.0f} MiB",
        )
    axes.set_title("Processor: % of one core, and peak memory")
    _finish(axes, "%")


def _mark(axes: Axes, evidence: Evidence) -> None:
    """Stages and faults."""
    at = 0.0
    for stage in evidence.stages[:-1]:
        at += stage.seconds
        axes.axvline(at, color="#94a3b8", linewidth=0.7, linestyle=":")
    for fault in evidence.faults:
        axes.axvspan(fault.at - evidence.begun, fault.back - evidence.begun, color=BAD, alpha=0.15, linewidth=0)
        axes.annotate(
            fault.what,
            (fault.at - evidence.begun, 0.98),
            xycoords=("data", "axes fraction"),
            rotation=90,
            ha="left",
            va="top",
            fontsize=7,
            color=BAD,
        )


def _finish(axes: Axes, unit: str) -> None:
    axes.set_xlabel("seconds")
    axes.set_ylabel(unit)
    if axes.get_yscale() != "log":
        axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, columnspacing=1.2, handlelength=1.6)


def _kind(one: Request) -> str:
    if one.is_good:
        return "served"
    if one.is_refused:
        return "told to come back later"
    return "refused for a reason" if one.answer.startswith("4") else "failed"
