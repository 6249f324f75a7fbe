"""What the users are told: where the shop is, who they are, and how they behave. The driver writes it, Locust reads it.

It holds tokens, so that its file is its owner's alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hourglass_loadtest.users.stages import PACE_S, Stage

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
