"""Name servers, and the routes that they give.

The name servers never talk to each other, and one of them may be cut off from brokers (ADR 110).

Invariants: a list of addresses stays until another one that is not empty replaces it; there is a channel to listed
addresses only; a query fails only after every listed name server was asked once; a doubtful answer counts only when
every other name server has been asked, too, within the last OPINION_PAUSE_S.

An answer is doubtful when it names no queue, or no master for a broker name, or a master with a lower epoch than one
that is known, or when the name server says that it is uncertain. Of several answers the best one counts, and its name
server is asked first from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic

from google.protobuf.message import Message

from hourglass.mq.v1 import common_pb2 as common_pb
from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient.config import ClientConfig
from mqclient.errors import MQClientError, NoRouteError, RejectedError, require_success
from mqclient.lifecycle import BackgroundTasks, SharedCalls
from mqclient.message import MessageQueue
from mqclient.transport import Channel, Method, NameServerSource, RequestT, ResponseT, Transport
from mqclient.transport.methods import LIST_CLUSTERS, LIST_TOPICS, QUERY_ROUTE
from mqproto.codes import Permission
from osenv.clock import timeout

logger = logging.getLogger("mqclient.name_servers")

MASTER_ID = 0

NAMED_MAX = 5  # brokers in an error's sentence
TOPICS_PER_PAGE = 10_000  # of a list of them; 1.3 MB with the longest names
IN_IDS_MAX = 4_096  # brokers of which it is remembered how ids name them
OPINION_PAUSE_S = 1.0  # for which the other name servers are not asked the same question again
SILENT_PAUSE_S = 10.0  # for which a name server that has not answered is not asked for its opinion

Epoch = tuple[int, int]  # term and start
Brokers = Iterable[name_pb.BrokerData]


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """What one broker name offers of a topic; `perm` has RocketMQ's bits."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic's queues and the addresses of the brokers that have them, by broker name and broker id."""

    topic: str
    queues: tuple[BrokerQueues, ...]
    brokers: Mapping[str, Mapping[int, str]]

    def publish_queues(self) -> tuple[MessageQueue, ...]:
        """Queues that can be written: allowed, and on a broker that has a master. Sorted."""
        return tuple(
            sorted(
                MessageQueue(self.topic, queues.broker_name, queue_id)
                for queues in self.queues
                if queues.perm & Permission.WRITE and MASTER_ID in self.brokers.get(queues.broker_name, {})
                for queue_id in range(queues.write_queue_count)
            )
        )

    def subscribe_queues(self) -> tuple[MessageQueue, ...]:
        """Queues that can be read. Sorted."""
        return tuple(
            sorted(
                MessageQueue(self.topic, queues.broker_name, queue_id)
                for queues in self.queues
                if queues.perm & Permission.READ and self.brokers.get(queues.broker_name)
                for queue_id in range(queues.read_queue_count)
            )
        )

    @property
    def waits_for_master(self) -> bool:
        """Whether there are queues that only a missing master keeps from being written."""
        return any(
            queues.perm & Permission.WRITE
            and queues.write_queue_count
            and MASTER_ID not in self.brokers.get(queues.broker_name, {MASTER_ID: ""})
            for queues in self.queues
        )

    def with_addresses(self, told: Mapping[str, Mapping[int, str]]) -> TopicRoute:
        """This route, and its brokers where `told` says that they are; itself when nothing differs."""
        if all(told.get(name, addresses) == addresses for name, addresses in self.brokers.items()):
            return self
        return replace(self, brokers={name: told.get(name, addresses) for name, addresses in self.brokers.items()})

    def for_new_topic(self, topic: str, queue_count_max: int) -> TopicRoute:
        """This route, the default topic's, as the guess for `topic`, which the first message will create.

        Mechanism N8.
        """
        queues = tuple(
            BrokerQueues(
                queues.broker_name,
                min(queue_count_max, queues.read_queue_count),
                min(queue_count_max, queues.write_queue_count),
                queues.perm,
            )
            for queues in self.queues
        )
        return TopicRoute(topic, queues, self.brokers)


def route_from_wire(topic: str, route: name_pb.TopicRoute) -> TopicRoute:
    """The answer of a name server as a TopicRoute."""
    return TopicRoute(
        topic,
        tuple(
            BrokerQueues(data.broker_name, data.read_queue_count, data.write_queue_count, data.perm)
            for data in route.queues
        ),
        {data.broker_name: dict(data.addresses) for data in route.brokers},
    )


def no_broker(addresses: str) -> str:
    """The message for name servers without brokers."""
    return (
        f"no broker is registered at the name server {addresses}; brokers register with namesrvAddr (or -n) naming it"
    )


@dataclass(frozen=True, slots=True)
class _Answer(Generic[ResponseT]):
    address: str  # of the name server
    response: ResponseT


class NameServers:
    """Stays with the name server that gave the best answer last."""

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
        self._epochs: dict[str, Epoch] = {}  # of each broker name's masters, in the answer that counted last
        self._asked_everywhere: dict[str, float] = {}  # questions, and when (monotonic)
        self._in_ids: dict[str, str] = {}  # addresses of brokers here -> in ids by position
        self._silent: dict[str, float] = {}  # name servers that have not answered, and when (monotonic)
        if transport.name_servers:
            self._use(transport.name_servers)

    @property
    def are_looked_up(self) -> bool:
        """Whether the addresses come from a source that may change its mind, and not from the URL."""
        return self._source is not None

    async def look_up(self) -> None:
        """Ask the source for the addresses (mechanism L6). Raises NoRouteError; the addresses before stay then."""
        source = self._source
        if source is not None:
            ask = partial(self._ask_source, source)
            self._use(await self._look_ups.run(str(source), ask, "mqclient look-up of name servers"))

    async def query_route(self, topic: str) -> TopicRoute | None:
        """The topic's route, None when it does not exist. Raises NoRouteError when no name server answers."""

        def is_doubtful(response: name_pb.QueryRouteResponse) -> bool:
            return not response.route.queues or response.uncertain or self._are_doubtful(response.route.brokers)

        request = name_pb.QueryRouteRequest(topic=topic)
        answers = await self._ask(QUERY_ROUTE, request, f"route of {topic}", is_doubtful)
        newest = _newest_epochs(answer.response.route.brokers for answer in answers)

        def rank(answer: _Answer[name_pb.QueryRouteResponse]) -> tuple[bool, int, int, bool]:
            route = answer.response.route
            outdated = sum(_epoch(broker) < newest[broker.broker_name] for broker in route.brokers)
            masters = sum(MASTER_ID in broker.addresses for broker in route.brokers)
            return bool(route.queues), -outdated, masters, not answer.response.uncertain

        best = self._stay_with(max(answers, key=rank))
        if best.code == common_pb.TOPIC_NOT_EXIST:
            return None
        require_success(best.code, best.remark, "name server")
        self._remember_epochs(best.route.brokers)
        return route_from_wire(topic, best.route)

    async def find_route(self, topic: str) -> TopicRoute | None:
        """The topic's route from any name server; None when each of them knows brokers and none that has the topic.

        A name server may know less than the others for a moment after its start. Raises NoRouteError when one does not
        answer, or knows no broker at all.
        """
        route = await self.query_route(topic)
        if route is not None and route.queues:
            return route
        for address in self._addresses:
            try:
                response = await self._call(address, QUERY_ROUTE, name_pb.QueryRouteRequest(topic=topic))
                brokers = (await self._call(address, LIST_CLUSTERS, name_pb.ListClustersRequest())).brokers
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
            f"no registered broker has the topic {topic!r}, and none creates topics by itself "
            f"(autoCreateTopicEnable=false at {names}{more}); create it: mqadmin updateTopic -t {topic}"
        )

    async def away_brokers(self, topic: str) -> list[str]:
        """The broker names that had the topic and have left a moment ago, as far as any name server knows, sorted."""
        request = name_pb.QueryRouteRequest(topic=topic)
        answers = [answer.response for answer in await self._ask(QUERY_ROUTE, request, "", lambda _: True)]
        living = {broker.broker_name for answer in answers for broker in answer.route.brokers}
        return sorted({name for answer in answers for name in answer.away_brokers} - living)

    async def list_topics(self, *, with_away: bool = False) -> list[str]:
        """Every topic that a registered broker has, or one that is away, as far as any name server knows, sorted."""
        topics, after = set[str](), ""
        while True:
            request = name_pb.ListTopicsRequest(after=after, topics_max=TOPICS_PER_PAGE, with_away=with_away)
            answers = await self._ask(LIST_TOPICS, request, "", lambda _: True)
            topics.update(topic for answer in answers for topic in answer.response.topics)
            ends = [answer.response.topics[-1] for answer in answers if answer.response.more_follow]
            if not ends:
                return sorted(topics)
            after = min(ends)  # the pages of different name servers end at different topics

    async def list_brokers(
        self, is_enough: Callable[[Brokers], bool] = lambda _: False, question: str = ""
    ) -> list[name_pb.BrokerData]:
        """Every registered broker as far as any name server knows, sorted by name.

        One name server is asked if its answer is neither doubtful nor fails `is_enough`. Callers that ask again and
        again name their `question`.
        """

        def is_doubtful(response: name_pb.ListClustersResponse) -> bool:
            brokers = response.brokers
            return not is_enough(brokers) or response.uncertain or not brokers or self._are_doubtful(brokers)

        answers = await self._ask(LIST_CLUSTERS, name_pb.ListClustersRequest(), question, is_doubtful)
        best: dict[str, tuple[tuple[Epoch, bool, bool], name_pb.BrokerData]] = {}
        for response in (answer.response for answer in answers):
            for broker in response.brokers:
                rank = (_epoch(broker), MASTER_ID in broker.addresses, not response.uncertain)
                if broker.broker_name not in best or rank > best[broker.broker_name][0]:
                    best[broker.broker_name] = rank, broker
        brokers = [best[name][1] for name in sorted(best)]
        self._remember_epochs(brokers)
        self._stay_with(max(answers, key=lambda answer: sum(broker in brokers for broker in answer.response.brokers)))
        return brokers

    async def close(self) -> None:
        """Close every connection; queries raise NoRouteError from now on."""
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
        """Use these addresses; the current one stays current if it is among them."""
        gone = set(self._addresses) - set(addresses)
        if gone or len(addresses) != len(self._addresses):
            logger.info("the name servers are now %s", "; ".join(addresses))
        self._addresses = tuple(addresses)
        if self._current not in addresses:
            self._current = self._transport.rng.choice(self._addresses)  # a random one spreads the clients
        for address in gone:
            channel = self._channels.pop(address, None)
            self._silent.pop(address, None)
            if channel is not None:
                self._tasks.start(channel.close(), f"mqclient close {address}")

    async def _ask(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        question: str,
        is_doubtful: Callable[[ResponseT], bool],
    ) -> list[_Answer[ResponseT]]:
        """The answer of the current name server, or of the next one that answers; if it is doubtful, all answers.

        A question that has a name is asked everywhere once in OPINION_PAUSE_S. Raises NoRouteError.
        """
        if not self._addresses:
            await self.look_up()
        problems: dict[str, str] = {}
        while not self._closed and (address := self._next(problems)) is not None:
            answer = await self._ask_one(address, method, request)
            if isinstance(answer, str):
                problems[address] = answer
            elif is_doubtful(answer.response) and self._may_ask_everywhere(question):
                return [answer, *await self._ask_others({address, *problems}, method, request)]
            else:
                self._stay_with(answer)
                return [answer]
        why = "the client has been shut down" if self._closed else "; ".join(problems.values())
        raise NoRouteError(f"no name server answered: {why}")

    async def _ask_others(
        self, asked: Collection[str], method: Method[RequestT, ResponseT], request: RequestT
    ) -> list[_Answer[ResponseT]]:
        """The answers of the others, which are asked at the same time, without those that are known to be silent."""
        silent_since = self._transport.clock.monotonic() - SILENT_PAUSE_S
        others = [
            address
            for address in self._addresses
            if address not in asked and self._silent.get(address, silent_since) <= silent_since
        ]
        answers = await asyncio.gather(*(self._ask_one(address, method, request) for address in others))
        return [answer for answer in answers if not isinstance(answer, str)]

    async def _ask_one(
        self, address: str, method: Method[RequestT, ResponseT], request: RequestT
    ) -> _Answer[ResponseT] | str:
        """Its answer, or why there is none. Raises RejectedError."""
        try:
            response = await self._call(address, method, request)
        except RejectedError:
            raise
        except MQClientError as error:
            logger.info("the name server %s does not answer: %s", address, error)
            self._silent[address] = self._transport.clock.monotonic()
            return str(error)
        self._silent.pop(address, None)
        return _Answer(address, response)

    async def _call(self, address: str, method: Method[RequestT, ResponseT], request: RequestT) -> ResponseT:
        """Its answer, with the brokers at the addresses at which this transport reaches them."""
        response = await self._channel(address).unary(method, request, self._config.name_server_timeout_s)
        if self._transport.uses_frames:
            for broker in _brokers(response):
                for broker_id, frames_address in broker.frames_addresses.items():
                    if len(self._in_ids) >= IN_IDS_MAX:
                        self._in_ids.clear()
                    self._in_ids[frames_address] = broker.addresses[broker_id]
                    broker.addresses[broker_id] = frames_address
        return response

    def address_in_ids(self, address: str) -> str:
        """What ids by position name instead of the address at which this transport reaches a broker (mechanism M8)."""
        return self._in_ids.get(address, address)

    def _may_ask_everywhere(self, question: str) -> bool:
        """Whether the pause of this question is over; then it begins anew."""
        now = self._transport.clock.monotonic()
        pausing = {known: at for known, at in self._asked_everywhere.items() if now - at < OPINION_PAUSE_S}
        self._asked_everywhere = pausing
        if question in pausing:
            return False
        if question and len(self._addresses) > 1:
            pausing[question] = now
        return True

    def _stay_with(self, answer: _Answer[ResponseT]) -> ResponseT:
        """Ask this name server first from now on. Returns its answer."""
        if answer.address in self._addresses and answer.address != self._current:
            logger.info("the name server %s is asked from now on", answer.address)
            self._current = answer.address
        return answer.response

    def _are_doubtful(self, brokers: Brokers) -> bool:
        """Whether a master is missing, or there was a later one."""
        return any(
            MASTER_ID not in broker.addresses or _epoch(broker) < self._epochs.get(broker.broker_name, (0, 0))
            for broker in brokers
        )

    def _remember_epochs(self, brokers: Brokers) -> None:
        self._epochs.update({broker.broker_name: _epoch(broker) for broker in brokers})

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


def _brokers(response: Message) -> Brokers:
    """The brokers that an answer names."""
    if isinstance(response, name_pb.QueryRouteResponse):
        return response.route.brokers
    return response.brokers if isinstance(response, name_pb.ListClustersResponse) else ()


def _epoch(broker: name_pb.BrokerData) -> Epoch:
    """0.0 from a name server of an earlier version."""
    return broker.master_epoch.term, broker.master_epoch.start


def _newest_epochs(answers: Iterable[Brokers]) -> dict[str, Epoch]:
    """The highest of each broker name in any of the answers."""
    newest: dict[str, Epoch] = {}
    for broker in (broker for brokers in answers for broker in brokers):
        newest[broker.broker_name] = max(_epoch(broker), newest.get(broker.broker_name, (0, 0)))
    return newest
