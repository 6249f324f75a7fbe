"""The connections of one client instance to all its brokers (MISSION L8).

Invariants: while a member is registered, there is a session with every master that a cached route names; a connection
to a broker that no route names any more is closed by the next `clean_offline`, but never under a request that has no
answer yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.background import BackgroundTasks, wait_event
from mqclient.broker_connection import BrokerConnection
from mqclient.client_config import ClientConfig
from mqclient.errors import BrokerRejectedError, BrokerUnreachableError, IllegalStateError, broker_answer_error
from mqclient.route_table import RouteTable
from mqclient.session import SessionHandler
from mqclient.transport import Transport

logger = logging.getLogger("mqclient.broker_connections")


class BrokerConnections:
    """By address. `handler` is who the sessions speak for."""

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
        self._masters: dict[str, BrokerConnection] = {}  # by broker name, forgotten with every change of a route
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

    def follow_routes(self, *, with_sessions: bool) -> None:
        """The routes have changed, or who is registered has: open the sessions that are missing."""
        self._masters.clear()
        if not with_sessions or self._closed:
            return
        for address in sorted(self._routes.master_addresses() - self._with_session):
            self._with_session.add(address)
            self.to(address).session.start()

    def clean_offline(self) -> None:
        """Close what no route names, unless it is in use, or was asked for since the last cleaning."""
        asked_for, self._asked_for = self._asked_for, set()
        offline = self._connections.keys() - self._routes.master_addresses() - asked_for
        for address in sorted(offline):
            if self._connections[address].is_idle:
                logger.info("the broker at %s is on no route any more", address)
                self._with_session.discard(address)
                self._tasks.start(self._connections.pop(address).close(), f"mqclient close {address}")

    def heartbeat_all(self) -> None:
        """Tell every broker the whole truth about this client."""
        for connection in self._sessions():
            connection.session.heartbeat_now()

    def heartbeat_answered(self) -> None:
        """Wake those who wait for it."""
        self._answered.set()

    async def wait_for_answers(self, seconds: float) -> bool:
        """Wait until every broker on a route has answered the newest heartbeat; say whether all have accepted it."""
        deadline = self._transport.clock.monotonic() + seconds
        while None in (answers := [connection.session.answer for connection in self._sessions_on_routes()]):
            self._answered.clear()
            left_s = deadline - self._transport.clock.monotonic()
            if not await wait_event(self._transport.clock, self._answered, left_s):
                return False
        return all(answer is not None and answer.code == common_pb.SUCCESS for answer in answers)

    def refusals(self) -> dict[str, BrokerRejectedError]:
        """By address: the brokers on a route that have refused the newest heartbeat for good."""
        found = {}
        for connection in self._sessions_on_routes():
            answer = connection.session.answer
            if answer is not None and answer.code != common_pb.SUCCESS:
                error = broker_answer_error(answer.code, answer.remark, connection.address)
                if isinstance(error, BrokerRejectedError):
                    found[connection.address] = error
        return found

    async def say_goodbye(self) -> None:
        """End every session in order; the caller limits the time, which a silent broker would take for ever."""
        self._closed = True
        await asyncio.gather(*(connection.session.say_goodbye() for connection in self._sessions()))

    async def close(self) -> None:
        """Break off what is open, fail what is unanswered, leave nothing behind."""
        self._closed = True
        connections, self._connections = list(self._connections.values()), {}
        self._masters.clear()
        self._with_session.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    def _sessions(self) -> Iterable[BrokerConnection]:
        return [self._connections[address] for address in sorted(self._with_session)]

    def _sessions_on_routes(self) -> Iterable[BrokerConnection]:
        return [one for one in self._sessions() if self._routes.broker_name(one.address) is not None]
