"""A subscription over mqclient's push consumer."""

from __future__ import annotations

import structlog

from mqclient import ConsumeFromWhere, ConsumerConfig, ConsumeStatus, MessageExt, MessageModel, PushConsumer
from servicekit.errors import MalformedMessageError, ServiceError
from servicekit.subscription import Subscription

log = structlog.get_logger(__name__)


def build_consumer(url: str, subscription: Subscription) -> PushConsumer:
    """A consumer that is not started yet.

    A group begins with the first message of its topic: no event may be missed. A process to which everything is
    broadcast begins with the next one: it has nobody yet to whom it could tell what was before.
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
        consumer = PushConsumer(subscription.group, url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(subscription.topic, subscription.tags)

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        for message in messages:
            if not await _handle(subscription, message):
                return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    consumer.register_message_listener(listener)
    return consumer


async def _handle(subscription: Subscription, message: MessageExt) -> bool:
    context = {"group": subscription.group, "message_id": message.message_id, "keys": message.keys}
    try:
        await subscription.handle(message.body)
    except MalformedMessageError as error:
        # It ends as a dead letter, where an operator finds it; success would hide it.
        log.error("a message cannot be understood", error=str(error), **context)  # noqa: TRY400 - no fault of the code
        return False
    except ServiceError as error:
        what = "a broadcast message is dropped" if subscription.is_broadcasting else "a message will be consumed again"
        log.warning(what, error=str(error), reconsume_times=message.reconsume_times, **context)
        return False
    return True
