"""Which orders have a fault: as many of each kind as asked for, anywhere among the others.

Every order has a rank, by a walk through all of them in steps that hit each once; the first ranks have the faults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from analytics.jobs.reconciliation_kinds import Kind

_GOLDEN = (math.sqrt(5) - 1) / 2  # steps of this share of the whole spread best


def rank(number: Column, orders: int, seed: int) -> Column:
    """0 to `orders` - 1, each once. `orders` is at most 2^31, so that the product fits a bigint."""
    step = max(1, int(orders * _GOLDEN))
    while math.gcd(step, orders) > 1:
        step += 1
    return F.pmod(number * F.lit(step) + F.lit(seed % orders), F.lit(orders))


def fault(rank_: Column, faults: Mapping[Kind, int]) -> Column:
    """The order's fault as a text; null without one."""
    chosen, bound = F.when(F.lit(False), F.lit("")), 0
    for kind, count in faults.items():
        bound += count
        chosen = chosen.when(rank_ < F.lit(bound), F.lit(kind.value))
    return chosen
