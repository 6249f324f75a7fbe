"""A listener that remembers, and a consumer that is ready to start."""

from __future__ import annotations

from typing import Any

from mqclient.client_config import ClientConfig
from mqclient.consumer.listener import ConsumeFromWhere, ConsumeStatus, MessageListenerConcurrently
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.message_ext import MessageExt
from mqclient.testing.fake_cluster import FakeCluster


class RecordingListener:
    """Remembers what it got and answers `status`, or raises it when it is an exception."""

    def __init__(self, status: Any = ConsumeStatus.CONSUME_SUCCESS) -> None:
        self.status = status
        self.batches: list[list[MessageExt]] = []

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for batch in self.batches for message in batch]

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.batches.append(messages)
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
    """A member of the group that wants `orders` from the first offset, unless `options` say otherwise."""
    options = {
        "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        "client_config": ClientConfig(instance_name=member),
        **options,
    }
    consumer = PushConsumer(group, cluster.url, **options)
    consumer.subscribe("orders", tags)
    consumer.register_message_listener(listener)
    return consumer
