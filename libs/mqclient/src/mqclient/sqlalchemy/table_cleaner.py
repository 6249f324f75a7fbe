"""The cleaner: keeps the queue's tables from growing for ever, beside the application's work.

    cleaner = TableCleaner(engine.begin, RealClock(), [Retention(inbox, keep_days=14), Retention(transactions, 30)])
    task = asyncio.create_task(cleaner.run())

Invariants: a transaction deletes `rows_max` rows at most and holds nothing else; a pass that fails is logged, and the
next one comes all the same. Any number of processes may clean the same tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from mqclient.errors import IllegalArgumentError
from mqclient.lifecycle import wait_event
from mqclient.sqlalchemy.connection import Connection
from mqclient.sqlalchemy.expiry import ROWS_MAX
from osenv import Clock

logger = logging.getLogger("mqclient.sqlalchemy")

INTERVAL_S = 600.0
DAY_MS = 86_400_000


class Purgeable(Protocol):
    """A table whose old rows can go: InboxTable, TransactionTable, or an Expiry over a table of the application's."""

    async def purge(self, connection: Connection, older_than_ms: int, rows_max: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the rows of a table are kept. Raises IllegalArgumentError for less than a day.

    The inbox: longer than a message can come again. It stays in the broker for `fileReservedTime` (72 h), its 16 tries
    take 4 h 46 min, a dead letter stays for 72 h again, and an operator who replays it makes a new message, which stays
    for 72 h: 14 days are enough.

    The transaction table: longer than a broker may be away and come back with its disk, because it asks about its open
    half messages however old they are, and a row that is gone means "roll back". RocketMQ's broker asks for 72 h only.
    """

    table: Purgeable
    keep_days: int

    def __post_init__(self) -> None:
        if self.keep_days < 1:
            raise IllegalArgumentError(f"rows are to be kept for {self.keep_days} days; at least 1 is allowed")


class TableCleaner:
    """Deletes what has come of age. `begin` opens a connection or session with a transaction, as SqlTransactionListener
    takes it."""

    def __init__(
        self,
        begin: Callable[[], AbstractAsyncContextManager[Connection]],
        clock: Clock,
        retentions: Iterable[Retention],
        *,
        interval_s: float = INTERVAL_S,
        rows_max: int = ROWS_MAX,
    ) -> None:
        self._begin = begin
        self._clock = clock
        self._retentions = tuple(retentions)
        self._interval_s = interval_s
        self._rows_max = rows_max
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Clean every `interval_s` until `stop`.

        The first time only after `interval_s`: a broker that waited for this process asks about its transactions
        before their rows can go.
        """
        while not await wait_event(self._clock, self._stopping, self._interval_s):
            try:
                await self.clean()
            except Exception:
                logger.exception("the tables could not be cleaned; it is tried again in %.0f s", self._interval_s)

    def stop(self) -> None:
        """Let `run` return after the transaction in hand."""
        self._stopping.set()

    async def clean(self) -> int:
        """One pass over all tables; returns how many rows were deleted. Raises what the database raises."""
        now_ms = self._clock.wall_ms()
        return sum([await self._purge(one.table, now_ms - one.keep_days * DAY_MS) for one in self._retentions])

    async def _purge(self, table: Purgeable, older_than_ms: int) -> int:
        deleted = 0
        while not self._stopping.is_set():
            async with self._begin() as connection:
                rows = await table.purge(connection, older_than_ms, self._rows_max)
                await connection.commit()
            deleted += rows
            if rows < self._rows_max:
                break
        return deleted
