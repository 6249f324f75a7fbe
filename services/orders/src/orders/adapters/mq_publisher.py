"""The publisher over mqclient's producer."""

from __future__ import annotations

from mqclient import Message, Producer, SendStatus
from mqclient.errors import MQClientError
from orders.domain.errors import PublishError
from orders.service.message import OutgoingMessage

PRODUCER_GROUP = "orders"

# Both have the message on the master's disk. After FLUSH_DISK_TIMEOUT it may be in memory only: it is sent again.
_TAKEN = frozenset({SendStatus.SEND_OK, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE})


class MqPublisher:
    """Implements `MessagePublisher`. It can be used before `start`, and refuses until then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._producer: Producer | None = None

    @property
    def is_running(self) -> bool:
        return self._producer is not None

    async def start(self) -> None:
        """Start a producer; after a failure it can be called again. Raises MQClientError."""
        producer = Producer(PRODUCER_GROUP, self._url)
        await producer.start()
        self._producer = producer

    async def shutdown(self) -> None:
        """Refuse from now on; harmless when nothing was started."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.shutdown()

    async def publish(self, message: OutgoingMessage) -> None:
        if self._producer is None:
            raise PublishError("the producer is not connected")
        try:
            result = await self._producer.send(
                Message(
                    message.topic, message.body, tag=message.tag, keys=[message.key], delay_level=message.delay_level
                )
            )
        except MQClientError as error:
            raise PublishError(f"{message.topic} was not taken: {error}") from error
        if result.send_status not in _TAKEN:
            raise PublishError(f"{message.topic} was not taken safely: {result.send_status.name}")
