"""Puts the parts together: use cases, routes and consumers over whatever ports they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import FastAPI

from orders.adapters.sql_units import SqlUnits
from orders.api.application import build_api
from orders.api.dependencies import UseCases
from orders.config import Config
from orders.consumers.payment_handler import payment_handler
from orders.consumers.timeout_handler import timeout_handler
from orders.consumers.timeout_scheduler import timeout_scheduler
from orders.service.accept_payment import AcceptPayment
from orders.service.close_order import CloseOrder
from orders.service.order_timeouts import OrderTimeouts
from orders.service.place_order import PlaceOrder
from orders.service.products import AddProduct
from orders.service.queries import Queries
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock, Rng
from servicekit.adapters.database import Database
from servicekit.health import Health, HealthCheck
from servicekit.subscription import Subscription
from servicekit.transactions import Queue, TransactionalPublisher


@dataclass(frozen=True, slots=True)
class Application:
    """Orders, composed and not started."""

    units: Units
    transactions: TransactionalPublisher[UnitOfWork]
    use_cases: UseCases
    timeouts: OrderTimeouts
    accept_payment: AcceptPayment
    subscriptions: tuple[Subscription, ...]
    api: FastAPI


def bootstrap(
    config: Config,
    database: Database,
    queue: Queue,
    clock: Clock,
    rng: Rng,
    *,
    health_parts: Mapping[str, HealthCheck],
) -> Application:
    """Everything that runs on these ports; `health_parts` are asked beside the database."""
    units = SqlUnits(database)
    transactions: TransactionalPublisher[UnitOfWork] = TransactionalPublisher(units, queue, clock)
    close_order = CloseOrder(units, transactions, clock)
    timeouts = OrderTimeouts(close_order, queue, clock, config.delay_levels)
    accept_payment = AcceptPayment(units, transactions, clock)
    use_cases = UseCases(
        place_order=PlaceOrder(units, transactions, clock, rng, config.payment_window_ms),
        close_order=close_order,
        add_product=AddProduct(units),
        queries=Queries(units),
    )
    return Application(
        units=units,
        transactions=transactions,
        use_cases=use_cases,
        timeouts=timeouts,
        accept_payment=accept_payment,
        subscriptions=(timeout_scheduler(timeouts), timeout_handler(timeouts), payment_handler(accept_payment)),
        api=build_api(use_cases, Health({"database": database.health, **health_parts})),
    )
