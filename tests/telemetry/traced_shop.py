"""A shop of real processes whose spans and metrics arrive at a receiver of the test, and what happens to its orders.

All cases are told by one set of processes, at the same time: what takes long in them is waiting.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from order_lives import PAYMENT_HANDLER

from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import ShopSettings
from hourglass_local.http_client import HttpClient
from hourglass_local.waiting import eventually
from mqclient import Admin, Message, Producer
from mqclient.admin import SubscriptionGroupConfig
from mqclient.errors import NoRouteError
from telemetry.testing.otlp_receiver import OtlpReceiver
from telemetry.trace_tree import ReceivedMetric, ReceivedSpan

WINDOW_S = 6
LEVELS = " ".join(["1s"] * 15 + [f"{WINDOW_S}s"] + ["1s"] * 2)
LATE_MS = (WINDOW_S + 1) * 1000  # of a webhook that comes after the expiry
TRANSACTIONS = {"transactionCheckInterval": "200", "transactionTimeOut": "500"}
EXPORTS_MS = "200"
END_MAX_S = 40.0

BUYER = "buyer-1"
PRODUCT = "seat"
PRICE_MINOR = 100
CHECKS = "hourglass.transaction.checks"


@dataclass(slots=True)
class Told:
    """What the processes have told, and the orders by what has happened to them."""

    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: list[ReceivedMetric] = field(default_factory=list)
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    trace_ids: dict[str, str] = field(default_factory=dict)
    order_ids: dict[str, str] = field(default_factory=dict)
    logs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def trace(self, case: str) -> list[ReceivedSpan]:
        """The spans of the case's order."""
        return [span for span in self.spans if span.trace_id == self.trace_ids[case]]


