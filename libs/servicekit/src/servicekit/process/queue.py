"""The queue over mqclient: publishing, consuming, the connection for both, and the calls of operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import structlog

from mqclient import (
    Admin,
    CheckUnansweredError,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageModel,
    PushConsumer,
    SendStatus,
    TransactionProducer,
)
from mqclient.admin import BrokerStatus, TransactionPhase
from mqclient.errors import BrokerRejectedError, MQClientError, NoRouteError, RejectedError
from osenv import Clock
from osenv.clock import timeout
from servicekit.errors import (
    MalformedMessageError,
    PublishError,
    QueueUnreachableError,
    ServiceError,
    StorageUnavailableError,
)
from servicekit.message import OutgoingMessage, Subscription
from servicekit.monitoring import OK, HealthCheck
from servicekit.process.reconciler import ParkedTransaction
from servicekit.sql.units import LocalOutcome, LocalTransaction, TransactionCheck

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
    """Implements `MessagePublisher` and `TransactionalQueue`. It can be used before `start`, and rejects until then."""

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
        """Start a producer whose checks `check` answers; after a failure it can be called again.

        Raises MQClientError.
        """
        producer = TransactionProducer(self._group, self._url, transaction_listener=_Listener(check))
        await producer.start()
        self._producer = producer

    async def shutdown(self) -> None:
        """Reject from now on; harmless when nothing was started."""
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


HANDLE_MAX_S = 900.0  # RocketMQ's time-out of a listener, here of one try: waiting for the database is none
LISTENER_MAX_S = 366 * 86_400.0
STORAGE_LOOK_FIRST_S, STORAGE_LOOK_MAX_S = 0.1, 1.0
STORAGE_TRIES_MAX = 5  # of a message that fails although the database answers


def build_consumer(url: str, subscription: Subscription, storage: HealthCheck, clock: Clock) -> PushConsumer:
    """A consumer that is not started yet; `storage` says whether the database answers.

    A group begins with the first message of its topic: no event may be missed. A process to which everything is
    broadcast begins with the next one: it has no clients yet for earlier events.

    A message that cannot be carried out because the database is away stays where it is, and nothing else is consumed:
    sent back, each would come again by a delay that grows to hours, however soon the database is back, and become a
    dead letter in the end (ADR 123).
    """
    if subscription.is_broadcasting:
        consumer = PushConsumer(
            subscription.group,
            url,
            consumer_config=ConsumerConfig(keep_local_offsets=False),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            message_model=MessageModel.BROADCASTING,
        )
    else:
        consumer = PushConsumer(
            subscription.group,
            url,
            consumer_config=ConsumerConfig(consume_timeout_s=LISTENER_MAX_S),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
    consumer.subscribe(subscription.topic, subscription.tags)

    handling = _Handling(subscription, storage, clock)

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        for message in messages:
            if not await handling.handle(message):
                return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    consumer.register_message_listener(listener)
    return consumer


class _Handling:
    """Carries the messages of one subscription out."""

    def __init__(self, subscription: Subscription, storage: HealthCheck, clock: Clock) -> None:
        self._subscription = subscription
        self._storage = storage
        self._clock = clock
        self._looking = asyncio.Lock()  # one task asks for all that wait

    async def handle(self, message: MessageExt) -> bool:
        """Whether the message is done; otherwise it is sent back."""
        context = {"group": self._subscription.group, "message_id": message.message_id, "keys": message.keys}
        tries = 0
        while True:
            try:
                async with timeout(self._clock, HANDLE_MAX_S):
                    await self._subscription.handle(message.body)
            except MalformedMessageError as error:
                # It ends as a dead letter, where an operator finds it; success would hide it.
                log.error("a message cannot be understood", error=str(error), **context)  # noqa: TRY400 - no fault of the code
                return False
            except (ServiceError, TimeoutError) as error:
                tries += 1
                may_wait = isinstance(error, StorageUnavailableError) and not self._subscription.is_broadcasting
                if may_wait and tries < STORAGE_TRIES_MAX:
                    if await self._wait_for_storage():
                        tries = 0
                    continue
                dropped = self._subscription.is_broadcasting
                what = "a broadcast message is dropped" if dropped else "a message will be consumed again"
                log.warning(what, error=str(error), reconsume_times=message.reconsume_times, **context)
                return False
            return True

    async def _wait_for_storage(self) -> bool:
        """Return when the database answers, a moment later at least; whether it was away."""
        was_away = False
        look_s = STORAGE_LOOK_FIRST_S
        async with self._looking:
            await self._clock.sleep(look_s)
            while (answer := await self._storage()) != OK:
                if not was_away:
                    log.warning(
                        "nothing is consumed until the database is back", group=self._subscription.group, answer=answer
                    )
                was_away = True
                look_s = min(2 * look_s, STORAGE_LOOK_MAX_S)
                await self._clock.sleep(look_s)
        if was_away:
            log.info("the database is back, and messages are consumed", group=self._subscription.group)
        return was_away


TOPIC_QUEUES = 4
RETRY_INTERVAL_S = 1.0
HEALTH_TIMEOUT_S = 1.0
STOP_MAX_S = 1.5  # less than a service gives all its consumers, which stop together

NOT_CONNECTED = "not connected with the queue"


class QueueConfigurationError(Exception):
    """The queue cannot be reached with this configuration, however long one waits."""


class MqConnection:
    """Owns the producer and the consumers of a service.

    Invariant: the service serves requests while the queue is away. Once connected, the client finds its way back by
    itself.
    """

    def __init__(self, url: str, clock: Clock, *, group: str, topics: Sequence[str], storage: HealthCheck) -> None:
        """`group` is the producers' group; `topics` are those that have to exist before anything is sent or read.

        While `storage`, the database, does not answer, no message that needs it is consumed.
        """
        self._url = url
        self._clock = clock
        self._topics = topics
        self._storage = storage
        self._consumers: list[PushConsumer] = []
        self._are_consumers_running = False
        self.publisher = MqPublisher(url, group, clock)

    async def connect(self, subscriptions: Sequence[Subscription], check: TransactionCheck) -> None:
        """Return when everything runs; `check` answers what the queue asks about transactions.

        Raises QueueConfigurationError.
        """
        failures = 0
        while True:
            try:
                await self._connect_once(subscriptions, check)
            except MQClientError as error:
                # What a broker rejects for good, its operator may still change; a wrong URL stays wrong.
                if isinstance(error, RejectedError) and not isinstance(error, BrokerRejectedError):
                    raise QueueConfigurationError(f"MQ_URL={self._url}: {error}") from error
                if failures == 0:
                    log.warning("the queue is not there; trying again until it is", url=self._url, error=str(error))
                failures += 1
                await self._clock.sleep(RETRY_INTERVAL_S)
            else:
                log.info("connected with the queue", url=self._url)
                return

    async def stop_consumers(self) -> None:
        """No message is handled after this; harmless when nothing runs.

        A message that waits for the database is not waited for, and not sent back: it comes again to the next member.
        """
        self._are_consumers_running = False
        consumers, self._consumers = self._consumers, []
        await asyncio.gather(*(consumer.shutdown(timeout_s=STOP_MAX_S) for consumer in consumers))

    async def stop_producers(self) -> None:
        """No message is sent after this; harmless when nothing runs."""
        await self.publisher.shutdown()

    async def producer_health(self) -> str:
        """Whether messages can be sent now: the last one was taken, every broker answers, and one takes messages."""
        if not self.publisher.is_running:
            return NOT_CONNECTED
        last_send = self.publisher.last_send
        return await self._broker_health(_writes) if last_send == OK else last_send

    async def consumers_health(self) -> str:
        """Whether messages are consumed now: every group has joined, and every broker answers."""
        return await self._broker_health(_answers) if self._are_consumers_running else NOT_CONNECTED

    async def _broker_health(self, judge: Callable[[Sequence[BrokerStatus]], str]) -> str:
        try:
            async with timeout(self._clock, HEALTH_TIMEOUT_S), Admin(self._url) as admin:
                return judge(await admin.broker_statuses())
        except MQClientError as error:
            return str(error)
        except TimeoutError:
            return f"no answer from the queue in {HEALTH_TIMEOUT_S} s"

    async def _connect_once(self, subscriptions: Sequence[Subscription], check: TransactionCheck) -> None:
        if not self.publisher.is_running:
            async with Admin(self._url) as admin:
                for topic in self._topics:
                    await _create_if_missing(admin, topic)
            await self.publisher.start(check)
        # A consumer whose start failed cannot be started again; those that run stay.
        for subscription in subscriptions[len(self._consumers) :]:
            consumer = build_consumer(self._url, subscription, self._storage, self._clock)
            await consumer.start()
            self._consumers.append(consumer)
        self._are_consumers_running = True


def _answers(_statuses: Sequence[BrokerStatus]) -> str:
    return OK  # a broker that does not answer has no status


def _writes(statuses: Sequence[BrokerStatus]) -> str:
    """A broker whose disk is full or has failed answers questions, and takes no message."""
    rejections = [f"{one.broker_name} takes no messages: {one.store.write_rejection}" for one in statuses]
    return OK if any(not one.store.write_rejection for one in statuses) else "; ".join(rejections)


async def _create_if_missing(admin: Admin, topic: str) -> None:
    """What exists is left as it is: an operator may have given it more queues."""
    try:
        await admin.topic_route(topic)
    except NoRouteError:
        await admin.update_topic(topic, read_queue_count=TOPIC_QUEUES, write_queue_count=TOPIC_QUEUES)


ANSWER_MAX_S = 5.0


@asynccontextmanager
async def asking_queue(url: str, clock: Clock) -> AsyncIterator[Admin]:
    """An operator's questions to the queue, for ANSWER_MAX_S at most. Raises QueueUnreachableError.

    Each connects anew: they come seldom, and then want the present answer.
    """
    try:
        async with timeout(clock, ANSWER_MAX_S), Admin(url) as admin:
            yield admin
    except MQClientError as error:
        raise QueueUnreachableError(f"the queue does not answer: {error}") from error
    except TimeoutError as error:
        raise QueueUnreachableError(f"no answer from the queue in {ANSWER_MAX_S:g} s") from error


class MqParkedTransactions:
    """Implements `ParkedTransactions`."""

    def __init__(self, url: str, group: str, clock: Clock) -> None:
        self._url = url
        self._group = group
        self._clock = clock

    async def oldest(self, limit: int) -> list[ParkedTransaction]:
        async with asking_queue(self._url, self._clock) as admin:
            found = await admin.list_transactions(
                phase=TransactionPhase.PARKED, producer_group=self._group, max_transactions=limit
            )
        return [
            ParkedTransaction(one.transaction_id, one.topic, one.keys, one.store_timestamp_ms)
            for one in found.transactions
        ]

    async def decide(self, transaction_id: str, *, commit: bool) -> None:
        async with asking_queue(self._url, self._clock) as admin:
            await admin.decide_transaction(transaction_id, commit=commit)
