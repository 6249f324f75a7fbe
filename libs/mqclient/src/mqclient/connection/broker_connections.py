"""The connections of one client instance to all its brokers, and unary calls to the one that serves a broker name now.

Each broker has a channel for streams, and a second one for unary calls: no held poll and no slow stream can block a
unary call, because the two share no connection.

Invariants: while a member is registered, there is a session with every master that a cached route names, and while a
consumer is, with every replica; a connection to a broker that no route names any more is closed by the next
`clean_offline`, but never under a request that has no answer yet. A held poll stays where it is only while nothing
speaks against that broker: it ends when the brokers of its name change. What only a master may do is asked of no
replica; it is asked again only where the first call did nothing: it never left, or the broker said that it is no
master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.config import ClientConfig
from mqclient.connection.poll_stream import PollStreams
from mqclient.connection.produce_stream import ProduceStreams
from mqclient.connection.session import Session, SessionHandler
from mqclient.errors import (
    BrokerRejectedError,
    BrokerUnavailableError,
    BrokerUnreachableError,
    IllegalStateError,
    MQClientError,
    OutcomeUnknownError,
    broker_answer_error,
)
from mqclient.lifecycle import BackgroundTasks, wait_event
from mqclient.name_servers import MASTER_ID
from mqclient.route_table import RouteTable
from mqclient.transport import Channel, Method, RequestT, ResponseT, Stream, Transport
from mqproto.codes import ResponseCode
from osenv import Clock

logger = logging.getLogger("mqclient.connection.broker_connections")

# How long an unreachable broker is passed over where another one of its name can be asked.
PASSED_OVER_S = 2.0

PAUSE_MIN_S = 0.1  # doubled from one try to the next
PAUSE_MAX_S = 0.5


class BrokerConnection:
    """Made when a broker's address is first met; the session is separate, because only brokers of a route get one.

    What is produced goes over `stream_channel`, too, as long as this is the master of its name (produce_stream.py).
    """

    def __init__(self, address: str, transport: Transport, config: ClientConfig, handler: SessionHandler) -> None:
        self.address = address
        self._config = config
        self._transport = transport
        self._tasks = BackgroundTasks(transport.clock)
        self.stream_channel: Channel = transport.open_channel(address)
        self._unary_channel = transport.open_channel(address)
        self._calls = 0
        self.poll = PollStreams(address, self.stream_channel, transport.clock, self._tasks, self._left_out)
        self._handler = handler
        self.session = Session(address, self.stream_channel, handler, config, transport.clock)

    def _left_out(self, progress: broker_pb.GroupProgress) -> None:
        """A report is older than an offset reset: handled like a reset that comes over the session."""
        reset = broker_pb.ResetConsumerOffset(group=progress.group, queues=progress.queues)
        self._handler.command(self.address, broker_pb.SessionResponse(reset_consumer_offset=reset), lambda _: None)

    async def unary(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float | None = None
    ) -> ResponseT:
        """One call on the second channel, by default within `request_timeout_s`."""
        self._calls += 1
        try:
            return await self._unary_channel.unary(method, request, timeout_s or self._config.request_timeout_s)
        finally:
            self._calls -= 1

    @asynccontextmanager
    async def stream(self, method: Method[RequestT, ResponseT]) -> AsyncIterator[Stream[RequestT, ResponseT]]:
        """A stream on a connection of its own, for so many bytes that they would hold up all others; given up behind
        the block.
        """
        self._calls += 1
        channel = self._transport.open_channel(self.address)
        try:
            yield channel.stream(method)
        finally:
            self._calls -= 1
            await channel.close()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its answer; a held poll can be asked again anywhere, and does not count."""
        return not self._calls

    async def close(self) -> None:
        """Break off the session, fail what is unanswered, leave nothing behind."""
        await self.session.close()
        self.poll.close()
        await self._tasks.close()
        await self.stream_channel.close()
        await self._unary_channel.close()


