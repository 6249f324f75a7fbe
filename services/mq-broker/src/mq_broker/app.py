"""The composition root: what starts, in which order; it stops in the reverse order.

Start: port, store (recovery), what goes on by itself, services, a look at the advertised address, registration; health
says SERVING last. Stop: the name servers take the routes back, health says NOT_SERVING, every frame that was read is
answered and the streams end, running calls get `STOP_GRACE_S`, and the store closes cleanly.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

import telemetry
from hourglass.mq.v1 import admin_service_pb2_grpc, broker_service_pb2, broker_service_pb2_grpc
from mq_broker import metrics
from mq_broker.config import AddressCheck, BrokerConfig
from mq_broker.processor.broker import Broker
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.registration import Registration
from mq_broker.rpc.self_check import SelfCheck
from mq_broker.store.errors import StoreError
from mqproto.address import Address
from mqproto.command_line import Started
from mqproto.conf import config_pairs
from mqproto.config_source import ConfigInForce
from mqproto.grpc_options import SERVER_OPTIONS
from osenv import Clock, Disk, RealClock, RealDisk, SystemRng
from osenv.memory import keep_out_of_collections
from osenv.signals import reload_event, stop_event

SERVICE = "mq-broker"
SERVICE_NAME = broker_service_pb2.DESCRIPTOR.services_by_name["BrokerService"].full_name
STOP_GRACE_S = 5.0
EXIT_STOPPED, EXIT_CANNOT_START, EXIT_FAILED = 0, 1, 3

log = logging.getLogger(__name__)


class StartError(RuntimeError):
    """The broker cannot start; the message is a sentence for the person who started it."""


async def serve(started: Started[BrokerConfig]) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code of the process. SIGHUP has the configuration read again."""
    stop_asked, reload_asked = stop_event(), reload_event()
    if started.warning:
        log.warning("%s", started.warning)
    try:
        async with AsyncExitStack() as parts:
            disk = RealDisk()
            parts.callback(disk.close)
            broker, jobs = await _start(parts, started, disk, RealClock(), reload_asked)
            stop = await parts.enter_async_context(_job(stop_asked.wait(), "stop"))
            await asyncio.wait((stop, *jobs), return_when=asyncio.FIRST_COMPLETED)
            log.info("broker %s stops", started.config.broker_name)
    except StartError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    failed = [job for job in jobs if not job.cancelled() and job.exception()]
    for job in failed:
        log.critical("a part of the broker failed: %s", job.get_name(), exc_info=job.exception())
    return EXIT_FAILED if broker.store.failure or failed else EXIT_STOPPED


async def _start(
    parts: AsyncExitStack, started: Started[BrokerConfig], disk: Disk, clock: Clock, reload_asked: asyncio.Event
) -> tuple[Broker, list[asyncio.Task[Any]]]:
    """The broker and its jobs at work; `parts` knows how each stops. Raises StartError."""
    config = started.config
    server = grpc.aio.server(options=SERVER_OPTIONS)
    port = _listen(server, config)
    broker = await _open_broker(config, port, disk, clock)
    parts.push_async_callback(broker.close)
    metrics.register(broker)
    running = await parts.enter_async_context(_job(broker.run(), "broker"))

    registration = Registration(
        broker.options.identity, broker.topics, config.name_servers, clock, config.register_name_server_period / 1000
    )

    def apply(config: BrokerConfig) -> None:
        broker.reconfigure(config.broker_options(port), config.retention)
        registration.reconfigure(config.name_servers, config.register_name_server_period / 1000)
        telemetry.configure(SERVICE, config.log_level)

    in_force = ConfigInForce(started.source, config, apply)
    admin_service = AdminService(broker, registration, lambda: config_pairs(in_force.config))
    stopping, health_service = asyncio.Event(), health.aio.HealthServicer()
    broker_service_pb2_grpc.add_BrokerServiceServicer_to_server(BrokerService(broker, stopping), server)
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(admin_service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    await _tell_health(health_service, health_pb2.HealthCheckResponse.NOT_SERVING)
    self_check = SelfCheck(SystemRng())
    await self_check.leave_mark(health_service)
    await server.start()
    parts.push_async_callback(server.stop, STOP_GRACE_S)
    parts.callback(stopping.set)
    parts.push_async_callback(health_service.enter_graceful_shutdown)
    await _check_address(self_check, config, port)

    keep_out_of_collections()
    registering = await parts.enter_async_context(_job(registration.run(), "registration"))
    await _tell_health(health_service, health_pb2.HealthCheckResponse.SERVING)
    log.info("broker %s listens on %s:%d", config.broker_name, config.bind_address, port)
    reloading = await parts.enter_async_context(_job(in_force.follow(reload_asked), "reload"))
    return broker, [running, registering, reloading]


def _listen(server: grpc.aio.Server, config: BrokerConfig) -> int:
    wanted = Address(config.bind_address, config.listen_port)
    try:
        return server.add_insecure_port(str(wanted))
    except RuntimeError as error:
        raise StartError(
            f"cannot listen on {wanted}: the port is in use, or the address is not of this machine"
        ) from error


async def _open_broker(config: BrokerConfig, port: int, disk: Disk, clock: Clock) -> Broker:
    try:
        broker = Broker(disk, clock, config.broker_options(port), config.store_options(port))
        await broker.open()
    except (StoreError, OSError) as error:
        raise StartError(str(error)) from error
    return broker


async def _check_address(self_check: SelfCheck, config: BrokerConfig, port: int) -> None:
    """Say so when clients are told an address that does not lead here. Raises StartError when that is refused."""
    if config.advertised_address_check is AddressCheck.OFF:
        return
    advertised = config.advertised(port)
    problem = await self_check.problem(advertised)
    if problem is None:
        return
    sentence = (
        f"clients are told to find this broker at {advertised}, which does not lead here: {problem}; "
        f"it listens on {config.bind_address}:{port}; set brokerIP1 (and advertisedPort behind a port mapping) "
        "to where it is reached, or bindAddress so that it listens there"
    )
    if config.advertised_address_check is AddressCheck.REFUSE:
        raise StartError(f"{sentence} (advertisedAddressCheck=REFUSE)")
    log.error("%s", sentence)


async def _tell_health(service: health.aio.HealthServicer, status: int) -> None:
    for name in ("", SERVICE_NAME):
        await service.set(name, status)


@asynccontextmanager
async def _job(work: Coroutine[Any, Any, Any], name: str) -> AsyncIterator[asyncio.Task[Any]]:
    """A task that ends with the block, without an error: whoever has it asks for its exception."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
