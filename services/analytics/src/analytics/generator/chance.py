"""Chance that follows from a seed: each name and row has its own, in every run and on every machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

_HASH_BITS, _FRACTION_BITS = 64, 53


@dataclass(frozen=True, slots=True)
class Chance:
    """Draws for the rows that `keys` tell apart; two names are two independent draws of the same row."""

    seed: int
    keys: tuple[str, ...] = ("number",)

    def uniform(self, name: str) -> Column:
        """From 0 to 1, without 1."""
        bits = F.xxhash64(F.lit(self.seed), F.lit(name), *self.keys)
        return F.shiftrightunsigned(bits, _HASH_BITS - _FRACTION_BITS) * F.lit(2.0**-_FRACTION_BITS)

    def between(self, name: str, low: float, high: float) -> Column:
        """A bigint from `low` to `high`, without `high`."""
        return F.floor(F.lit(float(low)) + self.uniform(name) * F.lit(float(high - low)))

    def soon(self, name: str, mean: float, most: float) -> Column:
        """A bigint from 0 to `most`: exponential, cut off there; small ones are far more frequent than large ones."""
        share = 1.0 - math.exp(-most / mean)
        return F.floor(-F.log1p(-self.uniform(name) * F.lit(share)) * F.lit(float(mean)))

    def happens(self, name: str, share: float) -> Column:
        """Whether it happens, to this share of the rows."""
        return self.uniform(name) < F.lit(float(share))

    def hex_id(self, name: str) -> Column:
        """32 hex digits, as the services make their ids."""
        return F.md5(F.concat_ws("/", F.lit(f"{self.seed}/{name}"), *self.keys))