class BrokerConnections:
    """By address. `handler` serves the sessions."""

    def __init__(
        self,
        transport: Transport,
        config: ClientConfig,
        tasks: BackgroundTasks,
        *,
        routes: RouteTable,
        handler: SessionHandler,
    ) -> None:
        self._transport = transport
        self._config = config
        self._tasks = tasks
        self._routes = routes
        self._handler = handler
        self._connections: dict[str, BrokerConnection] = {}
        self.producing = ProduceStreams(transport, config, routes, lambda address: self.to(address).stream_channel)
        self._masters: dict[str, BrokerConnection] = {}  # by broker name, forgotten with every change of a route
        self._known: dict[str, Mapping[int, str]] = {}  # addresses by broker name, when the routes last changed
        self._passed_over: dict[str, float] = {}  # until this monotonic time, by address
        self._with_session: set[str] = set()
        self._asked_for: set[str] = set()  # addresses on no route, since the last cleaning: an admin's are
        self._answered = asyncio.Event()
        self._closed = False

    def to_master(self, broker_name: str) -> BrokerConnection:
        """The connection to the broker's master. Raises BrokerUnreachableError when no route names one."""
        connection = self._masters.get(broker_name)
        if connection is None:
            address = self._routes.master_address(broker_name)
            if address is None:
                raise BrokerUnreachableError(f"no address of the master of broker {broker_name!r} is known")
            connection = self._masters[broker_name] = self.to(address)
        return connection

    def to(self, address: str) -> BrokerConnection:
        """The connection to `address`, made at first use. Raises IllegalStateError after `close`."""
        if self._routes.broker_name(address) is None:
            self._asked_for.add(address)
        connection = self._connections.get(address)
        if connection is None:
            if self._closed:
                raise IllegalStateError(f"the client has been shut down and opens no connection to {address}")
            connection = BrokerConnection(address, self._transport, self._config, self._handler)
            self._connections[address] = connection
        return connection

    def readers(self, broker_name: str, wanted_id: int = MASTER_ID) -> list[tuple[int, str]]:
        """Ids and addresses of the brokers that serve reads of this name, in the order in which to ask them.

        First the one with the wanted id, then the master, then the replicas by their ids; those that could not be
        reached a moment ago come last.
        """
        addresses = self._routes.addresses(broker_name)
        order = sorted(addresses, key=lambda id_: (self.is_passed_over(addresses[id_]), id_ != wanted_id, id_))
        return [(id_, addresses[id_]) for id_ in order]

    def mark_unreachable(self, address: str) -> None:
        """It could not be reached: let others of its name be asked first, for PASSED_OVER_S or until it is back."""
        self._passed_over[address] = self._transport.clock.monotonic() + PASSED_OVER_S

    def is_passed_over(self, address: str) -> bool:
        """Whether it could not be reached a moment ago."""
        return self._passed_over.get(address, 0.0) > self._transport.clock.monotonic()

    def is_back(self, address: str) -> None:
        """A session is open: what went elsewhere because it could not be reached may come back."""
        name = self._routes.broker_name(address)
        if self._passed_over.pop(address, None) is not None and name is not None:
            self._end_polls(self._routes.addresses(name))

    def follow_routes(self, *, producers: bool, consumers: bool) -> None:
        """The routes have changed, or the registered groups have: open missing sessions, move what has moved.

        Masters get sessions while a group is registered, replicas while a consumer is (RocketMQ's heartbeats).
        """
        self._masters.clear()
        if self._closed:
            return
        self.producing.follow_masters()
        self._move_polls()
        wanted = self._routes.master_addresses() if producers or consumers else set()
        if consumers:
            wanted |= self._routes.all_addresses()
        for address in sorted(wanted - self._with_session):
            self._with_session.add(address)
            self.to(address).session.start()

    def clean_offline(self) -> None:
        """Close what no route names, unless it is in use, or was asked for since the last cleaning."""
        self.producing.clean()
        asked_for, self._asked_for = self._asked_for, set()
        now = self._transport.clock.monotonic()
        self._passed_over = {address: until for address, until in self._passed_over.items() if until > now}
        offline = self._connections.keys() - self._routes.all_addresses() - asked_for
        for address in sorted(offline):
            if self._connections[address].is_idle and not self.producing.use(address):
                logger.info("the broker at %s is on no route any more", address)
                self._with_session.discard(address)
                self._tasks.start(self._connections.pop(address).close(), f"mqclient close {address}")

    def _move_polls(self) -> None:
        """End the polls at names whose brokers have changed; send a heartbeat to brokers in a new role."""
        before, self._known = self._known, {name: self._routes.addresses(name) for name in self._routes.broker_names()}
        for name, old in before.items():
            new = self._known.get(name, {})
            if new == old:
                continue
            self._end_polls(old)
            for address in set(old.values()) & set(new.values()) & self._with_session:
                self._connections[address].session.heartbeat_now()

    def _end_polls(self, addresses: Mapping[int, str]) -> None:
        for address in addresses.values():
            if address in self._connections:
                self._connections[address].poll.end_held()

    def heartbeat_all(self) -> None:
        """Send a heartbeat to every broker."""
        for connection in self._sessions():
            connection.session.heartbeat_now()

    def heartbeat_answered(self) -> None:
        """Wake the tasks that wait for it."""
        self._answered.set()

    async def wait_for_answers(self, seconds: float) -> bool:
        """Wait until every broker has answered the newest heartbeat; say whether all have accepted it.

        Of each name its master, or its replicas while it has none.
        """
        deadline = self._transport.clock.monotonic() + seconds
        while None in (answers := [connection.session.answer for connection in self._sessions_on_routes()]):
            self._answered.clear()
            left_s = deadline - self._transport.clock.monotonic()
            if not await wait_event(self._transport.clock, self._answered, left_s):
                return False
        return all(answer is not None and answer.code == common_pb.SUCCESS for answer in answers)

    def rejections(self) -> dict[str, BrokerRejectedError]:
        """By address: the brokers that reject the newest heartbeat for good, of those that `wait_for_answers` asks."""
        found = {}
        for connection in self._sessions_on_routes():
            answer = connection.session.answer
            if answer is not None and answer.code != common_pb.SUCCESS:
                error = broker_answer_error(answer.code, answer.remark, connection.address)
                if isinstance(error, BrokerRejectedError):
                    found[connection.address] = error
        return found

    def id_in_use(self) -> BrokerRejectedError | None:
        """The last answer of a broker that has given this client's id to another process; None when none has."""
        for connection in self._sessions():
            answer = connection.session.id_in_use
            if answer is not None:
                return BrokerRejectedError(answer.code, answer.remark, connection.address)
        return None

    async def send_leave_notices(self) -> None:
        """End every session in order; the caller limits the time, which a silent broker would take for ever."""
        self._closed = True
        await asyncio.gather(*(connection.session.send_leave_notices() for connection in self._sessions()))

    async def close(self) -> None:
        """Break off what is open, fail what is unanswered, leave nothing behind."""
        self._closed = True
        connections, self._connections = list(self._connections.values()), {}
        self._masters.clear()
        self._with_session.clear()
        await self.producing.close()
        await asyncio.gather(*(connection.close() for connection in connections))

    def _sessions(self) -> Iterable[BrokerConnection]:
        return [self._connections[address] for address in sorted(self._with_session)]

    def _sessions_on_routes(self) -> Iterable[BrokerConnection]:
        names = self._routes.broker_names()
        leading = {
            address
            for addresses in map(self._routes.addresses, names)
            for address in ([addresses[MASTER_ID]] if MASTER_ID in addresses else addresses.values())
        }
        return [one for one in self._sessions() if one.address in leading]


