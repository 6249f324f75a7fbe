"""Until every order has ended, and what can be said of the shop then."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hourglass_loadtest.shop.options import Target
from hourglass_local.shop import CLOSED, PENDING, Order, Shop
from hourglass_local.waiting import NotInTimeError, eventually

SETTLE_MAX_S = 240.0  # after the last expiry; a message that failed three times comes back after 1 min 40 s
LOOK_INTERVAL_S = 1.0
NOT_CHECKED = "not checked: the databases' URLs were not given (LOAD_ORDERS_DATABASE_URL and the two others)"


@dataclass(frozen=True, slots=True)
class Ending:
    """`checked` is how many invariants were looked at, 0 when nobody could; `complaints` are sentences: what is wrong.

    `orders` are those that were placed since the load began, by status. Lateness is from expiry to close, in seconds.
    """

    settled_s: float
    checked: int
    complaints: Sequence[str]
    orders: Mapping[str, int]
    close_lateness_s: Sequence[float]


async def wait_for_the_end(target: Target, begun: float, payment_window_s: float) -> Ending:
    """Wait until no order waits for its payment any more and, where one may look, everything adds up.

    `begun` is when the load began, in seconds since 1970.
    """
    begin, complaints = time.monotonic(), []
    async with Shop(target.orders_url, target.badges) as shop:

        async def has_ended() -> bool:
            if target.cluster is not None:
                target.cluster.check()
            if target.standing is None:
                return not (await shop.statistics()).orders.get(PENDING, 0)
            return await target.standing.is_settled(shop, shipped_complete=False)

        try:
            await eventually(has_ended, payment_window_s + SETTLE_MAX_S, interval_s=LOOK_INTERVAL_S)
        except NotInTimeError:
            statuses = (await shop.statistics()).orders
            complaints.append(f"not at rest {payment_window_s + SETTLE_MAX_S:g} s after the load: {dict(statuses)}")
        settled_s = time.monotonic() - begin
        results = [] if target.standing is None else await target.standing.results()
        orders = (await shop.orders()).values()
    complaints += [str(violation) for result in results for violation in result.violations]
    placed = [order for order in orders if order.expires_at_ms / 1000 - payment_window_s >= begun - 1.0]
    return Ending(settled_s, len(results), complaints, _by_status(placed), close_lateness_s(placed))


def close_lateness_s(orders: Sequence[Order]) -> list[float]:
    """Of orders that closed because nobody paid. One that its buyer cancels closes before it expires."""
    return [
        (order.closed_at_ms - order.expires_at_ms) / 1000
        for order in orders
        if order.status == CLOSED and order.closed_at_ms is not None and order.closed_at_ms >= order.expires_at_ms
    ]


def _by_status(orders: Sequence[Order]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for order in orders:
        counts[order.status] = counts.get(order.status, 0) + 1
    return dict(sorted(counts.items()))
