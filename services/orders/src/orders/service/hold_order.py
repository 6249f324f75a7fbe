"""A payment holds its order before it captures money, and lets it go when it captures none (ADR 122).

Invariants: an order that is held is not closed; of a hold and a closing exactly one gets the order, by compare-and-set;
a payment that takes its hold again prolongs it, within the bounds of domain/order.py.
"""

from __future__ import annotations

from orders.domain.errors import StatusChangedError
from orders.domain.order import HoldLimits, PaymentHold
from orders.service.order_access import find_visible
from orders.service.unit_of_work import Units
from osenv import Clock
from servicekit.auth import Caller


class HoldOrder:
    """The use cases behind PUT and DELETE /orders/{id}/holds/{payment_id}; payments asks for the order's buyer."""

    def __init__(self, units: Units, clock: Clock, limits: HoldLimits) -> None:
        self._units = units
        self._clock = clock
        self._limits = limits

    async def take(self, order_id: str, payment_id: str, caller: Caller) -> PaymentHold:
        """Hold the order for the payment, or for longer if it does so already.

        Raises UnknownOrderError, OrderNotPayableError, OrderHeldError (by another payment), StorageUnavailableError.
        """
        now_ms = self._clock.wall_ms()
        # Whoever lost the order reads it again. That ends: a status only moves forward, and holds are taken one by one.
        while True:
            async with self._units.writing() as unit:
                order = await find_visible(unit.orders, order_id, caller)
                hold = order.held(payment_id, now_ms, self._limits)
                try:
                    await unit.orders.set_hold(order, hold)
                except StatusChangedError:
                    continue
                await unit.commit()
            return hold

    async def release(self, order_id: str, payment_id: str, caller: Caller) -> None:
        """Let the order go, if this payment was the last to hold it: it has captured nothing, and never will.

        Raises UnknownOrderError, StatusChangedError, StorageUnavailableError.
        """
        async with self._units.writing() as unit:
            order = await find_visible(unit.orders, order_id, caller)
            if order.hold is not None and order.hold.payment_id == payment_id:
                await unit.orders.set_hold(order, None)
                await unit.commit()
