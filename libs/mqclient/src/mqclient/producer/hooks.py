"""What an application may add around each try to send: measuring, tracing, auditing (MISSION P19).

Hooks are plain functions, called on the event loop between two steps of the send: they must not block, and whatever
takes time belongs into a task that they start. A hook that raises is logged, and the send goes on as if it were not
there. They look; they cannot change the message, whose properties are encoded when they are called.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from mqclient.message import Message, MessageQueue, SendResult
from mqclient.producer.retry import CommunicationMode

logger = logging.getLogger("mqclient.hooks")


class MessageType(Enum):
    """RocketMQ's names, in capitals."""

    NORMAL_MSG = "Normal_Msg"
    DELAY_MSG = "Delay_Msg"
    TRANS_MSG_HALF = "Trans_Msg_Half"


@dataclass(slots=True)
class SendMessageContext:
    """One try. `props` are the hook's own: what it puts there before, it finds after.

    Afterwards `send_result` or `exception` is set; neither is for a one-way message, of which nobody knows yet. A
    cancelled send has asyncio.CancelledError as its exception.
    """

    producer_group: str
    messages: Sequence[Message]  # several of a batch
    unique_id: str
    message_queue: MessageQueue
    broker_address: str
    born_host: str
    communication_mode: CommunicationMode
    message_type: MessageType
    props: dict[str, Any] = field(default_factory=dict)
    send_result: SendResult | None = None
    exception: BaseException | None = None

    @property
    def message(self) -> Message:
        """The message, or the first one of a batch."""
        return self.messages[0]


class SendMessageHook(Protocol):
    """Registered with `Producer.register_send_message_hook`."""

    @property
    def hook_name(self) -> str:
        """What it is called in the log."""

    def send_message_before(self, context: SendMessageContext) -> None:
        """The message is about to be handed to the stream."""

    def send_message_after(self, context: SendMessageContext) -> None:
        """The try has ended."""


class Hooks:
    """All hooks of one producer, in the order in which they were registered."""

    def __init__(self) -> None:
        self._hooks: list[SendMessageHook] = []

    def register(self, hook: SendMessageHook) -> None:
        self._hooks.append(hook)

    def before(self, context: SendMessageContext) -> None:
        for hook in self._hooks:
            try:
                hook.send_message_before(context)
            except Exception:
                logger.exception("the hook %s failed before %s was sent", hook.hook_name, context.unique_id)

    def after(
        self, context: SendMessageContext, result: SendResult | None = None, error: BaseException | None = None
    ) -> None:
        context.send_result, context.exception = result, error
        for hook in self._hooks:
            try:
                hook.send_message_after(context)
            except Exception:
                logger.exception("the hook %s failed after %s was sent", hook.hook_name, context.unique_id)
