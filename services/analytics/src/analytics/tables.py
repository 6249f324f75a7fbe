"""Every table of a warehouse, made from bronze; and what is said while it is made.

Bronze -> silver -> gold -> reconciliation: each job's table is written, in this order, and read back for the next ones.
Invariant: every table is made from all of bronze, so that it does not matter in how many runs, or in which order, the
messages came; a run that has nothing new writes the same tables again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from rich.console import Console
from rich.status import Status

from analytics.adapters import Books, BooksUrls, read_books
from analytics.events import REJECTS, events, read_bodies, rejects
from analytics.jobs.bronze import PLACE
from analytics.jobs.gold import GOLD_TABLES, GoldInputs
from analytics.jobs.reconciliation import FINDINGS, reconcile, reconcile_books
from analytics.jobs.reconciliation_kinds import DEFAULT_GRACE, NO_GRACE
from analytics.jobs.silver import ORDERS, PAYMENTS, TIMERS, orders, payments, timers
from analytics.warehouse import DAY, Warehouse
from osenv import Clock, RealClock

PLAIN_INTERVAL_S = 2.0

RECONCILIATION = "reconciliation"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOptions:
    """What silver, gold, reconciliation and the report are made with.

    `at_rest`: the shop has stopped, so that what is under way now stays so, and is a finding. `as_of` None: now.
    `books` None: messages are compared with no database. `lateness_file`: what the brokers say of their own lateness.
    """

    at_rest: bool = False
    as_of: datetime | None = None
    books: BooksUrls | None = None
    lateness_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """What was made: the tables that the report looks at, and what they were compared with.

    `since`: messages stored before it are not all in bronze, so orders of then were not judged; None: all are. `rows`
    are those of each table, by its place in the warehouse.
    """

    as_of: datetime
    since: datetime | None
    bronze: DataFrame
    silver_orders: DataFrame
    findings: DataFrame
    books: Books | None
    rows: Mapping[str, int] = field(default_factory=dict)


def make_tables(
    spark: SparkSession, warehouse: Warehouse, options: TablesOptions, progress: Progress, now: datetime
) -> Made:
    """Raises WarehouseError without messages, and BooksError."""
    books = None if options.books is None else read_books(spark, options.books)
    bronze = warehouse.bronze(spark)
    write = _Writer(spark, warehouse, progress)
    read = read_bodies(bronze)
    silver_orders = write(warehouse.silver("orders"), ORDERS, lambda: orders(events(read)))
    write(warehouse.silver("payments"), PAYMENTS, lambda: payments(silver_orders))
    silver_timers = write(warehouse.silver("timers"), TIMERS, lambda: timers(bronze))
    write(warehouse.silver("rejects"), REJECTS, lambda: rejects(read))
    inputs = GoldInputs(read=read, orders=silver_orders, timers=silver_timers)
    for table in GOLD_TABLES:
        write(warehouse.gold(table.name), table.schema, lambda make=table.make: make(inputs))  # type: ignore[misc]
    as_of, since = options.as_of or now, read_since(bronze)
    findings = write(
        warehouse.gold(RECONCILIATION),
        FINDINGS,
        lambda: reconciled(silver_orders, books, as_of=as_of, since=since, at_rest=options.at_rest),
    )
    return Made(as_of, since, bronze, silver_orders, findings, books, write.rows)


def reconciled(
    silver_orders: DataFrame, books: Books | None, *, as_of: datetime, since: datetime | None, at_rest: bool
) -> DataFrame:
    """FINDINGS of the messages, and of the databases if they were given and every message was read."""
    found = reconcile(silver_orders, as_of=as_of, since=since, grace=NO_GRACE if at_rest else DEFAULT_GRACE)
    if books is None or since is not None:
        return found
    compared = reconcile_books(silver_orders, books.orders, books.payments, as_of=None if at_rest else as_of)
    return found.unionByName(compared)


def read_since(bronze: DataFrame) -> datetime | None:
    """From when on every message was read: the latest message before which its queue has one that is not in bronze.

    None when all are. A queue no longer has what its broker has deleted, and a backfill reads from some time on, and to
    some time.
    """
    places = bronze.select(*PLACE, F.col("storeTimestamp").alias("stored_at"))
    first, last = F.min("queueOffset"), F.max("queueOffset")
    queues = places.groupBy(*PLACE[:3]).agg(
        first.alias("first"), (last - first + 1 - F.count("*")).alias("missing"), F.min("stored_at").alias("stored_at")
    )
    begins = queues.where(F.col("first") > 0).select("stored_at")
    holed = queues.where(F.col("missing") > 0).select(*PLACE[:3])  # only these are sorted
    before = F.lag("queueOffset").over(Window.partitionBy(*PLACE[:3]).orderBy("queueOffset"))
    behind = places.join(F.broadcast(holed), list(PLACE[:3]), "left_semi").withColumn("before", before)
    behind = behind.where(F.col("queueOffset") > F.col("before") + 1).select("stored_at")
    (row,) = begins.unionByName(behind).agg(F.unix_millis(F.max("stored_at")).alias("at_ms")).collect()
    return None if row["at_ms"] is None else datetime.fromtimestamp(row["at_ms"] / 1000, UTC)


class _Writer:
    """Writes tables, and shows which one."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse, progress: Progress) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._progress = progress
        self.rows: dict[str, int] = {}

    def __call__(self, path: str, schema: StructType, make: Callable[[], DataFrame]) -> DataFrame:
        """The table as it is read back."""
        name = path.removeprefix(self._warehouse.root + "/")
        with self._progress.step(name):
            self.rows[name] = self._warehouse.replace(path, make(), [DAY] if DAY in schema.names else [])
        return self._warehouse.read(self._spark, path, schema)


class Progress:
    """A context manager. `show` may be called as often as one likes."""

    def __init__(self, console: Console, clock: Clock | None = None) -> None:
        self._console = console
        self._clock = clock or RealClock()
        self._status: Status | None = console.status("") if console.is_terminal else None
        self._printed_at = float("-inf")
        self._printed = ""

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._console.print(sentence, highlight=False, soft_wrap=True)

    def show(self, text: str) -> None:
        """What is being done now; without a terminal a line every two seconds, if something is new."""
        now = self._clock.monotonic()
        if self._status is not None:
            self._status.update(text)
        elif now - self._printed_at >= PLAIN_INTERVAL_S and text != self._printed:
            self._printed_at, self._printed = now, text
            self.say(text)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show `what` while the block runs; how long it took stays."""
        self.show(what)
        begin = self._clock.monotonic()
        yield
        self.say(f"{what}: {self._clock.monotonic() - begin:.1f} s")

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()


# Bronze -> silver -> gold -> reconciliation: each job's table written, in this order, and read back for the next ones.
#
# Invariant: every table is made from all of bronze, so that it does not matter in how many runs, or in which order, the
# messages came; a run that has nothing new writes the same tables again.
