"""The composition root: what runs, in which order it starts, and in which order it stops.

Start: address taken, database migrated, relay, connection with the queue (in the background), HTTP.
Stop: HTTP finishes its requests, consumers, relay, producer, database. Each step has its time; all of them together
take ten seconds at most.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import structlog

import telemetry
from orders.adapters import migrate
from orders.adapters.database import Database
from orders.adapters.http_server import HttpServer
from orders.adapters.mq_connection import MqConnection
from orders.bootstrap import Application, bootstrap
from orders.config import Config
from osenv import Clock, RealClock, SystemRng
from osenv.clock import timeout

CONSUMERS_STOP_MAX_S = 2.0
RELAY_STOP_MAX_S = 1.0
PRODUCER_STOP_MAX_S = 1.0

log = structlog.get_logger(__name__)


async def run_migrations(config: Config) -> None:
    """Bring the database to this version and return. Raises StorageUnavailableError."""
    telemetry.configure("orders", config.log_level)
    database = Database(config.database_url)
    try:
        await migrate.upgrade(database)
    finally:
        await database.dispose()
    log.info("the database is up to date", database_url=config.database_url)


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError if the address is taken, and StorageUnavailableError."""
    telemetry.configure("orders", config.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with HttpServer(config.listen_host, config.listen_port) as http:
        database = Database(config.database_url)
        try:
            await migrate.upgrade(database)
            await _serve_on(config, http, database, stop)
        finally:
            await database.dispose()
    log.info("orders has stopped")


async def _serve_on(config: Config, http: HttpServer, database: Database, stop: asyncio.Event) -> None:
    clock = RealClock()
    queue = MqConnection(config.mq_url, clock)
    health_parts = {"producer": queue.producer_health, "consumers": queue.consumers_health}
    application = bootstrap(config, database, queue.publisher, clock, SystemRng(), health_parts=health_parts)
    try:
        # A task that fails takes the process down: half of orders would be worse than none.
        async with asyncio.TaskGroup() as tasks:
            relaying = tasks.create_task(application.relay.run(), name="outbox relay")
            connecting = tasks.create_task(queue.connect(application.subscriptions), name="queue connection")
            log.info("orders is listening", host=config.listen_host, port=http.port)
            await http.serve(application.api, stop)
            connecting.cancel()
            await _stop_in_time(clock, CONSUMERS_STOP_MAX_S, "consumers", queue.stop_consumers)
            await _stop_relay(clock, application, relaying)
    finally:
        await _stop_in_time(clock, CONSUMERS_STOP_MAX_S, "consumers", queue.stop_consumers)
        await _stop_in_time(clock, PRODUCER_STOP_MAX_S, "producer", queue.stop_producer)


async def _stop_relay(clock: Clock, application: Application, relaying: asyncio.Task[None]) -> None:
    """Give the relay time for the batch in hand; whatever it cannot send stays in the outbox for the next start."""
    application.relay.stop()

    async def relay_end() -> None:
        await asyncio.wait({relaying})

    await _stop_in_time(clock, RELAY_STOP_MAX_S, "relay", relay_end)
    relaying.cancel()


async def _stop_in_time(clock: Clock, seconds: float, what: str, stop: Callable[[], Awaitable[None]]) -> None:
    try:
        async with timeout(clock, seconds):
            await stop()
    except TimeoutError:
        log.warning("a part did not stop in time and is left behind", part=what, seconds=seconds)
