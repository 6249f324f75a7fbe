"""The composition root: what starts, in which order, and how it stops.

Start: port, store (recovery), processors, services, registration; health says SERVING last. Stop: health says
NOT_SERVING, the registration ends, the streams end, running calls get `STOP_GRACE_S`, and the store closes cleanly.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from hourglass.mq.v1 import admin_service_pb2_grpc, broker_service_pb2, broker_service_pb2_grpc
from mq_broker import metrics
from mq_broker.config import BrokerConfig
from mq_broker.processor.broker import Broker
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.registration import Registration
from mq_broker.store.errors import StoreError
from mqproto.address import Address
from mqproto.grpc_options import SERVER_OPTIONS
from osenv import RealClock, RealDisk
from osenv.signals import stop_event

SERVICE_NAME = broker_service_pb2.DESCRIPTOR.services_by_name["BrokerService"].full_name
STOP_GRACE_S = 1.0
EXIT_STOPPED, EXIT_CANNOT_START, EXIT_DISK_FAILED = 0, 1, 3

log = logging.getLogger(__name__)


async def serve(config: BrokerConfig) -> int:
    """Run until asked to stop; returns the exit code of the process."""
    asked = stop_event()
    disk, clock = RealDisk(), RealClock()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    wanted = Address(config.bind_address, config.listen_port)
    try:
        port = server.add_insecure_port(str(wanted))
    except RuntimeError:
        return _cannot_start(f"cannot listen on {wanted}: the port is in use, or the address is not of this machine")
    try:
        broker = Broker(disk, clock, config.broker_options(port), config.store_options(port))
        await broker.open()
    except (StoreError, OSError) as error:
        return _cannot_start(str(error))
    metrics.register(broker)
    stopping = asyncio.Event()
    registration = Registration(
        broker.options.identity, broker.topics, config.name_servers, clock, config.register_name_server_period / 1000
    )
    health_service = health.aio.HealthServicer()
    broker_service_pb2_grpc.add_BrokerServiceServicer_to_server(BrokerService(broker, stopping), server)
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(broker, registration), server)
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    await server.start()
    registering = asyncio.create_task(registration.run(), name="registration")
    running = asyncio.create_task(broker.run(), name="broker")
    for service in ("", SERVICE_NAME):
        await health_service.set(service, health_pb2.HealthCheckResponse.SERVING)
    log.info("broker %s listens on %s:%d", config.broker_name, config.bind_address, port)

    stop = asyncio.create_task(asked.wait(), name="stop")
    await asyncio.wait((running, registering, stop), return_when=asyncio.FIRST_COMPLETED)
    log.info("broker %s stops", config.broker_name)
    await health_service.enter_graceful_shutdown()
    failures = await _end(registering)
    stopping.set()
    await server.stop(STOP_GRACE_S)
    failures += await _end(running)
    stop.cancel()
    try:
        await broker.close()
    finally:
        disk.close()
    for failure in failures:
        log.critical("a part of the broker failed", exc_info=failure)
    return EXIT_DISK_FAILED if broker.store.failure or failures else EXIT_STOPPED


async def _end(task: asyncio.Task[None]) -> list[BaseException]:
    """Cancel the task and wait for it; returns what it failed with, if it did."""
    task.cancel()
    results = await asyncio.gather(task, return_exceptions=True)
    return [result for result in results if isinstance(result, Exception)]


def _cannot_start(sentence: str) -> int:
    print(f"mq-broker: {sentence}", file=sys.stderr)
    return EXIT_CANNOT_START
