"""Three databases as rows that are changed before they are written: a shop whose history a test makes up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import MetaData, Table, text

from hourglass_invariants import Sources
from orders.adapters import tables as orders
from orders.migrations.versions import v0008_counters as orders_counters
from payments.adapters import tables as payments
from payments.migrations.versions import v0006_counters as payments_counters
from sandbox_gateway import sql as gateway
from servicekit.sql.database import Database
from servicekit.testing.databases import NewDatabaseUrl

NOW = 1_700_000_000_000
LONG_AGO = NOW - 3_600_000
JUST_NOW = NOW - 1_000
LATER = NOW + 600_000
PRICE = 100
STOCK = {"seat": 50}
METADATA = {"orders": orders.metadata, "payments": payments.metadata, "gateway": gateway.metadata}
COUNTED = {"orders": orders_counters.COUNTED, "payments": payments_counters.COUNTED}

PENDING, AWAITING, SHIPPED = "PENDING_PAYMENT", "AWAITING_SHIPMENT", "SHIPPED"
COMPLETED, CLOSED = "COMPLETED", "CLOSED"
Row = dict[str, Any]


@dataclass
class Shop:
    """The rows of three databases, before they are written."""

    rows: dict[Table, list[Row]] = field(default_factory=dict)
    statements: list[tuple[str, str]] = field(default_factory=list)  # (database, SQL) that take guards away

    def add(self, table: Table, **values: Any) -> Row:
        self.rows.setdefault(table, []).append(values)
        return values

    def find(self, table: Table, **wanted: Any) -> Row:
        return next(row for row in self.rows[table] if wanted.items() <= row.items())

    def remove(self, table: Table, **wanted: Any) -> None:
        self.rows[table] = [row for row in self.rows[table] if not wanted.items() <= row.items()]

    def order(
        self, order_id: str, *changes: tuple[str, str], at_ms: int = LONG_AGO, payment_id: str | None = None
    ) -> None:
        """An order of one seat that went through these (status, reason), and that payments has heard of."""
        status = changes[-1][0] if changes else PENDING
        is_on_its_way = status in {SHIPPED, COMPLETED}
        self.add(
            orders.orders,
            order_id=order_id,
            buyer_id="buyer-1",
            status=status,
            version=1 + len(changes),
            total_minor=PRICE,
            currency="CNY",
            created_at_ms=at_ms,
            expires_at_ms=at_ms if status == CLOSED else LATER,
            closed_at_ms=at_ms if status == CLOSED else None,
            payment_id=payment_id,
            paid_at_ms=None if payment_id is None else at_ms,
            shipped_at_ms=at_ms if is_on_its_way else None,
            completed_at_ms=at_ms if status == COMPLETED else None,
            hold_payment_id=None,
            hold_until_ms=None,
        )
        self.add(
            orders.order_lines,
            order_id=order_id,
            line_number=1,
            product_id="seat",
            quantity=1,
            unit_price_minor=PRICE,
        )
        old = None
        for new, reason in ((PENDING, "placed"), *changes):
            self.add(
                orders.order_history,
                order_id=order_id,
                old_status=old,
                new_status=new,
                reason=reason,
                at_ms=at_ms,
                actor="buyer-1",
            )
            old = new
        payable = {PENDING: "OPEN", CLOSED: "CLOSED"}.get(status, "PAID")
        self.add(
            payments.payable_orders,
            order_id=order_id,
            status=payable,
            buyer_id="buyer-1",
            total_minor=PRICE,
            currency="CNY",
            expires_at_ms=LATER,
        )
        seat = self.find(orders.products, product_id="seat")
        place = {PENDING: "reserved", CLOSED: "available"}.get(status, "sold")
        seat["available"] -= 1
        seat[place] += 1

    def payment(
        self, payment_id: str, order_id: str, status: str = "CAPTURED", *, at_ms: int = LONG_AGO, amount: int = PRICE
    ) -> None:
        """A payment with its history, its charge and, if it was captured, its posting."""
        is_captured = status == "CAPTURED"
        self.add(
            payments.payments,
            payment_id=payment_id,
            order_id=order_id,
            buyer_id="buyer-1",
            amount_minor=amount,
            currency="CNY",
            method="card",
            status=status,
            created_at_ms=at_ms,
            captured_at_ms=at_ms if is_captured else None,
            refunded_at_ms=None,
            decline_reason="no money" if status == "DECLINED" else None,
            refund_requested_minor=0,
            refunded_minor=0,
        )
        self.history(payment_id, None, "CREATED")
        if status != "CREATED":
            self.history(payment_id, "CREATED", status)
        charge = {"CREATED": "pending", "CAPTURED": "captured", "DECLINED": "declined"}[status]
        self.charge(payment_id, order_id, charge, amount)
        if is_captured:
            self.post(payment_id, None, amount)

    def history(self, payment_id: str, old: str | None, new: str) -> None:
        self.add(
            payments.payment_history,
            payment_id=payment_id,
            old_status=old,
            new_status=new,
            reason="told",
            at_ms=LONG_AGO,
        )

    def charge(self, charge_id: str, order_id: str, status: str, amount: int = PRICE) -> None:
        self.add(
            gateway.charges,
            charge_id=charge_id,
            order_id=order_id,
            amount_minor=amount,
            currency="CNY",
            method="card",
            status=status,
            created_at_ms=LONG_AGO,
            due_at_ms=LONG_AGO,
            decided_at_ms=None if status == "pending" else LONG_AGO,
            decline_reason="no money" if status == "declined" else None,
            refunds_minor=0,
        )

    def post(self, payment_id: str, refund_id: str | None, amount: int) -> None:
        """The two entries of a capture, or of a refund."""
        posting_id = f"capture/{payment_id}" if refund_id is None else f"refund/{refund_id}"
        sign = 1 if refund_id is None else -1
        for account, value in (("gateway", sign * amount), ("buyer-funds", -sign * amount)):
            self.add(
                payments.ledger_entries,
                posting_id=posting_id,
                account=account,
                amount_minor=value,
                currency="CNY",
                at_ms=LONG_AGO,
                payment_id=payment_id,
                refund_id=refund_id,
            )

    def refund(
        self, refund_id: str, payment_id: str, amount: int, status: str = "REFUNDED", *, at_ms: int = LONG_AGO
    ) -> None:
        """A refund; one that is REFUNDED with its posting, and the gateway's."""
        self.add(
            payments.refunds,
            refund_id=refund_id,
            payment_id=payment_id,
            amount_minor=amount,
            currency="CNY",
            reason="late",
            requested_by="orders",
            requested_at_ms=at_ms,
            status=status,
            refunded_at_ms=at_ms if status == "REFUNDED" else None,
            failure=None,
        )
        payment = self.find(payments.payments, payment_id=payment_id)
        payment["refund_requested_minor"] += amount
        if status == "REQUESTED":
            return
        payment["refunded_minor"] += amount
        is_whole = payment["refunded_minor"] == payment["amount_minor"]
        new = "REFUNDED" if is_whole else "PARTIALLY_REFUNDED"
        self.history(payment_id, payment["status"], new)
        payment["status"], payment["refunded_at_ms"] = new, at_ms if is_whole else None
        self.post(payment_id, refund_id, amount)
        self.gateway_refund(refund_id, payment_id, amount)

    def gateway_refund(self, refund_id: str, charge_id: str, amount: int) -> None:
        self.find(gateway.charges, charge_id=charge_id)["refunds_minor"] += amount
        self.add(
            gateway.refunds,
            refund_id=refund_id,
            charge_id=charge_id,
            amount_minor=amount,
            currency="CNY",
            status="refunded",
            created_at_ms=LONG_AGO,
            due_at_ms=LONG_AGO,
            refunded_at_ms=LONG_AGO,
        )

    def refund_request(self, payment_id: str, order_id: str, at_ms: int = LONG_AGO) -> None:
        self.add(
            orders.refund_requests,
            payment_id=payment_id,
            order_id=order_id,
            amount_minor=PRICE,
            currency="CNY",
            reason="order-closed",
            requested_at_ms=at_ms,
        )

    def event(self, event_id: str, status: str, reason: str | None = None) -> None:
        self.add(
            payments.gateway_events,
            event_id=event_id,
            kind="charge.captured",
            occurred_at_ms=LONG_AGO,
            received_at_ms=LONG_AGO,
            payment_id="p-paid",
            order_id="o-paid",
            amount_minor=PRICE,
            currency="CNY",
            status=status,
            reason=reason,
        )

    def paid(self, name: str, *changes: tuple[str, str]) -> None:
        """`o-<name>`, which its payment `p-<name>` has paid, and then these changes."""
        self.order(f"o-{name}", (AWAITING, "paid"), *changes, payment_id=f"p-{name}")
        self.payment(f"p-{name}", f"o-{name}")

    async def write(self, new_database_url: NewDatabaseUrl) -> Sources:
        for name, metadata in METADATA.items():
            await self._write(new_database_url(name), name, metadata)
        return Sources(**{name: new_database_url(name) for name in METADATA})

    async def _write(self, url: str, name: str, metadata: MetaData) -> None:
        database = Database(url)
        try:
            async with database.writing() as connection:
                await connection.run_sync(metadata.create_all)
                for counted in COUNTED.get(name, ()):
                    await connection.run_sync(counted.begin)
                for statement in [sql for where, sql in self.statements if where == name]:
                    await connection.execute(text(statement))
                for table in metadata.sorted_tables:
                    if rows := self.rows.get(table):
                        await connection.execute(table.insert(), rows)
                await connection.commit()
        finally:
            await database.dispose()