@dataclass(frozen=True, slots=True)
class Answer(Generic[ResponseT]):
    """What a broker has said; `by_replica` may know less than its master."""

    response: ResponseT
    by_replica: bool


class Readers:
    """The brokers that serve reads of `broker_name`; asked as one broker is."""

    def __init__(self, calls: BrokerCalls, broker_name: str) -> None:
        self._calls = calls
        self._broker_name = broker_name

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT) -> ResponseT:
        """As `BrokerCalls.to_any`."""
        return (await self._calls.to_any(self._broker_name, method, request)).response


class BrokerCalls:
    """Of one client instance."""

    def __init__(self, connections: BrokerConnections, routes: RouteTable, clock: Clock) -> None:
        self._connections = connections
        self._routes = routes
        self._clock = clock

    async def to_master(
        self, broker_name: str, method: Method[RequestT, ResponseT], request: RequestT, *, patience_s: float = 0.0
    ) -> ResponseT:
        """What the master answers, also when it has just changed.

        When there is none it is looked for: once, and again and again until `patience_s` have passed. Raises
        BrokerUnreachableError, and BrokerUnavailableError (NOT_LEADER_FOR_QUEUE), when it was not found: then nothing
        was done. Raises MQClientError when there is no answer.
        """
        until = self._clock.monotonic() + patience_s
        pause_s, tried = PAUSE_MIN_S, set[str | None]()
        while True:
            tried.add(self._routes.master_address(broker_name))
            try:
                return await self._ask_master(broker_name, method, request)
            except (BrokerUnreachableError, BrokerUnavailableError) as error:
                await self._routes.refresh_brokers()
                if self._routes.master_address(broker_name) not in {None, *tried}:
                    continue  # another broker, and each only once: name servers may contradict each other
                left_s = until - self._clock.monotonic()
                if left_s <= 0:
                    raise
                logger.info("broker %s is looked for again: %s", broker_name, error)
                await self._clock.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def to_any(
        self, broker_name: str, method: Method[RequestT, ResponseT], request: RequestT
    ) -> Answer[ResponseT]:
        """What the master answers, or a replica when it cannot be asked.

        For what may be asked or told twice. Raises what the last of them raised.
        """
        if not self._connections.readers(broker_name):
            await self._routes.refresh_brokers()
        error: MQClientError = BrokerUnreachableError(f"no address of broker {broker_name!r} is known")
        for broker_id, address in self._connections.readers(broker_name):
            try:
                response = await self._connections.to(address).unary(method, request)
                return Answer(response, by_replica=broker_id != MASTER_ID)
            except (BrokerUnreachableError, OutcomeUnknownError) as caught:
                logger.info("%s does not serve %s: %s", address, method.path, caught)
                self._connections.mark_unreachable(address)
                error = caught
        await self._routes.refresh_brokers()
        raise error

    def readers(self, broker_name: str) -> Readers:
        """For requests that only read."""
        return Readers(self, broker_name)

    async def _ask_master(self, broker_name: str, method: Method[RequestT, ResponseT], request: RequestT) -> ResponseT:
        """Raises BrokerUnavailableError when it says that it is none."""
        connection = self._connections.to_master(broker_name)
        response = await connection.unary(method, request)
        code = getattr(response, "code", ResponseCode.SUCCESS)
        if code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            raise BrokerUnavailableError(code, getattr(response, "remark", ""), connection.address)
        return response
