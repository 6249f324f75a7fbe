"""Puts the parts together: use cases, routes, consumers and relay over whatever ports they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import FastAPI

from orders.adapters.database import Database
from orders.adapters.sql_units import SqlUnits
from orders.api.application import build_api
from orders.api.dependencies import UseCases
from orders.config import Config
from orders.consumers.timeout_handler import timeout_handler
from orders.consumers.timeout_scheduler import timeout_scheduler
from orders.service.close_order import CloseOrder
from orders.service.health import OK, Health
from orders.service.message import MessagePublisher
from orders.service.order_timeouts import OrderTimeouts
from orders.service.outbox_relay import OutboxRelay, OutboxWake
from orders.service.place_order import PlaceOrder
from orders.service.products import AddProduct
from orders.service.queries import Queries
from orders.service.subscription import Subscription
from orders.service.unit_of_work import Units
from osenv import Clock, Rng


@dataclass(frozen=True, slots=True)
class Application:
    """Orders, composed and not started."""

    units: Units
    use_cases: UseCases
    timeouts: OrderTimeouts
    relay: OutboxRelay
    subscriptions: tuple[Subscription, ...]
    api: FastAPI


def bootstrap(
    config: Config,
    database: Database,
    publisher: MessagePublisher,
    clock: Clock,
    rng: Rng,
    *,
    health_parts: Mapping[str, Callable[[], str]],
) -> Application:
    """Everything that runs on these ports; `health_parts` say "ok", or what is wrong with them."""
    wake = OutboxWake()
    units = SqlUnits(database, wake.ring)
    relay = OutboxRelay(units, publisher, clock, wake)
    close_order = CloseOrder(units, clock)
    timeouts = OrderTimeouts(close_order, publisher, clock, config.delay_levels)
    parts = {"outbox": lambda: OK if relay.is_publishing else "messages wait for the queue"} | dict(health_parts)
    use_cases = UseCases(
        place_order=PlaceOrder(units, clock, rng, config.payment_window_ms),
        close_order=close_order,
        add_product=AddProduct(units),
        queries=Queries(units),
        health=Health(units, parts),
    )
    subscriptions = (timeout_scheduler(timeouts), timeout_handler(timeouts))
    return Application(units, use_cases, timeouts, relay, subscriptions, build_api(use_cases))
