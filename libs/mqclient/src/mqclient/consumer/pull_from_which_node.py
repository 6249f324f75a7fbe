"""Which broker of a name serves the pulls of a queue (RocketMQ's pullFromWhichNodeTable; MISSION H4).

The one that the queue's last answer has suggested, else the master, else a slave: who is not in the route, or could not
be reached, is passed over for a while. Where to go on is the consumer's own knowledge, so nothing is lost by a change.

Invariant: a slave may be behind, so it is never believed about what it does not have. An offset that it calls illegal,
or a topic that it does not know, is for the master to judge; while there is none the consumer waits and asks again.
What it says of the group's progress is newer than what the consumer has, and counts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.connection.broker_connections import BrokerConnection
from mqclient.connection.poll_stream import PollEndedError
from mqclient.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    MQClientError,
    OutcomeUnknownError,
    require_success,
)
from mqclient.message import MessageQueue
from mqclient.name_servers import MASTER_ID
from mqproto.codes import ResponseCode

logger = logging.getLogger("mqclient.pull_from_which_node")

AGAIN_S = 1.0  # between two questions to a slave that has nothing, and does not wait until it has

Ask = Callable[[BrokerConnection], Awaitable[broker_pb.PullResponse]]


class PullFromWhichNode:
    """Of one consumer. `instance` knows who can be reached.

    With `prefers_slaves` no suggestion counts: a slave is asked where there is one, and its master for what the slave
    has not got.
    """

    def __init__(self, instance: ClientInstance, *, prefers_slaves: bool = False) -> None:
        self._instance = instance
        self._prefers_slaves = prefers_slaves
        self._suggested: dict[MessageQueue, int] = {}

    def reader(self, queue: MessageQueue) -> tuple[int, BrokerConnection]:
        """The broker id and the connection of who serves the queue now.

        Raises BrokerUnreachableError when no route names a broker of that name.
        """
        found = self._instance.readers(queue.broker_name, self._wanted(queue))
        if not found:
            raise BrokerUnreachableError(f"no address of broker {queue.broker_name!r} is known")
        broker_id, address = found[0]
        return broker_id, self._instance.connection_to(address)

    async def pull(self, queue: MessageQueue, offset: int, ask: Ask, *, wait_s: float) -> broker_pb.PullResponse:
        """The answer of whoever can give one; the next broker is asked when one cannot.

        What a slave has not got is NO_NEW_MSG, after up to `wait_s`. Raises what the last of them raised, and
        BrokerRefusedError or BrokerRejectedError for an answer that is no success.
        """
        clock = self._instance.clock
        while True:
            broker_id, connection = self.reader(queue)
            began = clock.monotonic()
            try:
                response = await ask(connection)
                require_success(response.code, response.remark, queue.broker_name)
            except MQClientError as error:
                await self._failed(queue, broker_id, connection, error)
                continue
            self._remember(queue, broker_id, offset, response)
            if broker_id == MASTER_ID:
                return response
            if self._brings_on(queue, offset, response):
                return response
            took_s = clock.monotonic() - began
            if took_s >= AGAIN_S or self.reader(queue)[0] != MASTER_ID:
                await clock.sleep(max(0.0, min(AGAIN_S, wait_s) - took_s))
                return response

    def _wanted(self, queue: MessageQueue) -> int:
        if self._prefers_slaves and queue not in self._suggested:
            slaves = [id_ for id_, _ in self._instance.readers(queue.broker_name) if id_ != MASTER_ID]
            return slaves[0] if slaves else MASTER_ID
        return self._suggested.get(queue, MASTER_ID)

    def _remember(self, queue: MessageQueue, broker_id: int, offset: int, response: broker_pb.PullResponse) -> None:
        """Who is asked next."""
        if not self._prefers_slaves:
            self._suggested[queue] = response.suggest_broker_id
        elif broker_id == MASTER_ID or response.next_begin_offset > offset:
            self._suggested.pop(queue, None)
        else:
            self._suggested[queue] = MASTER_ID

    def _brings_on(self, queue: MessageQueue, offset: int, response: broker_pb.PullResponse) -> bool:
        """Make of a slave's answer what it can tell; False when that brings the consumer nowhere."""
        if response.HasField("progress"):
            return True
        if response.status == broker_pb.OFFSET_ILLEGAL:
            logger.info("a slave has no offset %d of %s; its master is asked", offset, queue)
            response.status, response.next_begin_offset = broker_pb.NO_NEW_MSG, offset
            self._suggested[queue] = MASTER_ID
        response.next_begin_offset = max(offset, response.next_begin_offset)
        return response.next_begin_offset > offset

    async def _failed(
        self, queue: MessageQueue, broker_id: int, connection: BrokerConnection, error: MQClientError
    ) -> None:
        """Return when another broker can be asked at once. Raises the error when not."""
        if isinstance(error, PollEndedError):
            return
        code = error.code if isinstance(error, BrokerRefusedError) else None
        unknown_to_slave = code == ResponseCode.TOPIC_NOT_EXIST and broker_id != MASTER_ID
        cannot_serve = isinstance(error, (BrokerUnreachableError, OutcomeUnknownError))
        if not (cannot_serve or unknown_to_slave or code == ResponseCode.NOT_LEADER_FOR_QUEUE):
            raise error
        await self._instance.unreachable(connection.address)
        following = self.reader(queue)[1]
        if following is connection or self._instance.is_passed_over(following.address):
            if unknown_to_slave:
                raise BrokerUnreachableError(f"there is no master to ask: {error}") from error
            raise error
        logger.info("%s is pulled from %s now: %s", queue, following.address, error)
