"""Keeping up with orders: which can be paid, by whom, and how much; `order-events` tell it."""

from __future__ import annotations

from payments.domain.errors import StatusChangedError
from payments.domain.payable_order import PayableOrder
from payments.service.unit_of_work import Units


class PayableOrders:
    """The use case behind the group `payable-orders`. Events may come twice and in any order."""

    def __init__(self, units: Units) -> None:
        self._units = units

    async def learn(self, told: PayableOrder) -> PayableOrder:
        """Remember what an event told; returns the order as it is known now.

        Raises StatusChangedError when another process learns of the same order at the same moment.
        """
        async with self._units.writing() as unit:
            known = await unit.payable_orders.find(told.order_id)
            if known is None:
                await unit.payable_orders.add(told)
                await unit.commit()
                return told
            merged = known.merged(told)
            if merged != known:
                if not await unit.payable_orders.change(known.status, merged):
                    raise StatusChangedError("order", told.order_id)
                await unit.commit()
        return merged
