"""The database of a service, by its URL: a file of SQLite's, or PostgreSQL.

    async with database.writing() as connection:
        ... and await connection.commit()

Both keep the same promises, and differ in what waits. On SQLite one unit writes at a time, and what it has read cannot
change before it writes. On PostgreSQL any number write: what a unit has read may have changed, unless it has locked it;
so the rows decide, by compare-and-set and their constraints.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, Protocol, TypeVar

import structlog
from opentelemetry.metrics import CallbackOptions, Observation
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

import telemetry
from osenv import Clock
from osenv.clock import Alarm, Timer
from servicekit.background import WakeUp
from servicekit.config import DATABASE_POOL_SIZE, POSTGRESQL_PREFIX
from servicekit.errors import StorageUnavailableError
from servicekit.monitoring import OK, OK_BUT
from servicekit.sql.backends import PostgresqlDatabase, SqliteDatabase, unavailable

_HEALTH_QUERY = text("SELECT version_num FROM alembic_version")


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return make_url(url).render_as_string(hide_password=True)


class DatabaseBackend(Protocol):
    """What a kind of database has to offer. Invariant: as `Database`'s."""

    def autocommit(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    def snapshot(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    def writing(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    def migrating(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    async def dispose(self) -> None: ...


class Database:
    """Connections for reading and for writing.

    Invariants: a connection that is given back is rolled back, whatever was not committed and however its user ended; a
    unit in which a statement has failed cannot be committed (FailedUnitError).
    """

    def __init__(self, url: str, pool_size: int = DATABASE_POOL_SIZE) -> None:
        """`pool_size` connections at once, at most; of PostgreSQL only."""
        self._backend: DatabaseBackend
        if url.startswith(POSTGRESQL_PREFIX):
            self._backend = PostgresqlDatabase(url, pool_size)
        else:
            self._backend = SqliteDatabase(url)

    def autocommit(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection for statements that only read, of which each may see another state of the database.

        On PostgreSQL it costs two round trips less than `reading`: for reads whose decision is checked again on write.
        Raises StorageUnavailableError.
        """
        return self._backend.autocommit()

    def snapshot(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that is rolled back at the end. Raises StorageUnavailableError."""
        return self._backend.snapshot()

    def writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that is rolled back unless it was committed. Raises StorageUnavailableError.

        An IntegrityError ends the unit: its user lets an error out of it, and nothing of it is kept.
        """
        return self._backend.writing()

    def migrating(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """As `writing`, without limits of time, and one at a time over all processes."""
        return self._backend.migrating()

    async def health(self) -> str:
        """ "ok" if the database answers and was migrated, or what is wrong."""
        try:
            async with self.snapshot() as connection:
                await connection.execute(_HEALTH_QUERY)
        except StorageUnavailableError as error:
            return str(error)
        except DBAPIError as error:  # PostgreSQL answers, and has no such table
            return str(unavailable(error))
        return OK

    async def dispose(self) -> None:
        """Close every connection."""
        await self._backend.dispose()


UnitT = TypeVar("UnitT")


class SqlUnits(Generic[UnitT]):
    """Implements a service's `Units`; `new_unit` is its unit of work over a connection."""

    def __init__(self, database: Database, new_unit: Callable[[AsyncConnection], UnitT]) -> None:
        self._database = database
        self._new_unit = new_unit

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[UnitT]:
        async with self._database.autocommit() as connection:
            yield self._new_unit(connection)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[UnitT]:
        async with self._database.snapshot() as connection:
            yield self._new_unit(connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[UnitT]:
        async with self._database.writing() as connection:
            yield self._new_unit(connection)


MEASURE_INTERVAL_S = 10.0
ROUND_TRIP_MAX_S = 1.0  # a slower answer is too vague to correct anything
SKEW_TOLD_MS = 2_000  # as brokers of a pair tell it

_NOW_MS = text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)")

log = structlog.get_logger(__name__)


class DatabaseClock:
    """Implements `Clock`: dates of the database, durations of this machine.

    So all processes of a service agree on what is over, and what is not.

    Each machine's clock is its own: a process whose clock was 400 s ahead closed the orders that another had just
    taken. PostgreSQL is asked for its time at the start and every MEASURE_INTERVAL_S, and the monotonic clock goes on
    from there, which no step of the wall clock moves. A file of SQLite's has no clock but the machine's.

    Invariant: while the database does not answer, time goes on from the last measurement.
    """

    def __init__(self, clock: Clock, database: Database) -> None:
        self._clock = clock
        self._database = database
        self._measured: tuple[int, float] | None = None  # the database's milliseconds at a monotonic moment
        self._is_skew_told = False
        self._end = WakeUp()

        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            yield Observation(self.skew_ms)

        telemetry.meter("servicekit").create_observable_gauge(
            "hourglass.clock.skew", [observe], unit="ms", description="the machine's clock minus the database's"
        )

    @property
    def skew_ms(self) -> int:
        """How far this machine's clock is ahead of the database's."""
        return self._clock.wall_ms() - self.wall_ms()

    def wall_ms(self) -> int:
        return self.wall_us() // 1000

    def wall_us(self) -> int:
        if self._measured is None:
            return self._clock.wall_us()
        at_ms, measured_at = self._measured
        return at_ms * 1000 + int((self._clock.monotonic() - measured_at) * 1_000_000)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(seconds, callback)

    def watch_wall(self, callback: Callable[[], None]) -> Timer:
        return self._clock.watch_wall(callback)

    def alarm(self, callback: Callable[[], None]) -> Alarm:
        return self._clock.alarm(callback)

    async def measure(self) -> None:
        """Ask the database for its time. Raises StorageUnavailableError."""
        async with self._database.autocommit() as connection:
            if connection.dialect.name != "postgresql":
                return
            asked_at = self._clock.monotonic()
            at_ms: int = (await connection.execute(_NOW_MS)).scalar_one()
            round_trip_s = self._clock.monotonic() - asked_at
        self.correct(at_ms, asked_at, round_trip_s)

    def correct(self, at_ms: int, asked_at: float, round_trip_s: float) -> None:
        """The database said `at_ms` somewhere in the `round_trip_s` after the monotonic moment `asked_at`."""
        if round_trip_s > ROUND_TRIP_MAX_S and self._measured is not None:
            return
        self._measured = (at_ms, asked_at + round_trip_s / 2)
        is_skewed = abs(self.skew_ms) >= SKEW_TOLD_MS
        if is_skewed != self._is_skew_told:
            tell = log.warning if is_skewed else log.info
            tell("the machine's clock was compared with the database's, which counts", ahead_ms=self.skew_ms)
            self._is_skew_told = is_skewed

    async def health(self) -> str:
        """ "ok", also with a clock that is wrong: it decides nothing, and its operator has to know."""
        if not self._is_skew_told:
            return OK
        return f"{OK_BUT}this machine's clock is {self.skew_ms} ms ahead of the database's, which counts"

    async def run(self) -> None:
        """Measure again and again, until `stop`."""
        while not self._end.is_set:
            await self._end.wait(self._clock, MEASURE_INTERVAL_S)
            try:
                await self.measure()
            except StorageUnavailableError as error:
                log.debug("the database cannot be asked for its time now", error=str(error))

    def stop(self) -> None:
        """Let `run` return."""
        self._end.set()
