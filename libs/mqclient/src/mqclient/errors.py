"""Every error that the client raises, in one tree, split by what the caller should do.

MQClientError
 ├─ RetryableError               nothing was stored: try again, now or later
 │   ├─ NoRouteError             no name server answered, or no registered broker has a queue for the topic
 │   ├─ BrokerUnreachableError   there was no connection that the request could leave by
 │   ├─ BrokerUnavailableError   the broker said no for now (SYSTEM_BUSY, SERVICE_NOT_AVAILABLE, ...)
 │   ├─ NotSentError             the time ran out before the request left
 │   ├─ EarlierSendFailedError   an earlier message to the same queue failed, so that this one could not keep its place
 │   ├─ TooManyRequestsError     too many sends are under way already
 │   ├─ TransactionNotBegunError no half message was acknowledged, so the local transaction was not run
 │   └─ TransactionTombstonedError a check has rolled the transaction back before it could commit
 ├─ OutcomeUnknownError          it may be stored, it may not: trying again can store it twice
 │   ├─ RequestTimeoutError      it left, and no answer came in time
 │   └─ ConnectionLostError      it left, and the connection broke before the answer
 └─ RejectedError                trying again will not help: change something first
     ├─ MessageRejectedError     the message is not one that the queue takes
     ├─ IllegalGroupError        the group name is not one that the queue takes
     ├─ IllegalArgumentError     a setting, an address, or a subscription that makes no sense
     ├─ BrokerRejectedError      the broker said no for good (NO_PERMISSION, MESSAGE_ILLEGAL, ...)
     ├─ UnreadableBodyError      the body is compressed in a way that this client cannot undo
     ├─ IllegalStateError        the producer, consumer or instance is not in a state that allows the call
     └─ UnknownTransportError    no transport is registered for the scheme of the URL
"""

from __future__ import annotations

from mqproto.codes import ResponseCode


class MQClientError(Exception):
    """The root of the client's errors."""


class RetryableError(MQClientError):
    """Nothing was stored; the same call may succeed later."""


class NoRouteError(RetryableError):
    """No registered broker serves the topic."""


class BrokerUnreachableError(RetryableError):
    """The request never left, because there was no connection."""


class NotSentError(RetryableError):
    """The time for the call ran out before the request left."""


class EarlierSendFailedError(RetryableError):
    """The caller has chosen the queue, so this message could not be stored without the one before it.

    Mechanism P14.
    """


class TooManyRequestsError(RetryableError):
    """As many sends are under way as may be; wait for some of them to end."""


class TransactionNotBegunError(RetryableError):
    """A half message may be stored; its local transaction was not run, so a check will roll it back."""


class TransactionTombstonedError(RetryableError):
    """The local transaction came too late and has to be rolled back; a new attempt has a new transaction id."""


class OutcomeUnknownError(MQClientError):
    """The request left and nothing is known about what became of it."""


class RequestTimeoutError(OutcomeUnknownError):
    """No answer came in time."""


class ConnectionLostError(OutcomeUnknownError):
    """The connection broke between request and answer."""


class RejectedError(MQClientError):
    """The call cannot succeed as it is."""


class MessageRejectedError(RejectedError):
    """The message breaks a rule; the message names the rule."""


class IllegalGroupError(RejectedError):
    """The group name breaks a rule; the message names the rule."""


class IllegalArgumentError(RejectedError):
    """An argument makes no sense; the message says what is allowed."""


class UnreadableBodyError(RejectedError):
    """The body of a message that was received is not what its sysflag says, or is more than this client can read."""


class IllegalStateError(RejectedError):
    """The state does not allow it; the message names the state and what it allows."""


class UnknownTransportError(RejectedError):
    """The URL's scheme belongs to no transport that is installed."""


class _BrokerAnswerError(MQClientError):
    """A broker's answer other than SUCCESS."""

    def __init__(self, code: int, remark: str, broker: str) -> None:
        super().__init__(f"broker {broker} answered {code_name(code)}: {remark or 'it gave no reason'}")
        self.code = code
        self.remark = remark
        self.broker = broker


class BrokerUnavailableError(_BrokerAnswerError, RetryableError):
    """The broker cannot do it now; the same request may succeed later."""


class BrokerRejectedError(_BrokerAnswerError, RejectedError):
    """The broker rejects the request, for a reason that stays."""


# Codes that say "not now". TOPIC_NOT_EXIST is among them because the topic may be created at any time, and
# NOT_LEADER_FOR_QUEUE because another broker is the master now, or will be.
UNAVAILABLE_FOR_NOW = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.GO_AWAY,
    }
)


def code_name(code: int) -> str:
    """RocketMQ's name of a response code, or its number when it has none here."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"code {code}"


def broker_answer_error(code: int, remark: str, broker: str) -> BrokerUnavailableError | BrokerRejectedError:
    """The error that says what the caller can do about an answer other than SUCCESS."""
    is_for_now = code in UNAVAILABLE_FOR_NOW or code == ResponseCode.FLUSH_SLAVE_TIMEOUT  # of a send it is a status
    kind = BrokerUnavailableError if is_for_now else BrokerRejectedError
    return kind(code, remark, broker)


def with_more(error: MQClientError, addition: str) -> MQClientError:
    """The same error, with a sentence that goes on."""
    if isinstance(error, _BrokerAnswerError):
        return broker_answer_error(error.code, error.remark + addition, error.broker)
    return type(error)(f"{error}{addition}")


def require_success(code: int, remark: str, broker: str) -> None:
    """Raise BrokerUnavailableError or BrokerRejectedError unless `code` is SUCCESS."""
    if code != ResponseCode.SUCCESS:
        raise broker_answer_error(code, remark, broker)


class CheckUnansweredError(Exception):
    """Raised by a listener that cannot find out now, as while its database is away: the broker gets no answer.

    It asks again, every minute, for as long as it takes. UNKNOW would count, and the fifteenth one parks the message.
    """


class LocalTransactionRolledBackError(Exception):
    """Raised by a listener whose local transaction has failed and left nothing behind; the sender gets `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"the local transaction was rolled back: {cause!r}")
        self.cause = cause
