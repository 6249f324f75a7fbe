"""What an application may add around each call of its listener: measuring, tracing, auditing (MISSION C12).

Hooks are plain functions, called on the event loop: they must not block. A hook that raises is logged, and the
consumption goes on as if it were not there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mqclient.message import MessageExt, MessageQueue

logger = logging.getLogger("mqclient.hooks")


@dataclass(slots=True)
class ConsumeMessageContext:
    """One call of the listener. `props` are the hook's own: what it puts there before, it finds after.

    Afterwards `success` says whether the messages count as consumed, and `status` what the listener answered or raised.
    """

    consumer_group: str
    messages: Sequence[MessageExt]
    message_queue: MessageQueue
    props: dict[str, Any] = field(default_factory=dict)
    success: bool = False
    status: object = None


class ConsumeMessageHook(Protocol):
    """Registered with `PushConsumer.register_consume_message_hook`."""

    @property
    def hook_name(self) -> str:
        """What it is called in the log."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """The listener is about to be called."""

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """The listener has answered, or raised."""


class ConsumeHooks:
    """All hooks of one consumer, in the order in which they were registered."""

    def __init__(self) -> None:
        self._hooks: list[ConsumeMessageHook] = []

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def register(self, hook: ConsumeMessageHook) -> None:
        self._hooks.append(hook)

    def before(self, context: ConsumeMessageContext) -> None:
        for hook in self._hooks:
            try:
                hook.consume_message_before(context)
            except Exception:
                logger.exception("the hook %s failed before %s was consumed", hook.hook_name, context.messages)

    def after(self, context: ConsumeMessageContext) -> None:
        for hook in self._hooks:
            try:
                hook.consume_message_after(context)
            except Exception:
                logger.exception("the hook %s failed after %s was consumed", hook.hook_name, context.messages)
