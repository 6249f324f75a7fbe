"""The payments, their refunds and their ledger, through SQLAlchemy.

A status changes by `UPDATE ... WHERE status = old`, and its row count decides. Statements are built once: building one
takes SQLAlchemy longer than SQLite takes to execute it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, bindparam, func, insert, select, text, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.tables import counters, ledger_entries, payment_history, payments, refunds
from payments.domain.errors import PaymentInProgressError, PostedBeforeError, StatusChangedError, UnknownPaymentError
from payments.domain.ledger import Account, Posting
from payments.domain.payment import TOOK_MONEY, Payment, PaymentStatus, StatusChange
from payments.domain.refund import Refund, RefundStatus
from payments.service.use_case import PageKey, PaymentFilter, UnfinishedPayment, UnfinishedRefund
from servicekit.sql.rows import row_of, value_of

_ADD_PAYMENT = insert(payments)
_ADD_HISTORY = insert(payment_history)
_GET = select(payments).where(payments.c.payment_id == bindparam("wanted_id"))
# Two, if the gateway has taken the money of one that was declined: the newest is what its buyer asks about.
_LIVE = (
    select(payments)
    .where(payments.c.order_id == bindparam("wanted_order_id"), payments.c.status != PaymentStatus.DECLINED)
    .order_by(payments.c.created_at_ms.desc(), payments.c.payment_id.desc())
    .limit(1)
)
_UNFINISHED_PAYMENTS = (
    select(payments.c.payment_id, payments.c.created_at_ms)
    .where(payments.c.status == PaymentStatus.CREATED, payments.c.payment_id > bindparam("after_id"))
    .order_by(payments.c.payment_id)
    .limit(bindparam("rows_max"))
)
_CHANGE_STATUS = (
    update(payments)
    .where(
        payments.c.payment_id == bindparam("wanted_id"),
        payments.c.status == bindparam("old_status"),
        payments.c.refunded_minor == bindparam("old_refunded_minor"),
    )
    .values(
        status=bindparam("new_status"),
        captured_at_ms=bindparam("new_captured_at_ms"),
        refunded_at_ms=bindparam("new_refunded_at_ms"),
        decline_reason=bindparam("new_decline_reason"),
        overruled_decline=bindparam("new_overruled_decline"),
        refunded_minor=bindparam("new_refunded_minor"),
    )
)
_RESERVE_REFUND = (
    update(payments)
    .where(
        payments.c.payment_id == bindparam("wanted_id"),
        payments.c.status.in_(TOOK_MONEY),
        payments.c.refund_requested_minor + bindparam("more_minor") <= payments.c.amount_minor,
    )
    .values(refund_requested_minor=payments.c.refund_requested_minor + bindparam("more_minor"))
)


class SqlPayments:
    """Implements `Payments`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, payment: Payment, first: StatusChange) -> None:
        row = row_of(payment, **_decline(payment))
        try:
            await self._connection.execute(_ADD_PAYMENT, row)
        except IntegrityError as error:
            # The other constraints are the domain's invariants; what is left is the order's one live payment.
            raise PaymentInProgressError(payment.order_id) from error
        await self._add_history(first)

    async def get(self, payment_id: str) -> Payment:
        payment = await self.find(payment_id)
        if payment is None:
            raise UnknownPaymentError(payment_id)
        return payment

    async def find(self, payment_id: str) -> Payment | None:
        row = (await self._connection.execute(_GET, {"wanted_id": payment_id})).one_or_none()
        return None if row is None else _payment(row)

    async def live(self, order_id: str) -> Payment | None:
        row = (await self._connection.execute(_LIVE, {"wanted_order_id": order_id})).one_or_none()
        return None if row is None else _payment(row)

    async def page(self, wanted: PaymentFilter, after: PageKey | None, limit: int) -> list[Payment]:
        query = select(payments).order_by(payments.c.created_at_ms.desc(), payments.c.payment_id.desc()).limit(limit)
        if wanted.order_id is not None:
            query = query.where(payments.c.order_id == wanted.order_id)
        if wanted.buyer_id is not None:
            query = query.where(payments.c.buyer_id == wanted.buyer_id)
        if wanted.status is not None:
            query = query.where(payments.c.status == wanted.status)
        if after is not None:
            place = tuple_(payments.c.created_at_ms, payments.c.payment_id)
            query = query.where(place < (after.at_ms, after.id))
        return [_payment(row) for row in await self._connection.execute(query)]

    async def change_status(self, changed: Payment, change: StatusChange, old_refunded_minor: int) -> bool:
        result = await self._connection.execute(
            _CHANGE_STATUS,
            {
                "wanted_id": change.payment_id,
                "old_status": change.old_status,
                "old_refunded_minor": old_refunded_minor,
                "new_status": changed.status,
                "new_captured_at_ms": changed.captured_at_ms,
                "new_refunded_at_ms": changed.refunded_at_ms,
                **{f"new_{name}": reason for name, reason in _decline(changed).items()},
                "new_refunded_minor": changed.refunded_minor,
            },
        )
        if result.rowcount != 1:
            return False
        await self._add_history(change)
        return True

    async def reserve_refund(self, payment_id: str, amount_minor: int) -> bool:
        parameters = {"wanted_id": payment_id, "more_minor": amount_minor}
        return (await self._connection.execute(_RESERVE_REFUND, parameters)).rowcount == 1

    async def history(self, payment_id: str) -> list[StatusChange]:
        rows = await self._connection.execute(
            select(payment_history)
            .where(payment_history.c.payment_id == payment_id)
            .order_by(payment_history.c.change_id)
        )
        return [value_of(StatusChange, row) for row in rows]

    async def count_by_status(self) -> dict[PaymentStatus, int]:
        return await counters.of_each(self._connection, "payments/", PaymentStatus)

    async def unfinished(self, after: str, limit: int) -> list[UnfinishedPayment]:
        rows = await self._connection.execute(_UNFINISHED_PAYMENTS, {"after_id": after, "rows_max": limit})
        return [value_of(UnfinishedPayment, row) for row in rows]

    async def _add_history(self, change: StatusChange) -> None:
        await self._connection.execute(_ADD_HISTORY, row_of(change))


