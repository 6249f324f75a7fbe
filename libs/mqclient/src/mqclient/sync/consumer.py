"""A push consumer without `await` (MISSION C9)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from mqclient.consumer.listener import ConsumeStatus
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.consumer.subscription import ALL
from mqclient.message_ext import MessageExt
from mqclient.message_queue import MessageQueue
from mqclient.sync.faces import Face, made_like
from mqclient.worker_threads import WorkerThreads

SyncMessageListener = Callable[[list[MessageExt]], ConsumeStatus]

LISTENERS_TIMEOUT_S = 1.0  # how long a shutdown waits for the threads whose listeners it has stopped waiting for


class SyncPushConsumer(Face[PushConsumer]):
    """PushConsumer with a listener that is a plain function: it runs in threads, `consume_concurrency` at most."""

    @made_like(PushConsumer)
    def __init__(self, inner: PushConsumer) -> None:
        super().__init__(inner)
        self._listeners = WorkerThreads("mqclient consume", sys.maxsize)  # the asyncio consumer bounds their number

    def subscribe(self, topic: str, tag_expression: str = ALL) -> None:
        """As PushConsumer.subscribe: before the start."""
        self._inner.subscribe(topic, tag_expression)

    def register_message_listener(self, listener: SyncMessageListener) -> None:
        """As PushConsumer.register_message_listener: before the start."""

        async def in_a_thread(messages: list[MessageExt]) -> ConsumeStatus:
            return await self._listeners.run(listener, messages)

        self._inner.register_message_listener(in_a_thread)

    @property
    def queues(self) -> list[MessageQueue]:
        """What this member consumes now. Raises IllegalStateError unless running."""

        async def of_the_loop() -> list[MessageQueue]:
            return self._inner.queues

        return self._run("queues", of_the_loop)

    def _close_threads(self) -> None:
        self._listeners.close(LISTENERS_TIMEOUT_S)
