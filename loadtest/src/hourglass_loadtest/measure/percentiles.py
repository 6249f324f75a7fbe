"""Percentiles of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """By nearest rank: the smallest value that at least `percent` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def latency_metrics(seconds: Sequence[float], prefix: str = "") -> dict[str, float]:
    """p50, p99 and the largest, in milliseconds."""
    return {
        f"{prefix}p50_ms": percentile(seconds, 50) * 1000,
        f"{prefix}p99_ms": percentile(seconds, 99) * 1000,
        f"{prefix}max_ms": max(seconds) * 1000,
    }
