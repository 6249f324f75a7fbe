"""Puts the parts together: use cases, routes and consumers over whatever ports they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.requests import HTTPConnection

from orders.adapters.sql_unit_of_work import SqlUnitOfWork
from orders.api.application import build_api
from orders.api.dependencies import UseCases
from orders.api.order_events import order_events
from orders.config import Config
from orders.consumers import (
    completion_handler,
    completion_scheduler,
    order_feed,
    payment_handler,
    refund_handler,
    timeout_handler,
    timeout_scheduler,
)
from orders.domain.order import HoldLimits
from orders.pages.application import mount_pages
from orders.pages.parts import PageParts, Renderer
from orders.pages.visitor import signed_in
from orders.service.accept_payment import AcceptPayment
from orders.service.close_order import AcceptRefund, CloseOrder, LatePayments, OrderTimeouts
from orders.service.complete_order import CompleteOrder
from orders.service.dead_letters import DeadLetters
from orders.service.hold_order import HoldOrder
from orders.service.order_access import NOT_METERED, OrderMeter
from orders.service.order_feed import OrderFeed
from orders.service.payment_desk import PaymentDesk
from orders.service.place_order import Baskets, PlaceOrder
from orders.service.queries import AddProduct, ChangeProduct, Queries
from orders.service.reconcile_orders import ReconcileOptions, order_checks
from orders.service.status_commands import ConfirmReceipt, ShipOrder
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock, Rng
from servicekit.auth import Tokens
from servicekit.http.middleware import identified
from servicekit.message import Subscription
from servicekit.monitoring import Health, HealthCheck
from servicekit.process.reconciler import SWEEP_WINDOW_MS, ParkedTransactions, ParkedTransactionsCheck, Reconciler
from servicekit.sql.database import Database, SqlUnits
from servicekit.sql.units import Queue, TransactionalPublisher


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
