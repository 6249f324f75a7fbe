"""What a shop may tell: many small stories, an order with every kind of event, and six orders of two days."""

from __future__ import annotations

from typing import Any

from analytics.testing import LEFT_OUT, START_MS, WINDOW_MS, BronzeRows

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def tell_stories(told: BronzeRows) -> None:
    told.paid("paid-before-created", "p-early", at_ms=START_MS + 5)
    told.created("paid-before-created", at_ms=START_MS)

    told.created("twice")
    told.again(told.succeeded("twice", "p-twice", 1000), stored_ms=START_MS + DAY_MS)
    told.again(told.paid("twice", "p-twice"), stored_ms=START_MS + DAY_MS)

    told.created("of-two-lines", [("tea", 2, 500), ("cup", 1, 300), ("tea", 1, 450)])

    told.succeeded("only-captured", "p-lone", 1000)
    told.refund_requested("only-asked-back", "p-asked", 1000, "order-closed", stored_ms=START_MS + DAY_MS)

    told.created("paid-is-missing")
    told.succeeded("paid-is-missing", "p-unheard", 1000, at_ms=START_MS + 77)
    told.shipped("paid-is-missing", "p-unheard")

    told.created("double-capture")
    told.succeeded("double-capture", "p-2", 1000, at_ms=START_MS + 20)
    told.succeeded("double-capture", "p-1", 1000, at_ms=START_MS + 30)
    told.paid("double-capture", "p-2", at_ms=START_MS + 20)

    # Bodies of other versions.
    old: dict[str, Any] = {"version": LEFT_OUT, "currency": LEFT_OUT, "buyer_id": LEFT_OUT}
    told.created("old", **old)
    told.closed("old", **old | {"payment_id": LEFT_OUT, "reason": LEFT_OUT})
    told.created("new", version=3, colour="red", items_wrapped=[{"in": "paper"}])
    told.paid("new", "p-new", version=2, loyalty={"points": 3})
    told.succeeded("reworded", "p-reworded", 1000)
    told.succeeded("reworded", "p-reworded", 1000, version=2, currency="EUR")
    told.created("reworded", at_ms=START_MS + 2)
    told.created("reworded", at_ms=START_MS + 1)
    told.created("reworded", at_ms=START_MS + 9, version=2, buyer_id="buyer-2")

    told.tell("other-topic", "created", b"{}", key=None, stored_ms=START_MS)


def whole_history(order_id: str) -> BronzeRows:
    """An order with every kind of event, also some that no order has together."""
    told = BronzeRows()
    told.created(order_id, [("tea", 2, 500)])
    told.succeeded(order_id, "p-1", 1000)
    told.paid(order_id, "p-1")
    told.shipped(order_id, "p-1")
    told.completed(order_id, "p-1")
    told.closed(order_id, "seller-cancelled", "p-1")
    told.refund_requested(order_id, "p-1", 1000, "order-cancelled")
    told.refunded(order_id, "p-1", "r-2", 600)
    told.refunded(order_id, "p-1", "r-1", 400)
    return told


def tell_two_days(told: BronzeRows) -> None:
    told.created("completed", [("tea", 2, 500), ("cup", 1, 300), ("tea", 1, 200)])
    told.succeeded("completed", "p-1", 1500, at_ms=START_MS + 61_000)
    told.paid("completed", "p-1", at_ms=START_MS + 61_000)
    told.shipped("completed", "p-1", at_ms=START_MS + DAY_MS)
    told.completed("completed", "p-1", at_ms=START_MS + 2 * DAY_MS)
    told.created("taken-back", [("tea", 1, 500)], at_ms=START_MS + 1)
    told.succeeded("taken-back", "p-2", 500, at_ms=START_MS + 61_500)
    told.paid("taken-back", "p-2", at_ms=START_MS + 61_500)
    told.closed("taken-back", "seller-cancelled", "p-2", at_ms=START_MS + 70_000)
    told.refunded("taken-back", "p-2", "r-1", 500, "order-cancelled", at_ms=START_MS + 70_005)
    told.created("expired", [("tea", 3, 500)], at_ms=START_MS + 2 * HOUR_MS)
    told.closed("expired", at_ms=START_MS + 2 * HOUR_MS + WINDOW_MS + 40)
    told.timer("expired", due_ms=START_MS + 3 * HOUR_MS, delivered_ms=START_MS + 3 * HOUR_MS + 33)
    told.created("waiting", [("cup", 1, 300)], at_ms=START_MS + DAY_MS, currency="EUR")
    told.created("cancelled", [("tea", 1, 500)], at_ms=START_MS + DAY_MS, version=2)
    told.closed("cancelled", "cancelled", at_ms=START_MS + DAY_MS + 5)
    told.succeeded("unknown", "p-3", 700, at_ms=START_MS + DAY_MS)
    told.tell("order-events", "moved", b"{}", key=None, stored_ms=START_MS)
