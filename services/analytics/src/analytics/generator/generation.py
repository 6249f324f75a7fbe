"""What is generated: how much, with which chances, and which orders have a fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.jobs.reconciliation_kinds import Kind

ORDERS_MAX = 2**31
FIRST_DAY = datetime(2026, 11, 2, tzinfo=UTC)
REST_AFTER = timedelta(days=12)  # shipped within 3 days, completed 7 days later; the rest is for what comes late


@dataclass(frozen=True, slots=True)
class Generation:
    """How many orders, of which days, and what is wrong with how many of them.

    `faults`: kind -> number of orders. The shares are those of messages that are stored late (after `late_ms_max` at
    most), that are stored twice, and of rows that are in bronze twice. `until`: messages stored later are left out, as
    when the queue is read at that moment; None: all are there. Raises ValueError for what does not go together.
    """

    orders: int
    seed: int = 1
    start: datetime = FIRST_DAY
    days: int = 7
    faults: Mapping[Kind, int] = field(default_factory=dict)
    brokers: int = 1
    queues: int = 4
    products: int = 211
    late_share: float = 0.01
    late_ms_max: int = 3_600_000
    repeated_share: float = 0.01
    read_twice_share: float = 0.002
    until: datetime | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.orders <= ORDERS_MAX:
            raise ValueError(f"{self.orders} orders; 1 to {ORDERS_MAX} can be generated")
        if sum(self.faults.values()) > self.orders or min(self.faults.values(), default=0) < 0:
            raise ValueError(f"{sum(self.faults.values())} faults do not fit {self.orders} orders, of one at most each")
        if min(self.days, self.brokers, self.queues) < 1 or self.brokers > len(BROKER_LETTERS):
            raise ValueError(f"at least one day, one queue, and 1 to {len(BROKER_LETTERS)} brokers are needed")
        if self.start.tzinfo is None or (self.until is not None and self.until.tzinfo is None):
            raise ValueError("the times need their zone")

    @property
    def start_ms(self) -> int:
        """When the first order can come."""
        return int(self.start.timestamp() * 1000)

    @property
    def rest_at(self) -> datetime:
        """When everything has happened and been stored."""
        return self.start + timedelta(days=self.days) + REST_AFTER


BROKER_LETTERS = "abcdefghijklmnopqrstuvwxyz"


# Chance that follows from a seed: each name and row has its own, in every run and on every machine.

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


# Which orders have a fault: as many of each kind as asked for, anywhere among the others.
#
# Every order has a rank, by a walk through all of them in steps that hit each once; the first ranks have the faults.

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


# Where messages stand: broker, queue, and offsets, which follow each other without a gap in every queue.


def broker_of(wanted: Generation, chance: Chance) -> Column:
    """The name of one of the brokers."""
    names = F.array(*(F.lit(f"broker-{letter}") for letter in BROKER_LETTERS[: wanted.brokers]))
    return F.get(names, chance.between("broker", 0, wanted.brokers).cast("int"))


def queue_of(wanted: Generation, chance: Chance) -> Column:
    """One of the queues of a topic."""
    return chance.between("queue", 0, wanted.queues).cast("int")


def with_offsets(rows: DataFrame) -> DataFrame:
    """`rows` and their `queueOffset`: in every queue from 0 up, as they were stored. A task sorts a queue."""
    queue = Window.partitionBy("topic", "broker", "queueId").orderBy("stored_ms", "number", "part", "copy")
    return rows.withColumn("queueOffset", F.row_number().over(queue).cast("bigint") - 1)
