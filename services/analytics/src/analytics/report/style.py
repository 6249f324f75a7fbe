"""How charts look: the colours and strokes of all reports of the project."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
