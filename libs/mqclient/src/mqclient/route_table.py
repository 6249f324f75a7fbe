"""Routes of the topics that this client has met (mechanisms N6, N8).

Invariants: a route stays until a newer one replaces it, so that sending goes on while every name server is down or has
just restarted and knows nothing; one topic is asked for by one task at a time, however many sends wait for it; all
routes name the same addresses of a broker, those that were told last, so that one answer moves everything to a new
master.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient.errors import MQClientError, NoRouteError
from mqclient.lifecycle import BackgroundTasks, SharedCalls
from mqclient.message import MessageQueue
from mqclient.name_servers import MASTER_ID, NameServers, TopicRoute
from mqproto.names import DEFAULT_TOPIC
from osenv import Clock

logger = logging.getLogger("mqclient.route_table")

REFRESH_INTERVAL_S = 0.1  # between two questions where the brokers are, however many sends and polls fail


class RouteTable:
    """The cache, and how it is filled. `changed` is called when brokers have come, gone, or moved."""

    def __init__(
        self,
        name_servers: NameServers,
        default_topic_queue_nums: int,
        tasks: BackgroundTasks,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._name_servers = name_servers
        self._default_topic_queue_nums = default_topic_queue_nums
        self._changed = changed
        self._clock = clock
        self._queries: SharedCalls[str, TopicRoute | None] = SharedCalls(tasks)
        self._asking: SharedCalls[str, None] = SharedCalls(tasks)
        self._brokers_asked_at = float("-inf")  # monotonic
        self._routes: dict[str, TopicRoute] = {}
        self._guesses: dict[str, TopicRoute] = {}  # of topics that do not exist yet
        self._publish_queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}  # addresses by broker name and id
        self._names: dict[str, str] = {}  # of the brokers, by address
        self._follows_all_masters = False
        self._listed: dict[str, Mapping[int, str]] = {}  # of the cluster list

    def known_publish_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """What is cached for sending to `topic`: the hot path's look-up."""
        return self._publish_queues.get(topic)

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues to send to, never empty; for a new topic on the default topic's brokers. Raises NoRouteError."""
        queues = self._publish_queues.get(topic)
        if queues:
            return queues
        if await self.refresh(topic) is None:
            default = await self.refresh(DEFAULT_TOPIC)
            if default is None:
                raise NoRouteError(await self._name_servers.why_no_route(topic))
            self._guess(topic, default)
        queues = self._publish_queues[topic]
        if not queues:
            raise NoRouteError(f"topic {topic!r} has no writable queue: permission denied, or no master available")
        return queues

    def waits_for_master(self, topic: str) -> bool:
        """Whether the topic has queues that cannot be written only because the masters of their brokers are away."""
        route = self._routes.get(topic) or self._guesses.get(topic)
        return route is not None and route.waits_for_master

    async def subscribe_route(self, topic: str) -> TopicRoute | None:
        """The route for reading `topic`; None when it does not exist. Raises NoRouteError when no name server
        answers."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute | None:
        """Ask a name server and remember the answer; None when the topic is not known to exist."""
        return await self._queries.run(topic, partial(self._query, topic), f"mqclient route {topic}")

    async def refresh_after_change(self, topics: Iterable[str]) -> None:
        """These topics have changed: ask for their routes, and not with a question that was under way before.

        Raises nothing; the routes that could not be had are refreshed with all others later.
        """
        for topic in topics:
            try:
                if self._queries.is_running(topic):
                    await self.refresh(topic)
                await self.refresh(topic)
            except MQClientError as error:
                logger.info("the changed route of %s could not be refreshed: %s", topic, error)

    @property
    def follows_all_masters(self) -> bool:
        """Whether every registered master is known, and not only those of the routes."""
        return self._follows_all_masters

    def knows(self, topic: str) -> bool:
        """Whether this client has had a route of the topic, or has sent there for a first message to make it."""
        return topic in self._routes or topic in self._guesses

    async def follow_all_masters(self) -> None:
        """From now on know every registered master, whatever its topics. Raises NoRouteError when no name server
        answers.

        Also after an error the masters are asked for with every refresh.
        """
        self._follows_all_masters = True
        await self._list_masters()

    async def refresh_all(self) -> None:
        """Ask for every topic of the cache anew; topics that were guessed may exist by now (mechanism L7)."""
        steps: list[tuple[str, Callable[[], Awaitable[object]]]] = []
        if self._follows_all_masters:
            steps.append(("the list of masters", self._list_masters))
        steps += [
            (f"the route of {topic}", partial(self.refresh, topic)) for topic in sorted({*self._routes, *self._guesses})
        ]
        for what, step in steps:
            try:
                await step()
            except MQClientError as error:
                logger.warning("%s could not be refreshed, the old one stays: %s", what, error)
                if isinstance(error, NoRouteError):
                    return  # no name server answers, so none would answer for the others either

    async def refresh_brokers(self) -> None:
        """Ask a name server anew where the known brokers are: for callers that find a master that does not serve.

        If it knows nothing new, the other name servers are asked, too. Raises nothing. Concurrent calls share one
        query, and REFRESH_INTERVAL_S later there may be the next one.
        """
        if self._clock.monotonic() < self._brokers_asked_at + REFRESH_INTERVAL_S:
            return
        try:
            await self._asking.run("brokers", self._refresh_brokers, "mqclient addresses of the brokers")
        except MQClientError as error:
            logger.info("the addresses of the brokers could not be refreshed: %s", error)

    def addresses(self, broker_name: str) -> Mapping[int, str]:
        """The addresses of this name's brokers by broker id; 0 is the master. Empty when no route names any."""
        return self._brokers.get(broker_name, {})

    def master_address(self, broker_name: str) -> str | None:
        """The address of the broker's master, by the cached routes."""
        return self.addresses(broker_name).get(MASTER_ID)

    @property
    def lack_masters(self) -> bool:
        """Whether a broker is known of which only replicas are there."""
        return any(addresses and MASTER_ID not in addresses for addresses in self._brokers.values())

    def master_addresses(self) -> set[str]:
        return {addresses[MASTER_ID] for addresses in self._brokers.values() if MASTER_ID in addresses}

    def all_addresses(self) -> set[str]:
        """Of masters and replicas."""
        return set(self._names)

    def broker_names(self) -> list[str]:
        """Every broker that is known, sorted."""
        return sorted(self._brokers)

    def broker_name(self, address: str) -> str | None:
        """The name of the broker whose master or replica listens there."""
        return self._names.get(address)

    def is_master(self, address: str) -> bool:
        """Whether it is a master that listens there, as far as is known."""
        name = self._names.get(address)
        return name is not None and self.master_address(name) == address

    async def _refresh_brokers(self) -> None:
        try:
            if self._follows_all_masters:
                await self._list_masters(self._is_news)
            else:
                told = await self._list(self._is_news)
                self._take_over({name: told[name] for name in self._brokers.keys() & told.keys()})
        finally:
            self._brokers_asked_at = self._clock.monotonic()

    async def _list_masters(self, is_enough: Callable[[Iterable[name_pb.BrokerData]], bool] = lambda _: True) -> None:
        listed = await self._list(is_enough)
        if listed:  # an empty list is that of a name server that has just started
            self._listed = listed
            self._take_over(listed)

    async def _list(self, is_enough: Callable[[Iterable[name_pb.BrokerData]], bool]) -> dict[str, Mapping[int, str]]:
        """The addresses of all registered brokers, by name and id; of one name server if that `is_enough`."""
        brokers = await self._name_servers.list_brokers(is_enough, "where the brokers are")
        return {broker.broker_name: dict(broker.addresses) for broker in brokers}

    def _is_news(self, brokers: Iterable[name_pb.BrokerData]) -> bool:
        """Whether a known broker is elsewhere, or in another role, than is known here."""
        return any(
            dict(broker.addresses) != self._brokers.get(broker.broker_name, broker.addresses) for broker in brokers
        )

    async def _query(self, topic: str) -> TopicRoute | None:
        route = await self._name_servers.query_route(topic)
        if route is None:
            return self._routes.get(topic)
        self._guesses.pop(topic, None)
        self._store(self._routes, route)
        if topic == DEFAULT_TOPIC:
            for guessed in list(self._guesses):
                self._guess(guessed, route)
        return route

    def _guess(self, topic: str, default: TopicRoute) -> None:
        """Expect the topic where its first message can create it: on the brokers of the default topic."""
        self._store(self._guesses, default.for_new_topic(topic, self._default_topic_queue_nums))

    def _store(self, into: dict[str, TopicRoute], route: TopicRoute) -> None:
        if into.get(route.topic) == route:
            return
        into[route.topic] = route
        self._publish_queues[route.topic] = route.publish_queues()
        self._take_over(route.brokers)

    def _take_over(self, told: Mapping[str, Mapping[int, str]]) -> None:
        """Let everything that is known name the brokers of `told` where they are now."""
        self._listed = {name: told.get(name, addresses) for name, addresses in self._listed.items()}
        for into in (self._guesses, self._routes):
            for topic, route in into.items():
                agreeing = route.with_addresses(told)
                if agreeing is not route:
                    into[topic] = agreeing
                    self._publish_queues[topic] = agreeing.publish_queues()
        brokers = dict(self._listed)
        for known in (*self._guesses.values(), *self._routes.values()):
            brokers.update(known.brokers)
        if brokers != self._brokers:
            self._brokers = brokers
            self._names = {address: name for name, addresses in brokers.items() for address in addresses.values()}
            self._changed()
