"""What a benchmark does: one workload, one YAML file.

A file is checked whole before anything runs: unknown fields, fields that mean nothing for the kind of workload, and
values that make no sense are rejected by name.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

RUNS_MIN = 3  # a median of fewer says nothing
QUICK_MESSAGES, QUICK_WARM_UP_MESSAGES = 200, 50

LEVEL_DELAYS_S = {0: 0.0, 1: 1.0, 2: 5.0}  # of RocketMQ's delay levels, those that a benchmark can wait for
LASTING_LEVELS = (0, 16, 17, 18)  # and those that outlast one, half an hour and more; 0: each has a time of its own


class WorkloadError(ValueError):
    """A workload that cannot be run; the message names the file and the field."""


class Kind(StrEnum):
    """What is measured."""

    PRODUCE = "produce"  # messages a second with `in_flight` sends under way
    CONSUME = "consume"  # messages a second out of a backlog, until the offsets are committed
    LATENCY = "latency"  # from the intended send time (and the delay) to the listener, at `rate_per_s`
    MEMORY = "memory"  # of the broker: with nothing stored, and with `messages` stored
    DUE = "due"  # from the time that a message was to be delivered at to the listener; all are sent before
    WAITING = "waiting"  # memory, starts and throughput of the broker while `messages` wait for their time
    LAG = "lag"  # how far a replica is behind while `in_flight` sends are under way
    CATCH_UP = "catch-up"  # until an empty replica has everything of a master with `messages` stored


class Flush(StrEnum):
    """The broker's flushDiskType."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class Replica(StrEnum):
    """Of the broker that is measured."""

    NONE = "NONE"
    ASYNC = "ASYNC"  # its master is an ASYNC_MASTER
    SYNC = "SYNC"  # its master is a SYNC_MASTER


