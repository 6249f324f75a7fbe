"""The name servers, asked in turn: they never talk to each other, and any one that answers will do (MISSION N4).

Invariants: a list of addresses stays until another one that is not empty replaces it (MISSION N7); there is a channel
to listed addresses only; whoever asks has asked every listed name server once before it hears that none answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from functools import partial

from hourglass.mq.v1 import common_pb2 as common_pb
from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient.background import BackgroundTasks
from mqclient.client_config import ClientConfig
from mqclient.errors import MQClientError, NoRouteError, RejectedError, require_success
from mqclient.route import TopicRoute, route_from_wire
from mqclient.shared_calls import SharedCalls
from mqclient.transport import Channel, Method, NameServerSource, Transport
from mqclient.transport.base import RequestT, ResponseT
from mqclient.transport.methods import LIST_CLUSTERS, LIST_TOPICS, QUERY_ROUTE
from osenv.clock import timeout

logger = logging.getLogger("mqclient.name_servers")


NAMED_MAX = 5  # brokers in an error's sentence


def no_broker(addresses: str) -> str:
    """The sentence about name servers that know no broker."""
    return (
        f"no broker is registered at the name server {addresses}; brokers register with namesrvAddr (or -n) naming it"
    )


class NameServers:
    """Stays with the name server that answered last."""

    def __init__(self, transport: Transport, config: ClientConfig, tasks: BackgroundTasks) -> None:
        self._transport = transport
        self._config = config
        self._tasks = tasks
        self._source = transport.name_server_source
        self._look_ups: SharedCalls[str, tuple[str, ...]] = SharedCalls(tasks)
        self._closed = False
        self._addresses: tuple[str, ...] = ()
        self._current = ""
        self._channels: dict[str, Channel] = {}
        if transport.name_servers:
            self._use(transport.name_servers)

    @property
    def are_looked_up(self) -> bool:
        """Whether the addresses come from a source that may change its mind, and not from the URL."""
        return self._source is not None

    async def look_up(self) -> None:
        """Ask the source for the addresses (MISSION L6). Raises NoRouteError; the addresses before stay then."""
        source = self._source
        if source is not None:
            ask = partial(self._ask_source, source)
            self._use(await self._look_ups.run(str(source), ask, "mqclient look-up of name servers"))

    async def query_route(self, topic: str) -> TopicRoute | None:
        """The topic's route, None when it does not exist. Raises NoRouteError when no name server answers."""
        response = await self._ask(QUERY_ROUTE, name_pb.QueryRouteRequest(topic=topic))
        if response.code == common_pb.TOPIC_NOT_EXIST:
            return None
        require_success(response.code, response.remark, "name server")
        return route_from_wire(topic, response.route)

    async def find_route(self, topic: str) -> TopicRoute | None:
        """The topic's route from any name server; None when each of them knows brokers and none that has the topic.

        A name server may know less than the others for a moment after its start. Raises NoRouteError when one does not
        answer, or knows no broker at all.
        """
        route = await self.query_route(topic)
        if route is not None and route.queues:
            return route
        for address in self._addresses:
            channel, seconds = self._channel(address), self._config.name_server_timeout_s
            try:
                response = await channel.unary(QUERY_ROUTE, name_pb.QueryRouteRequest(topic=topic), seconds)
                brokers = (await channel.unary(LIST_CLUSTERS, name_pb.ListClustersRequest(), seconds)).brokers
            except MQClientError as error:
                raise NoRouteError(
                    f"whether topic {topic!r} exists is unknown: no answer of {address}: {error}"
                ) from error
            if response.code == common_pb.SUCCESS and response.route.queues:
                return route_from_wire(topic, response.route)
            if not brokers:
                raise NoRouteError(f"whether topic {topic!r} exists is unknown: {no_broker(address)}")
        return None

    async def why_no_route(self, topic: str) -> str:
        """Why no message can be sent to the topic, which has no route, and what to do. Raises NoRouteError."""
        brokers = await self.list_brokers()
        if not brokers:
            return no_broker("; ".join(self._addresses))
        names = ", ".join(broker.broker_name for broker in brokers[:NAMED_MAX])
        more = f" and {len(brokers) - NAMED_MAX} more" if len(brokers) > NAMED_MAX else ""
        return (
            f"no living broker has the topic {topic!r}, and none creates topics by itself (autoCreateTopicEnable=false "
            f"at {names}{more}); create it: mqadmin updateTopic -t {topic}"
        )

    async def list_topics(self) -> list[str]:
        """Every topic that a living broker has, sorted."""
        return sorted((await self._ask(LIST_TOPICS, name_pb.ListTopicsRequest())).topics)

    async def list_brokers(self) -> list[name_pb.BrokerData]:
        """Every living broker, sorted by name."""
        response = await self._ask(LIST_CLUSTERS, name_pb.ListClustersRequest())
        return sorted(response.brokers, key=lambda broker: broker.broker_name)

    async def close(self) -> None:
        """Let every connection go; whoever asks from now on hears a NoRouteError."""
        self._closed = True
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))

    async def _ask_source(self, source: NameServerSource) -> tuple[str, ...]:
        seconds = self._config.name_server_lookup_timeout_s
        try:
            async with timeout(self._transport.clock, seconds):
                return await source.look_up()
        except TimeoutError:
            raise NoRouteError(f"{source} did not tell the name servers within {seconds:g} s") from None

    def _use(self, addresses: Sequence[str]) -> None:
        """From now on ask these; the current one stays the current one if it is among them."""
        gone = set(self._addresses) - set(addresses)
        if gone or len(addresses) != len(self._addresses):
            logger.info("the name servers are now %s", "; ".join(addresses))
        self._addresses = tuple(addresses)
        if self._current not in addresses:
            self._current = self._transport.rng.choice(self._addresses)  # a random one spreads the clients
        for address in gone:
            channel = self._channels.pop(address, None)
            if channel is not None:
                self._tasks.start(channel.close(), f"mqclient close {address}")

    async def _ask(self, method: Method[RequestT, ResponseT], request: RequestT) -> ResponseT:
        if not self._addresses:
            await self.look_up()
        problems: dict[str, str] = {}
        while not self._closed and (address := self._next(problems)) is not None:
            try:
                response = await self._channel(address).unary(method, request, self._config.name_server_timeout_s)
            except RejectedError:
                raise
            except MQClientError as error:
                logger.info("the name server %s does not answer: %s", address, error)
                problems[address] = str(error)
            else:
                if address in self._addresses:
                    self._current = address
                return response
        why = "the client has been shut down" if self._closed else "; ".join(problems.values())
        raise NoRouteError(f"no name server answered: {why}")

    def _next(self, tried: Collection[str]) -> str | None:
        """The first one from the current one on that was not tried yet."""
        at = self._addresses.index(self._current)
        untried = (address for address in self._addresses[at:] + self._addresses[:at] if address not in tried)
        return next(untried, None)

    def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._transport.open_channel(address)
        return channel
