"""The plan of the users: their names, their stages."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# ----------------------------------------------------------------------------------------------------------------------
# The names of requests, in Locust's statistics and in the report.


LIST_PRODUCTS, GET_PRODUCT = "GET /products", "GET /products/{id}"
PLACE_ORDER, GET_ORDER, LIST_ORDERS = "POST /orders", "GET /orders/{id}", "GET /orders"
PAY, GET_PAYMENT = "POST /payments", "GET /payments/{id}"


# ----------------------------------------------------------------------------------------------------------------------
# A load as stages: so many visits a second for so many seconds, one after the other.


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


# ----------------------------------------------------------------------------------------------------------------------
# What the users are told: where the shop is, who they are, and how they behave. The driver writes it, Locust reads it.
#
# It holds tokens, so that its file is its owner's alone.


PLAN_VARIABLE = "HOURGLASS_LOAD_PLAN"  # the path of the file
LEASH_VARIABLE = "HOURGLASS_LOAD_LEASH"  # a pipe whose other end only the driver has: it ends with the driver
# How many users of a hundred do what. Seven of ten visits place an order.
MIX: Mapping[str, int] = {"Browser": 30, "Payer": 35, "Abandoner": 20, "LastSecondPayer": 10, "DoubleClicker": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """`stages` empty lets Locust's page or its options say how many users there are. `mix` is user class -> weight.

    A request that is told to come back later is made `tries` times at most, and for `patience_s` seconds at most.
    `think_s` is from how long to how long a buyer thinks between two steps. `records` is the file for what they saw.
    """

    orders_url: str
    payments_url: str
    tokens: Sequence[str] = field(repr=False)
    product_ids: Sequence[str]
    records: str
    stages: Sequence[Stage] = ()
    mix: Mapping[str, int] = field(default_factory=lambda: dict(MIX))
    pace_s: float = PACE_S
    tries: int = 4
    patience_s: float = 30.0
    think_s: tuple[float, float] = (0.1, 0.5)
    finish_s: float = 15.0
    seed: int = 16

    def write(self, path: Path) -> None:
        """Replace the file, which nobody else can read. Raises OSError."""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, path: Path) -> LoadPlan:
        """Raises OSError."""
        members: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        members["stages"] = [Stage(**stage) for stage in members["stages"]]
        members["think_s"] = tuple(members["think_s"])
        return cls(**members)
