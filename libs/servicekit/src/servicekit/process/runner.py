"""The run of a service: the order in which its parts start and stop.

Start: address taken, database migrated, asked for its time and prepared, background work, connection with the queue
(itself in the background), HTTP. Stop: HTTP finishes its requests, then consumers, background work, producers,
database. Each step has its time; all of them together take ten seconds at most.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
import uvloop
from starlette.types import ASGIApp

import telemetry
from osenv import Clock, RealClock
from osenv.clock import timeout
from osenv.process import freeze_garbage_collector, stop_event
from servicekit.background import Background
from servicekit.config import ConfigError, ServiceConfig
from servicekit.errors import QueueUnreachableError, StorageUnavailableError
from servicekit.http.server import HttpServer
from servicekit.message import Subscription
from servicekit.monitoring import OK
from servicekit.process.queue import MqConnection, QueueConfigurationError
from servicekit.process.reconciler import Reconciled, Reconciler
from servicekit.sql.database import Database, DatabaseClock, without_password
from servicekit.sql.schema import MigrationRejectedError, Migrations
from servicekit.sql.units import TransactionCheck

CONNECT_MAX_S = 30.0
CONSUMERS_STOP_MAX_S = 2.0
BACKGROUND_STOP_MAX_S = 1.0
PRODUCERS_STOP_MAX_S = 1.0

log = structlog.get_logger(__name__)


def _nothing() -> None:
    """No streams to end."""


@dataclass(frozen=True, slots=True)
class Composition:
    """A service over its ports, ready to be started; `check` is TransactionalPublisher.check.

    `prepare` writes what has to be in the database before the service answers; it runs at every start, in each process.

    `reconciler` is what `reconcile` runs; in a service it is a part of `background`.

    `end_streams` is called as soon as the service is asked to stop: answers that would never end by themselves have to
    end then, or the stop waits for them as long as it waits for any request.
    """

    api: ASGIApp
    subscriptions: Sequence[Subscription]
    check: TransactionCheck
    background: Sequence[Background] = ()
    end_streams: Callable[[], None] = _nothing
    reconciler: Reconciler | None = None
    prepare: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """A service's description for the runner. `topics` have to exist before anything is sent or read."""

    name: str
    migrations: Migrations
    topics: Sequence[str]


Working = Sequence[tuple[Background, asyncio.Task[None]]]
Compose = Callable[[Database, MqConnection, DatabaseClock], Composition]


async def run_migrations(service: Service, config: ServiceConfig) -> None:
    """Bring the database to this version and return. Raises StorageUnavailableError."""
    database = Database(config.database_url, config.database_pool_size)
    try:
        await service.migrations.upgrade(database)
    finally:
        await database.dispose()
    log.info("the database is up to date", database_url=without_password(config.database_url))


