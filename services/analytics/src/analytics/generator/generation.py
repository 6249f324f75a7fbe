"""What is to be generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

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
