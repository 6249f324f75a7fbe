"""A push consumer without `await` (MISSION C9)."""

from __future__ import annotations

from mqclient.consumer.listener import ConsumeMessageHook, MessageListenerConcurrently, MessageListenerOrderly
from mqclient.consumer.pulling import ALL, MessageSelector
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.message import MessageQueue
from mqclient.sync.faces import Face, at_once, blocking, made_like

LISTENERS_TIMEOUT_S = 1.0  # how long a shutdown waits for the threads whose listeners it has stopped waiting for


class SyncPushConsumer(Face[PushConsumer]):
    """PushConsumer for programs without an event loop; its listener is a plain function, and runs in threads."""

    @made_like(PushConsumer)
    def __init__(self, inner: PushConsumer) -> None:
        super().__init__(inner)

    def subscribe(self, topic: str, expression: str | MessageSelector | None = ALL) -> None:
        """As PushConsumer.subscribe: before the start."""
        self._inner.subscribe(topic, expression)

    def register_message_listener(self, listener: MessageListenerConcurrently) -> None:
        """As PushConsumer.register_message_listener: before the start."""
        self._inner.register_message_listener(listener)

    def register_message_listener_orderly(self, listener: MessageListenerOrderly) -> None:
        """As PushConsumer.register_message_listener_orderly: before the start."""
        self._inner.register_message_listener_orderly(listener)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """As PushConsumer.register_consume_message_hook; the hook is called on the shared thread."""
        self._inner.register_consume_message_hook(hook)

    def unsubscribe(self, topic: str) -> None:
        """As PushConsumer.unsubscribe: before the start, or while running."""
        if self._thread is None:
            self._inner.unsubscribe(topic)
        else:
            self._unsubscribe(topic)

    _unsubscribe = at_once(PushConsumer.unsubscribe)
    wait_assigned = blocking(PushConsumer.wait_assigned)
    suspend = at_once(PushConsumer.suspend)
    resume = at_once(PushConsumer.resume)

    @property
    def queues(self) -> list[MessageQueue]:
        """What this member consumes now. Raises IllegalStateError unless running."""

        async def of_the_loop() -> list[MessageQueue]:
            return self._inner.queues

        return self._run("queues", of_the_loop)

    def _close_threads(self) -> None:
        self._inner.close_listener_threads(LISTENERS_TIMEOUT_S)
