"""Reconciliation of messages: what no order of a shop can have is found, from bronze on."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from analytics.events import events, read_bodies
from analytics.jobs.reconciliation import reconcile
from analytics.jobs.silver import orders
from analytics.testing import LEFT_OUT, START_MS, BronzeRows, at

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(600)]


def test_what_no_shop_can_tell_is_found_in_messages(spark: SparkSession) -> None:
    told, hour_ms = BronzeRows(), 3_600_000

    def buy(order_id: str, payment_id: str | None = None, **members: Any) -> None:
        told.created(order_id, **members)
        told.succeeded(order_id, payment_id or f"p-{order_id}", 1000)
        told.paid(order_id, payment_id or f"p-{order_id}")

    buy("sound")
    told.created("never-paid")
    told.shipped("never-paid", LEFT_OUT)  # type: ignore[arg-type]
    told.completed("never-paid", LEFT_OUT)  # type: ignore[arg-type]
    told.created("names-none")
    told.paid("names-none", LEFT_OUT)  # type: ignore[arg-type]
    buy("pays-two-1", "p-both")
    buy("pays-two-2", "p-both")
    for order_id in ("returns-two-1", "returns-two-2"):
        buy(order_id)
        told.refunded(order_id, f"p-{order_id}", "r-both", 1000)
    told.created("other-total")
    told.succeeded("other-total", "p-other-total", 1000)
    told.paid("other-total", "p-other-total", total_minor=900)
    buy("two-buyers")
    told.created("two-buyers", buyer_id="buyer-2")
    buy("two-amounts")
    told.succeeded("two-amounts", "p-two-amounts", 900, at_ms=START_MS + 11_000)
    buy("closed-in-the-end")
    told.completed("closed-in-the-end", "p-closed-in-the-end")
    told.closed("closed-in-the-end", "seller-cancelled", "p-closed-in-the-end")
    told.refunded("closed-in-the-end", "p-closed-in-the-end", "r-in-the-end", 1000)
    told.created("paid-late")
    told.succeeded("paid-late", "p-paid-late", 1000, at_ms=START_MS + 10 * hour_ms)
    told.paid("paid-late", "p-paid-late", at_ms=START_MS + 10 * hour_ms)
    told.created("closed-late")
    told.closed("closed-late", at_ms=START_MS + 20 * 24 * hour_ms)
    told.created("no-expiry", expires_at_ms=LEFT_OUT)
    buy("no-lines", items=LEFT_OUT)
    for name in ("total_minor", "currency"):
        members: dict[str, Any] = {name: LEFT_OUT}
        told.created(f"no-{name}", **members)
        told._terms[f"no-{name}"].pop(name)
        told.succeeded(f"no-{name}", f"p-no-{name}", 1000)
        told.paid(f"no-{name}", f"p-no-{name}")
    frame = reconcile(orders(events(read_bodies(told.dataframe(spark)))), as_of=at(START_MS + 365 * 24 * hour_ms))
    assert {(row.kind, row.order_id) for row in frame.collect()} == {
        ("paid-without-payment", "never-paid"),
        ("paid-without-payment", "names-none"),
        ("same-payment-of-two-orders", "pays-two-1"),
        ("same-refund-of-two-orders", "returns-two-1"),
        ("told-differently", "other-total"),
        ("told-differently", "two-buyers"),
        ("told-differently", "two-amounts"),
        ("closed-after-shipping", "closed-in-the-end"),
        ("paid-after-expiry", "paid-late"),
        ("closed-late", "closed-late"),
        ("terms-missing", "no-expiry"),
        ("terms-missing", "no-lines"),
        ("terms-missing", "no-total_minor"),
        ("terms-missing", "no-currency"),
    }
