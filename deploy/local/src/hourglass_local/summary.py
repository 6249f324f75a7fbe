"""What a demonstration came to, whether that is as it has to be, and the same as tables for people."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.table import Table

from hourglass_invariants.checking import CheckResult
from hourglass_local.books import (
    Books,
    is_closed_early,
    kept_minor,
    money_problems,
    order_problems,
    some,
    stock_problems,
)
from hourglass_local.buyers import Deed, PaymentAttempt
from hourglass_local.cluster import StopReport
from hourglass_local.left import LevelLateness
from hourglass_local.pair import PairLogs
from hourglass_local.plan import CURRENCY, HABITS, RACE_MS, Pays
from hourglass_local.process import MIB, ManagedProcess
from hourglass_local.shop import (
    CLOSED,
    COMPLETED,
    DECLINED,
    PARTIALLY_REFUNDED,
    PENDING,
    REFUNDED,
    Order,
    Payment,
    Product,
)


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after their expiry orders were closed, in milliseconds; zero when none was."""

    p50: int
    p99: int
    max: int

    @classmethod
    def of(cls, orders: Iterable[Order]) -> Lateness:
        """Of orders that have expired."""
        values = sorted(order.closed_at_ms - order.expires_at_ms for order in orders if order.closed_at_ms is not None)
        return cls(percentile(values, 50), percentile(values, 99), percentile(values, 100))


def percentile(ascending: Sequence[int], percent: int) -> int:
    """The smallest value that `percent` of all do not exceed (nearest rank); 0 of nothing."""
    return ascending[max(0, math.ceil(len(ascending) * percent / 100) - 1)] if ascending else 0


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process over its whole life."""

    rss_peak_mib: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Races:
    """Payments that were aimed at the expiry of their order, and either won in its last 300 ms, or lost.

    `won` paid the order, the money being taken RACE_MS before the expiry or later; `refunded` were taken, met a closed
    order and went back; `rejected` came when payments had heard of the closing, or were declined, and nothing was
    charged.
    """

    won: int
    refunded: int
    rejected: int

    @property
    def total(self) -> int:
        return self.won + self.refunded + self.rejected

    @classmethod
    def of(
        cls, attempts: Iterable[PaymentAttempt], orders: Mapping[str, Order], payments: Mapping[str, Payment]
    ) -> Self:
        """`orders` and `payments` are those at the end."""
        won = refunded = rejected = 0
        for attempt in attempts:
            if attempt.planned.pays is not Pays.AT_EXPIRY:
                continue
            if attempt.payment is None or attempt.payment.status == DECLINED:
                rejected += 1
                continue
            payment = payments.get(attempt.payment.payment_id)
            order = orders.get(attempt.payment.order_id)
            if payment is None or order is None or payment.captured_at_ms is None:
                continue
            if payment.status == REFUNDED:
                refunded += 1
            elif order.payment_id == payment.payment_id and payment.captured_at_ms >= order.expires_at_ms - RACE_MS:
                won += 1
        return cls(won, refunded, rejected)


@dataclass(frozen=True, slots=True)
class Shopped:
    """The answers that buyers got, and what the books and the invariants say when nothing moves any more."""

    orders_wanted: int
    placed: Collection[str]  # ids of the orders that were answered with 201
    attempts: Sequence[PaymentAttempt]
    cancelled: Collection[str]  # ids of the orders that their buyers have cancelled
    endings: Mapping[Deed, Collection[str]]  # ids of the orders
    products_before: Mapping[str, Product]
    books: Books
    invariants: Sequence[CheckResult]
    messages_stored: int
    logs: PairLogs
    lateness_ms_by_level: Mapping[str, LevelLateness] = field(default_factory=dict)

    @property
    def races(self) -> Races:
        return Races.of(self.attempts, self.books.orders, self.books.payments)

    @property
    def violations(self) -> list[str]:
        """Of the invariants, as sentences."""
        return [str(violation) for result in self.invariants for violation in result.violations]

    @property
    def closed_by_somebody(self) -> set[str]:
        """Ids of the orders that were cancelled, by their buyer or by the seller."""
        return {*self.cancelled, *self.endings[Deed.CANCELLED]}


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of summary.json.

    `paid` are orders whose goods their buyers get, `closed` the others; some of these were cancelled, and `expired` is
    the rest. `raced` counts the payments that were aimed at the expiry of their order, and either won in its last
    300 ms or lost, by a refund or by a rejection; `Races` says it exactly. `paid_twice_same_key` counts the payments
    that were asked for again with the same Idempotency-Key, and answered with the first one. Money is conserved if
    gateway, database of payments and orders agree; `stock_before` and `stock_after` are the units on sale.
    `lateness_ms_by_level` is what the broker itself says of its delay levels, of which 16 is the time to pay.
    `logs_identical` says that the replica had everything on disk, and that its log is the master's byte for byte.
    """

    orders_placed: int
    paid: int
    closed: int
    expired: int
    cancelled_by_buyers: int
    cancelled_by_seller: int
    shipped: int
    completed: int
    declined: int
    refunded: int
    partly_refunded: int
    pending: int
    raced: int
    paid_twice_same_key: int
    closed_early: int
    stock_before: int
    stock_after: int
    stock_conserved: bool
    money_conserved: bool
    invariants_checked: int
    invariants_violated: int
    close_lateness_ms: Lateness
    lateness_ms_by_level: Mapping[str, LevelLateness]
    messages_stored: int
    log_bytes: int
    replica_log_bytes: int
    logs_identical: bool
    processes: dict[str, ProcessUsage]
    leftover_processes: int
    killed_processes: int
    duration_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def summarize(
    shopped: Shopped,
    processes: Sequence[ManagedProcess],
    stopped: StopReport,
    duration_s: float,
    *,
    logs_differ_at: int | None = None,
) -> Summary:
    """Put everything together, once the processes have ended; `logs_differ_at`: see `pair.first_difference`."""
    books = shopped.books
    orders = books.orders.values()
    closed = [order for order in orders if order.status == CLOSED]
    expired = [order for order in closed if order.order_id not in shopped.closed_by_somebody]
    statuses = Counter(payment.status for payment in books.payments.values())
    return Summary(
        orders_placed=len(orders),
        paid=sum(order.is_paid for order in orders),
        closed=len(closed),
        expired=len(expired),
        cancelled_by_buyers=len(shopped.cancelled),
        cancelled_by_seller=len(shopped.endings[Deed.CANCELLED]),
        shipped=len(shopped.endings[Deed.SHIPPED]),
        completed=sum(order.status == COMPLETED for order in orders),
        declined=statuses[DECLINED],
        refunded=statuses[REFUNDED],
        partly_refunded=statuses[PARTIALLY_REFUNDED],
        pending=sum(order.status == PENDING for order in orders),
        raced=shopped.races.total,
        paid_twice_same_key=sum(attempt.replayed for attempt in shopped.attempts),
        closed_early=sum(is_closed_early(order) for order in expired),
        stock_before=_available(shopped.products_before),
        stock_after=_available(books.products),
        stock_conserved=not stock_problems(shopped.products_before, books),
        money_conserved=not money_problems(books),
        invariants_checked=len(shopped.invariants),
        invariants_violated=sum(bool(result.violations) for result in shopped.invariants),
        close_lateness_ms=Lateness.of(expired),
        lateness_ms_by_level=dict(shopped.lateness_ms_by_level),
        messages_stored=shopped.messages_stored,
        log_bytes=shopped.logs.master_end,
        replica_log_bytes=shopped.logs.replica_durable_end,
        logs_identical=shopped.logs.are_the_same and logs_differ_at is None,
        processes={process.name: _usage(process) for process in processes},
        leftover_processes=len(stopped.leftover),
        killed_processes=len(stopped.killed),
        duration_s=round(duration_s, 1),
    )


