"""Recalls and reschedules of waiting messages, for producers and admins.

Invariants: every master that the topic's route names is asked, because a message waits on one of them and several
messages may have the key; there is a result only when each of them has answered, so that UNKNOWN means that no
registered broker of the topic has such a message, and never that one of them was out of reach. A topic that no broker
has has no messages: UNKNOWN is the answer when every name server knows brokers and none with the topic.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_instance import ClientInstance
from mqclient.errors import (
    UNAVAILABLE_FOR_NOW,
    BrokerUnreachableError,
    IllegalArgumentError,
    MQClientError,
    NoRouteError,
    OutcomeUnknownError,
    RejectedError,
    RetryableError,
    broker_answer_error,
    require_success,
    with_more,
)
from mqclient.message import (
    IllegalDelayError,
    check_deliver_at,
    check_near_enough,
    checked_delay_ms,
    deliver_timestamp_ms,
)
from mqclient.name_servers import MASTER_ID, TopicRoute
from mqclient.transport.methods import RECALL_MESSAGE
from mqproto.names import IllegalNameError, check_user_topic
from mqproto.properties import KEY_SEPARATOR

REQUESTS_MAX = 64  # to one broker: 128,000 messages with one key

# Of the errors of several brokers, the kind that the caller has to know of first.
_GRAVEST_FIRST: tuple[type[MQClientError], ...] = (OutcomeUnknownError, RejectedError, MQClientError)


class RecallOutcome(Enum):
    """The outcome of a recall for one message.

    REMOVED: it is never delivered; this call or an earlier one has taken it back. RESCHEDULED: it waits for its new
    time. ALREADY_DELIVERED: it was too late. UNKNOWN: no broker has such a message that waits or has waited; that is
    also so of one that never had to wait, of one whose transaction is open, and of one that has left the log.
    """

    REMOVED = "REMOVED"
    RESCHEDULED = "RESCHEDULED"
    ALREADY_DELIVERED = "ALREADY_DELIVERED"
    UNKNOWN = "UNKNOWN"


_OUTCOMES = {
    broker_pb.REMOVED: RecallOutcome.REMOVED,
    broker_pb.RESCHEDULED: RecallOutcome.RESCHEDULED,
    broker_pb.ALREADY_DELIVERED: RecallOutcome.ALREADY_DELIVERED,
}


@dataclass(frozen=True, slots=True)
class RecalledMessage:
    """One message with the key. `due_timestamp_ms` (since 1970) is the new time of one that is RESCHEDULED, else 0."""

    message_id: str
    broker_name: str
    outcome: RecallOutcome
    due_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class RecallResult:
    """The outcomes of the messages with the key: by broker, the newest first. `broker_names` were asked, sorted."""

    messages: tuple[RecalledMessage, ...]
    broker_names: tuple[str, ...]

    @property
    def outcome(self) -> RecallOutcome:
        """The outcome of all messages together; of one message, its own.

        ALREADY_DELIVERED: at least one of them was delivered. RESCHEDULED: none was, and at least one waits. REMOVED:
        none is ever delivered. UNKNOWN: there is none.
        """
        outcomes = {message.outcome for message in self.messages}
        for one in (RecallOutcome.ALREADY_DELIVERED, RecallOutcome.RESCHEDULED, RecallOutcome.REMOVED):
            if one in outcomes:
                return one
        return RecallOutcome.UNKNOWN


@dataclass(slots=True)
class _Answer:
    """One broker's answers so far, and the error that ended them."""

    broker_name: str
    messages: list[RecalledMessage] = field(default_factory=list)
    error: MQClientError | None = None

    def text(self, *, without: MQClientError) -> str:
        """For people; the error unless it is `without`, which may leave nothing."""
        counts = Counter(message.outcome.value for message in self.messages)
        parts = [f"{count:,} {outcome}" for outcome, count in sorted(counts.items())]
        if self.error is None and not parts:
            parts = ["nothing with this key"]
        elif self.error is not None and self.error is not without:
            parts.append(str(self.error))
        return f"{self.broker_name}: {', '.join(parts)}" if parts else ""


async def recall(
    instance: ClientInstance, topic: str, *, key: str | None = None, message_id: str | None = None
) -> RecallResult:
    """Remove the messages of the topic with this key, or this unique id, that wait.

    When a broker gives no answer, its error is raised, which tells what the others have answered: OutcomeUnknownError
    if it may have done something, a RejectedError if it rejects for good, a RetryableError otherwise. Asking again is
    safe after any of them. Raises IllegalArgumentError, and NoRouteError when it is unknown which brokers to ask.
    """
    return await _ask_all(instance, _request(topic, key, message_id))


async def reschedule(
    instance: ClientInstance,
    topic: str,
    *,
    key: str | None = None,
    message_id: str | None = None,
    delay_ms: int | None = None,
    deliver_at: datetime | None = None,
) -> RecallResult:
    """Have the messages of the topic with this key, or this unique id, wait for this time instead.

    Raises as `recall`, and IllegalArgumentError unless there is one time, of 40 days at most.
    """
    request = _request(topic, key, message_id)
    if (delay_ms is None) == (deliver_at is None):
        raise IllegalArgumentError("give the new time as delay_ms or as deliver_at, one of the two")
    try:
        if deliver_at is not None:
            check_deliver_at(deliver_at)
            check_near_enough(deliver_at, instance.clock.wall_ms())
            request.deliver_timestamp_ms = deliver_timestamp_ms(deliver_at)
        else:
            request.delay_ms = checked_delay_ms(delay_ms)
    except IllegalDelayError as error:
        raise IllegalArgumentError(str(error)) from error
    return await _ask_all(instance, request)


