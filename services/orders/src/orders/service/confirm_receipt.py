"""The buyer has received the order: it is completed, and what is completed stays so."""

from __future__ import annotations

from orders.domain.order import Order
from orders.domain.order_status import ChangeReason
from orders.domain.status_change import StatusChange
from orders.service import events
from orders.service.asked_change import AskedChange
from orders.service.order_access import require_buyer
from servicekit.auth import Caller
from servicekit.message import OutgoingMessage


class ConfirmReceipt(AskedChange):
    """The use case behind POST /orders/{id}/confirm. Only the order's buyer confirms, whatever else a caller may do."""

    reason = ChangeReason.RECEIVED
    what = "confirm receipt"

    def require_allowed(self, order: Order, caller: Caller) -> None:
        require_buyer(order, caller)

    def message(self, changed: Order, change: StatusChange) -> OutgoingMessage:
        return events.completed(changed, change)