def telemetry_environment(endpoint: str) -> dict[str, str]:
    """Everything to the receiver, and soon."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": EXPORTS_MS,
        "OTEL_METRIC_EXPORT_INTERVAL": EXPORTS_MS,
    }


async def tell(folder: Path) -> Told:
    """Run a shop in `folder` through all cases. Raises what its parts raise when one of them does not come true."""
    told = Told()
    with OtlpReceiver() as receiver:
        cluster = Cluster(
            folder,
            delay_levels=LEVELS,
            broker_settings=TRANSACTIONS,
            shop=ShopSettings(completion_after_ms=1_000, gateway_silence_ms=60_000),
            environment=telemetry_environment(receiver.endpoint),
        )
        async with (
            cluster,
            HttpClient(cluster.orders_url, cluster.badges) as orders,
            HttpClient(cluster.payments_url, cluster.badges) as payments,
        ):
            shop = TracedShop(cluster, receiver, orders, payments)
            await shop.open()
            checked, paid = await shop.checked(), await shop.paid()
            cases = {
                "closed": shop.closed(),
                "shipped": shop.shipped(paid),
                "refunded": shop.refunded(),
                "given up": shop.given_up(),
                "checked": shop.closed(checked),
            }
            for case, order_id in zip(cases, await asyncio.gather(*cases.values()), strict=True):
                told.histories[case] = await shop.history(order_id)
                told.trace_ids[case] = told.histories[case][0]["trace_id"]
                told.order_ids[case] = order_id
        told.spans, told.metrics = receiver.spans(), receiver.metrics()  # a process exports the rest when it stops
    told.logs = {path.stem: _lines(path) for path in (folder / "logs").glob("*.log")}
    return told


class TracedShop:
    """The hands of buyer, seller and operator; a method runs one order through its case and returns its id."""

    def __init__(self, cluster: Cluster, receiver: OtlpReceiver, orders: HttpClient, payments: HttpClient) -> None:
        self._cluster = cluster
        self._receiver = receiver
        self._orders = orders
        self._payments = payments
        self._badges = cluster.badges

    async def open(self) -> None:
        """Something is on sale, and an unreadable message is given up after one more try."""
        product = {
            "product_id": PRODUCT,
            "name": "A seat",
            "price_minor": PRICE_MINOR,
            "currency": "CNY",
            "available": 100,
        }
        await self._orders.post("/products", self._badges.seller, product)
        async with Admin(self._cluster.url) as admin:
            await admin.update_subscription_group(
                SubscriptionGroupConfig(PAYMENT_HANDLER, retry_max_times=1),
                broker_address=self._cluster.broker_addresses[0],
            )

    async def closed(self, order_id: str | None = None) -> str:
        """No payment comes."""
        order_id = order_id or await self._place("closed")
        await self._until(order_id, "CLOSED")
        return order_id

    async def paid(self) -> str:
        """Paid, which a webhook has told."""
        order_id = await self._place("shipped")
        await self._pay(order_id)
        await self._until(order_id, "AWAITING_SHIPMENT")
        return order_id

    async def shipped(self, order_id: str) -> str:
        """A paid order is shipped, and completed by a timer."""
        await self._orders.post(f"/orders/{order_id}/ship", self._badges.seller)
        await self._until(order_id, "COMPLETED")
        await self._timer_rang(order_id)
        return order_id

    async def refunded(self) -> str:
        """Paid in time, with a webhook after the expiry, until which the order is held; then the seller cancels."""
        order_id = await self._place("refunded")
        await self._failures(late=1.0, late_ms=LATE_MS)
        payment_id = await self._pay(order_id)
        await eventually(lambda: self._is_decided(payment_id), END_MAX_S, "the gateway has decided")
        await self._failures()
        await self._until(order_id, "AWAITING_SHIPMENT")
        await self._orders.post(f"/orders/{order_id}/cancel", self._badges.seller)
        await self._until(order_id, "CLOSED")

        async def is_back() -> bool:
            payment = await self._payments.get(f"/payments/{payment_id}", self._badges.operator)
            return bool(payment["status"] == "REFUNDED")

        await eventually(is_back, END_MAX_S, "the money is back")
        return order_id

    async def checked(self) -> str:
        """The local transaction waits for the database until the broker has asked what became of it."""
        with _write_lock(self._cluster.folder / "orders.db"):
            placing = asyncio.create_task(self._place("checked"))
            await eventually(self._has_asked, END_MAX_S, "the broker has asked about the transaction")
        return await placing

    async def given_up(self) -> str:
        """A message in the order's trace that its group cannot understand: tried again once, then a dead letter."""
        order_id = await self._place("given-up")
        traceparent = _traceparent(self._cluster.folder / "orders.db", order_id)
        properties = {"traceparent": traceparent}
        message = Message("payment-events", b"?", tag="succeeded", keys=[order_id], properties=properties)
        async with Producer("breaker", self._cluster.url) as producer, Admin(self._cluster.url) as admin:
            await producer.send(message)

            async def is_dead() -> bool:
                try:
                    return bool([letter async for letter in admin.dead_letters(PAYMENT_HANDLER)])
                except NoRouteError:  # no process has died yet
                    return False

            await eventually(is_dead, END_MAX_S, "the message is a dead letter", interval_s=0.2)
        await self._until(order_id, "CLOSED")
        return order_id

    async def history(self, order_id: str) -> list[dict[str, Any]]:
        found = await self._orders.get(f"/orders/{order_id}/history", self._badges.operator)
        return list(found["changes"])

    async def _place(self, key: str) -> str:
        body = {"items": [{"product_id": PRODUCT, "quantity": 1}]}
        answer = await self._orders.post("/orders", self._badges.buyer(BUYER), body, key)
        return str(answer.json()["order_id"])

    async def _pay(self, order_id: str) -> str:
        body = {"order_id": order_id, "amount_minor": PRICE_MINOR, "currency": "CNY", "method": "card"}
        answer = await self._payments.post("/payments", self._badges.buyer(BUYER), body, f"pay-{order_id}")
        return str(answer.json()["payment_id"])

    async def _until(self, order_id: str, status: str) -> None:
        async def is_there() -> bool:
            order = await self._orders.get(f"/orders/{order_id}", self._badges.operator)
            return bool(order["status"] == status)

        await eventually(is_there, END_MAX_S, f"{order_id} is {status}", interval_s=0.1)

    async def _timer_rang(self, order_id: str) -> None:
        """The timer of the time to pay rings for paid orders too, and its span has then arrived."""

        def rang() -> bool:
            keys = "messaging.rocketmq.message.keys"
            return any(
                span.name == "process order-timeouts" and order_id in str(span.attributes.get(keys))
                for span in self._receiver.spans()
            )

        await eventually(rang, END_MAX_S, f"the timer of {order_id} rang", interval_s=0.1)

    async def _is_decided(self, payment_id: str) -> bool:
        async with self._gateway() as gateway:
            answer = await gateway.get(f"/v1/charges/{payment_id}")
        return bool(answer.json()["status"] != "pending")

    async def _failures(self, **failures: float) -> None:
        async with self._gateway() as gateway:
            (await gateway.put("/v1/failures", json=failures)).raise_for_status()

    def _gateway(self) -> httpx.AsyncClient:
        key = self._cluster.shop.secrets.gateway_api_key.read_text(encoding="utf-8").strip()
        return httpx.AsyncClient(base_url=self._cluster.gateway_url, headers={"Authorization": f"Bearer {key}"})

    def _has_asked(self) -> bool:
        return any(point.name == CHECKS and point.value > 0 for point in self._receiver.metrics())


@contextmanager
def _write_lock(path: Path) -> Iterator[None]:
    """No other process writes to the database."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _traceparent(path: Path, order_id: str) -> str:
    connection = sqlite3.connect(path)
    try:
        (found,) = connection.execute("SELECT traceparent FROM orders WHERE order_id = ?", (order_id,)).fetchone()
    finally:
        connection.close()
    return str(found)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log that are JSON."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
