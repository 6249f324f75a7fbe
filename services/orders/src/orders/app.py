"""The composition root: orders on a real database, a real queue and a real clock. What starts and stops in which order
is written in servicekit.process.runner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from orders.adapters.outside import HttpPayments, MqDeadLetters, OtelOrderMeter, orders_by_status
from orders.adapters.tables import idempotency_keys, inbox, transactions
from orders.bootstrap import bootstrap
from orders.config import Config
from orders.service.events import (
    ORDER_COMPLETIONS_TOPIC,
    ORDER_EVENTS_TOPIC,
    ORDER_TIMEOUTS_TOPIC,
    PAYMENT_EVENTS_TOPIC,
)
from orders.service.queries import SHOP_GROUPS
from orders.service.sample_catalogue import LoadSampleCatalogue
from osenv import SystemRng
from servicekit.auth import Tokens
from servicekit.background import Background, stored_gauges
from servicekit.process import runner
from servicekit.process.queue import MqConnection, MqParkedTransactions
from servicekit.process.reconciler import SWEEP_WINDOW_MS, Reconciled
from servicekit.process.runner import Compose, Composition, Service
from servicekit.sql.database import Database, DatabaseClock
from servicekit.sql.schema import Migrations
from servicekit.sql.tables import cleaning

MIGRATIONS = Migrations("orders:migrations")
SERVICE = Service(
    "orders",
    MIGRATIONS,
    topics=(ORDER_EVENTS_TOPIC, ORDER_TIMEOUTS_TOPIC, ORDER_COMPLETIONS_TOPIC, PAYMENT_EVENTS_TOPIC),
)


async def run_migrations(config: Config) -> None:
    """Bring the database to this version and return. Raises StorageUnavailableError."""
    await runner.run_migrations(SERVICE, config)


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError if the address is taken, and StorageUnavailableError."""
    async with _composing(config, SWEEP_WINDOW_MS) as compose:
        await runner.serve(SERVICE, config, compose)


async def reconcile(config: Config, is_dry_run: bool) -> Reconciled:
    """Go through every order once. Raises as runner.reconcile."""
    async with _composing(config, None) as compose:
        return await runner.reconcile(SERVICE, config, compose, is_dry_run=is_dry_run)


@asynccontextmanager
async def _composing(config: Config, sweep_window_ms: int | None) -> AsyncIterator[Compose]:
    connections = AsyncExitStack()

    def compose(database: Database, queue: MqConnection, clock: DatabaseClock) -> Composition:
        payments = HttpPayments(config.payments_url, Tokens(config.auth_keys, clock), clock)
        connections.push_async_callback(payments.close)
        health_parts = {
            "schema": MIGRATIONS.health_of(database),
            "clock": clock.health,
            "producer": queue.producer_health,
            "consumers": queue.consumers_health,
        }
        application = bootstrap(
            config,
            database,
            queue.publisher,
            clock,
            SystemRng(),
            payment_desk=payments,
            dead_letters=MqDeadLetters(config.mq_url, SHOP_GROUPS, clock),
            parked=MqParkedTransactions(config.mq_url, SERVICE.name, clock),
            health_parts=health_parts,
            meter=OtelOrderMeter(),
            sweep_window_ms=sweep_window_ms,
        )
        reconciler = application.reconciler
        return Composition(
            application.api,
            application.subscriptions,
            application.transactions.check,
            [
                cleaning(database, clock, inbox=inbox, transactions=transactions, idempotency_keys=idempotency_keys),
                *([Background("reconciler", reconciler.run, reconciler.stop)] if config.reconcile_interval_ms else []),
                *stored_gauges(partial(orders_by_status, application.use_cases.queries, clock)),
            ],
            end_streams=application.feed.close,
            reconciler=reconciler,
            prepare=LoadSampleCatalogue(application.units) if config.sample_catalogue else None,
        )

    async with connections:
        yield compose