def problems(summary: Summary, shopped: Shopped, stopped: StopReport) -> list[str]:
    """Everything that is not as it has to be, as sentences; empty after a good run."""
    books = shopped.books
    found = []
    if summary.orders_placed != shopped.orders_wanted:
        found.append(f"{shopped.orders_wanted} orders were wanted and the shop has {summary.orders_placed}")
    found += lost_problems(shopped.placed, shopped.attempts, books)
    found += order_problems(books, shopped.closed_by_somebody)
    found += stock_problems(shopped.products_before, books)
    found += money_problems(books)
    found += shopped.violations
    if not summary.logs_identical:
        found.append(f"the logs of broker-a and its replica are not the same: {shopped.logs}")
    found += _show_problems(summary, shopped)
    if stopped.killed:
        found.append(f"had to be killed to stop: {', '.join(stopped.killed)}")
    found += stopped.failed
    if stopped.leftover:
        found.append(f"processes are left behind: {', '.join(map(str, stopped.leftover))}")
    return found


def lost_problems(placed: Iterable[str], attempts: Iterable[PaymentAttempt], books: Books) -> list[str]:
    """What was acknowledged and is not in the books, as sentences."""
    paid = {attempt.payment.payment_id for attempt in attempts if attempt.payment is not None}
    found = []
    if lost := set(placed) - books.orders.keys():
        found.append(f"{len(lost)} orders were answered with 201 and are not there: {some(lost)}")
    if lost := paid - books.payments.keys():
        found.append(f"{len(lost)} payments were answered with 201 and are not there: {some(lost)}")
    return found


def _show_problems(summary: Summary, shopped: Shopped) -> list[str]:
    """A demonstration that does not show what it is there for has failed too; a very small one cannot show all."""
    answered = [attempt for attempt in shopped.attempts if attempt.payment is not None or attempt.declined]
    twice = sum(attempt.planned.pays is Pays.TWICE for attempt in answered)
    shows_all = shopped.orders_wanted >= len(HABITS)
    found = [f"no order was {deed.value}" for deed in Deed if shows_all and not shopped.endings[deed]]
    if not shopped.cancelled:
        found.append("no order was cancelled by its buyer")
    if summary.raced == 0:
        found.append("no payment raced against the closing of its order")
    if summary.paid_twice_same_key == 0:
        found.append("no order was paid twice with the same key")
    elif summary.paid_twice_same_key != twice:
        found.append(
            f"{twice} orders were paid twice with the same key, and only {summary.paid_twice_same_key} second requests"
            " were answered with the first payment"
        )
    return found


