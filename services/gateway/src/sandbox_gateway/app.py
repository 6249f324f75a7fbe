"""The gateway, put together over whatever ports it is given, and over a real database, a real network and a real clock.

Start: address taken, database migrated, background work, HTTP. Stop: HTTP finishes its requests, then the background
work its own, for `BACKGROUND_STOP_MAX_S` at most; what was not sent is sent after the next start.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from fastapi import FastAPI

from osenv import Clock, RealClock, Rng, SystemRng
from osenv.process import stop_event
from sandbox_gateway.api import UseCases, build_api
from sandbox_gateway.config import Config
from sandbox_gateway.gateway import Behaviour, Decisions, Gateway
from sandbox_gateway.sql import UnitOfWork, Units
from sandbox_gateway.webhooks import DueWork, HttpWebhooks, WebhookReceiver, WebhookSender
from servicekit.background import Background
from servicekit.http.server import HttpServer
from servicekit.monitoring import Health
from servicekit.process import runner
from servicekit.process.runner import Service, start_background, stop_background
from servicekit.sql.database import Database
from servicekit.sql.schema import Migrations


@dataclass(frozen=True, slots=True)
class Application:
    """The gateway, composed and not started: `background` runs beside the requests, and does what the two before do."""

    gateway: Gateway
    behaviour: Behaviour
    decisions: Decisions
    sender: WebhookSender
    background: tuple[DueWork, ...]
    api: FastAPI


def bootstrap(
    database: Database, receiver: WebhookReceiver, behaviour: Behaviour, clock: Clock, rng: Rng, *, api_key: str
) -> Application:
    """Everything that runs on these ports."""
    units = Units(database, UnitOfWork)
    sender = WebhookSender(units, receiver, clock, rng)
    sending = DueWork("webhooks", sender.send_due, clock)
    decisions = Decisions(units, behaviour, clock, sending.wake)
    deciding = DueWork("decisions", decisions.decide_due, clock)

    def written() -> None:
        deciding.wake()
        sending.wake()

    gateway = Gateway(units, decisions, behaviour, clock, written)
    # Whether webhooks are taken is no part of its health: it does its work without.
    api = build_api(UseCases(gateway, behaviour, api_key), Health({"database": database.health}, clock), clock)
    return Application(gateway, behaviour, decisions, sender, (deciding, sending), api)


MIGRATIONS = Migrations("sandbox_gateway:migrations")
SERVICE_NAME = "sandbox-gateway"  # in logs and traces: it stands for an external system
SERVICE = Service("gateway", MIGRATIONS, topics=())
BACKGROUND_STOP_MAX_S = 2.0

log = structlog.get_logger(__name__)


async def run_migrations(config: Config) -> None:
    """Bring the database to this version and return. Raises StorageUnavailableError."""
    await runner.run_migrations(SERVICE, config)


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError if the address is taken, and StorageUnavailableError."""
    stop = stop_event()
    clock = RealClock()
    with HttpServer(config.listen_host, config.listen_port, trusted_proxies=config.trusted_proxies) as http:
        database = Database(config.database_url, config.database_pool_size)
        receiver = HttpWebhooks(config.webhook_url, config.webhook_secrets, clock)
        try:
            await MIGRATIONS.upgrade(database)
            application = bootstrap(database, receiver, config.behaviour(), clock, SystemRng(), api_key=config.api_key)
            log.info("gateway is listening", host=config.listen_host, port=http.port)
            await _run(application, http, clock, stop)
        finally:
            await receiver.close()
            await database.dispose()
    log.info("gateway has stopped")


async def _run(application: Application, http: HttpServer, clock: Clock, stop: asyncio.Event) -> None:
    # A task that fails takes the process down: half a gateway would be worse than none.
    async with asyncio.TaskGroup() as tasks:
        working = start_background(
            tasks, [Background(work.name, work.run, work.stop) for work in application.background]
        )
        await http.serve(application.api, stop)
        await stop_background(clock, working, BACKGROUND_STOP_MAX_S)
