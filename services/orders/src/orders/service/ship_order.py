"""Shipping an order that is paid.

Invariant: an order is shipped or cancelled, never both: both change it from AWAITING_SHIPMENT by compare-and-set.
"""

from __future__ import annotations

from orders.domain.order import Order
from orders.domain.order_status import ChangeReason
from orders.domain.status_change import StatusChange
from orders.service import events
from orders.service.asked_change import AskedChange
from servicekit.auth import Caller
from servicekit.message import OutgoingMessage


class ShipOrder(AskedChange):
    """The use case behind POST /orders/{id}/ship; whether the caller may ship at all is asked there."""

    reason = ChangeReason.SHIPPED
    what = "ship order"

    def require_allowed(self, order: Order, caller: Caller) -> None:
        """Whoever may ship ships any order that he may see."""

    def message(self, changed: Order, change: StatusChange) -> OutgoingMessage:
        return events.shipped(changed)
