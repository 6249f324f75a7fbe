"""A load as stages: so many visits a second for so many seconds, one after the other."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

PACE_S = 2.0  # every user begins a visit this often, however long the one before takes
RATE_MAX_PER_S, SECONDS_MAX = 10_000.0, 24 * 3600.0
_STAGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)x([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True, slots=True)
class Stage:
    """Raises ValueError."""

    visits_per_s: float
    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.visits_per_s <= RATE_MAX_PER_S:
            raise ValueError(f"{self.visits_per_s:g} visits a second: more than 0 and at most {RATE_MAX_PER_S:g}")
        if not 0 < self.seconds <= SECONDS_MAX:
            raise ValueError(f"{self.seconds:g} s: more than 0 and at most {SECONDS_MAX:g}")


def parse_stages(text: str) -> list[Stage]:
    """`10x30,20x60` is 10 visits a second for 30 s, then 20 a second for 60 s. Raises ValueError."""
    stages = []
    for part in text.split(","):
        match = _STAGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is no stage; allowed is visits a second x seconds, such as 20x60")
        stages.append(Stage(float(match[1]), float(match[2])))
    return stages


def usual_stages(visits_per_s: float, seconds: float) -> list[Stage]:
    """A warm-up, a climb, the load itself for most of the time, a peak a quarter above it, and calm again."""
    shares = ((0.25, 0.1), (0.6, 0.1), (1.0, 0.6), (1.25, 0.1), (0.5, 0.1))
    return [Stage(visits_per_s * rate, seconds * share) for rate, share in shares]


def stage_at(stages: Sequence[Stage], elapsed_s: float) -> Stage | None:
    """The stage after so many seconds; None when all are over."""
    for stage in stages:
        if elapsed_s < stage.seconds:
            return stage
        elapsed_s -= stage.seconds
    return None


def users_of(stage: Stage, pace_s: float) -> int:
    """How many users make so many visits."""
    return max(1, math.floor(stage.visits_per_s * pace_s + 0.5))
