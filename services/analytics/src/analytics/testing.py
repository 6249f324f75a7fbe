"""Bronze rows of chosen events, for tests: bodies as the services write them, places in the queues as a broker counts.

    told = BronzeRows()
    told.created("o-1", lines=[("tea", 2, 500)])
    told.succeeded("o-1", "p-1", amount_minor=1000)
    told.paid("o-1", "p-1")
    bronze = told.dataframe(spark)

Times are wall-clock milliseconds; what is not said is START_MS and some seconds. Each method returns its row, and takes
members of the body by name: `version=2, colour="red"` adds them, `currency=LEFT_OUT` leaves one out. `rows` may be
shuffled, repeated and edited before they become a DataFrame.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from analytics import events as kinds
from analytics.jobs.bronze import BRONZE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_MS = 1_767_225_600_000  # 2026-01-01 00:00 UTC
WINDOW_MS = 1_800_000  # which a buyer has to pay
BUYER = "buyer-1"
LEFT_OUT = object()

Row = dict[str, Any]


@dataclass(slots=True)
class BronzeRows:
    """Rows in the order in which they were told; one queue to each topic."""

    broker: str = "broker-a"
    rows: list[Row] = field(default_factory=list)
    _terms: dict[str, Row] = field(default_factory=dict)  # of the orders that were created
    _refunded_minor: Counter[str] = field(default_factory=Counter)  # of each payment
    _offsets: Counter[str] = field(default_factory=Counter)

    def tell(
        self, topic: str, tag: str | None, body: Row | bytes | None, *, key: str | None, stored_ms: int, **row: Any
    ) -> Row:
        """Any message. `row` sets columns of the row."""
        data = json.dumps(body, separators=(",", ":")).encode() if isinstance(body, dict) else body
        told: Row = {
            "key": key,
            "keys": [] if key is None else key.split(),
            "tag": tag,
            "body": data,
            "topic": topic,
            "broker": self.broker,
            "queueId": 0,
            "queueOffset": self._offsets[topic],
            "bornTimestamp": at(stored_ms),
            "storeTimestamp": at(stored_ms),
            "msgId": f"{topic}-{self._offsets[topic]}",
            "properties": {},
            "day": at(stored_ms).date(),
        }
        self._offsets[topic] += 1
        self.rows.append(told | row)
        return self.rows[-1]

    def again(self, row: Row, *, stored_ms: int) -> Row:
        """The same event told a second time, at a place of its own."""
        offset = self._offsets[row["topic"]]
        self._offsets[row["topic"]] += 1
        told = row | {"queueOffset": offset, "storeTimestamp": at(stored_ms), "day": at(stored_ms).date()}
        self.rows.append(told)
        return told

    def created(
        self,
        order_id: str,
        lines: Sequence[tuple[str, int, int]] = (("tea", 1, 1000),),
        *,
        at_ms: int = START_MS,
        buyer_id: str = BUYER,
        currency: str = "CNY",
        **members: Any,
    ) -> Row:
        """`lines` are (product_id, quantity, unit_price_minor)."""
        terms: Row = {
            "buyer_id": buyer_id,
            "total_minor": sum(quantity * price for _, quantity, price in lines),
            "currency": currency,
            "expires_at_ms": at_ms + WINDOW_MS,
        }
        self._terms[order_id] = terms
        items = [{"product_id": name, "quantity": count, "unit_price_minor": price} for name, count, price in lines]
        return self._order_event(order_id, kinds.CREATED, at_ms, {"created_at_ms": at_ms, "items": items} | members)

    def paid(self, order_id: str, payment_id: str, *, at_ms: int = START_MS + 10_000, **members: Any) -> Row:
        body = {"payment_id": payment_id, "paid_at_ms": at_ms} | members
        return self._order_event(order_id, kinds.PAID, at_ms, body)

    def shipped(self, order_id: str, payment_id: str, *, at_ms: int = START_MS + 20_000, **members: Any) -> Row:
        body = {"payment_id": payment_id, "shipped_at_ms": at_ms} | members
        return self._order_event(order_id, kinds.SHIPPED, at_ms, body)

    def completed(
        self,
        order_id: str,
        payment_id: str,
        reason: str = "received",
        *,
        at_ms: int = START_MS + 30_000,
        **members: Any,
    ) -> Row:
        body = {"payment_id": payment_id, "completed_at_ms": at_ms, "reason": reason} | members
        return self._order_event(order_id, kinds.COMPLETED, at_ms, body)

    def closed(
        self,
        order_id: str,
        reason: str = "expired",
        payment_id: str | None = None,
        *,
        at_ms: int = START_MS + WINDOW_MS,
        **members: Any,
    ) -> Row:
        body = {"closed_at_ms": at_ms, "reason": reason, "payment_id": payment_id} | members
        return self._order_event(order_id, kinds.CLOSED, at_ms, body)

    def refund_requested(
        self,
        order_id: str,
        payment_id: str,
        amount_minor: int,
        reason: str,
        *,
        stored_ms: int = START_MS,
        **members: Any,
    ) -> Row:
        money = {"payment_id": payment_id, "amount_minor": amount_minor, "currency": "CNY", "reason": reason}
        return self._told(kinds.ORDER_EVENTS_TOPIC, kinds.REFUND_REQUESTED, order_id, stored_ms, money | members)

    def succeeded(
        self, order_id: str, payment_id: str, amount_minor: int, *, at_ms: int = START_MS + 10_000, **members: Any
    ) -> Row:
        body = {"payment_id": payment_id, "amount_minor": amount_minor, "currency": "CNY", "paid_at_ms": at_ms}
        return self._told(kinds.PAYMENT_EVENTS_TOPIC, kinds.SUCCEEDED, order_id, at_ms, body | members)

    def refunded(
        self,
        order_id: str,
        payment_id: str,
        refund_id: str,
        amount_minor: int,
        reason: str = "order-closed",
        *,
        at_ms: int = START_MS + 40_000,
        **members: Any,
    ) -> Row:
        self._refunded_minor[payment_id] += amount_minor
        money = {"payment_id": payment_id, "amount_minor": amount_minor, "currency": "CNY"}
        money["refunded_minor"] = self._refunded_minor[payment_id]
        body = money | {"refund_id": refund_id, "reason": reason, "refunded_at_ms": at_ms} | members
        return self._told(kinds.PAYMENT_EVENTS_TOPIC, kinds.REFUNDED, order_id, at_ms, body)

    def timer(self, order_id: str, *, due_ms: int, delivered_ms: int, level: int = 16) -> tuple[Row, Row]:
        """A timeout that waited, and its delivery: two rows, as the broker writes them."""
        body = {"version": 1, "order_id": order_id, "expires_at_ms": due_ms}
        waiting = self.tell(
            "SCHEDULE_TOPIC_XXXX",
            kinds.EXPIRE,
            body,
            key=order_id,
            stored_ms=due_ms,
            queueId=level - 1,
            properties={"__DUE_TIMESTAMP": str(due_ms)},
        )
        position = f"{level}:{waiting['queueOffset']}"
        return waiting, self.tell(
            kinds.ORDER_TIMEOUTS_TOPIC,
            kinds.EXPIRE,
            body,
            key=order_id,
            stored_ms=delivered_ms,
            properties={"__SCHEDULE_POSITION": position},
        )

    def dataframe(self, spark: SparkSession) -> DataFrame:
        """What was told until now, as bronze."""
        return bronze_dataframe(spark, self.rows)

    def _order_event(self, order_id: str, kind: str, at_ms: int, body: Row) -> Row:
        return self._told(kinds.ORDER_EVENTS_TOPIC, kind, order_id, at_ms, self._terms.get(order_id, {}) | body)

    def _told(self, topic: str, kind: str, order_id: str, stored_ms: int, members: Row) -> Row:
        body = {"version": 1, "order_id": order_id} | members
        body = {name: value for name, value in body.items() if value is not LEFT_OUT}
        return self.tell(topic, kind, body, key=order_id, stored_ms=stored_ms)


def at(wall_ms: int) -> datetime:
    """The moment, with its milliseconds."""
    return datetime.fromtimestamp(wall_ms // 1000, UTC).replace(microsecond=wall_ms % 1000 * 1000)


def bronze_dataframe(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """The rows as bronze."""
    return spark.createDataFrame([tuple(row[name] for name in BRONZE.names) for row in rows], BRONZE)
