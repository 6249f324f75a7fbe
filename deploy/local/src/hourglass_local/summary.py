"""What a demonstration came to, and whether that is as it has to be."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from hourglass_invariants.checking import CheckResult
from hourglass_local.books import Books, is_closed_early, money_problems, order_problems, some, stock_problems
from hourglass_local.buyers import PaymentAttempt
from hourglass_local.cluster import StopReport
from hourglass_local.endings import Deed
from hourglass_local.left import LevelLateness
from hourglass_local.pair import PairLogs
from hourglass_local.payment_desk import DECLINED, PARTIALLY_REFUNDED, REFUNDED
from hourglass_local.plan import HABITS, Pays
from hourglass_local.process import MIB, ManagedProcess
from hourglass_local.races import Races
from hourglass_local.shop import CLOSED, COMPLETED, PENDING, Order, Product


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
class Shopped:
    """What everybody was told, and what the books and the invariants say when nothing moves any more."""

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
    300 ms or lost, by a refund or by a refusal; races.py says it exactly. `paid_twice_same_key` counts the payments
    that were asked for again with the same Idempotency-Key, and answered with the first one. Money is conserved if
    gateway, database of payments and orders agree; `stock_before` and `stock_after` are the units on sale.
    `lateness_ms_by_level` is what the broker itself says of its delay levels, of which 16 is the time to pay.
    `logs_identical` says that the slave had everything on disk, and that its log is the master's byte for byte.
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
    slave_log_bytes: int
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
        slave_log_bytes=shopped.logs.slave_durable_end,
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
        found.append(f"the logs of broker-a and its slave are not the same: {shopped.logs}")
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
    twice = sum(attempt.planned.pays is Pays.TWICE for attempt in shopped.attempts)
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
