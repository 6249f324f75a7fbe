"""The connection with the queue: topics, producer, consumers, in this order, tried until the broker is there.

Invariant: the service serves requests while the queue is away. Once connected, the client finds its way back by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from mqclient import Admin, BrokerStatus, PushConsumer
from mqclient.errors import BrokerRejectedError, MQClientError, NoRouteError, RejectedError
from osenv import Clock
from osenv.clock import timeout
from servicekit.adapters.mq_consumer import build_consumer
from servicekit.adapters.mq_publisher import MqPublisher
from servicekit.health import OK, HealthCheck
from servicekit.message import Subscription
from servicekit.transactions import TransactionCheck

TOPIC_QUEUES = 4
RETRY_INTERVAL_S = 1.0
HEALTH_TIMEOUT_S = 1.0
STOP_MAX_S = 1.5  # less than a service gives all its consumers, which stop together

NOT_CONNECTED = "not connected with the queue"

log = structlog.get_logger(__name__)


class QueueConfigurationError(Exception):
    """The queue cannot be reached with this configuration, however long one waits."""


class MqConnection:
    """Owns the producer and the consumers of a service."""

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
                # What a broker refuses for good, its operator may still change; a wrong URL stays wrong.
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
    return OK  # whoever does not answer has no status


def _writes(statuses: Sequence[BrokerStatus]) -> str:
    """A broker whose disk is full or has failed answers questions, and takes no message."""
    refusals = [f"{one.broker_name} takes no messages: {one.store.write_refusal}" for one in statuses]
    return OK if any(not one.store.write_refusal for one in statuses) else "; ".join(refusals)


async def _create_if_missing(admin: Admin, topic: str) -> None:
    """What exists is left as it is: an operator may have given it more queues."""
    try:
        await admin.topic_route(topic)
    except NoRouteError:
        await admin.update_topic(topic, read_queue_count=TOPIC_QUEUES, write_queue_count=TOPIC_QUEUES)
