"""Half messages; masters tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mq_broker.core.transactions import TransactionTable
from mq_broker.metrics.instruments import Instrument, Point, single
from mq_broker.processor.broker import Broker


def _of_master(name: str, description: str, count: Callable[[TransactionTable], int]) -> Instrument:
    def points(broker: Broker) -> Iterable[Point]:
        return [] if broker.store.follows else [(count(broker.transaction_table), {})]

    return Instrument(name, "{message}", description, points)


GAUGES = (
    _of_master("hourglass.transaction.halves", "Half messages of open transactions", lambda table: len(table.open)),
    _of_master("hourglass.transaction.parked", "Those that wait for an operator", lambda table: len(table.in_parking)),
)
COUNTERS = (
    single("hourglass.transaction.checks", "{check}", "Checks of producers", lambda b: b.transactions.checks.asked),
)
