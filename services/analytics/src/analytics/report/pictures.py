"""The drawings of the report, in one style: one PNG file a chart. Everything that is drawn stands in the document."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#2563eb", "#16a34a", "#d97706", "#9333ea", "#0891b2", "#be123c", "#65a30d", "#475569")
GOOD, BAD, OTHER, MAIN = "#16a34a", "#be123c", "#94a3b8", "#2563eb"
TITLE, INK, GRID = "#0f172a", "#334155", "#e2e8f0"
SIZE_INCHES, DPI = (7.2, 3.7), 130
_STYLE: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.titlecolor": TITLE,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


class Sheet:
    """One picture while it is drawn: its axes, and then its bytes."""

    def __init__(self) -> None:
        self._figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(self._figure)
        self.axes: Axes = self._figure.subplots()

    def png(self) -> bytes:
        """The picture as a file; the same drawing gives the same bytes."""
        data = io.BytesIO()
        self._figure.savefig(data, format="png", dpi=DPI, metadata={"Software": None})
        return data.getvalue()


@contextmanager
def house_style() -> Iterator[None]:
    """Inside, sheets are made and written in the house's style."""
    with mpl.rc_context(_STYLE):
        yield


def empty(axes: Axes, words: str) -> None:
    """Instead of a chart: why there is none."""
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, color=INK)


Document = Mapping[str, Any]
FEW_POINTS_MAX = 20
PRODUCTS_DRAWN_MAX = 12
# What became of the units that were reserved.
STOCK_COLOURS = {"kept": GOOD, "taken_back": COLOURS[2], "released": OTHER, "waiting": COLOURS[4]}


def draw(document: Document) -> dict[str, bytes]:
    """File name -> PNG, in the order in which the page shows them."""
    pictures = {}
    with house_style():
        for name, chart in CHARTS.items():
            sheet = Sheet()
            chart(sheet.axes, document)
            pictures[f"{name}.png"] = sheet.png()
    return pictures


def _funnel(axes: Axes, document: Document) -> None:
    axes.set_title("How far orders came")
    steps = document["funnel"]
    if not steps or not steps[0]["orders"]:
        empty(axes, "no order was created")
        return
    first = steps[0]["orders"]
    places = range(len(steps))
    counts = [step["orders"] for step in steps]
    axes.barh(places, counts, color=MAIN, height=0.62)
    for place, count in zip(places, counts, strict=True):
        axes.annotate(f" {count:,}   {count / first:.0%}", (count, place), va="center", color=INK, fontsize=9)
    axes.set_yticks(places, [step["step"] for step in steps])
    axes.invert_yaxis()
    axes.set_xlim(right=max(counts) * 1.2)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("orders")
    _whole_numbers(axes)


def _orders(axes: Axes, document: Document) -> None:
    over = document["orders_over_time"]
    axes.set_title(f"Orders by {_width(over['bucket_s'])}")
    points = over["points"]
    if not points:
        empty(axes, "no order was created")
        return
    for name, colour in (("created", MAIN), ("paid", GOOD), ("closed", OTHER)):
        marker = "o" if len(points) <= FEW_POINTS_MAX else None
        times, counts = _filled(points, over["bucket_s"], name)
        axes.plot(times, counts, color=colour, linewidth=1.8, marker=marker, markersize=3, label=name)
    axes.set_ylabel("orders")
    axes.set_ylim(bottom=0)
    _dates(axes)
    _legend(axes)


def _revenue(axes: Axes, document: Document) -> None:
    over = document["revenue_over_time"]
    axes.set_title(f"Revenue by {_width(over['bucket_s'])}, of paid orders")
    points = over["points"]
    if not points:
        empty(axes, "no order was paid")
        return
    times, names = _times(points), over["products"]
    bottom = [0.0] * len(points)
    width = over["bucket_s"] / 86_400 * 0.9
    for number, name in enumerate(names):
        values = [point["revenue_minor"].get(name, 0) / 100 for point in points]
        colour = OTHER if name == over["others"] else COLOURS[number % len(COLOURS)]
        axes.bar(times, values, width=width, bottom=bottom, color=colour, label=name, linewidth=0)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    axes.set_ylabel(over["currency"])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _dates(axes)
    _legend(axes, columns=4)


def _time_to_pay(axes: Axes, document: Document) -> None:
    axes.set_title("From order to payment")
    _distribution(axes, document["time_to_pay"], "% of the paid orders", "none was paid", MAIN)
    axes.set_xlabel("time after the order")


def _close_lateness(axes: Axes, document: Document) -> None:
    axes.set_title("From the end of the time to pay to the close")
    _distribution(axes, document["close_lateness"], "% of the expired orders", "none has closed by itself", COLOURS[3])
    axes.set_xlabel("time after the expiry")


def _delivery(axes: Axes, document: Document) -> None:
    """All levels in one curve; the marks are what the brokers say of each level, where that is known."""
    axes.set_title("How late the broker delivered timeouts")
    curve = document["delivery"]["curve"]
    if not curve:
        empty(axes, "no timeout was delivered")
        return
    _steps(axes, curve, COLOURS[4])
    for number, one in enumerate(document["lateness"]):
        for name, height in (("p50", 14), ("p99", 30)):
            _mark(axes, one[f"broker_{name}_ms"], height + 7 * number, f"level {one['level']}: broker's {name}")
    axes.set_ylabel("% of the timeouts")
    axes.set_xlabel("delivered after it was due")


