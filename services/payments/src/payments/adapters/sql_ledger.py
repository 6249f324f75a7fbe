"""The ledger in SQL; a posting's id is unique, so that money is booked once. Nothing here changes or deletes a row, and
the triggers of the migration keep everybody else from it."""

from __future__ import annotations

from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.tables import counters, ledger_entries
from payments.domain.errors import PostedBeforeError
from payments.domain.ledger import Account, Posting

_POST = insert(ledger_entries)


class SqlLedger:
    """Implements `Ledger`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def post(self, posting: Posting) -> None:
        rows = [
            {
                "posting_id": posting.posting_id,
                "account": entry.account,
                "amount_minor": entry.amount_minor,
                "currency": posting.currency,
                "at_ms": posting.at_ms,
                "payment_id": posting.payment_id,
                "refund_id": posting.refund_id,
            }
            for entry in posting.entries
        ]
        try:
            await self._connection.execute(_POST, rows)
        except IntegrityError as error:
            raise PostedBeforeError(posting.posting_id) from error

    async def balances(self) -> dict[Account, int]:
        return await counters.of_each(self._connection, "ledger/", Account)

    async def captured_and_refunded_minor(self) -> tuple[int, int]:
        captured_minor = await counters.value(self._connection, "captured")
        return captured_minor, await counters.value(self._connection, "refunded")
