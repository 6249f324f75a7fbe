"""The tables that every service has beside its own, as a unit of work sees them: transactions, inbox, outbox, keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    CursorResult,
    Executable,
    ForeignKey,
    Index,
    Insert,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

from mqclient import CheckUnansweredError, IllegalArgumentError, LocalTransactionState
from mqclient.errors import TransactionTombstonedError
from mqclient.sqlalchemy import COMMITTED, Expiry, InboxTable, Retention, TableCleaner, TransactionTable
from osenv import Clock
from servicekit.background import Background
from servicekit.errors import (
    MalformedMessageError,
    RequestInFlightError,
    StorageUnavailableError,
    TransactionGivenUpError,
)
from servicekit.message import OutgoingMessage
from servicekit.sql.backends import violated_table
from servicekit.sql.database import Database
from servicekit.sql.outbox import KeptMessage
from servicekit.sql.schema import ROW_ID
from servicekit.sql.units import TRANSACTIONS_KEEP_DAYS, KeyClaim, LocalOutcome


def rows_of_arrays(**types: type[TypeEngine[Any]]) -> TableValuedAlias:
    """The rows whose columns are arrays, one parameter for each name: unnest(:a, :b) AS given(a, b); on PostgreSQL.

    The text of the statement is the same for any number of rows, so that it is prepared once.
    """
    arrays = [cast(bindparam(name), ARRAY(column_type())) for name, column_type in types.items()]
    return func.unnest(*arrays).table_valued(*types, name="given").render_derived()


_OUTCOME_OF_STATE = {
    LocalTransactionState.COMMIT_MESSAGE: LocalOutcome.COMMITTED,
    LocalTransactionState.ROLLBACK_MESSAGE: LocalOutcome.ROLLED_BACK,
    LocalTransactionState.UNKNOW: LocalOutcome.UNKNOWN,
}


def insert_begun(table: TransactionTable) -> Insert:
    """The rows of a unit's transactions, to be a part of a statement for SqlTransactionRows.execute."""
    begun = rows_of_arrays(transaction_ids=String)
    rows = select(begun.c.transaction_ids, literal_column(f"'{COMMITTED}'"), bindparam("begun_at_ms", type_=BigInteger))
    return insert(table.table).from_select(["transaction_id", "outcome", "created_at_ms"], rows)


class SqlTransactionRows:
    """Implements `TransactionRows`."""

    def __init__(self, table: TransactionTable, connection: AsyncConnection) -> None:
        self._table = table
        self._connection = connection
        self._begun: Sequence[str] = ()
        self._at_ms = 0

    def begin(self, transaction_ids: Sequence[str], at_ms: int) -> None:
        self._begun, self._at_ms = transaction_ids, at_ms

    async def execute(self, statement: Executable, parameters: dict[str, object]) -> CursorResult[*tuple[Any, ...]]:
        """Execute a statement of which `insert_begun` is a part. Raises TransactionGivenUpError, IntegrityError."""
        begun, self._begun = list(self._begun), ()
        rows = {"transaction_ids": begun, "begun_at_ms": self._at_ms}
        try:
            return await self._connection.execute(statement, parameters | rows)
        except IntegrityError as error:
            if violated_table(error) == self._table.table.name:
                raise TransactionGivenUpError(", ".join(begun)) from error
            raise

    async def record(self) -> None:
        begun, self._begun = self._begun, ()
        for transaction_id in begun:
            try:
                await self._table.record(self._connection, transaction_id, self._at_ms)
            except TransactionTombstonedError as error:
                raise TransactionGivenUpError(transaction_id) from error

    async def answer_check(self, transaction_id: str, at_ms: int) -> LocalOutcome:
        try:
            return _OUTCOME_OF_STATE[await self._table.answer_check(self._connection, transaction_id, at_ms)]
        except CheckUnansweredError as error:
            raise StorageUnavailableError(f"the database does not answer: {error}") from error


class SqlInbox:
    """Implements `Inbox`."""

    def __init__(self, table: InboxTable, connection: AsyncConnection) -> None:
        self._table = table
        self._connection = connection

    async def once(self, consumer_group: str, business_key: str, at_ms: int) -> bool:
        try:
            return await self._table.once(self._connection, consumer_group, business_key, at_ms)
        except IllegalArgumentError as error:
            raise MalformedMessageError(str(error)) from error


NAME_LENGTH_MAX = 127  # of topics; tags are no longer
KEY_LENGTH_MAX = 255
TRACEPARENT_LENGTH = 55  # of version 00


class OutboxTable:
    """The table `outbox` of a service, and the repositories over it."""

    def __init__(self, metadata: MetaData) -> None:
        self.table = Table(
            "outbox",
            metadata,
            Column("row_id", ROW_ID, primary_key=True),
            Column("topic", String(NAME_LENGTH_MAX), nullable=False),
            Column("tag", String(NAME_LENGTH_MAX), nullable=False),
            Column("message_key", String(KEY_LENGTH_MAX), nullable=False),
            Column("body", LargeBinary, nullable=False),
            Column("created_at_ms", BigInteger, nullable=False),
            Column("traceparent", String(TRACEPARENT_LENGTH)),  # NULL: written outside a trace
        )
        # Built once: building a statement takes SQLAlchemy longer than SQLite takes to execute it.
        self.add = insert(self.table)
        self.oldest = select(self.table).order_by(self.table.c.row_id).limit(bindparam("rows_max"))
        self.remove = delete(self.table).where(self.table.c.row_id == bindparam("wanted_id"))
        self.count = select(func.count()).select_from(self.table)

    def of(self, connection: AsyncConnection) -> SqlOutbox:
        """The outbox as seen by one transaction."""
        return SqlOutbox(self, connection)