def _stock(axes: Axes, document: Document) -> None:
    products = document["stock"][:PRODUCTS_DRAWN_MAX]
    more = len(document["stock"]) - len(products)
    axes.set_title("Units by product" + (f", the first {len(products)}" if more else ""))
    if not products:
        empty(axes, "no unit was reserved")
        return
    places = range(len(products))
    left = [0] * len(products)
    for name, colour in STOCK_COLOURS.items():
        values = [product[f"units_{name}"] for product in products]
        if any(values):
            axes.barh(places, values, left=left, color=colour, label=name.replace("_", " "), height=0.66)
        left = [low + value for low, value in zip(left, values, strict=True)]
    axes.set_yticks(places, [product["product_id"] for product in products])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("units")
    _whole_numbers(axes)
    _legend(axes)


def _abandoned(axes: Axes, document: Document) -> None:
    over = document["abandoned_over_time"]
    axes.set_title(f"Never paid, by {_width(over['bucket_s'])} of the order")
    points = over["points"]
    if not points:
        empty(axes, "no order was created")
        return
    width = over["bucket_s"] / 86_400 * 0.9
    values = [point["abandoned"] / point["created"] * 100 for point in points]
    axes.bar(_times(points), values, width=width, color=BAD, alpha=0.75)
    if len(points) <= FEW_POINTS_MAX:
        for at, value, point in zip(_times(points), values, points, strict=True):
            axes.annotate(
                f"{point['abandoned']:,} of {point['created']:,}",
                (at, value),
                ha="center",
                va="bottom",
                fontsize=8,
                color=INK,
            )
    axes.set_ylabel("% of the orders")
    axes.set_ylim(0, max(100.0 if max(values) > 80 else 0.0, max(values) * 1.15, 1.0))
    _dates(axes)


def _findings(axes: Axes, document: Document) -> None:
    axes.set_title("What reconciliation found")
    kinds = document["findings"]["by_kind"]
    if not kinds:
        empty(axes, "nothing: everything that was paid, shipped and refunded adds up")
        return
    places = range(len(kinds))
    axes.barh(places, list(kinds.values()), color=BAD, height=0.62)
    for place, count in zip(places, kinds.values(), strict=True):
        axes.annotate(f" {count:,}", (count, place), va="center", color=INK)
    axes.set_yticks(places, list(kinds))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("findings")
    _whole_numbers(axes)


CHARTS: Mapping[str, Callable[[Axes, Document], None]] = {
    "funnel": _funnel,
    "orders": _orders,
    "revenue": _revenue,
    "abandoned": _abandoned,
    "time-to-pay": _time_to_pay,
    "close-lateness": _close_lateness,
    "delivery": _delivery,
    "stock": _stock,
    "findings": _findings,
}


def _distribution(axes: Axes, found: Mapping[str, Any], unit: str, nothing: str, colour: str) -> None:
    """How many per cent were done after how long; the marks are the median and the last hundredth."""
    curve: Sequence[Sequence[float]] = found["curve"]
    if not curve:
        empty(axes, nothing)
        return
    _steps(axes, curve, colour)
    for name, height in (("p50", 14), ("p99", 30)):
        _mark(axes, found[f"{name}_ms"], height, name)
    axes.set_ylabel(unit)


def _steps(axes: Axes, curve: Sequence[Sequence[float]], colour: str) -> None:
    times = [0.0, *(at_ms for at_ms, _ in curve)]
    shares = [0.0, *(share * 100 for _, share in curve)]
    axes.step(times, shares, where="post", color=colour, linewidth=1.8)
    axes.set_ylim(0, 104)
    axes.set_xlim(0, max(times) * 1.03 or 1.0)
    axes.xaxis.set_major_formatter(lambda value, _: duration(value))


def _mark(axes: Axes, at_ms: float, height: float, name: str) -> None:
    """A dotted line, and its name on the side where there is room."""
    axes.axvline(at_ms, color=INK, linewidth=0.8, linestyle=":")
    text, is_late = f"{name} {duration(at_ms)}", at_ms > axes.get_xlim()[1] / 2
    axes.annotate(
        f"{text} " if is_late else f" {text}", (at_ms, height), ha="right" if is_late else "left", color=INK, fontsize=8
    )


def duration(ms: float) -> str:
    """As people say it."""
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    if ms < 1_000:
        return f"{sign}{ms:.0f} ms"
    if ms < 120_000:
        return f"{sign}{ms / 1_000:.3g} s"
    return f"{sign}{ms / 60_000:.3g} min" if ms < 7_200_000 else f"{sign}{ms / 3_600_000:.3g} h"


def _width(bucket_s: int) -> str:
    for unit_s, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if bucket_s % unit_s == 0:
            count = bucket_s // unit_s
            return name if count == 1 else f"{count} {name}s"
    return f"{bucket_s} seconds"


def _times(points: Sequence[Mapping[str, Any]]) -> Any:
    return [datetime.fromisoformat(point["at"]) for point in points]


def _filled(points: Sequence[Mapping[str, Any]], bucket_s: int, name: str) -> tuple[Any, list[int]]:
    """Also the periods in which nothing happened, which have no point."""
    counts = {datetime.fromisoformat(point["at"]): point[name] for point in points}
    at, last, step = min(counts), max(counts), timedelta(seconds=bucket_s)
    times = [at + number * step for number in range((last - at) // step + 1)]
    return times, [counts.get(time, 0) for time in times]


def _whole_numbers(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _dates(axes: Axes) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _legend(axes: Axes, columns: int = 3) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.14), ncols=columns, columnspacing=1.2, handlelength=1.4)
