"""What an instrument of the broker is: a name, and a reading of the broker that gives its points.

Readings are called by the exporter's own thread, beside the event loop: they take counts and copies, and go through no
table while the loop may change it.

Units: the process's page for Prometheus and a collector's have to give the same names, so shares and flags have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mq_broker.processor.broker import Broker

Attributes = dict[str, str | int]
Point = tuple[float, Attributes]
Reading = Callable[[Broker], Iterable[Point]]

NO_UNIT = ""
# Upper bounds of classes for the waits of producers, in seconds.
WAIT_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True)
class Instrument:
    """An observable instrument; each point gets the broker's name as well."""

    name: str
    unit: str
    description: str
    read: Reading


def single(name: str, unit: str, description: str, read: Callable[[Broker], float]) -> Instrument:
    """One that has one point."""
    return Instrument(name, unit, description, lambda broker: [(read(broker), {})])