def healthy_shop() -> Shop:
    """One order of each fate, long ago; and one of everything that may be under way, just now."""
    shop = Shop()
    shop.add(
        orders.products,
        product_id="seat",
        name="A seat",
        price_minor=PRICE,
        currency="CNY",
        available=50,
        reserved=0,
        sold=0,
    )
    shop.order("o-waiting")
    shop.payment("p-declined", "o-waiting", "DECLINED")
    shop.order("o-expired", (CLOSED, "expired"))
    shop.order("o-cancelled", (CLOSED, "cancelled"))
    shop.paid("paid")
    shop.paid("shipped", (SHIPPED, "shipped"))
    shop.paid("completed", (SHIPPED, "shipped"), (COMPLETED, "received"))
    shop.refund("r-goodwill", "p-completed", 30)
    shop.paid("seller", (CLOSED, "seller-cancelled"))
    shop.refund_request("p-seller", "o-seller")
    shop.refund("r-operator", "p-seller", 30)
    shop.refund("refund-p-seller", "p-seller", 70)
    shop.order("o-held")
    held = shop.find(orders.orders, order_id="o-held")
    held["expires_at_ms"], held["hold_payment_id"], held["hold_until_ms"] = NOW - 130_000, "p-held", JUST_NOW + 10_000
    shop.paid("refunded", (CLOSED, "refunded"))
    shop.refund("r-refunded", "p-refunded", PRICE)
    shop.paid("returned", (SHIPPED, "shipped"))
    shop.refund("r-returned", "p-returned", PRICE)
    shop.order("o-late", (CLOSED, "expired"))
    shop.payment("p-late", "o-late")
    shop.refund_request("p-late", "o-late")
    shop.refund("refund-p-late", "p-late", PRICE)
    shop.event("event-1", "HANDLED")
    shop.event("event-2", "REPEATED")
    shop.order("o-new", at_ms=JUST_NOW)
    shop.payment("p-new", "o-new", "CREATED", at_ms=JUST_NOW)
    shop.refund("r-new", "p-shipped", 10, "REQUESTED", at_ms=JUST_NOW)
    return shop
