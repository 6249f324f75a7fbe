"""The composition root: payments on a real database, a real gateway, a real queue and a real clock. What starts and
stops in which order is written in servicekit.process.runner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from osenv import SystemRng
from payments.adapters.http_gateway import HttpGateway
from payments.adapters.outside import HttpOrders, OtelPaymentMeter, failed_refunds, outbox_waiting, unfinished
from payments.adapters.tables import idempotency_keys, inbox, transactions
from payments.bootstrap import bootstrap
from payments.config import Config
from payments.service.events import ORDER_EVENTS_TOPIC, PAYMENT_EVENTS_TOPIC
from servicekit.auth import Tokens
from servicekit.background import Background, stored_gauges
from servicekit.monitoring import OK
from servicekit.process import runner
from servicekit.process.queue import MqConnection, MqParkedTransactions
from servicekit.process.reconciler import SWEEP_WINDOW_MS, Reconciled
from servicekit.process.runner import Compose, Composition, Service
from servicekit.sql.database import Database, DatabaseClock
from servicekit.sql.schema import Migrations
from servicekit.sql.tables import cleaning

MIGRATIONS = Migrations("payments:migrations")
SERVICE = Service("payments", MIGRATIONS, topics=(PAYMENT_EVENTS_TOPIC, ORDER_EVENTS_TOPIC))


async def run_migrations(config: Config) -> None:
    """Bring the database to this version and return. Raises StorageUnavailableError."""
    await runner.run_migrations(SERVICE, config)


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError if the address is taken, and StorageUnavailableError."""
    async with _composing(config, SWEEP_WINDOW_MS) as compose:
        await runner.serve(SERVICE, config, compose)


async def reconcile(config: Config, is_dry_run: bool) -> Reconciled:
    """Go through every payment once. Raises as runner.reconcile."""
    async with _composing(config, None) as compose:
        return await runner.reconcile(SERVICE, config, compose, is_dry_run=is_dry_run)


@asynccontextmanager
async def _composing(config: Config, sweep_window_ms: int | None) -> AsyncIterator[Compose]:
    gateway = HttpGateway(config.gateway_url, config.gateway_api_key)

    def compose(database: Database, queue: MqConnection, clock: DatabaseClock) -> Composition:
        orders = HttpOrders(config.orders_url, Tokens(config.auth_keys, clock))
        application = bootstrap(
            config,
            database,
            gateway,
            queue.publisher,
            clock,
            SystemRng(),
            parked=MqParkedTransactions(config.mq_url, SERVICE.name, clock),
            order_holds=orders,
            is_queue_there=lambda: queue.publisher.is_running and queue.publisher.last_send == OK,
            health_parts={
                "schema": MIGRATIONS.health_of(database),
                "clock": clock.health,
                "producer": queue.producer_health,
                "consumers": queue.consumers_health,
            },
            meter=OtelPaymentMeter(),
            sweep_window_ms=sweep_window_ms,
        )
        unfinished(application.resumer)
        resumer, relay, reconciler = application.resumer, application.relay, application.reconciler
        return Composition(
            application.api,
            application.subscriptions,
            application.transactions.check,
            [
                Background("connections with orders", orders.run, orders.stop),
                Background("resumer", resumer.run, resumer.stop),
                Background("outbox relay", relay.run, relay.stop),
                *([Background("reconciler", reconciler.run, reconciler.stop)] if config.reconcile_interval_ms else []),
                cleaning(database, clock, inbox=inbox, transactions=transactions, idempotency_keys=idempotency_keys),
                *stored_gauges(
                    partial(outbox_waiting, application.units, clock), partial(failed_refunds, application.units, clock)
                ),
            ],
            reconciler=reconciler,
        )

    try:
        yield compose
    finally:
        await gateway.close()