# Allowed numbers; both ends are included.
_RANGES = {
    "messages": (1, 10_000_000),
    "warm_up_messages": (0, 1_000_000),
    "in_flight": (1, 100_000),
    "body_bytes": (8, 4 * 1024 * 1024),  # the first eight are the message's number
    "rate_per_s": (1, 1_000_000),
    "listener_batch": (1, 1_024),
    "queues": (1, 1_024),
    "runs": (1, 100),
    "due_within_ms": (0, 600_000),
    "beside_per_s": (0, 100_000),
    "plain_messages": (1, 10_000_000),
    "rounds": (1, 100),
}
# Fields that mean something for these kinds only.
_FIELDS_OF_KINDS = {
    "rate_per_s": {Kind.LATENCY},
    "delay_level": {Kind.LATENCY, Kind.WAITING},
    "due_within_ms": {Kind.DUE},
    "beside_per_s": {Kind.DUE},
    "plain_messages": {Kind.WAITING},
    "listener_batch": {Kind.CONSUME, Kind.LATENCY, Kind.DUE},
    "in_flight": {Kind.PRODUCE, Kind.CONSUME, Kind.MEMORY, Kind.DUE, Kind.WAITING, Kind.LAG, Kind.CATCH_UP},
    "slave": {Kind.PRODUCE, Kind.LAG, Kind.CATCH_UP},
    "comparison": {Kind.PRODUCE},
    "rounds": {Kind.CATCH_UP},
}
# They compare, or repeat, within one run, which takes long.
_RUNS_MIN_OF_KINDS = {Kind.WAITING: 1, Kind.CATCH_UP: 1}
_NEED_A_REPLICA = (Kind.LAG, Kind.CATCH_UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Raises WorkloadError for values that make no sense together."""

    name: str
    kind: Kind
    messages: int
    description: str = ""
    flush: Flush = Flush.ASYNC_FLUSH
    slave: Replica = Replica.NONE
    comparison: str = ""  # workloads with the same one are run in turns, so that they meet the same machine
    in_flight: int = 256  # for all but produce: while the broker is filled
    body_bytes: int = 1024
    warm_up_messages: int = 1_000  # before the measurement, not counted
    rate_per_s: int = 0
    delay_level: int = 0
    due_within_ms: int = 0  # due times lie evenly in so long a time; 0: in one millisecond
    beside_per_s: int = 0  # messages a second that another process sends meanwhile, without a delay
    plain_messages: int = 60_000  # without a delay, in each round of the two throughputs
    rounds: int = 3  # of which a run has the median
    listener_batch: int = 1  # consume_message_batch_max_size
    queues: int = 4
    runs: int = RUNS_MIN

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if self.kind in _kinds_of(name) and not low <= value <= high:
                raise WorkloadError(f"{name} is {value:,}; allowed are {low:,} to {high:,}")
        levels = LASTING_LEVELS if self.kind is Kind.WAITING else tuple(LEVEL_DELAYS_S)
        if self.delay_level not in levels:
            raise WorkloadError(f"delay_level is {self.delay_level}; allowed are {', '.join(map(str, levels))}")
        if self.kind in _NEED_A_REPLICA and self.slave is not Replica.ASYNC:
            raise WorkloadError(f"slave is {self.slave}; a workload of kind {self.kind} needs {Replica.ASYNC}")

    @property
    def delay_s(self) -> float:
        """Of a delay level that a benchmark can wait for."""
        return LEVEL_DELAYS_S[self.delay_level]

    def quick(self) -> Workload:
        """The same with so little to do that it only shows that it works."""
        return dataclasses.replace(
            self,
            messages=min(self.messages, QUICK_MESSAGES),
            warm_up_messages=min(self.warm_up_messages, QUICK_WARM_UP_MESSAGES),
            plain_messages=min(self.plain_messages, QUICK_MESSAGES),
            rounds=1,
            runs=1,
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON; only what means something for this kind."""
        return {name: value for name, value in dataclasses.asdict(self).items() if self.kind in _kinds_of(name)}


def load_workloads(folder: Path) -> list[Workload]:
    """Every workload of the folder, in the order of the file names. Raises WorkloadError."""
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise WorkloadError(f"there is no workload file (*.yaml) in {folder}")
    return [load_workload(path) for path in paths]


def load_workload(path: Path) -> Workload:
    """The workload of one file, which bears its name. Raises WorkloadError."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise WorkloadError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        workload = parse_workload(content)
        _check_file(workload, path)
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}") from error
    return workload


def parse_workload(content: object) -> Workload:
    """From what a file, or the command line of a client, says. Raises WorkloadError."""
    if not isinstance(content, Mapping):
        raise WorkloadError("a workload is a list of fields, one `name: value` a line")
    fields = {field.name: field for field in dataclasses.fields(Workload)}
    for name in content:
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(fields)}"
            raise WorkloadError(f"unknown field {name!r}; {hint}")
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in content]
    if missing:
        raise WorkloadError(f"fields without a value: {', '.join(missing)}")
    values = {name: _value(name, fields[name].type, value) for name, value in content.items()}
    kind = values["kind"]
    for name in values:
        if kind not in _kinds_of(name):
            raise WorkloadError(f"{name} means nothing for a workload of kind {kind}")
    return Workload(**values)


def _check_file(workload: Workload, path: Path) -> None:
    if workload.name != path.stem:
        raise WorkloadError(f"the name is {workload.name!r}; it has to be that of the file, {path.stem!r}")
    runs_min = _RUNS_MIN_OF_KINDS.get(workload.kind, RUNS_MIN)
    if workload.runs < runs_min:
        raise WorkloadError(f"runs is {workload.runs}; the median needs at least {runs_min}")


def _kinds_of(field_name: str) -> set[Kind]:
    return _FIELDS_OF_KINDS.get(field_name, set(Kind))


def _value(name: str, type_name: object, value: object) -> Any:
    """The value as its field's type, which is one of five."""
    enums: dict[object, type[Kind] | type[Flush] | type[Replica]] = {"Kind": Kind, "Flush": Flush, "Replica": Replica}
    if choices := enums.get(type_name):
        try:
            return choices(str(value))
        except ValueError:
            raise WorkloadError(f"{name} is {value!r}; allowed are {', '.join(choices)}") from None
    wanted = {"int": int, "str": str}[str(type_name)]
    if type(value) is not wanted:
        what = "a whole number" if wanted is int else "text"
        raise WorkloadError(f"{name} is {value!r}; it has to be {what}")
    return value
