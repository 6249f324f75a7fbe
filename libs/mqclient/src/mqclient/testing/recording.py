"""What tests of a client bring: listeners that remember, a consumer that is ready to start, and dead letters.

Dead letters are made as a consumer makes them that gives a message up at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.admin import Admin, DeadLetter, DeadLetterFilter, DeadLetterState
from mqclient.config import ClientConfig, ConsumerConfig
from mqclient.consumer.listener import ConsumeFromWhere, ConsumeStatus, MessageListenerConcurrently
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.errors import require_success
from mqclient.message import LocalTransactionState, Message, MessageExt, SendResult
from mqclient.producer.producer import Producer
from mqclient.testing.fake_cluster import FakeCluster
from mqclient.transport import open_transport
from mqclient.transport.methods import CONSUMER_SEND_BACK

REAL_PATIENCE_S = 10.0

DEAD_AT_ONCE = -1  # as a delay level
ANSWER_TIMEOUT_S = 10.0
IN_ANY_STATE = DeadLetterFilter(states=frozenset(DeadLetterState))


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


class RecordingTransactionListener:
    """Answers `state` and `check_state`, or raises them when they are exceptions."""

    def __init__(
        self,
        state: Any = LocalTransactionState.COMMIT_MESSAGE,
        check_state: Any = LocalTransactionState.ROLLBACK_MESSAGE,
    ) -> None:
        self.state = state
        self.check_state = check_state
        self.executed: list[tuple[Message, str, Any]] = []
        self.checked: list[MessageExt] = []

    async def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        self.executed.append((message, transaction_id, arg))
        return _answer(self.state)

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.checked.append(message)
        return _answer(self.check_state)


def _answer(state: Any) -> LocalTransactionState:
    if isinstance(state, BaseException):
        raise state
    answer: LocalTransactionState = state
    return answer


async def send_dead_letters(url: str, group: str, messages: Sequence[Message]) -> list[SendResult]:
    """Send the messages, and give each back in the name of `group`, which ends it. Returns where they were sent."""
    async with Producer("writers", url) as producer:
        results = [await producer.send(message) for message in messages]
    transport = open_transport(url)
    for result in results:
        channel = transport.open_channel(result.broker_address)
        request = broker_pb.ConsumerSendBackRequest(group=group, log_offset=result.log_offset, delay_level=DEAD_AT_ONCE)
        answer = await channel.unary(CONSUMER_SEND_BACK, request, ANSWER_TIMEOUT_S)
        require_success(answer.code, answer.remark, result.broker_address)
        await channel.close()
    return results


async def letters_of(admin: Admin, group: str, wanted: DeadLetterFilter = IN_ANY_STATE) -> list[DeadLetter]:
    """All at once."""
    return [letter async for letter in admin.dead_letters(group, wanted)]


async def open_bodies(admin: Admin, group: str) -> list[bytes]:
    """The bodies of the letters without a mark."""
    return [letter.message.body for letter in await letters_of(admin, group, DeadLetterFilter())]


async def states_of(admin: Admin, group: str) -> dict[bytes, DeadLetterState]:
    """The state of each, by its body."""
    return {letter.message.body: letter.state for letter in await letters_of(admin, group)}


async def stored_bodies(admin: Admin, topic: str) -> list[bytes]:
    """What the topic holds, queue by queue; nothing when it does not exist."""
    if topic not in await admin.topic_list():
        return []
    queues = (await admin.topic_route(topic)).subscribe_queues()
    return [message.body for queue in queues async for message in admin.read_queue(queue)]
