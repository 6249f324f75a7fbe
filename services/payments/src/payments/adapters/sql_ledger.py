"""The ledger in SQL; a posting's id is unique, so that money is booked once. Nothing here changes or deletes a row, and
the triggers of the migration keep everybody else from it."""

from __future__ import annotations

from sqlalchemy import case, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.tables import ledger_entries
from payments.domain.errors import PostedBeforeError
from payments.domain.ledger import Account, Posting

_POST = insert(ledger_entries)
_AMOUNT = ledger_entries.c.amount_minor
_BALANCES = select(ledger_entries.c.account, func.sum(_AMOUNT)).group_by(ledger_entries.c.account)
_GATEWAY_SUMS = select(
    func.coalesce(func.sum(case((_AMOUNT > 0, _AMOUNT), else_=0)), 0),
    func.coalesce(func.sum(case((_AMOUNT < 0, -_AMOUNT), else_=0)), 0),
).where(ledger_entries.c.account == Account.GATEWAY)


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
        rows = await self._connection.execute(_BALANCES)
        return {Account(account): int(balance) for account, balance in rows}

    async def captured_and_refunded_minor(self) -> tuple[int, int]:
        captured_minor, refunded_minor = (await self._connection.execute(_GATEWAY_SUMS)).one()
        return int(captured_minor), int(refunded_minor)
