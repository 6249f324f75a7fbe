"""A consumer group as the application has declared it; each life of the application makes a consumer of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypedDict

from mqclient.client_config import ClientConfig
from mqclient.consumer.allocate import AllocateMessageQueueStrategy
from mqclient.consumer.consumer_config import ConsumerConfig
from mqclient.consumer.listener import ConsumeFromWhere, ConsumeStatus, MessageModel
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.errors import IllegalArgumentError
from mqclient.message_ext import MessageExt

MessageHandling = Callable[[str, MessageExt], Awaitable[None]]


class ConsumerOptions(TypedDict, total=False):
    """What a consumer may be told beside group, topic and expression: PushConsumer's own arguments.

    One default is another: a new group begins with the first message of its topic, because an application that makes
    the topic by its first message would miss that one otherwise.
    """

    consumer_config: ConsumerConfig
    consume_from_where: ConsumeFromWhere
    message_model: MessageModel
    allocate_strategy: AllocateMessageQueueStrategy


@dataclass(frozen=True, slots=True)
class DeclaredConsumer:
    """Raises IllegalArgumentError for a batch: a handler gets one message, and only that one can come again."""

    group: str
    topic: str
    expression: str
    options: ConsumerOptions

    def __post_init__(self) -> None:
        config = self.options.get("consumer_config")
        if config is not None and config.consume_message_batch_max_size != 1:
            raise IllegalArgumentError(
                f"consumer {self.group} gets batches of {config.consume_message_batch_max_size} messages;"
                " consume_message_batch_max_size has to be 1 for a handler of one message"
            )

    def make(self, url: str, client_config: ClientConfig | None, handle: MessageHandling) -> PushConsumer:
        """A consumer that is not started yet: what `handle(group, message)` returns from is consumed."""
        options: ConsumerOptions = {"consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, **self.options}
        consumer = PushConsumer(self.group, url, client_config=client_config, **options)
        consumer.subscribe(self.topic, self.expression)

        async def listener(messages: list[MessageExt]) -> ConsumeStatus:
            for message in messages:
                await handle(self.group, message)  # an exception is RECONSUME_LATER, and the consumer logs it
            return ConsumeStatus.CONSUME_SUCCESS

        consumer.register_message_listener(listener)
        return consumer
