"""The broker as a process: it is opened anew on the same ports when its role changes."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2_grpc  # type: ignore[import-untyped]

import telemetry
from hourglass.mq.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    broker_service_pb2,
    broker_service_pb2_grpc,
    replication_service_pb2_grpc,
)
from mq_broker.config import AddressCheck, BrokerConfig
from mq_broker.core.life import NO_SPANS, Spans
from mq_broker.core.limits import DESCRIPTORS_WANTED, DescriptorBudget
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.calls import OpenStreams
from mq_broker.rpc.health import set_all_not_serving, watch_health
from mq_broker.rpc.registration import HaTerms, Registration, SelfCheck
from mq_broker.rpc.replication import ReplicationService, connect, server_options
from mq_broker.store.errors import StoreError
from mq_broker.telemetry import BrokerMetrics, broker_spans
from mqproto.conf import config_pairs
from mqproto.config_source import ConfigSource, ReloadableConfig, Started
from mqproto.frames_service import FramesService, server_config
from mqproto.grpc_options import SERVER_OPTIONS, connection_limits
from mqproto.names import Address
from mqremoting import Server
from osenv import Clock, Disk, RealClock, RealDisk, SystemRng
from osenv.network import break_connections
from osenv.pooled_files import raise_open_files_limit
from osenv.process import freeze_garbage_collector, reload_event, stop_event
from telemetry.grpc_server import call_interceptors, frames_call_span

log = logging.getLogger(__name__)

EXIT_STOPPED, EXIT_CANNOT_START, EXIT_FAILED = 0, 1, 3


async def serve(started: Started[BrokerConfig]) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code of the process. SIGHUP has the configuration read again.

    A broker whose role changes, or whose log has to be cut, is opened anew on the same ports.
    """
    structlog.contextvars.bind_contextvars(broker_name=started.config.broker_name)  # of every line from here on
    stop_asked, reload_asked = stop_event(), reload_event()
    if started.warning:
        log.warning("%s", started.warning)
    try:
        descriptors = DescriptorBudget.of(raise_open_files_limit(DESCRIPTORS_WANTED))
    except ValueError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    with contextlib.closing(RealDisk()) as disk:
        process = BrokerProcess(
            started.source,
            started.config,
            disk,
            RealClock(),
            BrokerMetrics(),
            reload_asked,
            descriptors,
            broker_spans(started.config.broker_name),
        )
        stop = asyncio.create_task(stop_asked.wait(), name="stop")
        try:
            while (end := await run_until_stopped(process, stop)) is ExitReason.REOPEN:
                pass
        except StartError as error:
            print(f"{SERVICE}: {error}", file=sys.stderr)
            return EXIT_CANNOT_START
        finally:
            stop.cancel()
    return EXIT_FAILED if end is ExitReason.FAILED else EXIT_STOPPED


