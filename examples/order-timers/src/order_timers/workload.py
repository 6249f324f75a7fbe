"""The buyers: who orders when, and who pays after how long; the same for every design that is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from osenv import SeededRng

PAID_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    """An order, in milliseconds since the beginning; `pays_at_ms` is None for a buyer who never pays."""

    order_id: str
    at_ms: int
    pays_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Workload:
    """So many orders over so many minutes, each with a window to pay; repeatable from its seed.

    With `fixed` it is these orders instead.
    """

    orders: int = 240
    minutes: int = 60
    window_minutes: int = 30  # MISSION X3
    seed: int = 1
    fixed: tuple[PlannedOrder, ...] = ()

    @property
    def window_ms(self) -> int:
        return self.window_minutes * 60_000

    def plan(self) -> Sequence[PlannedOrder]:
        """The orders, in the order of their times."""
        if self.fixed:
            return self.fixed
        rng = SeededRng(self.seed)
        moments = sorted(rng.randrange(0, self.minutes * 60_000) for _ in range(self.orders))
        planned = []
        for number, at_ms in enumerate(moments):
            pays_after_ms = rng.randrange(1_000, self.window_ms - 1_000)
            pays_at_ms = at_ms + pays_after_ms if rng.random() < PAID_SHARE else None
            planned.append(PlannedOrder(f"order-{number:04}", at_ms, pays_at_ms))
        return planned
