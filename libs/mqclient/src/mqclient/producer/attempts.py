"""Attempts to send: which failed one is followed by another, and the hooks around each of them.

Invariants: a broker that may have stored the message never gets it again from the same send, because a new try has a
new number, by which no broker recognises it; what an earlier try left open is the truth about the whole send. A broker
that nothing is known of is available; what is known only ever prolongs the time for which a broker is left alone.
(RocketMQ 5 can also probe such brokers in the background, startDetectorEnable; that is not done here.)
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from mqclient.connection.frames import Stored
from mqclient.errors import (
    UNAVAILABLE_FOR_NOW,
    BrokerRejectedError,
    BrokerUnavailableError,
    BrokerUnreachableError,
    EarlierSendFailedError,
    MQClientError,
    OutcomeUnknownError,
    RetryableError,
    TooManyRequestsError,
)
from mqclient.message import Message, MessageQueue, SendResult
from mqclient.producer.prepared import PreparedBatch, PreparedHalf, PreparedMessage
from mqproto.codes import ResponseCode
from osenv import Clock

logger = logging.getLogger("mqclient.attempts")

# Mechanism P7: not now, or not here; another broker may take the message.
RETRY_RESPONSE_CODES = UNAVAILABLE_FOR_NOW | {
    ResponseCode.NO_PERMISSION,
    ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT,
}

# Mechanism P12: from this latency on, the broker is left alone for so long.
LATENCY_MAX_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
NOT_AVAILABLE_DURATION_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
ISOLATION_MS = 10_000  # what a failed send counts as

CONNECT_FAILURE_LATENCY_MS = 3_000.0  # mechanism P8


class CommunicationMode(Enum):
    """RocketMQ's names."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


class RetryPolicy(NamedTuple):
    """How often a message is tried, in which mode."""

    mode: CommunicationMode
    times: int


def may_retry(error: MQClientError, mode: CommunicationMode) -> bool:
    """Whether another try may help. An asynchronous send takes a broker's answer for an answer (mechanism P8).

    NOT_LEADER_FOR_QUEUE counts as no answer.
    """
    if isinstance(error, BrokerUnavailableError) and error.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
        return True
    if isinstance(error, (BrokerUnavailableError, BrokerRejectedError)):
        return mode is CommunicationMode.SYNC and error.code in RETRY_RESPONSE_CODES
    return isinstance(error, (RetryableError, OutcomeUnknownError)) and not isinstance(error, TooManyRequestsError)