SERVICE = "mq-broker"
SERVICES = (
    broker_service_pb2.DESCRIPTOR.services_by_name["BrokerService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
)
STOP_GRACE_S = 5.0
HA_STOP_GRACE_S = 1.0
PORT_TRIES, PORT_TRY_S = 100, 0.05  # a port is free again a moment after its server has stopped


class StartError(RuntimeError):
    """The broker cannot start; the message is a sentence for the person who started it."""


class ExitReason(enum.Enum):
    """Why a run of the broker has ended."""

    STOPPED = enum.auto()
    FAILED = enum.auto()
    REOPEN = enum.auto()  # another one has to begin


@dataclass
class BrokerProcess:
    """One life of the broker behind its ports: what starts, in which order; it stops in the reverse order.

    What outlives one life. `config` is the configuration in force; the ports are None until they are listened on.

    Start: ports, store (recovery), what goes on by itself, services, a look at the advertised address, registration;
    health says SERVING last, whatever the role. Stop: the name servers take the routes back, health says NOT_SERVING,
    every frame that was read is answered and the streams end, running calls get `STOP_GRACE_S`, then the replicas'
    streams end, because what was answered may have waited for them, and the store closes cleanly.

    A role is for one life: where it changes, or the log has to be cut, the process begins another one on the same
    ports.
    """

    source: ConfigSource[BrokerConfig]
    config: BrokerConfig
    disk: Disk
    clock: Clock
    metrics: BrokerMetrics
    reload_asked: asyncio.Event
    descriptors: DescriptorBudget
    spans: Spans = NO_SPANS
    port: int | None = None
    frames_port: int | None = None
    ha_port: int | None = None


Listen = Callable[[str, int], Awaitable[int]]


async def run_until_stopped(process: BrokerProcess, stop: asyncio.Task[Any]) -> ExitReason:
    """One life, until `stop` is done, a part fails, or the broker has to be opened anew. Raises StartError."""
    name = process.config.broker_name
    async with AsyncExitStack() as parts:
        broker, jobs = await _start(parts, process)
        await asyncio.wait((stop, *jobs), return_when=asyncio.FIRST_COMPLETED)
        is_reopening = broker.replication.reopen.is_set() and not stop.done()
        if is_reopening:
            log.warning("broker %s stops, to be opened anew at once: %s", name, _reason_to_reopen(broker))
        else:
            log.info("broker %s stops", name)
    failed = [job for job in jobs if not job.cancelled() and job.exception()]
    for job in failed:
        log.critical("a part of the broker failed: %s", job.get_name(), exc_info=job.exception())
    if broker.store.failure or failed:
        return ExitReason.FAILED
    return ExitReason.REOPEN if is_reopening else ExitReason.STOPPED


def _reason_to_reopen(broker: Broker) -> str:
    before, now = broker.replication.broker_id, broker.identity.broker_id
    if before == now:
        return "its log has to be cut, or it takes up its role anew"
    return f"it was {broker.replication.role.name} with id {before}, and has id {now} from now on"


async def _start(parts: AsyncExitStack, process: BrokerProcess) -> tuple[Broker, list[asyncio.Task[Any]]]:
    """Start the broker and its jobs; `parts` stops each of them. Raises StartError."""
    config = process.config
    budget = process.descriptors
    options = (*SERVER_OPTIONS, *connection_limits(budget.connections))
    server = grpc.aio.server(options=options, interceptors=call_interceptors(SERVICES))
    ha_server = grpc.aio.server(options=(*server_options(), *connection_limits(budget.replica_connections)))
    frames = FramesService(span=frames_call_span)
    host = config.bind_address
    process.port = await _listen(process, add_port(server), process.port, Address(host, config.listen_port))
    process.ha_port = await _listen(process, add_port(ha_server), process.ha_port, Address(host, config.ha_listen_port))
    reached = server_config(*config.advertised(process.port))
    frames_server = Server(frames, reached, process.clock, connections_max=budget.frames_connections)
    wanted = Address(host, config.frames_listen_port)
    process.frames_port = await _listen(process, frames_server.listen, process.frames_port, wanted)
    parts.push_async_callback(frames_server.close)
    broker = await _open_broker(process)
    parts.push_async_callback(broker.close)
    parts.enter_context(process.metrics.showing(broker))
    running = await parts.enter_async_context(_job(broker.run(), "broker"))

    await _serve_replicas(parts, broker, ha_server)
    registration = _registration(process, broker)
    broker.route_notices.announce = registration.announce
    in_force = _configuration(process, broker, registration)
    streams = _add_services(server, frames, broker, registration, in_force)
    health_service = await _serve_clients(parts, process, server, frames_server, streams)

    if not config.name_servers:
        log.warning(
            "broker %s registers nowhere, so that no client finds it: no name server is configured; "
            "give namesrvAddr in the configuration, or -n host:port",
            config.broker_name,
        )
    freeze_garbage_collector()
    registering = await parts.enter_async_context(_job(registration.run(), "registration"))
    telling = await parts.enter_async_context(_job(watch_health(health_service, broker.store, process.clock), "health"))
    log.info(
        "broker %s, %s in epoch %s, listens on %s:%d, for frames on port %d, for replicas on port %d",
        config.broker_name, broker.replication.role.name, broker.replication.epoch, host, process.port,
        process.frames_port, process.ha_port,
        extra={
            "address": f"{host}:{process.port}", "frames_port": process.frames_port, "ha_port": process.ha_port,
            "role": broker.replication.role.name, "epoch": str(broker.replication.epoch),
        },
    )  # fmt: skip
    reloading = await parts.enter_async_context(_job(in_force.follow(process.reload_asked), "reload"))
    return broker, [running, registering, telling, reloading]


def _registration(process: BrokerProcess, broker: Broker) -> Registration:
    config, replication = process.config, broker.replication
    return Registration(
        broker.identity,
        broker.topics,
        config.name_servers,
        process.clock,
        config.register_name_server_period / 1000,
        HaTerms(
            broker.options.replication.ha_address,
            lambda: replication.epoch,
            replication.master_found,
            replication.superseded,
            lambda: replication.is_restored,
            replication.accepted,
            replication.rejected,
        ),
        str(config.frames_advertised(process.frames_port or 0)),
    )


def _configuration(
    process: BrokerProcess, broker: Broker, registration: Registration
) -> ReloadableConfig[BrokerConfig]:
    def apply(config: BrokerConfig) -> None:
        process.config = config
        broker.reconfigure(_broker_options(process), config.retention)
        registration.reconfigure(config.name_servers, config.register_name_server_period / 1000)
        telemetry.configure(SERVICE, config.log_level)

    return ReloadableConfig(process.source, process.config, apply)


async def _serve_replicas(parts: AsyncExitStack, broker: Broker, server: grpc.aio.Server) -> None:
    stopping = asyncio.Event()
    service = ReplicationService(broker.replication, stopping)
    replication_service_pb2_grpc.add_ReplicationServiceServicer_to_server(service, server)
    await server.start()
    parts.push_async_callback(server.stop, HA_STOP_GRACE_S)
    parts.callback(stopping.set)


def _add_services(
    server: grpc.aio.Server,
    frames: FramesService,
    broker: Broker,
    registration: Registration,
    in_force: ReloadableConfig[BrokerConfig],
) -> OpenStreams:
    """Add the services for clients and operators, the same by gRPC and by frames; returns the clients' streams."""
    broker_service = BrokerService(broker, asyncio.Event())
    admin_service = AdminService(broker, registration, lambda: config_pairs(in_force.config))
    broker_service_pb2_grpc.add_BrokerServiceServicer_to_server(broker_service, server)
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(admin_service, server)
    for descriptor, servicer in zip(SERVICES, (broker_service, admin_service), strict=True):
        frames.add(descriptor, servicer)
    return broker_service.streams


async def _serve_clients(
    parts: AsyncExitStack, process: BrokerProcess, server: grpc.aio.Server, frames: Server, streams: OpenStreams
) -> health.aio.HealthServicer:
    """Listen for clients; health still says NOT_SERVING."""
    health_service, self_check = health.aio.HealthServicer(), SelfCheck(SystemRng())
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    await set_all_not_serving(health_service)
    await self_check.leave_mark(health_service)
    await server.start()
    parts.push_async_callback(_stop_serving, server, frames, streams, process.clock)
    parts.push_async_callback(health_service.enter_graceful_shutdown)
    await _check_address(self_check, process)
    return health_service


async def _stop_serving(server: grpc.aio.Server, frames: Server, streams: OpenStreams, clock: Clock) -> None:
    deadline = clock.monotonic() + STOP_GRACE_S
    await streams.end(clock, STOP_GRACE_S)
    left_s = max(0.0, deadline - clock.monotonic())
    await asyncio.gather(server.stop(left_s), frames.drain(left_s))


def add_port(server: grpc.aio.Server) -> Listen:
    """How a gRPC server listens at an address."""

    async def listen(host: str, port: int) -> int:
        return server.add_insecure_port(str(Address(host, port)))

    return listen


async def _listen(process: BrokerProcess, listen: Listen, had: int | None, wanted: Address) -> int:
    """The port that is listened on; one that an earlier life `had` is waited for. Raises StartError."""
    address = wanted if had is None else Address(wanted.host, had)
    problem: Exception
    for _ in range(PORT_TRIES if had else 1):
        try:
            return await listen(*address)
        except (RuntimeError, OSError) as error:
            problem = error
        if had:
            await process.clock.sleep(PORT_TRY_S)
    raise StartError(
        f"cannot listen on {address}: the port is in use, or the address is not of this machine"
    ) from problem


async def _open_broker(process: BrokerProcess) -> Broker:
    store_options = process.config.store_options(process.port or 0, process.descriptors.open_files)
    try:
        broker = Broker(
            process.disk, process.clock, _broker_options(process), store_options, connect=connect, spans=process.spans
        )
        broker.response_memory.break_connections = break_connections
        await broker.open()
    except (StoreError, OSError) as error:
        raise StartError(str(error)) from error
    return broker


def _broker_options(process: BrokerProcess) -> BrokerOptions:
    return process.config.broker_options(process.port or 0, process.ha_port or 0)


async def _check_address(self_check: SelfCheck, process: BrokerProcess) -> None:
    """Report an advertised address that does not lead here. Raises StartError when the configuration forbids it."""
    config, port = process.config, process.port or 0
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


@asynccontextmanager
async def _job(work: Coroutine[Any, Any, Any], name: str) -> AsyncIterator[asyncio.Task[Any]]:
    """A task that is cancelled with the block; its error is read from the task."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
