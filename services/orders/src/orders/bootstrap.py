"""Puts the parts together over whatever ports they are given: use cases, routes, a subscription for each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.requests import HTTPConnection

from orders.adapters.sql import SqlUnitOfWork
from orders.api.application import build_api, order_events
from orders.api.routes import UseCases
from orders.config import Config
from orders.domain.order import HoldLimits
from orders.pages.application import mount_pages
from orders.pages.parts import PageParts, Renderer
from orders.pages.visitor import signed_in
from orders.service import events
from orders.service.close_order import AcceptRefund, CloseOrder, LatePayments, OrderTimeouts
from orders.service.order_feed import OrderFeed
from orders.service.payments import AcceptPayment, HoldOrder, PaymentDesk
from orders.service.place_order import Baskets, PlaceOrder
from orders.service.queries import AddProduct, ChangeProduct, DeadLetters, Queries
from orders.service.reconcile_orders import ReconcileOptions, order_checks
from orders.service.status_commands import CompleteOrder, ConfirmReceipt, ShipOrder
from orders.service.use_case import NOT_METERED, OrderMeter, UnitOfWork, Units
from osenv import Clock, Rng
from servicekit.auth import Tokens
from servicekit.http.middleware import identified
from servicekit.message import MessageBody, Subscription
from servicekit.monitoring import Health, HealthCheck
from servicekit.process.reconciler import SWEEP_WINDOW_MS, ParkedTransactions, ParkedTransactionsCheck, Reconciler
from servicekit.sql.database import Database, SqlUnits
from servicekit.sql.units import Queue, TransactionalPublisher


def timeout_scheduler(timeouts: OrderTimeouts) -> Subscription:
    """Reads `order-events`/`created`, sends `order-timeouts` with the delay level of the time that remains.

    Group `order-timeout-scheduler`: every created order gets its timer.
    """

    async def handle(body: bytes) -> None:
        await timeouts.schedule(events.read_deadline(body))

    return Subscription(events.TIMEOUT_SCHEDULER_GROUP, events.ORDER_EVENTS_TOPIC, events.CREATED_TAG, handle)


def timeout_handler(timeouts: OrderTimeouts) -> Subscription:
    """Reads `order-timeouts`.

    Group `order-timeout-handler`: a timer that comes back closes its order, if it is unpaid.
    """

    async def handle(body: bytes) -> None:
        await timeouts.fire(events.read_deadline(body))

    return Subscription(events.TIMEOUT_HANDLER_GROUP, events.ORDER_TIMEOUTS_TOPIC, "*", handle)


def payment_handler(accept_payment: AcceptPayment) -> Subscription:
    """Reads `payment-events`/`succeeded`.

    Group `order-payment-handler`: a payment that succeeded pays its order, or goes back.
    """

    async def handle(body: bytes) -> None:
        await accept_payment(events.read_payment(body))

    return Subscription(events.PAYMENT_HANDLER_GROUP, events.PAYMENT_EVENTS_TOPIC, events.SUCCEEDED_TAG, handle)


def refund_handler(accept_refund: AcceptRefund) -> Subscription:
    """Reads `payment-events`/`refunded`.

    Group `order-refund-handler`: an order whose money went back before it was shipped is closed.

    A group of its own: members of an older version of `order-payment-handler` do not want this tag, and all members of
    a group want the same.
    """

    async def handle(body: bytes) -> None:
        await accept_refund(events.read_refunded(body))

    return Subscription(events.REFUND_HANDLER_GROUP, events.PAYMENT_EVENTS_TOPIC, events.REFUNDED_TAG, handle)


def completion_scheduler(complete_order: CompleteOrder) -> Subscription:
    """Reads `order-events`/`shipped`, sends `order-completions` for the time at which the order completes.

    Group `order-completion-scheduler`: every shipped order gets the timer that completes it.
    """

    async def handle(body: bytes) -> None:
        shipped = events.read_shipped(body)
        await complete_order.schedule(shipped.order_id, shipped.shipped_at_ms)

    return Subscription(events.COMPLETION_SCHEDULER_GROUP, events.ORDER_EVENTS_TOPIC, events.SHIPPED_TAG, handle)


def completion_handler(complete_order: CompleteOrder) -> Subscription:
    """Reads `order-completions`.

    Group `order-completion-handler`: a timer that comes back completes its order, if the buyer has not.
    """

    async def handle(body: bytes) -> None:
        await complete_order.fire(events.read_shipped(body).order_id)

    return Subscription(events.COMPLETION_HANDLER_GROUP, events.ORDER_COMPLETIONS_TOPIC, "*", handle)


ORDER_FEED_GROUP = "order-feed"


def order_feed(feed: OrderFeed) -> Subscription:
    """Reads all of `order-events`.

    Group `order-feed`: every process hears of every change, and wakes the streams of the order.

    Broadcasting: any process may have the followers, so each gets every message; those that came while it was away are
    not needed, because its followers have gone with it.
    """

    async def handle(body: bytes) -> None:
        feed.tell(MessageBody(body).text("order_id"))

    return Subscription(ORDER_FEED_GROUP, events.ORDER_EVENTS_TOPIC, "*", handle, is_broadcasting=True)


@dataclass(frozen=True, slots=True)
class Application:
    """Orders, composed and not started."""

    units: Units
    transactions: TransactionalPublisher[UnitOfWork]
    use_cases: UseCases
    timeouts: OrderTimeouts
    complete_order: CompleteOrder
    accept_payment: AcceptPayment
    tokens: Tokens
    feed: OrderFeed
    reconciler: Reconciler
    subscriptions: tuple[Subscription, ...]
    api: FastAPI


def bootstrap(
    config: Config,
    database: Database,
    queue: Queue,
    clock: Clock,
    rng: Rng,
    *,
    payment_desk: PaymentDesk,
    dead_letters: DeadLetters,
    parked: ParkedTransactions,
    health_parts: Mapping[str, HealthCheck],
    meter: OrderMeter = NOT_METERED,
    sweep_window_ms: int | None = SWEEP_WINDOW_MS,
) -> Application:
    """Everything that runs on these ports; `health_parts` are asked beside the database."""
    units = SqlUnits(database, SqlUnitOfWork)
    transactions: TransactionalPublisher[UnitOfWork] = TransactionalPublisher(units, queue, clock)
    accept_payment = AcceptPayment(units, transactions, clock, meter)
    late_payment = LatePayments(payment_desk, accept_payment)
    hold_limits = HoldLimits(config.hold_ms, config.hold_past_expiry_ms)
    close_order = CloseOrder(units, transactions, clock, meter, late_payment=late_payment, hold_limits=hold_limits)
    timeouts = OrderTimeouts(close_order, queue, clock, config.delay_levels)
    complete_order = CompleteOrder(units, transactions, queue, clock, config.completion_after_ms)
    use_cases = UseCases(
        place_order=PlaceOrder(units, transactions, clock, rng, config.payment_window_ms, meter=meter),
        close_order=close_order,
        hold_order=HoldOrder(units, clock, hold_limits),
        ship_order=ShipOrder(units, transactions, clock),
        confirm_receipt=ConfirmReceipt(units, transactions, clock),
        add_product=AddProduct(units),
        change_product=ChangeProduct(units),
        queries=Queries(units),
    )
    options = ReconcileOptions(config.reconcile_after_ms, config.completion_after_ms, sweep_window_ms)
    checks = order_checks(
        units,
        queue,
        payment_desk,
        clock,
        options,
        accept_payment=accept_payment,
        close_order=close_order,
        complete_order=complete_order,
    )
    reconciler = Reconciler(
        (ParkedTransactionsCheck(parked, transactions.check, clock), *checks),
        clock,
        interval_s=config.reconcile_interval_ms / 1000,
        rows_max=config.reconcile_rows_max,
    )
    feed = OrderFeed(use_cases.queries, clock)
    pages = PageParts(
        use_cases=use_cases,
        baskets=Baskets(units),
        desk=payment_desk,
        feed=feed,
        dead_letters=dead_letters,
        tokens=Tokens(config.auth_keys, clock),
        clock=clock,
        rng=rng,
        renderer=Renderer(clock),
        trace_url=config.trace_url,
        may_choose_anybody=config.sandbox_sign_in,
        token_command=config.token_command,
        payment_window_ms=config.payment_window_ms,
    )
    return Application(
        units=units,
        transactions=transactions,
        use_cases=use_cases,
        timeouts=timeouts,
        complete_order=complete_order,
        accept_payment=accept_payment,
        tokens=pages.tokens,
        feed=feed,
        reconciler=reconciler,
        subscriptions=(
            timeout_scheduler(timeouts),
            timeout_handler(timeouts),
            payment_handler(accept_payment),
            refund_handler(AcceptRefund(units, close_order, clock)),
            completion_scheduler(complete_order),
            completion_handler(complete_order),
            order_feed(feed),
        ),
        api=_serving(pages, config, Health({"database": database.health, **health_parts}, clock)),
    )


def _serving(parts: PageParts, config: Config, health: Health) -> FastAPI:
    """The API with the pages, over the same parts."""
    api = build_api(
        parts.use_cases,
        health,
        tokens=parts.tokens,
        rate_limit=config.rate_limit,
        admission_limit=config.admission_limit,
        clock=parts.clock,
        identify=lambda scope: identified(scope) or signed_in(HTTPConnection(scope), parts.tokens),
        more_routers=(order_events(parts.feed, parts.clock),),
    )
    mount_pages(api, parts)
    return api
