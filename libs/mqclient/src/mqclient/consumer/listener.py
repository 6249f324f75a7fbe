"""What the application brings: a listener, and what it answers (MISSION C9, C10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from mqclient.message_ext import MessageExt


class ConsumeStatus(Enum):
    """RocketMQ's names."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue for which it has never committed an offset."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"


# Anything but CONSUME_SUCCESS, an exception included, means that none of the messages is consumed.
MessageListenerConcurrently = Callable[[list[MessageExt]], Awaitable[ConsumeStatus]]
