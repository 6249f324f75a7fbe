"""The port to whoever counts what happens to orders; the database, and not a counter, is what decides anything."""

from __future__ import annotations

from typing import Protocol

from orders.domain.order import Order
from orders.domain.status_change import StatusChange


class OrderMeter(Protocol):
    """Told once for each change that this process has made, after it was committed."""

    def changed(self, order: Order, change: StatusChange) -> None:
        """`order` is as it is after the change."""


class NotMetered:
    """Implements `OrderMeter`: nobody counts."""

    def changed(self, order: Order, change: StatusChange) -> None:
        """Forget it."""


NOT_METERED = NotMetered()