class SqlOutbox:
    """Implements `Outbox`.

    A row is taken away by `DELETE ... WHERE row_id = ...`, and its row count decides which process told it.
    """

    def __init__(self, table: OutboxTable, connection: AsyncConnection) -> None:
        self._table = table
        self._connection = connection

    async def add(self, message: OutgoingMessage, at_ms: int, traceparent: str | None = None) -> None:
        if message.delay_level or message.deliver_at_ms is not None:
            raise ValueError(f"{message.topic}/{message.tag} is delayed; an outbox keeps what is to be told at once")
        row = {
            "topic": message.topic,
            "tag": message.tag,
            "message_key": message.key,
            "body": message.body,
            "created_at_ms": at_ms,
            "traceparent": traceparent,
        }
        await self._connection.execute(self._table.add, row)

    async def oldest(self, limit: int) -> list[KeptMessage]:
        rows = await self._connection.execute(self._table.oldest, {"rows_max": limit})
        return [
            KeptMessage(row.row_id, OutgoingMessage(row.topic, row.tag, row.message_key, row.body), row.traceparent)
            for row in rows
        ]

    async def remove(self, row_id: int) -> bool:
        return (await self._connection.execute(self._table.remove, {"wanted_id": row_id})).rowcount == 1

    async def count(self) -> int:
        return int((await self._connection.execute(self._table.count)).scalar_one())


SUBJECT_LENGTH_MAX = 64
FINGERPRINT_LENGTH = 64


class IdempotencyKeysTable:
    """The table `idempotency_keys` of a service, and the repositories over it.

    `result` is the primary key of what a key makes, such as `orders.c.order_id`; the table refers to it under the same
    name. `expiry` deletes old ones.
    """

    def __init__(self, metadata: MetaData, result: Column[str]) -> None:
        created = Column("created_at_ms", BigInteger, nullable=False)
        self.table = Table(
            "idempotency_keys",
            metadata,
            Column("subject", String(SUBJECT_LENGTH_MAX), primary_key=True),
            Column("idempotency_key", String(KEY_LENGTH_MAX), primary_key=True),
            Column("fingerprint", String(FINGERPRINT_LENGTH), nullable=False),
            # Checked at commit: the key is claimed before its result is written.
            Column(result.name, ForeignKey(result, deferrable=True, initially="DEFERRED"), nullable=False),
            created,
            Index("ix_idempotency_keys_created_at_ms", "created_at_ms"),
        )
        self.expiry = Expiry(self.table, created)
        columns = self.table.c
        self._result_name = result.name
        # Built once: building a statement takes SQLAlchemy longer than SQLite takes to execute it.
        self._find = select(columns.fingerprint, columns[result.name].label("result_id")).where(
            columns.subject == bindparam("wanted_subject"), columns.idempotency_key == bindparam("wanted_key")
        )
        self._claim = insert(self.table)

    def of(self, connection: AsyncConnection) -> SqlIdempotencyKeys:
        """The keys as seen by one transaction."""
        return SqlIdempotencyKeys(self, connection)

    async def find(self, connection: AsyncConnection, subject: str, key: str) -> KeyClaim | None:
        wanted = {"wanted_subject": subject, "wanted_key": key}
        row = (await connection.execute(self._find, wanted)).one_or_none()
        return None if row is None else KeyClaim(subject, key, row.fingerprint, row.result_id)

    def row(self, claim: KeyClaim, at_ms: int) -> dict[str, object]:
        """The row of a claim, for callers that insert it together with its result."""
        return {
            "subject": claim.subject,
            "idempotency_key": claim.key,
            "fingerprint": claim.fingerprint,
            self._result_name: claim.result_id,
            "created_at_ms": at_ms,
        }

    async def claim(self, connection: AsyncConnection, claim: KeyClaim, at_ms: int) -> None:
        try:
            await connection.execute(self._claim, self.row(claim, at_ms))
        except IntegrityError as error:
            raise RequestInFlightError(claim.key) from error


class SqlIdempotencyKeys:
    """Implements `IdempotencyKeys`. The claim is part of its result's transaction: a crash leaves both or neither."""

    def __init__(self, table: IdempotencyKeysTable, connection: AsyncConnection) -> None:
        self._table = table
        self._connection = connection

    async def find(self, subject: str, key: str) -> KeyClaim | None:
        return await self._table.find(self._connection, subject, key)

    async def claim(self, claim: KeyClaim, at_ms: int) -> None:
        await self._table.claim(self._connection, claim, at_ms)


INBOX_KEEP_DAYS = 14  # mqclient.sqlalchemy.Retention reasons about it
# A client that repeats its request does so within minutes, or the day after; a key that is gone makes a second result.
IDEMPOTENCY_KEYS_KEEP_DAYS = 30


def cleaning(
    database: Database,
    clock: Clock,
    *,
    inbox: InboxTable,
    transactions: TransactionTable,
    idempotency_keys: IdempotencyKeysTable,
) -> Background:
    """Deletes old rows of a service's tables, in the background."""
    retentions = (
        Retention(inbox, INBOX_KEEP_DAYS),
        Retention(transactions, TRANSACTIONS_KEEP_DAYS),
        Retention(idempotency_keys.expiry, IDEMPOTENCY_KEYS_KEEP_DAYS),
    )
    cleaner = TableCleaner(database.writing, clock, retentions)
    return Background("cleaning", cleaner.run, cleaner.stop)