def _decline(payment: Payment) -> dict[str, Any]:
    """Its reason, in the column that says whether it still stands."""
    is_overruled = payment.status in TOOK_MONEY
    reason = payment.decline_reason
    return {"decline_reason": None if is_overruled else reason, "overruled_decline": reason if is_overruled else None}


def _payment(row: Row[tuple[object, ...]]) -> Payment:
    return value_of(Payment, row, decline_reason=row.decline_reason or row.overruled_decline)


_ADD_REFUND = insert(refunds)
_FIND = select(refunds).where(refunds.c.refund_id == bindparam("wanted_id"))
_CHANGE = (
    update(refunds)
    .where(refunds.c.refund_id == bindparam("wanted_id"), refunds.c.status == bindparam("old_status"))
    .values(
        status=bindparam("new_status"),
        refunded_at_ms=bindparam("new_refunded_at_ms"),
        failure=bindparam("new_failure"),
    )
)
# With the status as text, so that the partial index serves it.
_COUNT_FAILED = select(func.count()).select_from(refunds).where(text("status = 'FAILED'"))
_UNFINISHED_REFUNDS = (
    select(refunds.c.refund_id, refunds.c.requested_at_ms)
    .where(refunds.c.status == RefundStatus.REQUESTED, refunds.c.refund_id > bindparam("after_id"))
    .order_by(refunds.c.refund_id)
    .limit(bindparam("rows_max"))
)


class SqlRefunds:
    """Implements `Refunds`.

    That refunds are together never more than their payment took is counted in the payment's row (SqlPayments).
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, refund: Refund) -> None:
        try:
            await self._connection.execute(_ADD_REFUND, row_of(refund))
        except IntegrityError as error:
            raise StatusChangedError("refund", refund.refund_id) from error

    async def find(self, refund_id: str) -> Refund | None:
        row = (await self._connection.execute(_FIND, {"wanted_id": refund_id})).one_or_none()
        return None if row is None else value_of(Refund, row)

    async def change(self, old_status: RefundStatus, changed: Refund) -> bool:
        parameters = {
            "wanted_id": changed.refund_id,
            "old_status": old_status,
            "new_status": changed.status,
            "new_refunded_at_ms": changed.refunded_at_ms,
            "new_failure": changed.failure,
        }
        return (await self._connection.execute(_CHANGE, parameters)).rowcount == 1

    async def page(
        self, payment_id: str | None, after: PageKey | None, limit: int, status: RefundStatus | None = None
    ) -> list[Refund]:
        query = select(refunds).order_by(refunds.c.requested_at_ms.desc(), refunds.c.refund_id.desc()).limit(limit)
        if payment_id is not None:
            query = query.where(refunds.c.payment_id == payment_id)
        if status is not None:
            query = query.where(text(f"status = '{status}'"))
        if after is not None:
            query = query.where(tuple_(refunds.c.requested_at_ms, refunds.c.refund_id) < (after.at_ms, after.id))
        return [value_of(Refund, row) for row in await self._connection.execute(query)]

    async def count_by_status(self) -> dict[RefundStatus, int]:
        return await counters.of_each(self._connection, "refunds/", RefundStatus)

    async def count_failed(self) -> int:
        return (await self._connection.execute(_COUNT_FAILED)).scalar_one()

    async def unfinished(self, after: str, limit: int) -> list[UnfinishedRefund]:
        rows = await self._connection.execute(_UNFINISHED_REFUNDS, {"after_id": after, "rows_max": limit})
        return [value_of(UnfinishedRefund, row) for row in rows]


_POST = insert(ledger_entries)


class SqlLedger:
    """Implements `Ledger`.

    The ledger in SQL; a posting's id is unique, so that money is booked once. Nothing here changes or deletes a row,
    and the triggers of the migration keep every other program from it.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def post(self, posting: Posting) -> None:
        rows = [
            row_of(posting, without=frozenset({"entries"}), account=entry.account, amount_minor=entry.amount_minor)
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