def _request(topic: str, key: str | None, message_id: str | None) -> broker_pb.RecallMessageRequest:
    """Raises IllegalArgumentError unless it names a topic of users, and a key or an id."""
    if (key is None) == (message_id is None):
        raise IllegalArgumentError("name the messages by key or by message_id, one of the two")
    what, text = ("key", key) if key is not None else ("message_id", message_id)
    if not isinstance(text, str) or not text or KEY_SEPARATOR in text:
        raise IllegalArgumentError(f"the {what} {text!r} has to be text, not empty and without a space")
    try:
        check_user_topic(topic)
    except IllegalNameError as error:
        raise IllegalArgumentError(str(error)) from error
    return broker_pb.RecallMessageRequest(topic=topic, key=text)


async def _ask_all(instance: ClientInstance, request: broker_pb.RecallMessageRequest) -> RecallResult:
    """The answers of all masters of the topic, asked at the same time."""
    route = await instance.name_servers.find_route(request.topic)
    if route is None:
        if instance.routes.knows(request.topic):
            raise NoRouteError(
                f"no registered broker has the topic {request.topic!r} any more: its messages may wait on one"
            )
        return RecallResult((), ())
    names = sorted({queues.broker_name for queues in route.queues})
    answers = await asyncio.gather(*(_ask(instance, route, name, request) for name in names))
    errors = [answer.error for answer in answers if answer.error is not None]
    if errors:
        raise _gravest(errors, answers)
    return RecallResult(tuple(message for answer in answers for message in answer.messages), tuple(names))


async def _ask(
    instance: ClientInstance, route: TopicRoute, broker_name: str, request: broker_pb.RecallMessageRequest
) -> _Answer:
    """Ask one master, again and again as long as it has more, and its successor when it is a master no more."""
    answer = _Answer(broker_name)
    try:
        for _ in range(REQUESTS_MAX):
            response, route = await _ask_master(instance, route, broker_name, request)
            if response.code == common_pb.QUERY_NOT_FOUND:
                return answer
            _require_done(response.code, response.remark, broker_name)
            answer.messages = _joined(answer.messages, [_message(one, broker_name) for one in response.messages])
            if not response.truncated:
                return answer
        raise RetryableError(f"broker {broker_name!r} has still more messages with the key {request.key!r}")
    except MQClientError as error:
        answer.error = error
    return answer


async def _ask_master(
    instance: ClientInstance, route: TopicRoute, broker_name: str, request: broker_pb.RecallMessageRequest
) -> tuple[broker_pb.RecallMessageResponse, TopicRoute]:
    """What the master says, and the route that names it: that of now, when the one that is known is no master.

    Raises BrokerUnreachableError when there is none.
    """
    address = _master_of(route, broker_name)
    if address is not None:
        try:
            response = await instance.connection_to(address).unary(RECALL_MESSAGE, request)
        except BrokerUnreachableError as error:
            problem: MQClientError = error
        else:
            if response.code != common_pb.NOT_LEADER_FOR_QUEUE:
                return response, route
            problem = broker_answer_error(response.code, response.remark, broker_name)
    else:
        problem = BrokerUnreachableError(f"the master of broker {broker_name!r} is not there")
    try:
        await instance.name_servers.list_brokers()  # of all name servers: the one that told the route is out of date
        now = await instance.name_servers.query_route(request.topic)
    except MQClientError:
        raise problem from None
    if now is None or _master_of(now, broker_name) in {None, address}:
        raise problem
    return await _ask_master(instance, now, broker_name, request)


def _master_of(route: TopicRoute, broker_name: str) -> str | None:
    return route.brokers.get(broker_name, {}).get(MASTER_ID)


def _require_done(code: int, remark: str, broker_name: str) -> None:
    """Raise unless `code` is SUCCESS. A broker that cannot go on now may have done some of what was asked."""
    if code in UNAVAILABLE_FOR_NOW:
        rejection = broker_answer_error(code, remark, broker_name)
        raise OutcomeUnknownError(f"{rejection} (it may have done some of what was asked)")
    require_success(code, remark, broker_name)


def _message(told: broker_pb.RecalledMessage, broker_name: str) -> RecalledMessage:
    return RecalledMessage(told.message_id, broker_name, _OUTCOMES[told.outcome], told.due_timestamp_ms)


def _joined(before: Sequence[RecalledMessage], now: Sequence[RecalledMessage]) -> list[RecalledMessage]:
    """Both, each message once, with what was said of it last."""
    said_now = {message.message_id for message in now}
    return [*(message for message in before if message.message_id not in said_now), *now]


def _gravest(errors: Sequence[MQClientError], answers: Sequence[_Answer]) -> MQClientError:
    """The error that the caller has to know of first, and in its sentence everything else that was said."""
    gravest = next(error for kind in _GRAVEST_FIRST for error in errors if isinstance(error, kind))
    rest = [text for answer in answers if (text := answer.text(without=gravest))]
    return with_more(gravest, f"; answers so far: {'; '.join(rest)}" if rest else "")
