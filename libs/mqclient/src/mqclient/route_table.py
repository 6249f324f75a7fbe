"""Routes of the topics that this client has met (MISSION N6, N8).

Invariants: a route stays until a newer one replaces it, so that sending goes on while every name server is down or has
just restarted and knows nothing; one topic is asked for by one task at a time, however many sends wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from mqclient.background import BackgroundTasks
from mqclient.errors import MQClientError, NoRouteError
from mqclient.message_queue import MessageQueue
from mqclient.name_servers import NameServers
from mqclient.route import MASTER_ID, TopicRoute
from mqclient.shared_calls import SharedCalls
from mqproto.names import DEFAULT_TOPIC

logger = logging.getLogger("mqclient.route_table")


class RouteTable:
    """The cache, and how it is filled. `changed` is called after every route that differs from what was known."""

    def __init__(
        self,
        name_servers: NameServers,
        default_topic_queue_nums: int,
        tasks: BackgroundTasks,
        changed: Callable[[], None],
    ) -> None:
        self._name_servers = name_servers
        self._default_topic_queue_nums = default_topic_queue_nums
        self._changed = changed
        self._queries: SharedCalls[str, TopicRoute | None] = SharedCalls(tasks)
        self._routes: dict[str, TopicRoute] = {}
        self._guesses: dict[str, TopicRoute] = {}  # of topics that do not exist yet
        self._publish_queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._masters: dict[str, str] = {}
        self._follows_all_masters = False
        self._listed_masters: dict[str, str] = {}  # of the cluster list

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
                raise NoRouteError(f"no living broker has the topic {topic!r}, and none creates topics by itself")
            self._guess(topic, default)
        queues = self._publish_queues[topic]
        if not queues:
            raise NoRouteError(f"no queue of the topic {topic!r} can be written: not allowed, or no master lives")
        return queues

    async def subscribe_route(self, topic: str) -> TopicRoute | None:
        """The route for reading `topic`; None when it does not exist. Raises NoRouteError when nobody answers."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute | None:
        """Ask a name server and remember the answer; None when the topic is not known to exist."""
        return await self._queries.run(topic, partial(self._query, topic), f"mqclient route {topic}")

    async def follow_all_masters(self) -> None:
        """From now on know every living master, whatever its topics. Raises NoRouteError when nobody answers.

        Also after an error the masters are asked for with every refresh.
        """
        self._follows_all_masters = True
        await self._list_masters()

    async def refresh_all(self) -> None:
        """Ask for every topic of the cache anew; topics that were guessed may exist by now (MISSION L7)."""
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

    def master_address(self, broker_name: str) -> str | None:
        """Where the broker's master listens, as far as any cached route says."""
        return self._masters.get(broker_name)

    def master_addresses(self) -> set[str]:
        return set(self._masters.values())

    def broker_name(self, master_address: str) -> str | None:
        """Whose master listens there."""
        return next((name for name, address in self._masters.items() if address == master_address), None)

    async def _list_masters(self) -> None:
        listed = {
            broker.broker_name: broker.addresses[MASTER_ID]
            for broker in await self._name_servers.list_brokers()
            if MASTER_ID in broker.addresses
        }
        if listed and listed != self._listed_masters:  # an empty list is that of a name server that has just started
            self._listed_masters = listed
            self._find_masters()

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
        self._find_masters()

    def _find_masters(self) -> None:
        """Put together what the list and the routes say; a route is asked for more often, so it counts for more."""
        self._masters = self._listed_masters | {
            name: addresses[MASTER_ID]
            for known in (*self._guesses.values(), *self._routes.values())
            for name, addresses in known.brokers.items()
            if MASTER_ID in addresses
        }
        self._changed()
