"""The way into the queue, over mqclient: plain messages and half messages by one producer."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta

import structlog

from mqclient import (
    CheckUnansweredError,
    LocalTransactionState,
    Message,
    MessageExt,
    SendStatus,
    TransactionProducer,
)
from mqclient.errors import MQClientError
from osenv import Clock
from servicekit.errors import PublishError, ServiceError
from servicekit.health import OK
from servicekit.message import OutgoingMessage
from servicekit.transactions import LocalOutcome, LocalTransaction, TransactionCheck

# Both have the message on the master's disk. After FLUSH_DISK_TIMEOUT it may be in memory only: it is sent again.
_TAKEN = frozenset({SendStatus.SEND_OK, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE})

_STATE_OF_OUTCOME = {
    LocalOutcome.COMMITTED: LocalTransactionState.COMMIT_MESSAGE,
    LocalOutcome.ROLLED_BACK: LocalTransactionState.ROLLBACK_MESSAGE,
    LocalOutcome.UNKNOWN: LocalTransactionState.UNKNOW,
}

# A service that is not ready gets no requests, and may have nothing to send: a failure must not count for ever.
FAILURE_COUNTS_S = 10.0

_EPOCH = datetime.fromtimestamp(0, UTC)

log = structlog.get_logger(__name__)


class MqPublisher:
    """Implements `MessagePublisher` and `TransactionalQueue`. It can be used before `start`, and refuses until then."""

    def __init__(self, url: str, group: str, clock: Clock) -> None:
        self._url = url
        self._group = group
        self._clock = clock
        self._producer: TransactionProducer | None = None
        self._last_failure: tuple[str, float] | None = None  # what, and when on the monotonic clock

    @property
    def is_running(self) -> bool:
        return self._producer is not None

    @property
    def last_send(self) -> str:
        """ "ok", or why the last message was not taken, if that was a moment ago."""
        if self._last_failure is None or self._clock.monotonic() - self._last_failure[1] > FAILURE_COUNTS_S:
            return OK
        return self._last_failure[0]

    async def start(self, check: TransactionCheck) -> None:
        """Start a producer whose check-backs `check` answers; after a failure it can be called again.

        Raises MQClientError.
        """
        producer = TransactionProducer(self._group, self._url, transaction_listener=_Listener(check))
        await producer.start()
        self._producer = producer

    async def shutdown(self) -> None:
        """Refuse from now on; harmless when nothing was started."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.shutdown()

    async def publish(self, message: OutgoingMessage) -> None:
        await self._remembering_failure(_publish(self._running_producer(), message))

    async def send_in_transaction(self, message: OutgoingMessage, local: LocalTransaction) -> None:
        await self._remembering_failure(_send_in_transaction(self._running_producer(), message, local))

    def _running_producer(self) -> TransactionProducer:
        if self._producer is None:
            raise PublishError("not connected with the queue")
        return self._producer

    async def _remembering_failure(self, sending: Awaitable[None]) -> None:
        try:
            await sending
        except PublishError as error:
            self._last_failure = str(error), self._clock.monotonic()
            raise
        self._last_failure = None


class _Listener:
    """Implements mqclient's TransactionListener."""

    def __init__(self, check: TransactionCheck) -> None:
        self._check = check

    async def execute_local_transaction(
        self, _message: Message, transaction_id: str, arg: LocalTransaction
    ) -> LocalTransactionState:
        return _STATE_OF_OUTCOME[await arg(transaction_id)]

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        try:
            outcome = await self._check(message.transaction_id)
        except ServiceError as error:
            raise CheckUnansweredError(str(error)) from error
        log.info("a transaction was looked up", transaction=message.transaction_id, outcome=outcome.value)
        return _STATE_OF_OUTCOME[outcome]


async def _publish(producer: TransactionProducer, message: OutgoingMessage) -> None:
    try:
        result = await producer.send(_to_queue_message(message))
    except MQClientError as error:
        raise PublishError(f"{message.topic} was not taken: {error}") from error
    if result.send_status not in _TAKEN:
        raise PublishError(f"{message.topic} was not taken safely: {result.send_status.name}")


async def _send_in_transaction(
    producer: TransactionProducer, message: OutgoingMessage, local: LocalTransaction
) -> None:
    was_run = False

    async def run(transaction_id: str) -> LocalOutcome:
        nonlocal was_run
        was_run = True
        return await local(transaction_id)

    try:
        result = await producer.send_message_in_transaction(_to_queue_message(message), run)
    except MQClientError as error:
        raise PublishError(f"{message.topic} was not taken: {error}") from error
    if not was_run:
        raise PublishError(f"{message.topic} was not taken safely: {result.send_status.name}")


def _to_queue_message(message: OutgoingMessage) -> Message:
    at_ms = message.deliver_at_ms
    return Message(
        message.topic,
        message.body,
        tag=message.tag,
        keys=[message.key],
        delay_level=message.delay_level,
        deliver_at=None if at_ms is None else _EPOCH + timedelta(milliseconds=at_ms),
    )
