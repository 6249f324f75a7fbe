"""Used idempotency keys in SQL. The claim is part of the order's transaction: a crash leaves both or neither."""

from __future__ import annotations

from sqlalchemy import bindparam, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from orders.adapters.tables import idempotency_keys
from orders.domain.errors import RequestInFlightError
from orders.service.unit_of_work import KeyClaim

_FIND = select(idempotency_keys).where(idempotency_keys.c.idempotency_key == bindparam("wanted_key"))
_CLAIM = insert(idempotency_keys)


class SqlIdempotencyKeys:
    """Implements `IdempotencyKeys`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, key: str) -> KeyClaim | None:
        row = (await self._connection.execute(_FIND, {"wanted_key": key})).one_or_none()
        return None if row is None else KeyClaim(row.idempotency_key, row.fingerprint, row.order_id)

    async def claim(self, claim: KeyClaim, at_ms: int) -> None:
        row = {
            "idempotency_key": claim.key,
            "fingerprint": claim.fingerprint,
            "order_id": claim.order_id,
            "created_at_ms": at_ms,
        }
        try:
            await self._connection.execute(_CLAIM, row)
        except IntegrityError as error:
            raise RequestInFlightError(claim.key) from error
