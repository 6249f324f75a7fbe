"""NameService over gRPC: takes messages apart, calls the core's steps, and turns its errors into statuses."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import grpc

from hourglass.mq.v1 import common_pb2, name_service_pb2, name_service_pb2_grpc, replication_service_pb2
from mq_namesrv.core import route_table
from mq_namesrv.core.fences import Epoch, NotLeaderError
from mq_namesrv.core.registration import BrokerIdentity, Registration, RegistrationError, TopicConfig
from mq_namesrv.core.route_table import BrokerData, RegisterOutcome, RouteTable, SupersededError, TopicRoute
from mqproto.names import IllegalNameError, check_topic
from osenv import Clock

log = logging.getLogger(__name__)


class NameServiceServicer(name_service_pb2_grpc.NameServiceServicer):
    """The RPCs of `hourglass.mq.v1.NameService`, over one table."""

    def __init__(self, table: RouteTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._sessions = itertools.count(1)  # a newer stream has a larger number
        self._stopping = asyncio.Event()
        self.route_queries = {True: 0, False: 0}  # with a route, and without one

    def stop(self) -> None:
        """End every registration stream, so that brokers look for this name server anew."""
        self._stopping.set()

    async def RegisterBroker(self, _requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """One broker's stream: each request is a whole registration, and the end of the stream is the broker's end.

        Each request has one answer, and there is no other: a slave hears of another master when it registers again. A
        master that was replaced is told so, each time, and its stream stays open.

        Reads and writes through `context`, which the stubs don't know: a generator would not end when its peer does.
        """
        session = next(self._sessions)
        first: BrokerIdentity | None = None
        try:
            while (request := await self._read(context)) is not None:
                registration = registration_from_proto(request)
                identity = registration.identity
                _check_same(first, identity)
                first = identity
                await context.write(self._register(registration, session))
        except RegistrationError as error:
            log.warning("a registration was refused: %s", error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except SupersededError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        finally:
            for broker in route_table.close_session(self._table, session):
                identity = broker.registration.identity
                log.info("%s is gone: its stream ended", describe(identity), extra=keys(identity))

    async def UnregisterBroker(  # noqa: N802
        self, request: name_service_pb2.UnregisterBrokerRequest, context: Any
    ) -> name_service_pb2.UnregisterBrokerResponse:
        """Remove the broker; not being registered is what the caller wants, and so no error."""
        try:
            removed = route_table.unregister(self._table, _identity_from_proto(request.broker))
        except RegistrationError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if removed is not None:
            identity = removed.registration.identity
            log.info("%s is gone: it unregistered", describe(identity), extra=keys(identity))
        return name_service_pb2.UnregisterBrokerResponse()

    async def QueryRoute(  # noqa: N802
        self, request: name_service_pb2.QueryRouteRequest, context: Any
    ) -> name_service_pb2.QueryRouteResponse:
        """The topic's route, or TOPIC_NOT_EXIST."""
        route = route_table.route(self._table, request.topic)
        self.route_queries[route is not None] += 1
        if route is not None:
            return name_service_pb2.QueryRouteResponse(route=_route_to_proto(route))
        try:
            check_topic(request.topic)
        except IllegalNameError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        remark = f"no living broker has registered the topic {request.topic!r}"
        return name_service_pb2.QueryRouteResponse(code=common_pb2.TOPIC_NOT_EXIST, remark=remark)

    async def ListTopics(  # noqa: N802
        self, _request: name_service_pb2.ListTopicsRequest, _context: Any
    ) -> name_service_pb2.ListTopicsResponse:
        """Every topic that a living broker has."""
        return name_service_pb2.ListTopicsResponse(topics=route_table.topic_list(self._table))

    async def ListClusters(  # noqa: N802
        self, _request: name_service_pb2.ListClustersRequest, _context: Any
    ) -> name_service_pb2.ListClustersResponse:
        """Every living broker, by cluster and name."""
        brokers = route_table.cluster_list(self._table)
        return name_service_pb2.ListClustersResponse(brokers=[_broker_data_to_proto(data) for data in brokers])

    def _register(self, registration: Registration, session: int) -> name_service_pb2.RegisterBrokerResponse:
        """The answer to a registration. Raises RegistrationError and SupersededError."""
        try:
            outcome = route_table.register(self._table, registration, session, self._clock.monotonic())
        except NotLeaderError as error:
            log.warning("a master was refused: %s", error)
            return name_service_pb2.RegisterBrokerResponse(
                code=common_pb2.NOT_LEADER_FOR_QUEUE,
                remark=str(error),
                ha_address=error.ha_address,
                master_epoch=_epoch_to_proto(error.epoch),
            )
        _log_registration(registration, outcome)
        return name_service_pb2.RegisterBrokerResponse(
            ha_address=outcome.ha_address, master_epoch=_epoch_to_proto(outcome.master_epoch)
        )

    async def _read(self, context: Any) -> name_service_pb2.RegisterBrokerRequest | None:
        """The next request; None when the stream has ended or the server stops."""
        read = asyncio.ensure_future(context.read())
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((read, stop), return_when=asyncio.FIRST_COMPLETED)
            if not read.done() or read.result() is grpc.aio.EOF:
                return None
            request: name_service_pb2.RegisterBrokerRequest = read.result()
            return request
        finally:
            read.cancel()
            stop.cancel()


