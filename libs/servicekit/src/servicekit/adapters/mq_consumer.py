"""A subscription over mqclient's push consumer.

A message that cannot be carried out because the database is away stays where it is, and nothing else is consumed: sent
back, each would come again by a delay that grows to hours, however soon the database is back, and become a dead letter
in the end (ADR 123).
"""

from __future__ import annotations

import asyncio

import structlog

from mqclient import ConsumeFromWhere, ConsumerConfig, ConsumeStatus, MessageExt, MessageModel, PushConsumer
from osenv import Clock
from osenv.clock import timeout
from servicekit.errors import MalformedMessageError, ServiceError, StorageUnavailableError
from servicekit.health import OK, HealthCheck
from servicekit.message import Subscription

HANDLE_MAX_S = 900.0  # RocketMQ's time-out of a listener, here of one try: waiting for the database is none
LISTENER_MAX_S = 366 * 86_400.0
STORAGE_LOOK_FIRST_S, STORAGE_LOOK_MAX_S = 0.1, 1.0
STORAGE_TRIES_MAX = 5  # of a message that fails although the database answers

log = structlog.get_logger(__name__)


def build_consumer(url: str, subscription: Subscription, storage: HealthCheck, clock: Clock) -> PushConsumer:
    """A consumer that is not started yet; `storage` says whether the database answers.

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
        consumer = PushConsumer(
            subscription.group,
            url,
            consumer_config=ConsumerConfig(consume_timeout_s=LISTENER_MAX_S),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
    consumer.subscribe(subscription.topic, subscription.tags)

    handling = _Handling(subscription, storage, clock)

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        for message in messages:
            if not await handling.handle(message):
                return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    consumer.register_message_listener(listener)
    return consumer


class _Handling:
    """Carries the messages of one subscription out."""

    def __init__(self, subscription: Subscription, storage: HealthCheck, clock: Clock) -> None:
        self._subscription = subscription
        self._storage = storage
        self._clock = clock
        self._looking = asyncio.Lock()  # one looks for all that wait

    async def handle(self, message: MessageExt) -> bool:
        """Whether the message is done; otherwise it is sent back."""
        context = {"group": self._subscription.group, "message_id": message.message_id, "keys": message.keys}
        tries = 0
        while True:
            try:
                async with timeout(self._clock, HANDLE_MAX_S):
                    await self._subscription.handle(message.body)
            except MalformedMessageError as error:
                # It ends as a dead letter, where an operator finds it; success would hide it.
                log.error("a message cannot be understood", error=str(error), **context)  # noqa: TRY400 - no fault of the code
                return False
            except (ServiceError, TimeoutError) as error:
                tries += 1
                may_wait = isinstance(error, StorageUnavailableError) and not self._subscription.is_broadcasting
                if may_wait and tries < STORAGE_TRIES_MAX:
                    if await self._wait_for_storage():
                        tries = 0
                    continue
                dropped = self._subscription.is_broadcasting
                what = "a broadcast message is dropped" if dropped else "a message will be consumed again"
                log.warning(what, error=str(error), reconsume_times=message.reconsume_times, **context)
                return False
            return True

    async def _wait_for_storage(self) -> bool:
        """Return when the database answers, a moment later at least; whether it was away."""
        was_away = False
        look_s = STORAGE_LOOK_FIRST_S
        async with self._looking:
            await self._clock.sleep(look_s)
            while (answer := await self._storage()) != OK:
                if not was_away:
                    log.warning(
                        "nothing is consumed until the database is back", group=self._subscription.group, answer=answer
                    )
                was_away = True
                look_s = min(2 * look_s, STORAGE_LOOK_MAX_S)
                await self._clock.sleep(look_s)
        if was_away:
            log.info("the database is back, and messages are consumed", group=self._subscription.group)
        return was_away
