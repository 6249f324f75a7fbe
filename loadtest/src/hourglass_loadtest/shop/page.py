"""The report of a load: one HTML page without scripts and with nothing from elsewhere, its charts inside."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hourglass_loadtest.measure.clients import percentile
from hourglass_loadtest.shop.summary import LOCUST, REJECTED_FOR_LOAD, Evidence
from hourglass_loadtest.users.plan import PLACE_ORDER, Request

BUCKETS = 100
BUCKET_MIN_S = 1.0
COLOURS = ("#2563eb", "#16a34a", "#d97706", "#9333ea", "#0891b2", "#be123c", "#65a30d", "#475569")
GOOD, LATER, OTHER, BAD, INTENDED = "#16a34a", "#d97706", "#64748b", "#be123c", "#0f172a"
INK, GRID = "#334155", "#e2e8f0"
GROUPS_SHOWN_MAX = 7
PICTURE_STYLE: Any = {
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
    with mpl.rc_context(PICTURE_STYLE):
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
        "rejected for a reason": [],
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
    rejected = [
        one.begun + one.seconds for one in requests if one.name == PLACE_ORDER and one.answer in REJECTED_FOR_LOAD
    ]
    axes.plot(clock.times, clock.rates(intended), color=INTENDED, linewidth=1.2, linestyle="--", label="intended")
    axes.plot(clock.times, clock.rates(placed), color=GOOD, linewidth=1.8, label="placed")
    if rejected:
        axes.plot(clock.times, clock.rates(rejected), color=LATER, linewidth=1.2, label="rejected: too much work")
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
    if one.is_rejected:
        return "told to come back later"
    return "rejected for a reason" if one.answer.startswith("4") else "failed"


_STYLE = """
:root { color-scheme: light; --ink: #0f172a; --soft: #64748b; --line: #e2e8f0; --good: #15803d; --bad: #be123c; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #f8fafc; margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0 0 2px; } h2 { font-size: 18px; margin: 34px 0 10px; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin: 20px 0; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.card b { display: block; font-size: 24px; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.sheet { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 8px; overflow-x: auto; }
.sheet svg { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); }
td { font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
td.left { text-align: left; } tr:last-child td { border-bottom: 0; }
.note { border-left: 4px solid #d97706; background: #fffbeb; padding: 10px 14px; border-radius: 6px; }
"""


def page_of(document: Mapping[str, Any], svg: str) -> str:
    """The whole page."""
    results = document["results"]
    parts = [
        f"<h1>Hourglass: {escape(document['title'])}</h1>",
        f'<p class="soft">{escape(_origin(document))}</p>',
        _cards(results),
        _limit(results),
        *_more(results),
        f'<h2>How it went</h2><div class="sheet">{svg}</div>',
        "<h2>Requests</h2>",
        _requests(results["requests"]),
        "<h2>Stages</h2>",
        _stages(results["stages"]),
        "<h2>Faults</h2>" + _faults(results["faults"]) if results["faults"] else "",
        "<h2>Visits</h2>",
        _visits(results["visits"]),
        "<h2>Processes</h2>",
        _processes(results["processes"]),
        "<h2>Consumer groups</h2>" + _lags(results["message_lag"]) if results["message_lag"] else "",
        _ending(results),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Hourglass: {escape(document['title'])}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _origin(document: Mapping[str, Any]) -> str:
    machine, run = document["machine"], document["run"]
    commit = f"commit {str(document['commit'])[:10]}{' with changes' if document['dirty'] else ''}"
    settings = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in run.items() if name != "stages")
    return f"{document['time']} · {commit} · {machine['cores']} cores, {machine['cpu']} · {settings}"


def _cards(results: Mapping[str, Any]) -> str:
    orders = results["requests"].get("POST /orders", {})
    intended, sent = orders.get("from_intended_ms", {}), orders.get("from_sending_ms", {})
    invariants = results.get("invariants", {})
    cards = [
        (f"{results['orders_per_s']:.1f}/s", f"orders placed, {results['orders_placed']:,} in all", ""),
        (_ms(intended.get("p99")), "p99 of placing an order, from when it was intended", ""),
        (_ms(sent.get("p99")), "p99 of the same from its sending", ""),
        (_ms(results.get("close_lateness_ms", {}).get("p99")), "p99 from expiry to close", ""),
        (f"{results['retries']:,}", f"of {sum(results['answers'].values()):,} requests were made again", ""),
    ]
    if invariants:
        found = len(invariants["violations"])
        if not invariants["checked"]:
            cards.append(("not checked", invariants.get("why", "").removeprefix("not checked: "), "bad"))
        else:
            word = "all hold" if not found else f"{found} violated"
            cards.append((word, f"{invariants['checked']} invariants of the shop", "bad" if found else "good"))
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><b class="{kind}">{escape(value)}</b><span>{escape(text)}</span></div>'
            for value, text, kind in cards
        )
        + "</div>"
    )


def _limit(results: Mapping[str, Any]) -> str:
    generator = results["generator"]
    if not generator["was_the_limit"]:
        return ""
    return (
        f'<p class="note">The load generator was at its limit: {escape(generator["why"])}. It shares the machine with'
        " the shop; what is measured from the intended time contains its own slowness.</p>"
    )


def _more(results: Mapping[str, Any]) -> Iterable[str]:
    if "overload" in results:
        found = results["overload"]
        rows = [
            [
                f"{step['visits_per_s']:g}",
                f"{step['orders_per_s']:.1f}",
                _ms(step["p99_ms"]),
                f"{step['refused_share']:.1%}",
                "yes" if step["sustained"] else "no",
            ]
            for step in found["steps"]
        ]
        yield "<h2>Overload</h2>"
        yield (
            f"<p>Sustainable: {found['sustainable_visits_per_s']:g} visits a second. At {found['times']:g} times that,"
            f" {found['goodput_orders_per_s']:.1f} orders a second were placed:"
            f" <b>{found['share_of_peak']:.0%} of the peak</b> of {found['peak_orders_per_s']:.1f}."
            f" {found['refused']:,} requests were rejected, every one with a reason and with when to come back"
            f" (Retry-After: {escape(', '.join(found['retry_after_s']) or 'none')} s).</p>"
        )
        yield _table(["visits/s", "orders/s", "p99 from intended", "refused", "sustained"], rows)


def _requests(requests: Mapping[str, Any]) -> str:
    rows = []
    for name, one in requests.items():
        sent, intended = one["from_sending_ms"], one["from_intended_ms"]
        answers = ", ".join(f"{answer}: {count:,}" for answer, count in one["answers"].items())
        numbers = [_ms(times.get(percent)) for times in (sent, intended) for percent in ("p50", "p99", "max")]
        rows.append([name, f"{one['count']:,}", *numbers, answers])
    heads = [
        "request",
        "count",
        *(f"{percent} {since}" for since in ("sent", "intended") for percent in ("p50", "p99", "max")),
    ]
    return _table([*heads, "answers"], rows, left=(8,))


def _stages(stages: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{one['visits_per_s_intended']:g}/s for {one['seconds']:g} s",
            f"{one['visits_done_per_s']:.1f}",
            f"{one['orders_per_s']:.1f}",
            _ms(one["post_orders_from_intended_ms"].get("p50")),
            _ms(one["post_orders_from_intended_ms"].get("p99")),
            f"{one['orders_refused_share']:.1%}",
        ]
        for one in stages
    ]
    return _table(
        ["visits intended", "visits done/s", "orders/s", "p50 intended", "p99 intended", "rejected at first"], rows
    )


def _faults(faults: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            one["what"],
            f"{one['after_s']:.1f} s",
            f"{one['back_after_s']:.1f} s",
            "none" if one["first_order_after_s"] is None else f"{one['first_order_after_s']:.1f} s",
        ]
        for one in faults
    ]
    return _table(["fault", "at", "process ready again after", "first order asked for and placed after"], rows)


def _visits(visits: Mapping[str, Any]) -> str:
    outcomes = list(visits["outcomes"])
    rows = [
        [kind, *(f"{counts.get(outcome, 0):,}" for outcome in outcomes)] for kind, counts in visits["kinds"].items()
    ]
    return _table(["kind", *outcomes], rows)


def _processes(processes: Mapping[str, Any]) -> str:
    rows = [
        [name, f"{one['cpu_s']:.1f} s", f"{one['cpu_share_mean']:.0%}", f"{one['rss_peak_mib']:.0f} MiB"]
        for name, one in processes.items()
    ]
    return _table(["process", "processor time", "of one core", "peak memory"], rows)


def _lags(lags: Mapping[str, Any]) -> str:
    return _table(
        ["group", "most that waited", "at the end"],
        [[group, f"{one['max']:,}", f"{one['end']:,}"] for group, one in lags.items()],
    )


def _ending(results: Mapping[str, Any]) -> str:
    if "orders_by_status" not in results:
        return ""
    statuses = ", ".join(f"{status} {count:,}" for status, count in results["orders_by_status"].items())
    text = (
        f"<h2>The end</h2><p>At rest {results['at_rest_after_s']:.1f} s after the load. Orders: {escape(statuses)}.</p>"
    )
    sentences = [*results["wrong_answers"], *results["invariants"]["violations"]]
    return text + "".join(f'<p class="bad">{escape(sentence)}</p>' for sentence in sentences)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(
        "<tr>" + "".join(
            f"<td{' class=left' if number in left else ''}>{escape(cell)}</td>" for number, cell in enumerate(row)
        ) + "</tr>"
        for row in rows
    )  # fmt: skip
    return f'<div class="sheet"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms"
