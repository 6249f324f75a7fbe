"""The name servers, asked in turn: they never talk to each other, and any one that answers will do (MISSION N4)."""

from __future__ import annotations

import logging

from hourglass.mq.v1 import common_pb2 as common_pb
from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient.errors import MQClientError, NoRouteError, RejectedError, require_success
from mqclient.route import TopicRoute, route_from_wire
from mqclient.transport import Channel, Method, Transport
from mqclient.transport.base import RequestT, ResponseT
from mqclient.transport.methods import LIST_CLUSTERS, LIST_TOPICS, QUERY_ROUTE

logger = logging.getLogger("mqclient.name_servers")


class NameServers:
    """Stays with the name server that answered last."""

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._addresses = list(transport.name_servers)
        # A random first one spreads the clients.
        self._current = transport.rng.randrange(0, len(self._addresses))
        self._channels: dict[str, Channel] = {}

    async def query_route(self, topic: str) -> TopicRoute | None:
        """The topic's route, None when it does not exist. Raises NoRouteError when no name server answers."""
        response = await self._ask(QUERY_ROUTE, name_pb.QueryRouteRequest(topic=topic))
        if response.code == common_pb.TOPIC_NOT_EXIST:
            return None
        require_success(response.code, response.remark, "name server")
        return route_from_wire(topic, response.route)

    async def list_topics(self) -> list[str]:
        """Every topic that a living broker has, sorted."""
        return sorted((await self._ask(LIST_TOPICS, name_pb.ListTopicsRequest())).topics)

    async def list_brokers(self) -> list[name_pb.BrokerData]:
        """Every living broker, sorted by name."""
        response = await self._ask(LIST_CLUSTERS, name_pb.ListClustersRequest())
        return sorted(response.brokers, key=lambda broker: broker.broker_name)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def _ask(self, method: Method[RequestT, ResponseT], request: RequestT) -> ResponseT:
        problems = []
        for _ in self._addresses:
            address = self._addresses[self._current]
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = self._transport.open_channel(address)
            try:
                return await channel.unary(method, request, self._timeout_s)
            except RejectedError:
                raise
            except MQClientError as error:
                logger.info("the name server %s does not answer: %s", address, error)
                problems.append(str(error))
                self._current = (self._current + 1) % len(self._addresses)
        raise NoRouteError(f"no name server answered: {'; '.join(problems)}")
