"""A gateway that moves no real money and keeps a real book of it, in a file of its own.

It stands for somebody else's system: it shares nothing with the database of payments, knows payments only by their ids,
and keeps what it answered through kill -9 (the file is synced before the answer).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    func,
    insert,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from osenv import Clock
from payments.domain.errors import GatewayRefusedError, GatewayUnavailableError
from payments.service.gateway import Captured, Declined, GatewayBook, Refunded
from servicekit.adapters.database import Database
from servicekit.config import SQLITE_PREFIX
from servicekit.errors import StorageUnavailableError

OVER_THE_LIMIT = "the amount is over the limit"

_metadata = MetaData()

captures = Table(
    "captures",
    _metadata,
    Column("payment_id", String(64), primary_key=True),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("decided_at_ms", BigInteger, nullable=False),
    Column("decline_reason", Text),  # NULL: the money was taken
    CheckConstraint("amount_minor >= 1"),
)

refunds = Table(
    "refunds",
    _metadata,
    Column("refund_id", String(128), primary_key=True),
    Column("payment_id", ForeignKey(captures.c.payment_id), nullable=False, index=True),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("refunded_at_ms", BigInteger, nullable=False),
    CheckConstraint("amount_minor >= 1"),
)

_FIND_CAPTURE = select(captures).where(captures.c.payment_id == bindparam("wanted_id"))
_FIND_REFUND = select(refunds).where(refunds.c.refund_id == bindparam("wanted_id"))
_REFUNDED_OF = select(func.coalesce(func.sum(refunds.c.amount_minor), 0)).where(
    refunds.c.payment_id == bindparam("wanted_id")
)
_SUM_CAPTURES = select(func.coalesce(func.sum(captures.c.amount_minor), 0), func.count()).where(
    captures.c.decline_reason.is_(None)
)
_SUM_REFUNDS = select(func.coalesce(func.sum(refunds.c.amount_minor), 0), func.count()).select_from(refunds)


class SandboxGateway:
    """Implements `PaymentGateway`. Declines what is above `declines_above_minor`, and remembers that it did."""

    def __init__(self, path: str, clock: Clock, *, declines_above_minor: int | None = None) -> None:
        self._database = Database(SQLITE_PREFIX + path)
        self._clock = clock
        self._declines_above_minor = declines_above_minor
        self._has_tables = False

    async def close(self) -> None:
        """Let go of the file."""
        await self._database.dispose()

    async def capture(self, payment_id: str, amount_minor: int, currency: str) -> Captured | Declined:
        async with self._writing() as connection:
            row = (await connection.execute(_FIND_CAPTURE, {"wanted_id": payment_id})).one_or_none()
            if row is None:
                limit_minor = self._declines_above_minor
                is_declined = limit_minor is not None and amount_minor > limit_minor
                values = {
                    "payment_id": payment_id,
                    "amount_minor": amount_minor,
                    "currency": currency,
                    "decided_at_ms": self._clock.wall_ms(),
                    "decline_reason": OVER_THE_LIMIT if is_declined else None,
                }
                await connection.execute(insert(captures), values)
                row = (await connection.execute(_FIND_CAPTURE, {"wanted_id": payment_id})).one()
                await connection.commit()
        if (row.amount_minor, row.currency) != (amount_minor, currency):
            raise GatewayRefusedError(f"{payment_id!r} was captured with another amount or currency")
        return Captured(row.decided_at_ms) if row.decline_reason is None else Declined(row.decline_reason)

    async def refund(self, refund_id: str, payment_id: str, amount_minor: int, currency: str) -> Refunded:
        async with self._writing() as connection:
            row = (await connection.execute(_FIND_REFUND, {"wanted_id": refund_id})).one_or_none()
            if row is not None:
                if (row.payment_id, row.amount_minor, row.currency) != (payment_id, amount_minor, currency):
                    raise GatewayRefusedError(f"{refund_id!r} was used for another refund")
                return Refunded(row.refunded_at_ms)
            await _check_refundable(connection, payment_id, amount_minor, currency)
            now_ms = self._clock.wall_ms()
            values = {
                "refund_id": refund_id,
                "payment_id": payment_id,
                "amount_minor": amount_minor,
                "currency": currency,
                "refunded_at_ms": now_ms,
            }
            await connection.execute(insert(refunds), values)
            await connection.commit()
        return Refunded(now_ms)

    async def book(self) -> GatewayBook:
        await self._create_tables()
        async with _gateway_errors(), self._database.reading() as connection:
            captured_minor, capture_count = (await connection.execute(_SUM_CAPTURES)).one()
            refunded_minor, refund_count = (await connection.execute(_SUM_REFUNDS)).one()
        return GatewayBook(int(captured_minor), int(refunded_minor), capture_count, refund_count)

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        await self._create_tables()
        async with _gateway_errors(), self._database.writing() as connection:
            yield connection

    async def _create_tables(self) -> None:
        """At the first use and not at the start: payments starts without its gateway, and says so."""
        if self._has_tables:
            return
        async with _gateway_errors(), self._database.writing() as connection:
            await connection.run_sync(_metadata.create_all)
            await connection.commit()
        self._has_tables = True


async def _check_refundable(connection: AsyncConnection, payment_id: str, amount_minor: int, currency: str) -> None:
    captured = (await connection.execute(_FIND_CAPTURE, {"wanted_id": payment_id})).one_or_none()
    if captured is None or captured.decline_reason is not None:
        raise GatewayRefusedError(f"no money was taken for {payment_id!r}")
    refunded_minor = (await connection.execute(_REFUNDED_OF, {"wanted_id": payment_id})).scalar_one()
    if currency != captured.currency or refunded_minor + amount_minor > captured.amount_minor:
        raise GatewayRefusedError(f"{payment_id!r} has no {amount_minor} {currency} left to give back")


@asynccontextmanager
async def _gateway_errors() -> AsyncIterator[None]:
    try:
        yield
    except StorageUnavailableError as error:
        raise GatewayUnavailableError(f"the sandbox gateway gave no answer: {error}") from error
