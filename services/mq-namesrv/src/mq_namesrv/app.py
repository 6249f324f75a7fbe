"""The composition root: what starts, in which order, how it stops, and its metrics."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable, Mapping

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from opentelemetry.metrics import CallbackOptions, Meter, Observation

import telemetry
from hourglass.mq.v1 import name_service_pb2, name_service_pb2_grpc
from mq_namesrv.config import NamesrvConfig
from mq_namesrv.core import route_table
from mq_namesrv.core.registration import CALLS_MAX, CONNECTIONS_MAX, IDLE_CONNECTION_MS_MAX, KEPT_DESCRIPTORS
from mq_namesrv.core.route_table import RouteTable
from mq_namesrv.rpc import NameServiceServicer, describe, keys
from mqproto.config_source import ReloadableConfig, Started
from mqproto.frames_service import FramesService, server_config
from mqproto.grpc_options import SERVER_OPTIONS, connection_limits
from mqproto.names import Address
from mqremoting import Server
from osenv import Clock, RealClock
from osenv.pooled_files import raise_open_files_limit
from osenv.process import reload_event, stop_event
from telemetry.grpc_server import call_interceptors, frames_call_span

log = logging.getLogger(__name__)

SERVICE = "mq-namesrv"
SERVICE_DESCRIPTOR = name_service_pb2.DESCRIPTOR.services_by_name["NameService"]
SERVICE_NAME = SERVICE_DESCRIPTOR.full_name
STOP_GRACE_SECONDS = 1.0
IDLE_CONNECTION = ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MS_MAX)


class StartError(RuntimeError):
    """The server cannot start; the message is a sentence for the person who started it."""


class NameServer:
    """One name server on the running event loop.

    Start: table, services, port, scan; health says SERVING last. Stop: health says NOT_SERVING first, then the streams
    end, running calls get `STOP_GRACE_SECONDS`, and the port closes.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        clock: Clock,
        meter: Meter | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`meter` is the process's own by default; one connection more than `connections_max`,
        which holds for gRPC and for frames each, is closed at once.
        """
        self._config = config
        self._clock = clock
        self._table = RouteTable(started=clock.monotonic())
        self._servicer = NameServiceServicer(self._table, clock, lambda: self._expiry_s)
        observe(meter or telemetry.meter(METER_NAME), self._table, self._servicer.route_queries)
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            options=(*SERVER_OPTIONS, *connection_limits(connections_max), IDLE_CONNECTION),
            interceptors=call_interceptors([SERVICE_DESCRIPTOR]),
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        self._frames = FramesService(CALLS_MAX, frames_call_span)
        self._frames_server: Server | None = None
        self._connections_max = connections_max
        self.frames_address = Address(config.bind_address, config.frames_listen_port)
        """Where it takes frames; with the actual port once it is started."""

    async def start(self) -> Address:
        """Serve, and return the address with its actual port. Raises StartError."""
        for service in ("", SERVICE_NAME):
            await self._health.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)
        name_service_pb2_grpc.add_NameServiceServicer_to_server(self._servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        wanted = Address(self._config.bind_address, self._config.listen_port)
        try:
            port = self._server.add_insecure_port(str(wanted))
        except RuntimeError as error:
            raise _cannot_listen(wanted) from error
        self._frames.add(SERVICE_DESCRIPTOR, self._servicer)
        host, frames_port = self.frames_address
        config = server_config(host, port)
        frames_server = Server(self._frames, config, self._clock, connections_max=self._connections_max)
        try:
            self.frames_address = Address(host, await frames_server.listen(host, frames_port))
        except OSError as error:
            raise _cannot_listen(self.frames_address) from error
        self._frames_server = frames_server
        await self._server.start()
        for service in ("", SERVICE_NAME):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return Address(wanted.host, port)

    def reconfigure(self, config: NamesrvConfig) -> None:
        """Follow other times of the scan, after the pause in which it is now."""
        self._config = config

    async def scan(self) -> None:
        """Drop silent brokers for ever (mechanism N3). Raises InvariantError when the table contradicts itself."""
        while True:
            await self._clock.sleep(self._config.scan_not_active_broker_interval_ms / 1000)
            for broker in route_table.expire(self._table, self._clock.monotonic(), self._expiry_s):
                identity = broker.registration.identity
                log.warning(
                    "%s is gone: not heard of for %d s", describe(identity), self._expiry_s, extra=keys(identity)
                )
            for _ in route_table.invariant_checks(self._table):
                await asyncio.sleep(0)

    @property
    def _expiry_s(self) -> float:
        return self._config.broker_expire_timeout_ms / 1000

    async def stop(self) -> None:
        """Stop serving, within a little more than the grace time."""
        await self._health.enter_graceful_shutdown()
        self._servicer.stop()
        stopping = [self._server.stop(STOP_GRACE_SECONDS)]
        if self._frames_server is not None:
            stopping.append(self._frames_server.drain(STOP_GRACE_SECONDS))
        await asyncio.gather(*stopping)


def _cannot_listen(wanted: Address) -> StartError:
    return StartError(f"cannot listen on {wanted}: the port is in use, or the address is not one of this machine")


async def serve(started: Started[NamesrvConfig]) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code of the process: 0 when asked to stop, else 1.

    SIGHUP has the configuration read again.
    """
    stop_asked, reload_asked = stop_event(), reload_event()
    if started.warning:
        log.warning("%s", started.warning)
    descriptors = raise_open_files_limit(2 * CONNECTIONS_MAX + KEPT_DESCRIPTORS)
    connections_max = max(1, min(CONNECTIONS_MAX, (descriptors - KEPT_DESCRIPTORS) // 2))
    server = NameServer(started.config, RealClock(), connections_max=connections_max)
    try:
        address = await server.start()
    except StartError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return 1
    log.info(
        "the name server listens on %s, for frames on %s",
        address,
        server.frames_address,
        extra={"address": str(address), "frames_address": str(server.frames_address)},
    )

    def apply(config: NamesrvConfig) -> None:
        server.reconfigure(config)
        telemetry.configure(SERVICE, config.log_level)

    in_force = ReloadableConfig(started.source, started.config, apply)
    stop = asyncio.create_task(stop_asked.wait(), name="stop")
    jobs = (
        asyncio.create_task(server.scan(), name="scan for silent brokers"),
        asyncio.create_task(in_force.follow(reload_asked), name="reload"),
    )
    try:
        await asyncio.wait((stop, *jobs), return_when=asyncio.FIRST_COMPLETED)
        log.info("the name server stops")
    finally:
        await server.stop()
    failed = [job for job in jobs if job.done()]
    for job in (stop, *jobs):
        job.cancel()
    for job in failed:
        log.critical("%s failed", job.get_name(), exc_info=job.exception())
    return 1 if failed else 0


# The name server's metrics, as OpenTelemetry observable instruments.
#
# Read by the exporter's own thread when a collector asks; without a configured meter provider they are never read.

METER_NAME = "mq_namesrv"
ROUTE_FOUND = "hourglass.namesrv.route.found"


def observe(meter: Meter, table: RouteTable, route_queries: Mapping[bool, int]) -> None:
    """Tell of this table from now on, and how many queries for routes were answered with one (True) or without."""

    def brokers(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sum(len(siblings) for siblings in list(table.brokers.values())))]

    def topics(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(len(table.offers))]

    def queries(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {ROUTE_FOUND: found}) for found, count in route_queries.items()]

    meter.create_observable_gauge("hourglass.namesrv.brokers", [brokers], "{broker}", "Brokers, replicas included")
    meter.create_observable_gauge("hourglass.namesrv.topics", [topics], "{topic}", "Topics that have a route")
    meter.create_observable_counter("hourglass.namesrv.route.queries", [queries], "{query}", "Queries for routes")
