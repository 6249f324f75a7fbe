"""The rows of committed transactions in SQL, over mqclient's TransactionTable."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from mqclient import CheckUnansweredError, LocalTransactionState
from mqclient.errors import TransactionTombstonedError
from mqclient.sqlalchemy import TransactionTable
from servicekit.errors import StorageUnavailableError, TransactionGivenUpError
from servicekit.transactions import LocalOutcome

_OUTCOME_OF_STATE = {
    LocalTransactionState.COMMIT_MESSAGE: LocalOutcome.COMMITTED,
    LocalTransactionState.ROLLBACK_MESSAGE: LocalOutcome.ROLLED_BACK,
    LocalTransactionState.UNKNOW: LocalOutcome.UNKNOWN,
}


class SqlTransactionRows:
    """Implements `TransactionRows`."""

    def __init__(self, table: TransactionTable, connection: AsyncConnection) -> None:
        self._table = table
        self._connection = connection

    async def record(self, transaction_id: str, at_ms: int) -> None:
        try:
            await self._table.record(self._connection, transaction_id, at_ms)
        except TransactionTombstonedError as error:
            raise TransactionGivenUpError(transaction_id) from error

    async def answer_check(self, transaction_id: str, at_ms: int) -> LocalOutcome:
        try:
            return _OUTCOME_OF_STATE[await self._table.answer_check(self._connection, transaction_id, at_ms)]
        except CheckUnansweredError as error:
            raise StorageUnavailableError(f"the database does not answer: {error}") from error
