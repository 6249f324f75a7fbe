"""What the users saw: lines of JSON, written by Locust's process and read by the driver. Times are seconds since 1970.

["request", name, intended, begun, seconds, answer, try, retry after]    one request; `seconds` until its answer
["visit", kind, intended, begun, ended, outcome]                         one visit
["wrong", sentence]                                                      an answer that should never be given
["generator", at, processor seconds]                                     what this process has used so far

`answer` is the status, with the kind of problem if there is one: "201", "503 overloaded", "no answer: ...";
"201 replayed" is what the same key was answered before.
A request that is made again has its first try's intended time, so that the waiting in between is part of the matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

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
    def is_refused(self) -> bool:
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