async def serve(service: Service, config: ServiceConfig, compose: Compose) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises OSError if the address is taken, StorageUnavailableError, and QueueConfigurationError in a group.
    """
    stop = stop_event()
    with HttpServer(config.listen_host, config.listen_port, trusted_proxies=config.trusted_proxies) as http:
        database = Database(config.database_url, config.database_pool_size)
        try:
            await service.migrations.upgrade(database)
            clock = DatabaseClock(RealClock(), database)
            await clock.measure()
            queue = MqConnection(
                config.mq_url, clock, group=service.name, topics=service.topics, storage=database.health
            )
            composition = compose(database, queue, clock)
            if composition.prepare is not None:
                await composition.prepare()
            freeze_garbage_collector()
            log.info(f"{service.name} is listening", host=config.listen_host, port=http.port)
            await _run(composition, http, queue, clock, stop)
        finally:
            await database.dispose()
    log.info(f"{service.name} has stopped")


async def reconcile(service: Service, config: ServiceConfig, compose: Compose, *, is_dry_run: bool) -> Reconciled:
    """Go through everything once, beside the services that run, and return; nothing else is served or consumed.

    Raises StorageUnavailableError, QueueConfigurationError, and QueueUnreachableError when there is no queue.
    """
    database = Database(config.database_url, config.database_pool_size)
    clock = DatabaseClock(RealClock(), database)
    queue = MqConnection(config.mq_url, clock, group=service.name, topics=service.topics, storage=database.health)
    try:
        schema = await service.migrations.health_of(database)()
        if schema != OK:
            raise StorageUnavailableError(schema)
        await clock.measure()
        composition = compose(database, queue, clock)
        if composition.reconciler is None:
            raise TypeError(f"{service.name} has no reconciler")
        if not is_dry_run:
            await _connect(queue, config, composition, clock)
        return await composition.reconciler.reconcile(is_dry_run=is_dry_run)
    finally:
        await stop_in_time(clock, PRODUCERS_STOP_MAX_S, "producers", queue.stop_producers)
        await database.dispose()


async def _connect(queue: MqConnection, config: ServiceConfig, composition: Composition, clock: Clock) -> None:
    try:
        async with timeout(clock, CONNECT_MAX_S):
            await queue.connect((), composition.check)
    except TimeoutError as error:
        raise QueueUnreachableError(f"no queue at {config.mq_url} within {CONNECT_MAX_S:g} s") from error


async def _run(
    composition: Composition, http: HttpServer, queue: MqConnection, clock: DatabaseClock, stop: asyncio.Event
) -> None:
    try:
        # A task that fails takes the process down: half a service would be worse than none.
        async with asyncio.TaskGroup() as tasks:
            working = start_background(
                tasks, [Background("the database's time", clock.run, clock.stop), *composition.background]
            )
            connecting = tasks.create_task(
                queue.connect(composition.subscriptions, composition.check), name="queue connection"
            )
            await http.serve(composition.api, stop, before_drain=composition.end_streams)
            connecting.cancel()
            await stop_in_time(clock, CONSUMERS_STOP_MAX_S, "consumers", queue.stop_consumers)
            await stop_background(clock, working)
    finally:
        await stop_in_time(clock, CONSUMERS_STOP_MAX_S, "consumers", queue.stop_consumers)
        await stop_in_time(clock, PRODUCERS_STOP_MAX_S, "producers", queue.stop_producers)


async def _as_coroutine(run: Callable[[], Awaitable[None]]) -> None:
    await run()


def start_background(tasks: asyncio.TaskGroup, background: Iterable[Background]) -> Working:
    """A task for each, which `stop_background` ends."""
    return [(work, tasks.create_task(_as_coroutine(work.run), name=work.name)) for work in background]


async def stop_background(clock: Clock, working: Working, seconds: float = BACKGROUND_STOP_MAX_S) -> None:
    """Let each finish what it has in hand, for `seconds` at most; what goes on then is named in the log and ended."""
    for work, _ in working:
        work.stop()

    async def end() -> None:
        if working:
            await asyncio.wait({task for _, task in working})

    await stop_in_time(clock, seconds, "background work", end)
    for _, task in working:
        task.cancel()


async def stop_in_time(clock: Clock, seconds: float, what: str, stop: Callable[[], Awaitable[None]]) -> None:
    """Wait for `stop`, for `seconds` at most; what is left behind then is named in the log."""
    try:
        async with timeout(clock, seconds):
            await stop()
    except TimeoutError:
        log.warning("a part did not stop in time and is left behind", part=what, seconds=seconds)


EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_FOUND = 3

ConfigT = TypeVar("ConfigT", bound=ServiceConfig)


def run_service(
    name: str,
    description: str,
    arguments: Sequence[str] | None,
    *,
    from_environment: Callable[[Mapping[str, str]], ConfigT],
    serve: Callable[[ConfigT], Coroutine[Any, Any, None]],
    run_migrations: Callable[[ConfigT], Coroutine[Any, Any, None]],
    reconcile: Callable[[ConfigT, bool], Coroutine[Any, Any, Reconciled]] | None = None,
    service_name: str | None = None,
) -> int:
    """The exit code: 0 after an orderly stop, 1 after a failure, 2 for a configuration that cannot be used, 3 when
    `reconcile`, whose second argument says whether it is a dry run, has found something.

    Telemetry is set up before anything else and ends last. `name` is the module's; logs, traces and metrics are those
    of `service_name`, where it is another.

    `python -m <service>` serves; `python -m <service> migrate` brings the database to this version and ends; `python -m
    <service> reconcile` puts right what messages should have done, where a service has a reconciler.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    commands = ["serve", "migrate"] if reconcile is None else ["serve", "migrate", "reconcile"]
    parser.add_argument("command", nargs="?", choices=commands, default="serve")
    if reconcile is not None:
        parser.add_argument("--dry-run", action="store_true", help="reconcile: say what is wrong and change nothing")
    given = parser.parse_args(arguments)
    command, is_dry_run = given.command, reconcile is not None and given.dry_run
    if is_dry_run and command != "reconcile":
        parser.error("--dry-run is for reconcile")
    try:
        config = from_environment(os.environ)
        telemetry.configure(service_name or name, config.log_level)
    except (ConfigError, telemetry.TelemetryConfigError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_USAGE
    exit_code = 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if command == "reconcile" and reconcile is not None:
                exit_code = _tell(name, runner.run(reconcile(config, is_dry_run)), is_dry_run=is_dry_run)
            else:
                runner.run((run_migrations if command == "migrate" else serve)(config))
    except* (
        OSError,
        StorageUnavailableError,
        MigrationRejectedError,
        QueueConfigurationError,
        QueueUnreachableError,
    ) as group:
        exit_code = EXIT_FAILED
        first = _first(group)
        prefix = config.PREFIX if isinstance(first, QueueConfigurationError) else ""
        print(f"{name}: {prefix}{first}", file=sys.stderr)
    finally:
        telemetry.shutdown()
    return exit_code


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _tell(name: str, reconciled: Reconciled, *, is_dry_run: bool) -> int:
    for what in reconciled.found:
        print(f"{'found' if is_dry_run else 'put right'}: {what}")
    for error in reconciled.errors:
        print(f"{name}: {error}", file=sys.stderr)
    if reconciled.errors:
        return EXIT_FAILED
    return EXIT_FOUND if reconciled.found else 0
