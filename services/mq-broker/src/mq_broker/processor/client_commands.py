"""What an operator asks of a living consumer, by way of its session (MISSION L11-L13).

Invariants: each command is answered once: by the client it was sent to, by the end of its session, or by the time; an
answer that nobody waits for is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.limits import RefusedError
from mq_broker.core.members import Connection, Consumer
from mq_broker.core.subscription_groups import SubscriptionGroups
from mq_broker.processor.group_administration import require_known
from mq_broker.processor.querying import Querying
from mq_broker.processor.sessions import Session, Sessions
from mqproto.codes import ResponseCode
from mqproto.names import WAITING_TOPICS, dlq_topic, retry_topic
from mqproto.record import Record, decode_record
from osenv import Clock
from osenv.clock import timeout

log = logging.getLogger(__name__)

RUNNING_INFO_TIMEOUT_S = 5
CONSUME_DIRECTLY_TIMEOUT_S = 30  # a listener works meanwhile


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What a client has answered. `result` is passed on as it came; None when the code is not SUCCESS."""

    code: ResponseCode
    remark: str
    result: object


@dataclass(slots=True)
class _Pending:
    session: Session
    answer: asyncio.Future[CommandAnswer]


@dataclass
class ClientCommands:
    """The processor of commands to consumers."""

    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    sessions: Sessions
    querying: Querying
    clock: Clock
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def connections(self, group: str) -> list[Connection]:
        """The group's living members, sorted. Raises RefusedError for a group that nobody knows."""
        require_known(group, self.groups, self.offsets)
        return self.sessions.members.connections(group)

    async def running_info(self, group: str, client_id: str) -> object:
        """What the member says of itself. Raises RefusedError."""
        self._member(group, client_id)
        return await self._ask(
            group, client_id, RUNNING_INFO_TIMEOUT_S, lambda session, id_: session.get_running_info(id_, group)
        )

    async def consume_directly(self, group: str, client_id: str, log_offset: int) -> object:
        """What came of the message at this place when the member's listener got it. No offset moves.

        The message has to be of a topic to which the member subscribes, or of the group's retry or dead-letter topic.
        Raises RefusedError, OSError.
        """
        self._member(group, client_id)
        try:
            record = await self.querying.by_log_offset(log_offset)
        except ValueError as error:
            raise RefusedError(ResponseCode.QUERY_NOT_FOUND, str(error)) from error
        _require_consumable(decode_record(record), client_id, self._member(group, client_id))
        return await self._ask(
            group,
            client_id,
            CONSUME_DIRECTLY_TIMEOUT_S,
            lambda session, id_: session.consume_directly(id_, group, record),
        )

    def answered(self, session: Session, command_id: int, answer: CommandAnswer) -> None:
        """A client has answered a command that came by its session."""
        pending = self._pending.get(command_id)
        if pending is None or pending.session is not session or pending.answer.done():
            log.info("nobody waits for the answer to command %d", command_id)
        else:
            pending.answer.set_result(answer)

    def ended(self, session: Session) -> None:
        """The session has ended: no answer comes by it any more."""
        for pending in self._pending.values():
            if pending.session is session and not pending.answer.done():
                sentence = "the client's session has ended before it answered"
                pending.answer.set_exception(RefusedError(ResponseCode.CONSUMER_NOT_ONLINE, sentence))

    def _member(self, group: str, client_id: str) -> Consumer:
        consumer = self.sessions.members.consumer(client_id, group)
        if consumer is None:
            require_known(group, self.groups, self.offsets)
            raise _not_online(group, client_id)
        return consumer

    async def _ask(self, group: str, client_id: str, timeout_s: float, send: Callable[[Session, int], None]) -> object:
        session = self.sessions.members.session_of(client_id, group)
        if session is None:
            raise _not_online(group, client_id)
        command_id = next(self._ids)
        pending = _Pending(session, asyncio.get_running_loop().create_future())
        self._pending[command_id] = pending
        try:
            send(session, command_id)
            async with timeout(self.clock, timeout_s):
                answer = await pending.answer
        except TimeoutError:
            sentence = f"{client_id!r} has not answered within {timeout_s:g} s"
            raise RefusedError(ResponseCode.CONSUMER_NOT_ONLINE, sentence) from None
        finally:
            del self._pending[command_id]
        if answer.code is not ResponseCode.SUCCESS:
            raise RefusedError(answer.code, answer.remark)
        return answer.result


def _not_online(group: str, client_id: str) -> RefusedError:
    return RefusedError(ResponseCode.CONSUMER_NOT_ONLINE, f"{client_id!r} is no living member of group {group!r}")


def _require_consumable(record: Record, client_id: str, consumer: Consumer) -> None:
    """Raise RefusedError unless the record is one that the consumer could get by itself, now or before it gave up."""
    if record.topic in WAITING_TOPICS:
        sentence = f"the record at {record.log_offset} still waits for its delivery"
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
    own = {retry_topic(consumer.group), dlq_topic(consumer.group)}
    if record.topic not in consumer.topics() | own:
        sentence = f"the record at {record.log_offset} is of topic {record.topic!r}, to which {client_id!r}"
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"{sentence} does not subscribe in group {consumer.group!r}")
