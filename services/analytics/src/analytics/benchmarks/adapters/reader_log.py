"""What the readers of a run say of themselves, a line of JSON for each partition, from whatever process they are in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter


@dataclass(slots=True)
class ReaderTime:
    """How long one partition was inside the reader, and what it gave."""

    rows: int = 0
    batches: int = 0
    inside_s: float = 0.0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Count the time within."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.inside_s += perf_counter() - begin


def append(path: str, time: ReaderTime) -> None:
    """Add a line. One write of a short line is not mixed with another's."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(time)) + "\n")


def read(path: str) -> list[ReaderTime]:
    """All of them; none when nothing was read."""
    file = Path(path)
    if not file.exists():
        return []
    return [ReaderTime(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