def _available(products: Mapping[str, Product]) -> int:
    return sum(product.available for product in products.values())


def _usage(process: ManagedProcess) -> ProcessUsage:
    usage = process.usage
    return ProcessUsage(round(usage.rss_peak_bytes / MIB, 1), round(usage.cpu_seconds, 2))


def print_report(console: Console, summary: Summary, shopped: Shopped, folder: Path) -> None:
    """The tables, and where to look further."""
    console.print(_outcome(summary, shopped), _invariants(shopped), _processes(summary), sep="\n")
    console.print(
        f"Look at {folder}/: summary.json, logs/, orders.db, payments.db and gateway.db (SQLite), broker-a-store/ (the"
        " commit log) and broker-a-s-store/ (the replica's).\n`make up` keeps it running; the shop's pages are then at"
        " http://127.0.0.1:8001/shop, its interfaces are described at http://127.0.0.1:8001/docs and"
        " http://127.0.0.1:8002/docs, and `.venv/bin/python -m mqadmin haStatus -n 127.0.0.1:9876` shows master and"
        " replica.",
        highlight=False,
        soft_wrap=True,
    )


def _outcome(summary: Summary, shopped: Shopped) -> Table:
    lateness, races = summary.close_lateness_ms, shopped.races
    gateway = shopped.books.payment_statistics.gateway
    table = Table()
    table.add_column("orders and payments")
    table.add_column("result", justify="right")
    table.add_row("orders placed", f"{summary.orders_placed:,}")
    table.add_row("ended paid", f"{summary.paid:,}")
    table.add_row("  shipped / completed", f"{summary.shipped:,} / {summary.completed:,}")
    table.add_row("closed by themselves", f"{summary.expired:,}")
    table.add_row(
        "cancelled by buyers / by the seller", f"{summary.cancelled_by_buyers:,} / {summary.cancelled_by_seller:,}"
    )
    table.add_row("still pending", f"{summary.pending:,}")
    table.add_row(f"paid within {RACE_MS} ms of the expiry (raced)", f"{summary.raced:,}")
    table.add_row("  won / refunded / rejected", f"{races.won:,} / {races.refunded:,} / {races.rejected:,}")
    table.add_row("paid twice with the same key, charged once", f"{summary.paid_twice_same_key:,}")
    table.add_row("paid long after the expiry, rejected", f"{_rejected_late(shopped):,}")
    table.add_row("payments declined", f"{summary.declined:,}")
    table.add_row("payments refunded / in part", f"{summary.refunded:,} / {summary.partly_refunded:,}")
    table.add_row("gateway captured - refunded", f"{_money(gateway.captured_minor)} - {_money(gateway.refunded_minor)}")
    table.add_row("what the paid orders come to", _money(kept_minor(shopped.books)))
    table.add_row("money conserved", "yes" if summary.money_conserved else "NO")
    table.add_row("units on sale before / after", f"{summary.stock_before:,} / {summary.stock_after:,}")
    table.add_row("stock conserved", "yes" if summary.stock_conserved else "NO")
    table.add_row("closed late by, p50 / p99 / max", f"{lateness.p50:,} / {lateness.p99:,} / {lateness.max:,} ms")
    table.add_row("messages stored", f"{summary.messages_stored:,}")
    table.add_row("log of broker-a / of its replica", f"{summary.log_bytes:,} / {summary.replica_log_bytes:,} bytes")
    table.add_row("both logs are the same, byte for byte", "yes" if summary.logs_identical else "NO")
    table.add_row("duration", f"{summary.duration_s:.1f} s")
    return table


def _rejected_late(shopped: Shopped) -> int:
    return sum(attempt.planned.pays is Pays.TOO_LATE and attempt.payment is None for attempt in shopped.attempts)


def _money(minor: int) -> str:
    return f"{minor // 100:,}.{minor % 100:02} {CURRENCY}"


def _invariants(shopped: Shopped) -> Table:
    table = Table()
    table.add_column("standing invariant (what it says: tools/invariants)")
    table.add_column("violations", justify="right")
    for result in shopped.invariants:
        table.add_row(result.check.name.replace("_", " "), str(len(result.violations)))
    return table


def _processes(summary: Summary) -> Table:
    table = Table()
    table.add_column("process")
    table.add_column("memory, peak", justify="right")
    table.add_column("CPU", justify="right")
    for name, usage in summary.processes.items():
        table.add_row(name, f"{usage.rss_peak_mib:.0f} MiB", f"{usage.cpu_seconds:.1f} s")
    return table
