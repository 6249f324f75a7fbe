"""What the application brings: a listener, and what it answers (MISSION C9, C10, O1, O2)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from mqclient.message import MessageExt, MessageQueue


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


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """What a concurrent listener may set beside its answer; RocketMQ's names.

    `delay_level_when_next_consume`: when messages that are not consumed come again. 0: the broker decides, later with
    each try; 1 and above: a level of the broker's messageDelayLevel; -1: never, they become dead letters.

    `ack_index`, together with CONSUME_SUCCESS: the index of the last consumed message of the batch; the messages behind
    it come again. With -1 all of them come again, with None (the default) none.
    """

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    ack_index: int | None = None


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """What an ordered listener may set beside its answer.

    `suspend_current_queue_time_s`: how long the queue waits before its messages are tried again; None: as long as
    `ConsumerConfig.suspend_current_queue_time_s` says.
    """

    message_queue: MessageQueue
    suspend_current_queue_time_s: float | None = None


ConsumeContext: TypeAlias = ConsumeConcurrentlyContext | ConsumeOrderlyContext
# Anything but CONSUME_SUCCESS, an exception included, means that none of the messages is consumed. A plain function
# runs in a thread.
MessageListenerConcurrently: TypeAlias = (
    Callable[[list[MessageExt]], Awaitable[ConsumeStatus]]
    | Callable[[list[MessageExt]], ConsumeStatus]
    | Callable[[list[MessageExt], ConsumeConcurrentlyContext], Awaitable[ConsumeStatus]]
    | Callable[[list[MessageExt], ConsumeConcurrentlyContext], ConsumeStatus]
)
# Anything but SUCCESS, an exception included, means that none of the messages is consumed, and that the queue waits.
MessageListenerOrderly: TypeAlias = (
    Callable[[list[MessageExt]], Awaitable[ConsumeOrderlyStatus]]
    | Callable[[list[MessageExt]], ConsumeOrderlyStatus]
    | Callable[[list[MessageExt], ConsumeOrderlyContext], Awaitable[ConsumeOrderlyStatus]]
    | Callable[[list[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus]
)
Listener: TypeAlias = MessageListenerConcurrently | MessageListenerOrderly


def is_async(listener: Listener) -> bool:
    """Whether a call of it only makes something to await, and so belongs on the event loop."""
    called = listener if inspect.isroutine(listener) else getattr(listener, "__call__", listener)  # noqa: B004
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(called)


def takes_context(listener: Callable[..., Any]) -> bool:
    """Whether it has a second positional parameter without a default: the context of the call."""
    try:
        parameters = list(inspect.signature(listener).parameters.values())
    except (TypeError, ValueError):  # a builtin does not tell
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]
    return len(required) == 2
