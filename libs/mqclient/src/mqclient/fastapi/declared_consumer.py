"""A consumer group as the application has declared it; each life of the application makes a consumer of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from mqclient.config import ClientConfig, ConsumerConfig
from mqclient.consumer.listener import ConsumeFromWhere, ConsumeOrderlyStatus, ConsumeStatus, MessageModel
from mqclient.consumer.pulling import ALL, OR, Subscription, parse_subscription
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.consumer.rebalance import AllocateMessageQueueStrategy
from mqclient.errors import IllegalArgumentError
from mqclient.message import MessageExt

# The key of a handler and a message for it.
MessageHandling = Callable[[str, MessageExt], Awaitable[None]]


class ConsumerOptions(TypedDict, total=False):
    """What a consumer may be told beside group, topic and expression: PushConsumer's own arguments and defaults.

    With `orderly` each queue is consumed in its order.
    """

    consumer_config: ConsumerConfig
    consume_from_where: ConsumeFromWhere
    message_model: MessageModel
    allocate_strategy: AllocateMessageQueueStrategy
    orderly: bool


def checked_options(group: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options. Raises IllegalArgumentError for unknown ones, and for batches.

    A handler gets one message, and only that one can come again.
    """
    unknown = sorted(options.keys() - ConsumerOptions.__annotations__.keys())
    if unknown:
        raise IllegalArgumentError(
            f"consumer {group} has no option {', '.join(unknown)}; there are"
            f" {', '.join(ConsumerOptions.__annotations__)}"
        )
    if not isinstance(options.get("orderly", False), bool):
        raise IllegalArgumentError(f"orderly of consumer {group} is True or False, not {options['orderly']!r}")
    config = options.get("consumer_config")
    if config is not None and config.consume_message_batch_max_size != 1:
        raise IllegalArgumentError(
            f"consumer {group} gets batches of {config.consume_message_batch_max_size} messages;"
            " consume_message_batch_max_size has to be 1 for a handler of one message"
        )
    return options


@dataclass(slots=True)
class DeclaredConsumer:
    """A group with its handlers. Invariant: a message of a topic and a tag belongs to one of them at most."""

    group: str
    options: dict[str, Any]
    _handled: dict[str, Subscription] = field(default_factory=dict)  # by the handler's key

    def add(self, topic: str, expression: str, options: dict[str, Any]) -> str:
        """One more handler, which is called by the key that is returned.

        Options are given with the first handler of a group; a later one may repeat them. Raises IllegalArgumentError
        for others, and when messages would belong to two handlers.
        """
        subscription = parse_subscription(topic, expression)
        if self._handled and options and options != self.options:
            raise IllegalArgumentError(
                f"consumer {self.group} has other options already; give them with its first handler"
            )
        for other in self._handled.values():
            shared = sorted(subscription.tags & other.tags)
            if other.topic == topic and (shared or not subscription.tags or not other.tags):
                what = f"tag {', '.join(shared)}" if shared else f"topic {topic}"
                raise IllegalArgumentError(
                    f"consumer {self.group} has a handler already for {what}; handlers of one group have different"
                    " topics or tags, and another group gets the same messages as well"
                )
        key = f"{self.group}/{len(self._handled)}"
        self._handled[key] = subscription
        return key

    def make(self, url: str, client_config: ClientConfig | None, handle: MessageHandling) -> PushConsumer:
        """A consumer that is not started yet: what `handle(key, message)` returns from is consumed."""
        options = dict(self.options)
        is_orderly = options.pop("orderly", False)
        consumer = PushConsumer(self.group, url, client_config=client_config, **options)
        for topic in {one.topic for one in self._handled.values()}:
            tags = sorted({tag for one in self._handled.values() if one.topic == topic for tag in one.tags})
            consumer.subscribe(topic, f" {OR} ".join(tags) or ALL)

        async def handled(messages: list[MessageExt]) -> None:
            for message in messages:
                await handle(self._key_of(message), message)  # an exception is "later", and the consumer logs it

        async def listener(messages: list[MessageExt]) -> ConsumeStatus:
            await handled(messages)
            return ConsumeStatus.CONSUME_SUCCESS

        async def orderly_listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
            await handled(messages)
            return ConsumeOrderlyStatus.SUCCESS

        if is_orderly:
            consumer.register_message_listener_orderly(orderly_listener)
        else:
            consumer.register_message_listener(listener)
        return consumer

    def _key_of(self, message: MessageExt) -> str:
        for key, subscription in self._handled.items():
            if subscription.topic == message.topic and subscription.matches(message):
                return key
        raise LookupError(f"consumer {self.group} has no handler for topic {message.topic} and tag {message.tag}")
