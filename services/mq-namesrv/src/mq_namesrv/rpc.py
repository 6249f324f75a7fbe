"""NameService over gRPC: takes messages apart, calls the core's steps, and turns its errors into statuses."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from hourglass.mq.v1 import common_pb2, name_service_pb2, name_service_pb2_grpc, replication_service_pb2
from mq_namesrv.core import route_table
from mq_namesrv.core.registration import (
    BROKER_STREAMS_MAX,
    FIRST_REQUEST_S_MAX,
    NAME_CHARACTERS_MAX,
    NO_EPOCH,
    TEXT_CHARACTERS_MAX,
    TOPIC_COUNT_MAX,
    TOPICS_PER_PAGE_MAX,
    TOPICS_PER_STEP,
    TOPICS_TOTAL_MAX,
    AnnouncedTopics,
    BrokerIdentity,
    Epoch,
    NotLeaderError,
    Registration,
    RegistrationError,
    TopicConfig,
)
from mq_namesrv.core.route_table import BrokerData, RegisterOutcome, RouteTable, SupersededError, TopicRoute
from mqproto.grpc_options import FieldLimitError, FieldLimits
from mqproto.names import IllegalNameError, check_topic
from osenv import Clock
from osenv.clock import timeout

log = logging.getLogger(__name__)

# Of each text and repeated field of a request; the core checks which names and addresses are legal.
REQUEST_LIMITS = FieldLimits(
    {
        "BrokerIdentity.address": TEXT_CHARACTERS_MAX,
        "BrokerIdentity.broker_name": TEXT_CHARACTERS_MAX,
        "BrokerIdentity.cluster_name": TEXT_CHARACTERS_MAX,
        "ListTopicsRequest.after": NAME_CHARACTERS_MAX,
        "QueryRouteRequest.topic": NAME_CHARACTERS_MAX,
        "RegisterBrokerRequest.deleted_topics": TOPICS_PER_STEP,
        "RegisterBrokerRequest.frames_address": TEXT_CHARACTERS_MAX,
        "RegisterBrokerRequest.ha_address": TEXT_CHARACTERS_MAX,
        "RegisterBrokerRequest.topics": TOPIC_COUNT_MAX,  # more of them are left out one by one, in steps
        "TopicConfig.topic": NAME_CHARACTERS_MAX,  # checked by name when its turn comes
    }
)
_CHECKED_FIELDS = ("broker", "ha_address", "frames_address", "deleted_topics")


class NameServiceServicer(name_service_pb2_grpc.NameServiceServicer):
    """The RPCs of `hourglass.mq.v1.NameService`, over one table."""

    def __init__(self, table: RouteTable, clock: Clock, expiry_s: Callable[[], float]) -> None:
        """`expiry_s` is how long a broker may be silent now, before it is dropped."""
        self._table = table
        self._clock = clock
        self._expiry_s = expiry_s
        self._sessions = itertools.count(1)  # a newer stream has a larger number
        self._stopping = asyncio.Event()
        self._open_streams = 0
        self.route_queries = {True: 0, False: 0}  # with a route, and without one

    def stop(self) -> None:
        """End every registration stream, so that brokers look for this name server anew."""
        self._stopping.set()

    async def RegisterBroker(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """One broker's stream: registrations of one request or several; the end of the stream is the broker's end.

        Each request has one answer, and there is no other: a replica hears of another master when it registers again. A
        master that was replaced is told so, each time, and its stream stays open. One beyond `BROKER_STREAMS_MAX` is
        rejected, and so is one on which nothing comes.

        Reads and writes through `context`, which the stubs don't know: a generator would not end when its peer does.
        """
        session = next(self._sessions)
        first: BrokerIdentity | None = None
        announced = AnnouncedTopics()
        if self._open_streams >= BROKER_STREAMS_MAX:
            sentence = f"{self._open_streams} brokers are registered or registering; at most {BROKER_STREAMS_MAX} can"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)
        self._open_streams += 1
        try:
            while (request := await self._read(context, is_first=first is None)) is not None:
                REQUEST_LIMITS.check(request, _CHECKED_FIELDS)
                identity = _identity_from_proto(request.broker)
                _check_same(first, identity)
                first = identity
                await self._take_topics(request, identity, announced)
                await context.write(self._answer(request, identity, announced, session))
        except TimeoutError:
            sentence = f"no registration within {FIRST_REQUEST_S_MAX:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, sentence)
        except (RegistrationError, FieldLimitError) as error:
            log.warning("a registration was rejected: %s", error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except SupersededError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        finally:
            self._open_streams -= 1
            for broker in route_table.close_session(self._table, session, self._clock.monotonic()):
                identity = broker.registration.identity
                log.info("%s is gone: its stream ended", describe(identity), extra=keys(identity))

    async def UnregisterBroker(
        self, request: name_service_pb2.UnregisterBrokerRequest, context: Any
    ) -> name_service_pb2.UnregisterBrokerResponse:
        """Remove the broker; not being registered is what the caller wants, and so no error."""
        try:
            REQUEST_LIMITS.check(request)
            identity = _identity_from_proto(request.broker)
            removed = route_table.unregister(self._table, identity, self._clock.monotonic())
        except (RegistrationError, FieldLimitError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if removed is not None:
            log.info("%s is gone: it unregistered", describe(identity), extra=keys(identity))
        return name_service_pb2.UnregisterBrokerResponse()

    async def QueryRoute(
        self, request: name_service_pb2.QueryRouteRequest, context: Any
    ) -> name_service_pb2.QueryRouteResponse:
        """The topic's route, or TOPIC_NOT_EXIST."""
        route = route_table.route(self._table, request.topic)
        self.route_queries[route is not None] += 1
        if route is not None:
            uncertain = self._is_uncertain(data.broker_name for data in route.brokers)
            return name_service_pb2.QueryRouteResponse(
                route=_route_to_proto(route),
                uncertain=uncertain,
                away_brokers=route_table.away_brokers(self._table, request.topic),
            )
        try:
            REQUEST_LIMITS.check(request)
            check_topic(request.topic)
        except (IllegalNameError, FieldLimitError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        remark = f"no registered broker has the topic {request.topic!r}"
        return name_service_pb2.QueryRouteResponse(
            code=common_pb2.TOPIC_NOT_EXIST,
            remark=remark,
            uncertain=self._is_uncertain(),
            away_brokers=route_table.away_brokers(self._table, request.topic),
        )

    async def ListTopics(
        self, request: name_service_pb2.ListTopicsRequest, context: Any
    ) -> name_service_pb2.ListTopicsResponse:
        """The topics that registered brokers have, and those that are away if wanted; page by page, or all at once for
        an earlier client.
        """
        try:
            REQUEST_LIMITS.check(request)
        except FieldLimitError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if request.topics_max <= 0:
            return name_service_pb2.ListTopicsResponse(topics=route_table.topic_list(self._table, request.after))
        count_max = min(request.topics_max, TOPICS_PER_PAGE_MAX)
        topics = route_table.topic_list(self._table, request.after, count_max + 1, with_away=request.with_away)
        return name_service_pb2.ListTopicsResponse(topics=topics[:count_max], more_follow=len(topics) > count_max)

    async def ListClusters(
        self, _request: name_service_pb2.ListClustersRequest, _context: Any
    ) -> name_service_pb2.ListClustersResponse:
        """Every registered broker, by cluster and name."""
        brokers = route_table.cluster_list(self._table)
        return name_service_pb2.ListClustersResponse(
            brokers=[_broker_data_to_proto(data) for data in brokers],
            uncertain=self._is_uncertain(data.broker_name for data in brokers),
        )

    def _is_uncertain(self, names: Iterable[str] = ()) -> bool:
        return route_table.is_uncertain(self._table, names, self._clock.monotonic(), self._expiry_s())

    async def _take_topics(
        self, request: name_service_pb2.RegisterBrokerRequest, identity: BrokerIdentity, announced: AnnouncedTopics
    ) -> None:
        """Bring the topics up to date with the request, with a turn of the event loop after each step.

        Raises RegistrationError.
        """
        room = min(TOPIC_COUNT_MAX, TOPICS_TOTAL_MAX - route_table.topics_of_others(self._table, identity))
        announced.begin(adds=request.adds)
        announced.remove(request.deleted_topics)
        for begin in range(0, len(request.topics), TOPICS_PER_STEP):
            part = request.topics[begin : begin + TOPICS_PER_STEP]
            announced.add(map(_topic_from_proto, part), room)
            await asyncio.sleep(0)

    def _answer(
        self,
        request: name_service_pb2.RegisterBrokerRequest,
        identity: BrokerIdentity,
        announced: AnnouncedTopics,
        session: int,
    ) -> name_service_pb2.RegisterBrokerResponse:
        """The answer to a request, which may complete a registration. Raises RegistrationError and SupersededError."""
        if request.more_follows:
            return name_service_pb2.RegisterBrokerResponse(takes_parts=True)
        epoch = Epoch(request.epoch.term, request.epoch.start)
        topics = announced.topics()
        registration = Registration(
            identity,
            request.ha_address,
            topics,
            request.data_version,
            epoch,
            is_restored=request.restored,
            frames_address=request.frames_address,
        )
        response = self._register(registration, session)
        response.takes_parts = True
        response.topics_left_out = announced.left_out
        if announced.left_out and response.code == common_pb2.SUCCESS:
            response.remark = (
                f"{announced.left_out} topics are left out, for there are too many: a broker has routes for "
                f"{TOPIC_COUNT_MAX} at most, and all brokers together for {TOPICS_TOTAL_MAX}"
            )
            log.warning("%s: %s", describe(identity), response.remark)
        return response

    def _register(self, registration: Registration, session: int) -> name_service_pb2.RegisterBrokerResponse:
        """The answer to a registration. Raises RegistrationError and SupersededError."""
        try:
            outcome = route_table.register(self._table, registration, session, self._clock.monotonic())
        except NotLeaderError as error:
            log.warning("a master was rejected: %s", error)
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

    async def _read(self, context: Any, *, is_first: bool) -> name_service_pb2.RegisterBrokerRequest | None:
        """The next request; None when the stream has ended or the server stops.

        Raises TimeoutError when the first one does not come in time.
        """
        if is_first:
            async with timeout(self._clock, FIRST_REQUEST_S_MAX):
                return await self._read(context, is_first=False)
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


def _topic_from_proto(one: common_pb2.TopicConfig) -> TopicConfig:
    return TopicConfig(one.topic, one.read_queue_count, one.write_queue_count, one.perm)


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
        cluster_name=data.cluster_name,
        broker_name=data.broker_name,
        addresses=data.addresses,
        frames_addresses=data.frames_addresses,
        master_epoch=None if data.master_epoch == NO_EPOCH else _epoch_to_proto(data.master_epoch),
    )


def _log_registration(registration: Registration, outcome: RegisterOutcome) -> None:
    broker, count = describe(registration.identity), len(registration.topics)
    if outcome.is_new:
        log.info("%s is registered with %d topics", broker, count, extra=keys(registration.identity))
    elif outcome.topics_changed:
        log.info("%s has changed its topics, now %d", broker, count)
