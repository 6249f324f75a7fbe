"""Used idempotency keys in SQL. The claim is part of its result's transaction: a crash leaves both or neither."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, MetaData, String, Table, bindparam, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from mqclient.sqlalchemy import Expiry
from servicekit.errors import RequestInFlightError
from servicekit.idempotency import KeyClaim

KEY_LENGTH_MAX = 255
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
        """The row of a claim, for those who insert it together with its result."""
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
    """Implements `IdempotencyKeys`."""

    def __init__(self, table: IdempotencyKeysTable, connection: AsyncConnection) -> None:
        self._table = table
        self._connection = connection

    async def find(self, subject: str, key: str) -> KeyClaim | None:
        return await self._table.find(self._connection, subject, key)

    async def claim(self, claim: KeyClaim, at_ms: int) -> None:
        await self._table.claim(self._connection, claim, at_ms)
