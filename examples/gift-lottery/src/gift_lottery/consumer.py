"""Group `gift-lottery` on `order-events`: all that connects the lottery with the shop."""

from __future__ import annotations

import structlog

from gift_lottery.lottery import GROUP, Lottery
from gift_lottery.order_event import TAGS, MalformedEventError, read_event
from mqclient import ClientConfig, ConsumeFromWhere, ConsumeStatus, MessageExt, PushConsumer

TOPIC = "order-events"

log = structlog.get_logger(__name__)


def build_consumer(url: str, lottery: Lottery, client_config: ClientConfig | None = None) -> PushConsumer:
    """A member of the group that is not started yet; the events that the queue still has take part, too."""
    consumer = PushConsumer(
        GROUP, url, client_config=client_config, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    consumer.subscribe(TOPIC, " || ".join(TAGS))

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        for message in messages:
            try:
                await lottery.handle(read_event(message.tag, message.body))
            except MalformedEventError as error:
                # It ends as a dead letter, where an operator finds it; success would hide it.
                log.warning("an event cannot be understood", error=str(error), message_id=message.message_id)
                return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    consumer.register_message_listener(listener)
    return consumer
