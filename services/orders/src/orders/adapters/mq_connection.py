"""The connection with the queue: topics, producer, consumers, in this order, tried until the broker is there.

Invariant: orders serves requests while the queue is away; what is committed waits in the outbox. Once connected, the
client finds its way back by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from mqclient import Admin, PushConsumer
from mqclient.errors import BrokerRejectedError, MQClientError, RejectedError
from orders.adapters.mq_consumer import build_consumer
from orders.adapters.mq_publisher import MqPublisher
from orders.service.events import ORDER_EVENTS_TOPIC, ORDER_TIMEOUTS_TOPIC
from orders.service.health import OK
from orders.service.subscription import Subscription
from osenv import Clock

TOPICS = (ORDER_EVENTS_TOPIC, ORDER_TIMEOUTS_TOPIC)
TOPIC_QUEUES = 4
RETRY_INTERVAL_S = 1.0

log = structlog.get_logger(__name__)


class QueueConfigurationError(Exception):
    """The queue cannot be reached with this configuration, however long one waits."""


class MqConnection:
    """Owns the producer and the consumers."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._consumers: list[PushConsumer] = []
        self._are_consumers_running = False
        self.publisher = MqPublisher(url)

    async def connect(self, subscriptions: Sequence[Subscription]) -> None:
        """Return when everything runs. Raises QueueConfigurationError."""
        failures = 0
        while True:
            try:
                await self._connect_once(subscriptions)
            except MQClientError as error:
                # What a broker refuses for good, its operator may still change; a wrong URL stays wrong.
                if isinstance(error, RejectedError) and not isinstance(error, BrokerRejectedError):
                    raise QueueConfigurationError(f"ORDERS_MQ_URL={self._url}: {error}") from error
                if failures == 0:
                    log.warning("the queue is not there; trying again until it is", url=self._url, error=str(error))
                failures += 1
                await self._clock.sleep(RETRY_INTERVAL_S)
            else:
                log.info("connected with the queue", url=self._url)
                return

    async def stop_consumers(self) -> None:
        """No message is handled after this; harmless when nothing runs."""
        self._are_consumers_running = False
        while self._consumers:
            await self._consumers.pop().shutdown()

    async def stop_producer(self) -> None:
        """No message is sent after this; harmless when nothing runs."""
        await self.publisher.shutdown()

    def producer_health(self) -> str:
        return OK if self.publisher.is_running else "not connected with the queue"

    def consumers_health(self) -> str:
        return OK if self._are_consumers_running else "not connected with the queue"

    async def _connect_once(self, subscriptions: Sequence[Subscription]) -> None:
        if not self.publisher.is_running:
            async with Admin(self._url) as admin:
                for topic in TOPICS:
                    await admin.update_topic(topic, read_queue_count=TOPIC_QUEUES, write_queue_count=TOPIC_QUEUES)
            await self.publisher.start()
        # A consumer whose start failed cannot be started again; those that run stay.
        for subscription in subscriptions[len(self._consumers) :]:
            consumer = build_consumer(self._url, subscription)
            await consumer.start()
            self._consumers.append(consumer)
        self._are_consumers_running = True
