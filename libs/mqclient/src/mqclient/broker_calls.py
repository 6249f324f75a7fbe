"""Unary calls to whoever serves a broker name now (RocketMQ's findBrokerAddressInSubscribe; MISSION H4, H6).

Invariants: what only a master may do is asked of no slave; it is asked again only where the first call did nothing: it
never left, or the broker said that it is no master.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Generic

from mqclient.broker_connections import BrokerConnections
from mqclient.errors import BrokerRefusedError, BrokerUnreachableError, MQClientError, OutcomeUnknownError
from mqclient.route import MASTER_ID
from mqclient.route_table import RouteTable
from mqclient.transport.base import Method, RequestT, ResponseT
from mqproto.codes import ResponseCode
from osenv import Clock

logger = logging.getLogger("mqclient.broker_calls")

PAUSE_MIN_S = 0.1  # doubled from one try to the next
PAUSE_MAX_S = 0.5


@dataclass(frozen=True, slots=True)
class Answer(Generic[ResponseT]):
    """What a broker has said; `by_slave` may know less than its master."""

    response: ResponseT
    by_slave: bool


class Readers:
    """Whoever serves reads of `broker_name`; asked as one broker is."""

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
        BrokerUnreachableError, and BrokerRefusedError (NOT_LEADER_FOR_QUEUE), when it was not found: then nothing was
        done. Raises MQClientError when there is no answer.
        """
        until = self._clock.monotonic() + patience_s
        pause_s, tried = PAUSE_MIN_S, set[str | None]()
        while True:
            tried.add(self._routes.master_address(broker_name))
            try:
                return await self._ask_master(broker_name, method, request)
            except (BrokerUnreachableError, BrokerRefusedError) as error:
                await self._routes.refresh_brokers()
                if self._routes.master_address(broker_name) not in {None, *tried}:
                    continue  # somebody else, and nobody twice: name servers may contradict each other
                left_s = until - self._clock.monotonic()
                if left_s <= 0:
                    raise
                logger.info("broker %s is looked for again: %s", broker_name, error)
                await self._clock.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def to_any(
        self, broker_name: str, method: Method[RequestT, ResponseT], request: RequestT
    ) -> Answer[ResponseT]:
        """What the master answers, or a slave when it cannot be asked.

        For what may be asked or told twice. Raises what the last of them raised.
        """
        if not self._connections.readers(broker_name):
            await self._routes.refresh_brokers()
        error: MQClientError = BrokerUnreachableError(f"no address of broker {broker_name!r} is known")
        for broker_id, address in self._connections.readers(broker_name):
            try:
                response = await self._connections.to(address).unary(method, request)
                return Answer(response, by_slave=broker_id != MASTER_ID)
            except (BrokerUnreachableError, OutcomeUnknownError) as caught:
                logger.info("%s does not serve %s: %s", address, method.path, caught)
                self._connections.pass_over(address)
                error = caught
        await self._routes.refresh_brokers()
        raise error

    def readers(self, broker_name: str) -> Readers:
        """For what only wants to know something."""
        return Readers(self, broker_name)

    async def _ask_master(self, broker_name: str, method: Method[RequestT, ResponseT], request: RequestT) -> ResponseT:
        """Raises BrokerRefusedError when it says that it is none."""
        connection = self._connections.to_master(broker_name)
        response = await connection.unary(method, request)
        code = getattr(response, "code", ResponseCode.SUCCESS)
        if code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            raise BrokerRefusedError(code, getattr(response, "remark", ""), connection.address)
        return response
