"""What the shop goes through: its buyers, what happens to its instances, and how much of a year an outage may take."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from osenv import SeededRng

MINUTES_A_YEAR = 365.25 * 24 * 60
PAID_SHARE = 0.5


def outage_minutes(availability: float) -> float:
    """The minutes of a year in which a service of this availability may be away: 52.6 for 99.99 %."""
    return (1 - availability) * MINUTES_A_YEAR


def in_series(*availabilities: float) -> float:
    """Of parts that are all needed: their failures add up."""
    result = 1.0
    for availability in availabilities:
        result *= availability
    return result


def in_parallel(*availabilities: float) -> float:
    """Of parts that stand in for each other and fail independently: all have to be away at once."""
    return 1 - in_series(*(1 - availability for availability in availabilities))


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
    window_minutes: int = 30  # mechanism X3
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


class Act(enum.Enum):
    """What happens to an instance, or to the message queue."""

    KILL = "kill"
    START = "start"
    KILL_QUEUE = "kill queue"
    START_QUEUE = "start queue"


@dataclass(frozen=True, slots=True)
class Event:
    """Something happens so many minutes after the beginning; `instance` counts from 0."""

    at_minutes: float
    act: Act
    instance: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Instances of the shop behind a load balancer, and their misfortunes."""

    name: str
    sentence: str
    instances: int = 1
    events: tuple[Event, ...] = ()
    needs_queue: bool = False  # makes sense for designs with a message queue only


BROKEN_AT, BACK_AT = 40, 45
A_YEARS_OUTAGE = outage_minutes(0.9999)

CALM = Scenario("calm", "one instance, and nothing goes wrong")
RESTART = Scenario(
    "restart",
    f"one instance, down from minute {BROKEN_AT} to minute {BACK_AT}",
    events=(Event(BROKEN_AT, Act.KILL), Event(BACK_AT, Act.START)),
)
TWO_INSTANCES = Scenario("two-instances", "two instances, and nothing goes wrong", instances=2)
TWO_RESTART = Scenario(
    "two-restart",
    f"two instances, the second one down from minute {BROKEN_AT} to minute {BACK_AT}",
    instances=2,
    events=(Event(BROKEN_AT, Act.KILL, 1), Event(BACK_AT, Act.START, 1)),
)
DEAD_SERVER = Scenario(
    "dead-server",
    f"two instances, the second one dies at minute {BROKEN_AT} and never comes back",
    instances=2,
    events=(Event(BROKEN_AT, Act.KILL, 1),),
)
A_YEAR = Scenario(
    "a-year",
    f"one instance, down for {A_YEARS_OUTAGE:.1f} minutes: a year's worth of 99.99 %, at once",
    events=(Event(BROKEN_AT, Act.KILL), Event(BROKEN_AT + A_YEARS_OUTAGE, Act.START)),
)
A_YEAR_OF_TWO = Scenario(
    "a-year-of-two",
    f"two instances, the second one down for {A_YEARS_OUTAGE:.1f} minutes",
    instances=2,
    events=(Event(BROKEN_AT, Act.KILL, 1), Event(BROKEN_AT + A_YEARS_OUTAGE, Act.START, 1)),
)
QUEUE_RESTART = Scenario(
    "queue-restart",
    f"one instance; the broker itself is down from minute {BROKEN_AT} to minute {BACK_AT}",
    events=(Event(BROKEN_AT, Act.KILL_QUEUE), Event(BACK_AT, Act.START_QUEUE)),
    needs_queue=True,
)

SCENARIOS = (CALM, RESTART, TWO_INSTANCES, TWO_RESTART, DEAD_SERVER, A_YEAR, A_YEAR_OF_TWO, QUEUE_RESTART)