class AttemptHistory:
    """What the tries of one send have come to so far."""

    def __init__(self) -> None:
        self.last_broker: str | None = None
        self._may_have_it: set[str] = set()
        self._unknown: OutcomeUnknownError | None = None
        self._stored: SendResult | None = None

    def failed(self, queue: MessageQueue | None, error: MQClientError) -> None:
        """The try on this queue has failed, or the one that found none."""
        self.last_broker = queue.broker_name if queue is not None else None
        if isinstance(error, OutcomeUnknownError):
            self._unknown = error
        # A broker that answers SERVICE_NOT_AVAILABLE may have written the message and failed to sync it.
        not_available = isinstance(error, BrokerUnavailableError) and error.code == ResponseCode.SERVICE_NOT_AVAILABLE
        if queue is not None and (not_available or isinstance(error, OutcomeUnknownError)):
            self._may_have_it.add(queue.broker_name)

    def stored_less_safely(self, result: SendResult) -> None:
        """The broker has stored it, but not as it should, and another broker is asked to do better."""
        self.last_broker = result.message_queue.broker_name
        self._may_have_it.add(self.last_broker)
        self._stored = result

    def still_open(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        """The queues that another try may choose from. Raises OutcomeUnknownError when there is none.

        The only broker is asked again after SERVICE_NOT_AVAILABLE: nearly always nothing was written.
        """
        if not self._may_have_it:
            return queues
        left = [queue for queue in queues if queue.broker_name not in self._may_have_it]
        if not left and self._unknown is not None:
            raise self._unknown
        return left or queues

    def end(self, error: MQClientError) -> SendResult:
        """No try follows the one that ended with `error`: the send's result. Raises its error when it has none."""
        if self._stored is not None:
            return self._stored
        if self._unknown is None or self._unknown is error:
            raise error
        raise self._unknown from error


def not_available_duration_ms(latency_ms: float) -> int:
    """How long a broker is left alone after a send that took so long."""
    row = bisect_right(LATENCY_MAX_MS, latency_ms) - 1
    return NOT_AVAILABLE_DURATION_MS[row] if row >= 0 else 0


@dataclass(slots=True)
class _FaultItem:
    latency_ms: float
    available_from: float


class LatencyFaultTolerance:
    """What is known of each broker, by its name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._items: dict[str, _FaultItem] = {}
        self._which_item = 0

    def update(self, broker: str, latency_ms: float, *, isolation: bool = False) -> None:
        """A send took so long; one that failed leaves the broker alone as one that took ISOLATION_MS."""
        duration_ms = not_available_duration_ms(ISOLATION_MS if isolation else latency_ms)
        available_from = self._clock.monotonic() + duration_ms / 1000
        item = self._items.get(broker)
        if item is None:
            self._items[broker] = _FaultItem(latency_ms, available_from)
            return
        item.latency_ms = latency_ms
        item.available_from = max(item.available_from, available_from)

    def is_available(self, broker: str) -> bool:
        item = self._items.get(broker)
        return item is None or item.available_from <= self._clock.monotonic()

    def pick_one_at_least(self) -> str | None:
        """One of the better half of all brokers, in turns; None when nothing is known of any."""
        now = self._clock.monotonic()
        ranked = sorted(
            self._items,
            key=lambda broker: (
                self._items[broker].available_from > now,
                self._items[broker].latency_ms,
                self._items[broker].available_from,
            ),
        )
        if not ranked:
            return None
        half = len(ranked) // 2
        if half == 0:
            return ranked[0]
        self._which_item += 1
        return ranked[(self._which_item - 1) % half]

    def remove(self, broker: str) -> None:
        """Forget what is known of it."""
        self._items.pop(broker, None)


class MessageType(Enum):
    """RocketMQ's names, in capitals."""

    NORMAL_MSG = "Normal_Msg"
    DELAY_MSG = "Delay_Msg"
    TRANS_MSG_HALF = "Trans_Msg_Half"


@dataclass(slots=True)
class SendMessageContext:
    """One try. `props` are the hook's own: what it puts there before, it finds after.

    Afterwards `send_result` or `exception` is set; neither is for a one-way message, whose outcome is unknown. A
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
        """Its name in the log."""

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


class AttemptObserver:
    """Of one try, from just before the message is handed over."""

    def __init__(
        self,
        context: SendMessageContext,
        hooks: Hooks,
        fault_tolerance: LatencyFaultTolerance | None,
        clock: Clock,
    ) -> None:
        self._context = context
        self._hooks = hooks
        self._fault_tolerance = fault_tolerance
        self._clock = clock
        self._begun = clock.monotonic()
        hooks.before(context)

    def ended(self, result: SendResult | None = None, error: BaseException | None = None) -> None:
        """The try has a result or an error."""
        self._judge(error)
        self._hooks.after(self._context, result, error)

    def handed_over(self, future: asyncio.Future[Stored]) -> None:
        """A one-way message is on its way; the hooks hear nothing more of it."""
        future.add_done_callback(lambda done: self._judge(done.exception()))
        self._hooks.after(self._context)

    def _judge(self, error: BaseException | None) -> None:
        """Record it for its broker, unless the error is not the broker's."""
        if self._fault_tolerance is None or isinstance(error, EarlierSendFailedError):
            return
        latency_ms = (self._clock.monotonic() - self._begun) * 1000
        asynchronous = self._context.communication_mode is CommunicationMode.ASYNC
        if isinstance(error, BrokerUnreachableError) and asynchronous:
            latency_ms = CONNECT_FAILURE_LATENCY_MS
        broker = self._context.message_queue.broker_name
        self._fault_tolerance.update(broker, latency_ms, isolation=_is_failure(error))


def _is_failure(error: BaseException | None) -> bool:
    """Whether the broker is at fault: not when the caller has given up, nor when the message had to be rejected."""
    if isinstance(error, BrokerRejectedError):
        return error.code in RETRY_RESPONSE_CODES
    return error is not None and not isinstance(error, asyncio.CancelledError)


def message_type(outgoing: PreparedMessage | PreparedBatch) -> MessageType:
    """RocketMQ's kind of the message."""
    if isinstance(outgoing, PreparedHalf):
        return MessageType.TRANS_MSG_HALF
    return MessageType.DELAY_MSG if outgoing.own_batch else MessageType.NORMAL_MSG
