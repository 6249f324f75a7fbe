"""A listener that remembers, and a consumer that is ready to start."""

from __future__ import annotations

import asyncio
from typing import Any

from mqclient.config import ClientConfig, ConsumerConfig
from mqclient.consumer.listener import ConsumeFromWhere, ConsumeStatus, MessageListenerConcurrently
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.message import MessageExt
from mqclient.testing.fake_cluster import FakeCluster

REAL_PATIENCE_S = 10.0


class RecordingListener:
    """Remembers what it got and answers `status`, or raises it when it is an exception."""

    def __init__(self, status: Any = ConsumeStatus.CONSUME_SUCCESS) -> None:
        self.status = status
        self.batches: list[list[MessageExt]] = []
        self._called = asyncio.Event()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for batch in self.batches for message in batch]

    async def has(self, count: int) -> None:
        """Wait, within real time, until it has got so many messages. Raises TimeoutError."""
        async with asyncio.timeout(REAL_PATIENCE_S):
            while len(self.bodies) < count:
                self._called.clear()
                await self._called.wait()

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.batches.append(messages)
        self._called.set()
        if isinstance(self.status, Exception):
            raise self.status
        status: ConsumeStatus = self.status
        return status


def consumer_of(
    cluster: FakeCluster,
    listener: MessageListenerConcurrently,
    *,
    group: str = "closers",
    tags: str = "*",
    member: str = "DEFAULT",
    **options: Any,
) -> PushConsumer:
    """A member of the group that wants `orders` from the first offset; `options` as `made_consumer` takes them."""
    options = {
        "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        "client_config": ClientConfig(instance_name=member),
        **options,
    }
    consumer = made_consumer(group, cluster.url, **options)
    consumer.subscribe("orders", tags)
    consumer.register_message_listener(listener)
    return consumer


def made_consumer(group: str, url: str, *, consume_concurrency: int | None = None, **options: Any) -> PushConsumer:
    """A consumer whose `options` are its own or those of its ConsumerConfig; so many listeners run at a time."""
    settings = {name: options.pop(name) for name in [*options] if name in ConsumerConfig.__dataclass_fields__}
    if consume_concurrency is not None:
        settings |= {"consume_thread_min": consume_concurrency, "consume_thread_max": consume_concurrency}
    return PushConsumer(group, url, consumer_config=ConsumerConfig(**settings), **options)
