"""The broker's health by gRPC: of the process, of its store, of clients' writes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress

import pytest
from grpc_health.v1 import health, health_pb2  # type: ignore[import-untyped]

from mq_broker.processor.broker import Broker
from mq_broker.rpc.health import (
    LOOK_INTERVAL_S,
    SERVICE_NAME,
    SERVICES,
    STORE_SERVICE,
    WRITES_SERVICE,
    set_all_not_serving,
    watch_health,
)
from mq_broker.testing import flush_and_index, running_broker
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

ALL = set(SERVICES)


async def serving(service: health.aio.HealthServicer) -> set[str]:
    """The services of which Check says SERVING."""
    answers = {name: await service.Check(health_pb2.HealthCheckRequest(service=name), None) for name in SERVICES}
    return {name for name, answer in answers.items() if answer.status == health_pb2.HealthCheckResponse.SERVING}


def fence(broker: Broker) -> None:
    broker.store.fence(OSError(errno.EIO, "input/output error"))


def fill_disk(broker: Broker) -> None:
    broker.store.gate.measured(0.95)


def block_cleaning(broker: Broker) -> None:
    broker.store.gate.blocked_by = "the oldest file holds unconsumed messages"


def follow(broker: Broker) -> None:
    broker.store.follows = True


def lose_replicas(broker: Broker) -> None:
    broker.store.too_few_replicas = "1 of 2 replicas are in sync"


@pytest.mark.parametrize(
    ("change", "still_serving"),
    [
        (fence, {"", SERVICE_NAME}),
        (fill_disk, {"", SERVICE_NAME}),
        (block_cleaning, {"", SERVICE_NAME}),
        (follow, {"", SERVICE_NAME, STORE_SERVICE}),
        (lose_replicas, {"", SERVICE_NAME, STORE_SERVICE}),
    ],
)
async def test_health_follows_the_store(change: Callable[[Broker], None], still_serving: set[str]) -> None:
    service, clock = health.aio.HealthServicer(), SimClock()
    await set_all_not_serving(service)
    assert await serving(service) == set()
    async with running_broker(SimDisk(), clock, work=flush_and_index, clean_stop=False) as broker:
        telling = asyncio.create_task(watch_health(service, broker.store, clock))
        await settle()
        assert await serving(service) == ALL
        change(broker)
        await clock.advance(LOOK_INTERVAL_S)
        assert await serving(service) == still_serving
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling


async def test_writes_are_taken_again_when_the_disk_has_room_again() -> None:
    service, clock = health.aio.HealthServicer(), SimClock()
    async with running_broker(SimDisk(), clock, work=flush_and_index, clean_stop=False) as broker:
        telling = asyncio.create_task(watch_health(service, broker.store, clock))
        for used_share, expected in ((0.95, ALL - {STORE_SERVICE, WRITES_SERVICE}), (0.5, ALL)):
            broker.store.gate.measured(used_share)
            await clock.advance(LOOK_INTERVAL_S)
            assert await serving(service) == expected
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
