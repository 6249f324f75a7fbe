"""The design that the course arrives at: a delayed message comes back when the order's time is over (MISSION X3).

The timer is a message of level 16: it lies in the broker's log, whatever becomes of the instances, and it comes to one
member of the group, whichever lives then.
"""

from __future__ import annotations

import json

from mqclient import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MQClientError,
    Producer,
    PushConsumer,
)
from order_timers.order_book import OrderBook
from order_timers.port import TimerNotSetError
from osenv import Clock

GROUP = "order-timers"
TOPIC = "order-timeouts"
PAYMENT_WINDOW_LEVEL = 16  # MISSION X3, D1: 30 minutes
QUEUES = 4


async def create_topic(url: str) -> None:
    """Topics exist before the instances start. Raises MQClientError."""
    async with Admin(url) as admin:
        await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)


class MessageQueueTimers:
    """Implements `OrderTimers` for the instance `server_id`; level 16 of the broker is the payment window."""

    def __init__(self, book: OrderBook, clock: Clock, url: str, server_id: str) -> None:
        self._book = book
        self._clock = clock
        self._url = url
        self._client_config = ClientConfig(instance_name=server_id)
        self._producer: Producer
        self._consumer: PushConsumer

    async def start(self) -> None:
        self._producer = Producer(GROUP, self._url, client_config=self._client_config)
        self._consumer = PushConsumer(
            GROUP,
            self._url,
            client_config=self._client_config,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        self._consumer.subscribe(TOPIC, "*")
        self._consumer.register_message_listener(self._ring)
        await self._producer.start()
        await self._consumer.start()

    async def set(self, order_id: str, expires_at_ms: int) -> None:
        body = json.dumps({"order_id": order_id, "expires_at_ms": expires_at_ms}).encode()
        try:
            await self._producer.send(Message(TOPIC, body, keys=order_id, delay_level=PAYMENT_WINDOW_LEVEL))
        except MQClientError as error:
            raise TimerNotSetError(f"the timer of {order_id} could not be set: {error}") from error

    async def kill(self) -> None:
        await self._consumer.shutdown(timeout_s=0.0)
        await self._producer.shutdown(timeout_s=0.0)

    async def _ring(self, messages: list[MessageExt]) -> ConsumeStatus:
        """Paid: ignored. Due: closed. Early, because clocks differ: sent again for the rest, never ignored."""
        for message in messages:
            timer = json.loads(message.body)
            order = await self._book.find(timer["order_id"])
            if order is None or not order.is_pending:
                continue
            rest_ms = order.expires_at_ms - self._clock.wall_ms()
            if rest_ms > 0:
                await self._producer.send(Message(TOPIC, message.body, keys=order.order_id, delay_ms=rest_ms))
            else:
                await self._book.close(order.order_id)
        return ConsumeStatus.CONSUME_SUCCESS
