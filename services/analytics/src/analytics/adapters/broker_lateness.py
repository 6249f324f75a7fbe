"""The file in which a demonstration or a load leaves what its brokers said of their own lateness."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

MEMBER = "lateness_ms_by_level"
FIGURES = ("delivered", "p50", "p99", "max")


class LatenessFileError(ValueError):
    """The file cannot be used; the message says why."""


def read_broker_lateness(path: Path) -> Mapping[str, Mapping[str, int]]:
    """By delay level as text: delivered, p50, p99 and max, in milliseconds. Raises LatenessFileError."""
    try:
        levels = json.loads(path.read_text(encoding="utf-8"))[MEMBER]
        return {level: {name: int(figures[name]) for name in FIGURES} for level, figures in levels.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LatenessFileError(
            f"{path} does not tell how late brokers were: {type(error).__name__}: {error}"
        ) from error
