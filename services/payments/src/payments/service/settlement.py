"""Settlement: from a recorded intent to its end, however often it is begun and wherever it breaks off.

    intent (CREATED, committed) -> gateway -> half message -> CAPTURED and transaction row, committed -> message

Invariants: the gateway is asked only after the intent is committed, and always under the same id; a payment becomes
CAPTURED, or REFUNDED, in the very transaction whose message tells it. So money that moved is told exactly once: whoever
dies before that transaction leaves the intent, which is begun again; whoever dies after it leaves the transaction row,
which answers the queue's check.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from osenv import Clock
from payments.domain.errors import StatusChangedError
from payments.domain.payment import Payment, StatusChange
from payments.domain.payment_status import PaymentStatus
from payments.service import events
from payments.service.gateway import Declined, PatientGateway
from payments.service.unit_of_work import UnitOfWork, Units
from servicekit.message import OutgoingMessage
from servicekit.transactions import TransactionalPublisher


class Settlement:
    """Finishes payments and refunds. `holding` keeps two of this process's tasks off one payment."""

    def __init__(
        self, units: Units, gateway: PatientGateway, publisher: TransactionalPublisher[UnitOfWork], clock: Clock
    ) -> None:
        self._units = units
        self._gateway = gateway
        self._publisher = publisher
        self._clock = clock
        self._held: set[str] = set()

    def is_held(self, payment_id: str) -> bool:
        return payment_id in self._held

    @contextmanager
    def holding(self, payment_id: str) -> Iterator[None]:
        """Whoever sees `is_held` leaves the payment alone. Two processes need no such thing: the database decides."""
        self._held.add(payment_id)
        try:
            yield
        finally:
            self._held.discard(payment_id)

    async def finish_payment(self, payment_id: str) -> Payment:
        """Take the money and tell it, unless that was done before; returns the payment as it stands then.

        Raises GatewayUnavailableError, PublishError, StorageUnavailableError and StatusChangedError: the payment may
        still be CREATED then, and this is to be called again. Raises GatewayRefusedError, which needs a person.
        """
        async with self._units.reading() as unit:
            payment = await unit.payments.get(payment_id)
        if payment.status is not PaymentStatus.CREATED:
            return payment
        answer = await self._gateway.capture(payment)
        if isinstance(answer, Declined):
            changed, change = payment.declined(answer.reason, self._clock.wall_ms())
            async with self._units.writing() as unit:
                await _change_status(unit, changed, change)
                await unit.commit()
            return changed
        changed, change = payment.captured(answer.at_ms)
        return await self._tell(events.succeeded(changed), changed, change)

    async def finish_refund(self, payment_id: str) -> Payment:
        """Give the money back and tell it, unless nobody asked for it or it was done before.

        Raises as `finish_payment` does.
        """
        async with self._units.reading() as unit:
            payment = await unit.payments.get(payment_id)
            refund = await unit.refunds.find(payment_id)
        if refund is None or payment.status is not PaymentStatus.CAPTURED:
            return payment
        answer = await self._gateway.refund(refund)
        changed, change = payment.refunded(answer.at_ms)
        return await self._tell(events.refunded(changed, refund), changed, change)

    async def _tell(self, message: OutgoingMessage, changed: Payment, change: StatusChange) -> Payment:
        async def write(unit: UnitOfWork) -> Payment:
            await _change_status(unit, changed, change)
            return changed

        return await self._publisher.publish(message, write)


async def _change_status(unit: UnitOfWork, changed: Payment, change: StatusChange) -> None:
    if not await unit.payments.change_status(changed, change):
        raise StatusChangedError("payment", changed.payment_id)
