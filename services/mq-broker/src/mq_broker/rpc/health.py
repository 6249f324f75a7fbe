"""The broker's health by gRPC's health protocol: of the process, of its store, and of clients' writes.

| service                                | SERVING while                                                               |
|----------------------------------------|-----------------------------------------------------------------------------|
| "" and hourglass.mq.v1.BrokerService   | the broker answers, whatever its role and with or without a master          |
| hourglass.mq.v1.BrokerService/store    | its disk has never failed it, and has room for what clients write           |
| hourglass.mq.v1.BrokerService/writes   | clients may write: the store is well, and the broker is a master that knows |
|                                        | of no successor and has enough replicas in sync                             |

A container's health is that of the store: a replica that waits for its master has it, a master without its replica too.
While the broker starts and stops, all of them are NOT_SERVING.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grpc_health.v1 import health, health_pb2  # type: ignore[import-untyped]

from hourglass.mq.v1 import broker_service_pb2
from mq_broker.store.message_store import MessageStore
from osenv import Clock

SERVICE_NAME: str = broker_service_pb2.DESCRIPTOR.services_by_name["BrokerService"].full_name
STORE_SERVICE, WRITES_SERVICE = f"{SERVICE_NAME}/store", f"{SERVICE_NAME}/writes"
LOOK_INTERVAL_S = 0.5  # at most so late health tells of a change


def _is_well(store: MessageStore) -> bool:
    return store.failure is None and store.gate.rejection is None


def _takes_writes(store: MessageStore) -> bool:
    return _is_well(store) and not store.follows and not store.too_few_replicas


SERVICES: Mapping[str, Callable[[MessageStore], bool]] = {
    "": lambda _: True,
    SERVICE_NAME: lambda _: True,
    STORE_SERVICE: _is_well,
    WRITES_SERVICE: _takes_writes,
}


async def set_all_not_serving(service: health.aio.HealthServicer) -> None:
    """Nothing is served yet."""
    for name in SERVICES:
        await service.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)


async def watch_health(service: health.aio.HealthServicer, store: MessageStore, clock: Clock) -> None:
    """How everything stands, now and for ever, as the store changes."""
    told: dict[str, bool] = {}
    while True:
        for name, is_serving in SERVICES.items():
            if (now := is_serving(store)) is not told.get(name):
                status = health_pb2.HealthCheckResponse
                await service.set(name, status.SERVING if now else status.NOT_SERVING)
                told[name] = now
        await clock.sleep(LOOK_INTERVAL_S)
