"""The port: what a shop asks of whatever closes its unpaid orders."""

from __future__ import annotations

from typing import Protocol


class TimerNotSetError(Exception):
    """The timer could not be set; the order must not be saved, for nothing would ever close it."""


class OrderTimers(Protocol):
    """The timers of one instance of the shop.

    Set before the order is saved: a timer without an order rings in vain, an order without a timer waits for ever.
    """

    async def start(self) -> None:
        """Begin to close what is due; called when the instance's process starts, again after each `kill`."""

    async def set(self, order_id: str, expires_at_ms: int) -> None:
        """Close the order at `expires_at_ms` (wall clock), unless it is paid by then. Raises TimerNotSetError."""

    async def kill(self) -> None:
        """The process dies as by SIGKILL: what it held in memory is gone."""
