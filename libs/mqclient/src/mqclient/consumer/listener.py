"""What the application brings: a listener, and what it answers (MISSION C9, C10, O1, O2)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TypeAlias

from mqclient.message_ext import MessageExt


class ConsumeStatus(Enum):
    """What a concurrent listener answers; RocketMQ's names."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """What an orderly listener answers; RocketMQ's names."""

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue for which it has never committed an offset."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    """Whether each message goes to one member of the group, or to every one (MISSION C1, C2)."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


# Anything but CONSUME_SUCCESS, an exception included, means that none of the messages is consumed. A plain function
# runs in a thread.
MessageListenerConcurrently: TypeAlias = (
    Callable[[list[MessageExt]], Awaitable[ConsumeStatus]] | Callable[[list[MessageExt]], ConsumeStatus]
)
# Anything but SUCCESS, an exception included, means that none of the messages is consumed, and that the queue waits.
MessageListenerOrderly: TypeAlias = (
    Callable[[list[MessageExt]], Awaitable[ConsumeOrderlyStatus]] | Callable[[list[MessageExt]], ConsumeOrderlyStatus]
)
Listener: TypeAlias = MessageListenerConcurrently | MessageListenerOrderly


def is_async(listener: Listener) -> bool:
    """Whether a call of it only makes something to await, and so belongs on the event loop."""
    called = listener if inspect.isroutine(listener) else getattr(listener, "__call__", listener)  # noqa: B004
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(called)
