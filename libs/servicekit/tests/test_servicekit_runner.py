"""The runner: what a service of nothing but background work does from its start to its stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import pytest
from starlette.applications import Starlette
from structlog.testing import capture_logs

from mqclient.testing import FakeCluster
from osenv import Clock, SimClock
from servicekit.background import Background
from servicekit.config import ServiceConfig
from servicekit.process.queue import MqConnection, QueueConfigurationError
from servicekit.process.runner import Composition, Service, run_migrations, serve, stop_in_time
from servicekit.sql.database import Database
from servicekit.sql.schema import Migrations
from servicekit.sql.units import LocalOutcome

ENV = """
from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
"""


class Config(ServiceConfig):
    PREFIX: ClassVar[str] = "NOTHING_"


def service_in(folder: Path) -> Service:
    (folder / "migrations" / "versions").mkdir(parents=True)
    (folder / "migrations" / "env.py").write_text(ENV)
    return Service("nothing", Migrations(str(folder / "migrations")), topics=())


def config_in(folder: Path, mq_url: str) -> Config:
    return Config(database_url=f"sqlite+aiosqlite:///{folder / 'x.db'}", mq_url=mq_url)


async def never_asked(transaction_id: str) -> LocalOutcome:
    raise AssertionError(f"no half message was sent, and the queue asks for {transaction_id}")


def composed_of(work: Background) -> Callable[[Database, MqConnection, Clock], Composition]:
    def compose(_database: Database, _queue: MqConnection, _clock: Clock) -> Composition:
        return Composition(Starlette(), (), never_asked, [work])

    return compose


async def test_a_signal_stops_the_work_and_then_the_service(tmp_path: Path) -> None:
    cluster = FakeCluster("servicekit-runner")
    stopped = asyncio.Event()
    seen = []

    async def work() -> None:
        seen.append("started")
        os.kill(os.getpid(), signal.SIGTERM)
        await stopped.wait()
        seen.append("ended")

    await serve(
        service_in(tmp_path), config_in(tmp_path, cluster.url), composed_of(Background("work", work, stopped.set))
    )
    assert seen == ["started", "ended"]


async def test_streams_end_as_soon_as_the_service_is_asked_to_stop(tmp_path: Path) -> None:
    cluster = FakeCluster("servicekit-runner")
    stopped = asyncio.Event()
    seen = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stopped.wait()
        seen.append("work has ended")

    def compose(_database: Database, _queue: MqConnection, _clock: Clock) -> Composition:
        background = [Background("work", work, stopped.set)]
        return Composition(Starlette(), (), never_asked, background, lambda: seen.append("streams are to end"))

    await serve(service_in(tmp_path), config_in(tmp_path, cluster.url), compose)
    assert seen == ["streams are to end", "work has ended"]


async def test_work_that_fails_takes_the_service_down(tmp_path: Path) -> None:
    cluster = FakeCluster("servicekit-runner")

    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as failed:
        await serve(
            service_in(tmp_path),
            config_in(tmp_path, cluster.url),
            composed_of(Background("work", work, lambda: None)),
        )
    assert failed.group_contains(ZeroDivisionError)


async def test_an_unknown_transport_takes_the_service_down(tmp_path: Path) -> None:
    async def work() -> None:
        """Ends by itself."""

    with pytest.raises(ExceptionGroup) as failed:
        await serve(
            service_in(tmp_path),
            config_in(tmp_path, "carrier-pigeon://roof"),
            composed_of(Background("work", work, lambda: None)),
        )
    assert failed.group_contains(QueueConfigurationError)


async def test_migrations_make_the_database(tmp_path: Path) -> None:
    await run_migrations(service_in(tmp_path), config_in(tmp_path, "mq://nowhere:1"))
    assert (tmp_path / "x.db").exists()


async def test_a_part_that_does_not_stop_in_time_is_named_and_left_behind() -> None:
    clock = SimClock()

    async def never() -> None:
        await asyncio.Event().wait()

    stop: Callable[[], Awaitable[None]] = never
    with capture_logs() as lines:
        stopping = asyncio.create_task(stop_in_time(clock, 2.0, "consumers", stop))
        await clock.advance(1.9)
        assert not stopping.done()
        await clock.advance(0.2)
        await stopping
    assert [(line["part"], line["seconds"]) for line in lines] == [("consumers", 2.0)]
