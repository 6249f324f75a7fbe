"""The checks, one SQL file each, and asking all of them about a shop that is read once.

A file's query selects the rows that violate an invariant:

    -- quiet
    -- No order waits for its payment after its time to pay.
    -- Row: docs/reference/faults.md#application, always
    SELECT ...

The first line is the kind, then comes what has to hold, then where that is promised.
"""

from __future__ import annotations

import asyncio
import enum
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from hourglass_invariants.sources import in_memory, read_sources
from hourglass_invariants.wanted import Rows

GRACE_MS = 120_000  # docs/reference/faults.md#application: no order non-terminal 120 s after quiesce
COMPLETION_AFTER_MS = 604_800_000  # ORDERS_COMPLETION_AFTER_MS: a shipped order completes by itself

_COMMENT = "--"
_ROW = "Row:"
_FOLDER = files("hourglass_invariants") / "sql"

Value = str | int | float | None


class Kind(enum.StrEnum):
    """When an invariant holds."""

    ALWAYS = "always"  # at any moment, whatever is under way
    QUIET = "quiet"  # for what has come to rest: nothing but time has touched it since `:quiet_since_ms`


@dataclass(frozen=True, slots=True)
class Check:
    """One invariant. `name` is the file's, without its number; `row` says where the promise is made."""

    name: str
    kind: Kind
    holds: str
    row: str
    sql: str


@dataclass(frozen=True, slots=True)
class Sources:
    """The databases of one shop, as URLs in the form of ORDERS_DATABASE_URL."""

    orders: str
    payments: str
    gateway: str


@dataclass(frozen=True, slots=True)
class Violation:
    """One row that a check has found; `row` maps the columns of its query to what stands there."""

    check: str
    holds: str
    row: Mapping[str, Value] = field(hash=False)

    def __str__(self) -> str:
        return f"{self.check}: " + ", ".join(f"{name}={value}" for name, value in self.row.items())


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check has found."""

    check: Check
    violations: Sequence[Violation]


async def check(
    sources: Sources,
    now_ms: int,
    *,
    grace_ms: int = GRACE_MS,
    completion_after_ms: int = COMPLETION_AFTER_MS,
    stock: Mapping[str, int] | None = None,
) -> list[Violation]:
    """Everything that is wrong with the shop; empty for a healthy one. `now_ms` is wall-clock time.

    `quiet` checks leave alone what changed within the last `grace_ms`; with 0 they want everything finished now.
    `stock` says how many units of a product were ever put on sale: without it the sum that available + reserved + sold
    has to be is unknown. Raises SourceUnavailableError and SchemaMismatchError.
    """
    results = await run_checks(sources, now_ms, grace_ms=grace_ms, completion_after_ms=completion_after_ms, stock=stock)
    return [violation for result in results for violation in result.violations]


async def run_checks(
    sources: Sources,
    now_ms: int,
    *,
    grace_ms: int = GRACE_MS,
    completion_after_ms: int = COMPLETION_AFTER_MS,
    stock: Mapping[str, int] | None = None,
) -> list[CheckResult]:
    """As `check`, with the checks that found nothing too."""
    rows = await read_sources({"orders": sources.orders, "payments": sources.payments, "gateway": sources.gateway})
    parameters = {"now_ms": now_ms, "quiet_since_ms": now_ms - grace_ms, "completion_after_ms": completion_after_ms}
    # Seconds of work for many thousand orders: not on the caller's event loop.
    return await asyncio.to_thread(_run_all, rows, parameters, stock or {})


def _run_all(
    rows: Mapping[str, Mapping[str, Rows]], parameters: Mapping[str, int], stock: Mapping[str, int]
) -> list[CheckResult]:
    with in_memory(rows) as connection:
        connection.execute("CREATE TABLE stocked (product_id, units)")
        connection.executemany("INSERT INTO stocked VALUES (?, ?)", stock.items())
        return [_run(connection, one, parameters) for one in read_checks()]


def _run(connection: sqlite3.Connection, one: Check, parameters: Mapping[str, int]) -> CheckResult:
    found = connection.execute(one.sql, dict(parameters)).fetchall()
    return CheckResult(one, [Violation(one.name, one.holds, dict(row)) for row in found])


def read_checks() -> list[Check]:
    """All checks, in the order of their numbers."""
    found = sorted((file for file in _FOLDER.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [parse_check(file.name, file.read_text(encoding="utf-8")) for file in found]


def parse_check(file_name: str, text: str) -> Check:
    """The check of a file such as `12_stuck_orders.sql`. Raises ValueError with the part that is missing."""
    _, _, name = file_name.removesuffix(".sql").partition("_")
    comments: list[str] = []
    query: list[str] = []
    for line in text.splitlines():
        is_comment = line.startswith(_COMMENT) and not query
        (comments if is_comment else query).append(line.removeprefix(_COMMENT).strip() if is_comment else line)
    rows = [line.removeprefix(_ROW).strip() for line in comments if line.startswith(_ROW)]
    holds = " ".join(line for line in comments[1:] if not line.startswith(_ROW))
    if not name or not holds or len(rows) != 1 or comments[0] not in {*Kind}:
        raise ValueError(f"{file_name} does not begin with its kind, what has to hold, and its row")
    return Check(name, Kind(comments[0]), holds, rows[0], "\n".join(query).strip())
