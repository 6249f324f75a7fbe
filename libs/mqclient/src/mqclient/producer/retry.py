"""Which failed try is followed by another one, and where that one may go (MISSION P5-P8, P10).

Invariant: a broker that may have stored the message never gets it again from the same send, because a new try has a new
number, by which no broker recognises it. What an earlier try left open is the truth about the whole send.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from mqclient.errors import (
    REFUSED_FOR_NOW,
    BrokerRefusedError,
    BrokerRejectedError,
    MQClientError,
    OutcomeUnknownError,
    RetryableError,
    TooManyRequestsError,
)
from mqclient.message import MessageQueue, SendResult
from mqproto.codes import ResponseCode


class CommunicationMode(Enum):
    """RocketMQ's names."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


# MISSION P7: not now, or not here; another broker may take the message.
RETRY_RESPONSE_CODES = REFUSED_FOR_NOW | {
    ResponseCode.NO_PERMISSION,
    ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT,
}


class Tries(NamedTuple):
    """How often a message is tried, in which mode."""

    mode: CommunicationMode
    times: int


def may_retry(error: MQClientError, mode: CommunicationMode) -> bool:
    """Whether another try may help. An asynchronous send takes a broker's answer for an answer (MISSION P8).

    One that is no master has given none: it is as if nobody were there.
    """
    if isinstance(error, BrokerRefusedError) and error.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
        return True
    if isinstance(error, (BrokerRefusedError, BrokerRejectedError)):
        return mode is CommunicationMode.SYNC and error.code in RETRY_RESPONSE_CODES
    return isinstance(error, (RetryableError, OutcomeUnknownError)) and not isinstance(error, TooManyRequestsError)


class PastTries:
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
        not_available = isinstance(error, BrokerRefusedError) and error.code == ResponseCode.SERVICE_NOT_AVAILABLE
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
