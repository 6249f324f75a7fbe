"""Orders for tests: remembers who holds what, and refuses or is away when it is told to."""

from __future__ import annotations

from payments.domain.errors import OrderNotPayableError, OrdersUnavailableError
from payments.domain.payment import Payment


class ScriptedOrders:
    """Implements `OrderHolds`. `holds` are payments by order; `closed` are orders that are over, with how long ago the
    hold of the payment that asks ended, None if it had none.
    """

    def __init__(self) -> None:
        self.holds: dict[str, str] = {}
        self.closed: dict[str, int | None] = {}
        self.is_away = False
        self.calls = 0

    async def take(self, payment: Payment) -> None:
        self._answer()
        if payment.order_id in self.closed:
            raise OrderNotPayableError(payment.order_id, self.closed[payment.order_id])
        self.holds[payment.order_id] = payment.payment_id

    async def release(self, payment: Payment) -> None:
        self._answer()
        self.holds.pop(payment.order_id, None)

    def _answer(self) -> None:
        self.calls += 1
        if self.is_away:
            raise OrdersUnavailableError("orders is away")
