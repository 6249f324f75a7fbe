"""What happens to the shop while the buyers trade."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from order_timers.availability import outage_minutes


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
