"""Who looks on while a message is tried: the hooks, and the table of slow brokers (MISSION P8, P11, P19)."""

from __future__ import annotations

import asyncio

from mqclient.errors import (
    BrokerRejectedError,
    BrokerUnreachableError,
    EarlierSendFailedError,
)
from mqclient.message import SendResult
from mqclient.producer.frames import Stored
from mqclient.producer.hooks import Hooks, MessageType, SendMessageContext
from mqclient.producer.latency_fault import LatencyFaultTolerance
from mqclient.producer.outgoing import Outgoing, OutgoingBatch, OutgoingHalf
from mqclient.producer.retry import RETRY_RESPONSE_CODES, CommunicationMode
from osenv import Clock

CONNECT_FAILURE_LATENCY_MS = 3_000.0  # MISSION P8


class TryWatch:
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
        """Let it count for its broker, unless the error is none of the broker's making."""
        if self._fault_tolerance is None or isinstance(error, EarlierSendFailedError):
            return
        latency_ms = (self._clock.monotonic() - self._begun) * 1000
        asynchronous = self._context.communication_mode is CommunicationMode.ASYNC
        if isinstance(error, BrokerUnreachableError) and asynchronous:
            latency_ms = CONNECT_FAILURE_LATENCY_MS
        broker = self._context.message_queue.broker_name
        self._fault_tolerance.update(broker, latency_ms, isolation=_is_failure(error))


def _is_failure(error: BaseException | None) -> bool:
    """Whether the broker is at fault: not when the caller has given up, nor when the message had to be refused."""
    if isinstance(error, BrokerRejectedError):
        return error.code in RETRY_RESPONSE_CODES
    return error is not None and not isinstance(error, asyncio.CancelledError)


def message_type(outgoing: Outgoing | OutgoingBatch) -> MessageType:
    """RocketMQ's kind of the message."""
    if isinstance(outgoing, OutgoingHalf):
        return MessageType.TRANS_MSG_HALF
    return MessageType.DELAY_MSG if outgoing.alone else MessageType.NORMAL_MSG
