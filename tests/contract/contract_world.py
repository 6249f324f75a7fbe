"""The worlds in which the contract tests run, and the clients that visit them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Protocol, TypeVar

from hourglass_local.cluster import Cluster
from hourglass_local.waiting import NotInTimeError, eventually
from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumeStatus,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    TransactionListener,
    TransactionProducer,
)
from mqclient.testing import made_consumer
from osenv import Clock, RealClock

TIMEOUT_S = 15.0
CLOCK_STEP_S = 0.05
QUEUES = 4

T = TypeVar("T")


class World(Protocol):
    """A queue, and the time that passes in it."""

    @property
    def url(self) -> str:
        """What clients take."""

    @property
    def clock(self) -> Clock:
        """What passes there."""

    async def until(self, condition: Callable[[], object], what: str, seconds: float = TIMEOUT_S) -> None:
        """Return when `condition` is true. Raises NotInTimeError after `seconds` of this world's time."""

    async def kill(self) -> None:
        """The broker dies as by SIGKILL."""

    async def start(self) -> None:
        """The broker that died is there again."""


class MemoryWorld:
    """An embedded broker; time passes while a caller waits for something."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.url, self.clock = broker.url, broker.clock
        self.kill, self.start = broker.kill, broker.start

    async def until(self, condition: Callable[[], object], what: str, seconds: float = TIMEOUT_S) -> None:
        try:
            await self.clock.until(condition, within_s=seconds, step_s=CLOCK_STEP_S)
        except TimeoutError as error:
            raise NotInTimeError(f"{what}: {error}") from None


class ProcessWorld:
    """A name server and a broker on the loopback interface."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        (broker,) = cluster.brokers
        self.url, self.clock = url, RealClock()
        self.kill, self.start = broker.kill, broker.start

    async def until(self, condition: Callable[[], object], what: str, seconds: float = TIMEOUT_S) -> None:
        await eventually(condition, seconds, what)


class Inbox:
    """A listener that keeps what it gets, with the time of arrival; `status` is what it answers."""

    def __init__(self, clock: Clock, status: ConsumeStatus = ConsumeStatus.CONSUME_SUCCESS) -> None:
        self.messages: list[MessageExt] = []
        self.arrivals_ms: list[int] = []
        self._clock, self._status = clock, status

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.messages += messages
        self.arrivals_ms += [self._clock.wall_ms()] * len(messages)
        return self._status

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


class Visit:
    """One test's clients, under names that no other test has; they leave with it."""

    _numbers = count()

    def __init__(self, world: World, stack: AsyncExitStack) -> None:
        number = next(self._numbers)
        self.world = world
        self.topic, self.group = f"topic-{number}", f"group-{number}"
        self._stack = stack
        self._members = count()

    async def add_topic(self, queues: int = QUEUES) -> None:
        admin = await self._stack.enter_async_context(Admin(self.world.url, client_config=self._config()))
        await admin.update_topic(self.topic, read_queue_count=queues, write_queue_count=queues)

    async def producer(self) -> Producer:
        return await self._stack.enter_async_context(
            Producer(f"{self.group}-writers", self.world.url, client_config=self._config())
        )

    async def transaction_producer(self, listener: TransactionListener) -> TransactionProducer:
        producer = TransactionProducer(
            self.group, self.world.url, transaction_listener=listener, client_config=self._config()
        )
        return await self._stack.enter_async_context(producer)

    async def consumer(
        self,
        inbox: Inbox,
        tags: str = "*",
        *,
        topic: str | None = None,
        group: str | None = None,
        begin: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        **options: Any,
    ) -> PushConsumer:
        """A member of the group that has its queues."""
        made = self.made_consumer(tags, topic=topic, group=group, begin=begin, **options)
        made.register_message_listener(inbox)
        await self.join(made, topic)
        return made

    def made_consumer(
        self,
        tags: str = "*",
        *,
        topic: str | None = None,
        group: str | None = None,
        begin: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        **options: Any,
    ) -> PushConsumer:
        """A consumer without a listener, not started."""
        options = {"client_config": self._config(), "consume_concurrency": 1, **options}
        made = made_consumer(group or self.group, self.world.url, consume_from_where=begin, **options)
        made.subscribe(topic or self.topic, tags)
        return made

    async def join(self, made: PushConsumer, topic: str | None = None) -> None:
        """Start it, and wait until it has a queue of the topic; it leaves with the visit."""
        await self.finish(self._stack.enter_async_context(made))
        await self.world.until(lambda: topic_queues(made, topic or self.topic), "a queue for the consumer")

    def inbox(self, status: ConsumeStatus = ConsumeStatus.CONSUME_SUCCESS) -> Inbox:
        return Inbox(self.world.clock, status)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, or raises, with time passing meanwhile."""
        task = asyncio.ensure_future(work)
        await self.world.until(task.done, "the end of the call")
        return await task

    def _config(self) -> ClientConfig:
        return ClientConfig(instance_name=f"{self.group}-{next(self._members)}", poll_name_server_interval_s=0.2)


def topic_queues(member: PushConsumer, topic: str) -> set[MessageQueue]:
    return {queue for queue in member.queues if queue.topic == topic}
