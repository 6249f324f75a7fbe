"""Queries of messages by key, id, place and time; and open transactions, shown and decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.admin.brokers import AdminCalls, Target, answer_of, on_each
from mqclient.consumer.pulling import (
    ALL,
    MessageSelector,
    PullResult,
    messages_of,
    offset_at,
    offsets_of,
    parse_subscription,
    pull_from,
)
from mqclient.errors import BrokerRejectedError, ConnectionLostError, IllegalArgumentError, MQClientError
from mqclient.message import MessageExt, MessageQueue, parse_offset_message_id
from mqclient.recall import RecallResult, recall, reschedule
from mqclient.transport import Method, RequestT, ResponseT
from mqclient.transport.methods import (
    DECIDE_TRANSACTION,
    GET_TRANSACTION,
    LIST_TRANSACTIONS,
    QUERY_MESSAGE,
    VIEW_MESSAGE,
)
from mqproto.codes import PullStatus, ResponseCode, TransactionPhase
from mqproto.names import TOOLS_CONSUMER_GROUP
from mqproto.properties import UNIQ_KEY
from mqproto.record import RecordError, decode_record
from mqproto.values import to_value

PAGE_MESSAGES = 256  # of a queue that is read through; a page is no more than FRAME_BYTES_TARGET

LISTED_MAX = 2_000  # by one broker, as messages of a query (mechanism Q1)


class MessageAdmin(AdminCalls):
    """Calls about messages and their offsets."""

    async def query_message(
        self, topic: str, key: str, *, max_messages: int = 32, begin_ms: int = 0, end_ms: int = 0
    ) -> list[MessageExt]:
        """Messages of the topic with this key or unique id, newest first.

        They were stored from `begin_ms` to `end_ms` (0: no end).
        Asks every master; each gives up to `max_messages`, at most 2,000, and no more than fit one answer (mechanism
        Q1). Raises NoRouteError when there is no broker, and the first rejection of a broker.
        """
        request = broker_pb.QueryMessageRequest(
            topic=topic, key=key, max_messages=max_messages, begin_timestamp_ms=begin_ms, end_timestamp_ms=end_ms
        )
        answers = await on_each(await self._targets(), lambda target: answer_of(target, QUERY_MESSAGE, request))
        found = [message for target, answer in answers for message in messages_of(answer.records, target.name)]
        return sorted(found, key=lambda message: message.store_timestamp_ms, reverse=True)[: max_messages or None]

    async def query_message_by_unique_key(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Messages of the topic with this unique id, the `message_id` of a send's result, newest first.

        One, or none; several when it was sent again after an unknown outcome. Raises as `query_message`.
        """
        found = await self.query_message(topic, unique_key)
        return [message for message in found if message.properties.get(UNIQ_KEY) == unique_key]

    async def view_message(self, message_id: str) -> MessageExt:
        """The message of an id by position (mechanism M8), asked of the broker that the id names.

        Raises IllegalArgumentError for an id that is none, and the broker's rejection when it has no such message.
        """
        host, port, log_offset = parse_offset_message_id(message_id)
        target = self._target_at(f"{host}:{port}")
        answer = await answer_of(target, VIEW_MESSAGE, broker_pb.ViewMessageRequest(log_offset=log_offset))
        (message,) = messages_of(answer.record, target.name)
        return message

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str | MessageSelector | None = ALL,
    ) -> PullResult:
        """Messages of the queue from `offset` on, at once, whether there are any or not; all, or those that are wanted.

        No offset moves and no group is made: the broker is asked in the name of RocketMQ's TOOLS_CONSUMER. Raises
        IllegalArgumentError, NoRouteError when no registered broker has the queue, and the broker's rejection.
        """
        subscription = parse_subscription(queue.topic, expression)
        target = await self._target_named(queue.broker_name)
        return await pull_from(
            target.connection, TOOLS_CONSUMER_GROUP, queue, offset, subscription, max_messages=max_messages
        )

    async def read_queue(
        self,
        queue: MessageQueue,
        *,
        offset: int = 0,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        expression: str | MessageSelector | None = ALL,
    ) -> AsyncIterator[MessageExt]:
        """The messages of the queue from `offset` on, as far as it reaches when it is asked first, a page at a time.

        Stored from `begin_ms` to before `end_ms`; None: no bound. Raises as `pull`.
        """
        first, last = await self.queue_offsets(queue)
        if begin_ms is not None:
            first = max(first, await self.search_offset(queue, begin_ms))
        if end_ms is not None:
            last = min(last, await self.search_offset(queue, end_ms))
        at = max(first, offset)
        while at < last:
            result = await self.pull(queue, at, max_messages=PAGE_MESSAGES, expression=expression)
            for message in result.messages:
                if message.queue_offset < last:
                    yield message
            if result.next_begin_offset <= at or result.status is PullStatus.NO_NEW_MSG:
                return
            at = result.next_begin_offset

    async def queue_offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """(first offset that can be read, offset of the next message to come).

        Raises NoRouteError when no registered broker has the queue, and the broker's rejection.
        """
        target = await self._target_named(queue.broker_name)
        return await offsets_of(target.connection, queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset of the queue that was stored at or after the time; its end when all are older.

        Raises NoRouteError when no registered broker has the queue, and the broker's rejection.
        """
        target = await self._target_named(queue.broker_name)
        return await offset_at(target.connection, queue, timestamp_ms)


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """One transaction on one broker; of one that has ended only the first three fields are known.

    `store_timestamp_ms` is when its half message was stored first, `check_times` how many checks were answered with
    UNKNOW, `log_offset` where the newest copy stands. `topic`, where the message is going, and `keys` are empty for a
    message that cannot be read.
    """

    transaction_id: str
    broker_name: str
    phase: TransactionPhase
    producer_group: str = ""
    topic: str = ""
    store_timestamp_ms: int = 0
    check_times: int = 0
    log_offset: int = 0
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionList:
    """Undecided transactions, the oldest first, and whether there are more than were asked for."""

    transactions: tuple[TransactionInfo, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class TransactionDetails:
    """One transaction, and its message as it would be delivered, while it is undecided.

    Without a message `remark` says why there is none, if it should be there.
    """

    info: TransactionInfo
    message: MessageExt | None
    remark: str = ""


class TransactionAdmin(AdminCalls):
    """Calls about transactions. An id names no broker: all masters are asked until one knows it."""

    async def list_transactions(
        self, *, phase: TransactionPhase | None = None, producer_group: str = "", max_transactions: int = 32
    ) -> TransactionList:
        """The oldest transactions that are PREPARED or PARKED (`phase`: one of the two), of one group or of all.

        Of all masters together at most `max_transactions`, up to 2,000. Raises IllegalArgumentError, NoRouteError when
        there is no broker, and the first rejection of a broker.
        """
        if phase not in (None, TransactionPhase.PREPARED, TransactionPhase.PARKED):
            raise IllegalArgumentError(f"transactions are listed that are PREPARED or PARKED, not {phase!r}")
        if not 1 <= max_transactions <= LISTED_MAX:
            raise IllegalArgumentError(f"{max_transactions} transactions; allowed are 1 to {LISTED_MAX}")
        request = admin_pb.ListTransactionsRequest(
            phase=admin_pb.TransactionPhase.ValueType(phase or 0),
            producer_group=producer_group,
            max_transactions=max_transactions,
        )
        answers = await on_each(await self._targets(), lambda target: answer_of(target, LIST_TRANSACTIONS, request))
        found = [_info(one, target) for target, answer in answers for one in answer.transactions]
        found.sort(key=lambda one: one.store_timestamp_ms)
        truncated = len(found) > max_transactions or any(answer.truncated for _, answer in answers)
        return TransactionList(tuple(found[:max_transactions]), truncated)

    async def transaction(self, transaction_id: str) -> TransactionDetails:
        """Everything about one transaction.

        Raises BrokerRejectedError with QUERY_NOT_FOUND when no broker knows it (any more), NoRouteError when there is
        no broker, and when none knows it, the first error of one that could not be asked.
        """
        request = admin_pb.GetTransactionRequest(transaction_id=_checked(transaction_id))
        target, answer = await self._ask_who_knows(GET_TRANSACTION, request)
        return TransactionDetails(
            _info(answer.transaction, target), _message(answer.record, target.name), answer.remark
        )

    async def decide_transaction(self, transaction_id: str, *, commit: bool) -> TransactionPhase:
        """Commit a transaction that is open or parked, or roll it back; durable on return.

        Returns how it has ended: COMMITTED or ROLLED_BACK, by this call or by an earlier decision, which then stands.
        Raises as `transaction`, and the rejection of the broker that has it.
        """
        state = broker_pb.COMMIT_MESSAGE if commit else broker_pb.ROLLBACK_MESSAGE
        request = admin_pb.DecideTransactionRequest(transaction_id=_checked(transaction_id), state=state)
        _, answer = await self._ask_who_knows(DECIDE_TRANSACTION, request)
        return TransactionPhase(answer.phase)

    async def _ask_who_knows(self, method: Method[RequestT, ResponseT], request: RequestT) -> tuple[Target, ResponseT]:
        """The broker that knows the transaction, and its answer; one that cannot be asked keeps no other from it."""
        unknown: MQClientError | None = None
        failure: MQClientError | None = None
        for target in await self._targets():
            try:
                return target, await answer_of(target, method, request)
            except MQClientError as error:
                if isinstance(error, BrokerRejectedError) and error.code == ResponseCode.QUERY_NOT_FOUND:
                    unknown = unknown or error
                else:
                    failure = failure or error
        raise failure or unknown or AssertionError("there is always a target")


def _checked(transaction_id: str) -> str:
    if not transaction_id:
        raise IllegalArgumentError("the id of the transaction is empty")
    return transaction_id


def _info(info: admin_pb.TransactionInfo, target: Target) -> TransactionInfo:
    return to_value(TransactionInfo, info, broker_name=target.name, phase=TransactionPhase(info.phase))


def _message(record: bytes, broker_name: str) -> MessageExt | None:
    """The message that has no place of its own yet. Raises ConnectionLostError when the bytes are damaged."""
    try:
        return MessageExt(decode_record(record), broker_name) if record else None
    except RecordError as error:
        raise ConnectionLostError(f"the answer of {broker_name} was damaged on its way: {error}") from error


class WaitingMessageAdmin(AdminCalls):
    """What `Producer.recall` and `Producer.reschedule` do, with the same results and errors, without a group.

    Otherwise than with other changes all brokers are asked at the same time, also when one of them fails.
    """

    async def recall_message(
        self, topic: str, *, key: str | None = None, message_id: str | None = None
    ) -> RecallResult:
        """As `Producer.recall`."""
        self._lifecycle.require_running()
        return await recall(self._instance, topic, key=key, message_id=message_id)

    async def reschedule_message(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        delay_ms: int | None = None,
        deliver_at: datetime | None = None,
    ) -> RecallResult:
        """As `Producer.reschedule`."""
        self._lifecycle.require_running()
        return await reschedule(
            self._instance, topic, key=key, message_id=message_id, delay_ms=delay_ms, deliver_at=deliver_at
        )