def registration_from_proto(request: name_service_pb2.RegisterBrokerRequest) -> Registration:
    """The request as the core knows it, values unchecked. Raises RegistrationError for a topic that comes twice."""
    topics = {
        one.topic: TopicConfig(one.topic, one.read_queue_count, one.write_queue_count, one.perm)
        for one in request.topics
    }
    if len(topics) != len(request.topics):
        names = [one.topic for one in request.topics]
        twice = next(name for name in names if names.count(name) > 1)
        raise RegistrationError(f"the topic {twice!r} comes more than once in one registration")
    epoch = Epoch(request.epoch.term, request.epoch.start)
    return Registration(_identity_from_proto(request.broker), request.ha_address, topics, request.data_version, epoch)


def describe(identity: BrokerIdentity) -> str:
    """A broker in a log line."""
    return f"broker {identity.broker_name}:{identity.broker_id} at {identity.address}"


def keys(identity: BrokerIdentity) -> dict[str, str | int]:
    """The same for machines."""
    return {
        "broker_name": identity.broker_name,
        "broker_id": identity.broker_id,
        "broker_address": str(identity.address),
    }


def _check_same(first: BrokerIdentity | None, now: BrokerIdentity) -> None:
    if first is not None and first != now:
        raise RegistrationError(
            f"a stream registers one broker; this one began as {describe(first)}, not {describe(now)}"
        )


def _identity_from_proto(broker: name_service_pb2.BrokerIdentity) -> BrokerIdentity:
    return BrokerIdentity(broker.cluster_name, broker.broker_name, broker.broker_id, broker.address)


def _epoch_to_proto(epoch: Epoch) -> replication_service_pb2.Epoch:
    return replication_service_pb2.Epoch(term=epoch.term, start=epoch.start)


def _route_to_proto(route: TopicRoute) -> name_service_pb2.TopicRoute:
    return name_service_pb2.TopicRoute(
        queues=[
            name_service_pb2.QueueData(
                broker_name=name,
                read_queue_count=config.read_queue_count,
                write_queue_count=config.write_queue_count,
                perm=config.perm,
            )
            for name, config in route.queues
        ],
        brokers=[_broker_data_to_proto(data) for data in route.brokers],
    )


def _broker_data_to_proto(data: BrokerData) -> name_service_pb2.BrokerData:
    return name_service_pb2.BrokerData(
        cluster_name=data.cluster_name, broker_name=data.broker_name, addresses=data.addresses
    )


def _log_registration(registration: Registration, outcome: RegisterOutcome) -> None:
    who, count = describe(registration.identity), len(registration.topics)
    if outcome.is_new:
        log.info("%s is registered with %d topics", who, count, extra=keys(registration.identity))
    elif outcome.topics_changed:
        log.info("%s has changed its topics, now %d", who, count)
