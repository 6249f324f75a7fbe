"""The plan of a load: when users come, and the records of what happened."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

LIST_PRODUCTS, GET_PRODUCT = "GET /products", "GET /products/{id}"
PLACE_ORDER, GET_ORDER, LIST_ORDERS = "POST /orders", "GET /orders/{id}", "GET /orders"
PAY, GET_PAYMENT = "POST /payments", "GET /payments/{id}"


PACE_S = 2.0  # every user begins a visit this often, however long the one before takes
RATE_MAX_PER_S, SECONDS_MAX = 10_000.0, 24 * 3600.0
_STAGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)x([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True, slots=True)
class Stage:
    """Raises ValueError."""

    visits_per_s: float
    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.visits_per_s <= RATE_MAX_PER_S:
            raise ValueError(f"{self.visits_per_s:g} visits a second: more than 0 and at most {RATE_MAX_PER_S:g}")
        if not 0 < self.seconds <= SECONDS_MAX:
            raise ValueError(f"{self.seconds:g} s: more than 0 and at most {SECONDS_MAX:g}")


def parse_stages(text: str) -> list[Stage]:
    """`10x30,20x60` is 10 visits a second for 30 s, then 20 a second for 60 s. Raises ValueError."""
    stages = []
    for part in text.split(","):
        match = _STAGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is no stage; allowed is visits a second x seconds, such as 20x60")
        stages.append(Stage(float(match[1]), float(match[2])))
    return stages


def usual_stages(visits_per_s: float, seconds: float) -> list[Stage]:
    """A warm-up, a climb, the load itself for most of the time, a peak a quarter above it, and calm again."""
    shares = ((0.25, 0.1), (0.6, 0.1), (1.0, 0.6), (1.25, 0.1), (0.5, 0.1))
    return [Stage(visits_per_s * rate, seconds * share) for rate, share in shares]


def stage_at(stages: Sequence[Stage], elapsed_s: float) -> Stage | None:
    """The stage after so many seconds; None when all are over."""
    for stage in stages:
        if elapsed_s < stage.seconds:
            return stage
        elapsed_s -= stage.seconds
    return None


def users_of(stage: Stage, pace_s: float) -> int:
    """How many users make so many visits."""
    return max(1, math.floor(stage.visits_per_s * pace_s + 0.5))


# The users' settings: the shop's address, their identities, and their behaviour. The driver writes it, Locust reads it.
#
# It holds tokens, so that its file is its owner's alone.

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
        """Replace the file, which only its owner can read. Raises OSError."""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, path: Path) -> LoadPlan:
        """Raises OSError."""
        members: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        members["stages"] = [Stage(**stage) for stage in members["stages"]]
        members["think_s"] = tuple(members["think_s"])
        return cls(**members)


# What the users saw: lines of JSON, written by Locust's process and read by the driver. Times are seconds since 1970.
#
# ["request", name, intended, begun, seconds, answer, try, retry after]    one request; `seconds` until its answer
# ["visit", kind, intended, begun, ended, outcome]                         one visit
# ["wrong", sentence]                                                      an answer that should never be given
# ["generator", at, processor seconds]                                     what this process has used so far
#
# `answer` is the status, with the kind of problem if there is one: "201", "503 overloaded", "no answer: ...";
# "201 replayed" is what the same key was answered before.
# A request that is made again has its first try's intended time, so that the waiting in between is part of the matter.

NO_ANSWER, REPLAYED = "no answer", "replayed"
DONE, TURNED_AWAY, FAILED, CUT_OFF = "done", "turned away", "failed", "cut off"  # what becomes of a visit


class Request(NamedTuple):
    """One request and its answer."""

    name: str
    intended: float
    begun: float
    seconds: float
    answer: str
    number: int  # of the try; 1 is the first
    retry_after: str = ""  # what the header says

    @property
    def since_intended(self) -> float:
        """From when it should have been made until its answer: what a buyer waits."""
        return self.begun + self.seconds - self.intended

    @property
    def is_good(self) -> bool:
        return self.answer.startswith("2")

    @property
    def is_new(self) -> bool:
        """Served, and for the first time: the second click of two waits for the first one's answer."""
        return self.is_good and not self.answer.endswith(REPLAYED)

    @property
    def is_rejected(self) -> bool:
        """Told to come back later, whatever the reason."""
        return self.answer.startswith(("503", "429"))


class Visit(NamedTuple):
    """One visit; `ended` is when its last answer was there."""

    kind: str
    intended: float
    begun: float
    ended: float
    outcome: str


class Records(NamedTuple):
    """All of one run, in the order in which they ended."""

    requests: Sequence[Request]
    visits: Sequence[Visit]
    wrong: Sequence[str]
    generator: Sequence[tuple[float, float]]


class RecordWriter:
    """Appends to the file, which `close` completes."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w", encoding="utf-8")

    def request(self, request: Request) -> None:
        self._write("request", *request)

    def visit(self, visit: Visit) -> None:
        self._write("visit", *visit)

    def wrong(self, sentence: str) -> None:
        self._write("wrong", sentence)

    def generator(self, at: float, cpu_s: float) -> None:
        self._write("generator", at, cpu_s)

    def close(self) -> None:
        """Harmless after the first time."""
        self._file.close()

    def _write(self, *members: str | float) -> None:
        if not self._file.closed:
            shortened = [round(one, 5) if isinstance(one, float) else one for one in members]
            self._file.write(json.dumps(shortened) + "\n")


def read_records(path: Path) -> Records:
    """Raises OSError, and ValueError for a file that is none."""
    requests: list[Request] = []
    visits: list[Visit] = []
    wrong: list[str] = []
    generator: list[tuple[float, float]] = []
    for kind, *members in _lines(path):
        if kind == "request":
            requests.append(Request(*members))
        elif kind == "visit":
            visits.append(Visit(*members))
        elif kind == "wrong":
            wrong.append(str(members[0]))
        elif kind == "generator":
            generator.append((float(members[0]), float(members[1])))
        else:
            raise ValueError(f"{path}: a record of the kind {kind!r} is not known")
    return Records(requests, visits, wrong, generator)


def _lines(path: Path) -> Iterator[list]:  # type: ignore[type-arg] # of what JSON holds
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return  # Locust was killed while it wrote
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
