"""Operations that are traced and measured: sends, calls of listeners, transactions, and requests to brokers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind

from mqclient.errors import LocalTransactionRolledBackError, MQClientError
from mqclient.message import LocalTransactionState, Message, MessageExt, MessageQueue, SendResult, deliver_timestamp_ms
from mqclient.observed.spans import (
    Attributes,
    OperationSpan,
    client_metrics,
    client_tracer,
    error_type,
    failed,
    inside,
    links_to,
    operation_attributes,
    rejected,
)
from mqclient.producer.prepared import PreparedBatch, PreparedHalf, PreparedMessage
from mqclient.recall import RecallResult
from mqproto.properties import DELAY, TRANSACTION_CHECK_TIMES, PropertiesError
from mqproto.record import RecordError
from osenv import Clock
from telemetry import extract, is_measuring, is_tracing, names
from telemetry.context import TRACEPARENT

Outcome = tuple[bool, object]

T = TypeVar("T")

# Values of messaging.rocketmq.message.type.
NORMAL, DELAYED, TRANSACTION = "normal", "delay", "transaction"

SETTLEMENTS = {
    LocalTransactionState.COMMIT_MESSAGE: names.COMMIT,
    LocalTransactionState.ROLLBACK_MESSAGE: names.ROLLBACK,
}


async def observed_processing(
    group: str,
    queue: MessageQueue,
    messages: Sequence[MessageExt],
    processing: Coroutine[Any, Any, Outcome],
    clock: Clock,
) -> Outcome:
    """What `processing` returns, which has not begun and gives these messages of `queue` to a listener.

    That is whether they are consumed, and what the listener answered or raised.
    """
    if not all(is_readable(message) for message in messages):
        return await processing
    began = clock.monotonic()
    outcome = await (_traced(group, queue, messages, processing) if is_tracing() else processing)
    if is_measuring():
        failure = _failure(*outcome)
        client_metrics().processed(messages[0].topic, group, len(messages), clock.monotonic() - began, failure)
    return outcome


async def _traced(
    group: str, queue: MessageQueue, messages: Sequence[MessageExt], processing: Coroutine[Any, Any, Outcome]
) -> Outcome:
    contexts = [extract(message.properties) for message in messages]
    links = links_to(contexts)
    parent = contexts[0] if len(messages) == 1 and links else None
    kind, topic = SpanKind.CONSUMER, messages[0].topic
    with OperationSpan("process", names.OPERATION_PROCESS, topic, kind, parent=parent, links=links) as span:
        if span.is_recording():
            span.set_attributes(_attributes(group, queue, messages))
        success, status = await processing
        if span.is_recording():
            _tell_outcome(span, success, status)
    return success, status


def is_readable(message: MessageExt) -> bool:
    """Whether its properties can be read; the listener handles a broken message."""
    try:
        return message.properties is not None
    except (RecordError, PropertiesError):
        return False


def _tell_outcome(span: Span, success: bool, status: object) -> None:
    if isinstance(status, BaseException):
        failed(span, status)
    else:
        answer = str(getattr(status, "value", status))
        span.set_attribute(names.CONSUME_STATUS, answer)
        if not success:
            rejected(span, _failure(success, status), f"the listener answered {answer}")


def _failure(success: bool, status: object) -> str:
    """The `error.type` of an outcome; empty for a success."""
    if success:
        return ""
    return error_type(status) if isinstance(status, BaseException) else str(getattr(status, "value", "no status"))


def _attributes(group: str, queue: MessageQueue, messages: Sequence[MessageExt]) -> Attributes:
    attributes: Attributes = {
        names.CONSUMER_GROUP_NAME: group,
        names.DESTINATION_PARTITION_ID: str(queue.queue_id),
        names.BROKER_NAME: queue.broker_name,
    }
    if len(messages) > 1:
        return {**attributes, names.BATCH_MESSAGE_COUNT: len(messages)}
    return {**attributes, **message_attributes(messages[0]), names.QUEUE_OFFSET: messages[0].queue_offset}


def message_attributes(message: MessageExt) -> Attributes:
    """What a span says of one message that came from a broker."""
    attributes: Attributes = {names.MESSAGE_ID: message.message_id}
    if message.tag is not None:
        attributes[names.MESSAGE_TAG] = message.tag
    if message.keys:
        attributes[names.MESSAGE_KEYS] = list(message.keys)
    if message.reconsume_times:
        attributes[names.RECONSUME_TIMES] = message.reconsume_times
    level = message.properties.get(DELAY, "")
    if level.isdigit():
        attributes[names.MESSAGE_DELAY_TIME_LEVEL] = int(level)
    return attributes


async def traced_give_back(group: str, message: MessageExt, *, dead: bool, sending: Coroutine[Any, Any, None]) -> None:
    """`sending` gives the message back to its broker."""
    if not is_readable(message):
        await sending
        return
    operation = names.DEAD_LETTER if dead else names.SEND_BACK
    parent, kind = extract(message.properties), SpanKind.CLIENT
    with OperationSpan(operation, names.OPERATION_SETTLE, message.topic, kind, parent=parent) as span:
        if span.is_recording():
            span.set_attributes({names.CONSUMER_GROUP_NAME: group, **message_attributes(message)})
        await sending


async def traced_recall(
    operation: str, topic: str, name: str | None, asking: Coroutine[Any, Any, RecallResult]
) -> RecallResult:
    """What `asking` the brokers returns or raises; `name` is the key or the id of what was asked for."""
    with OperationSpan(operation, "", topic, SpanKind.CLIENT) as span:
        if name is not None:
            span.set_attribute(names.MESSAGE_KEYS, [name])
        result = await asking
        span.set_attributes(
            {names.RECALL_OUTCOME: result.outcome.value, names.BATCH_MESSAGE_COUNT: len(result.messages)}
        )
        return result


async def observed_receive(
    group: str, receiving: Coroutine[Any, Any, T], messages_of: Callable[[T], Sequence[MessageExt]], clock: Clock
) -> T:
    """What `receiving`, a pull, returns or raises.

    A span for each pull that finds nothing would say nothing, so there is none: it is begun, and never ended.
    """
    began = clock.monotonic()
    span = client_tracer().start_span(names.OPERATION_RECEIVE, kind=SpanKind.CLIENT) if is_tracing() else None
    try:
        result = await receiving
    except MQClientError as error:
        if span is not None:
            failed(span, error)
            span.end()
        raise
    messages = [message for message in messages_of(result) if is_readable(message)]
    if messages:
        if span is not None:
            _tell_received(span, group, messages)
            span.end()
        if is_measuring():
            client_metrics().received(messages[0].topic, group, len(messages), clock.monotonic() - began)
    return result


def _tell_received(span: Span, group: str, messages: Sequence[MessageExt]) -> None:
    topic = messages[0].topic
    span.update_name(names.span_name("receive", topic))
    if not span.is_recording():
        return
    span.set_attributes(operation_attributes("receive", names.OPERATION_RECEIVE, topic))
    span.set_attributes(
        {
            names.CONSUMER_GROUP_NAME: group,
            names.BATCH_MESSAGE_COUNT: len(messages),
            names.BROKER_NAME: messages[0].broker_name,
        }
    )
    for link in links_to([extract(message.properties) for message in messages]):
        span.add_link(link.context)


async def observed_send(
    group: str, outgoing: PreparedMessage | PreparedBatch, sending: Coroutine[Any, Any, T], clock: Clock
) -> T:
    """What `sending` returns or raises, which has not begun and encodes `outgoing`."""
    began = clock.monotonic()
    error: BaseException | None = None
    try:
        return await (_traced_send(group, outgoing, sending) if is_tracing() else sending)
    except BaseException as raised:
        error = raised
        raise
    finally:
        if is_measuring():
            client_metrics().sent(outgoing.topic, len(outgoing.messages), clock.monotonic() - began, error)


def tried_again(queue: MessageQueue, error: BaseException) -> None:
    """The send of the current span, if it has one, has failed on this queue, and goes on with another try."""
    if not is_tracing():
        return
    attributes = {names.ERROR_TYPE: error_type(error), names.BROKER_NAME: queue.broker_name, "error": str(error)}
    trace.get_current_span().add_event(names.TRIED_AGAIN, attributes)


async def _traced_send(group: str, outgoing: PreparedMessage | PreparedBatch, sending: Coroutine[Any, Any, T]) -> T:
    messages = outgoing.messages
    kind = SpanKind.PRODUCER
    with OperationSpan("send", names.OPERATION_SEND, outgoing.topic, kind, links=_created_before(messages)) as span:
        outgoing.carry(span.get_span_context())
        if span.is_recording():
            span.set_attributes(_send_attributes(group, outgoing, messages))
        try:
            result = await sending
        finally:
            if span.is_recording():
                _tell_id(span, outgoing)
        if isinstance(result, SendResult) and span.is_recording():
            span.set_attributes(_place(result))
        return result


def _tell_id(span: Span, outgoing: PreparedMessage | PreparedBatch) -> None:
    """The id that it has now: that of a half message changes with each try."""
    if isinstance(outgoing, PreparedMessage):
        span.set_attribute(names.MESSAGE_ID, outgoing.unique_id)


def _place(result: SendResult) -> Attributes:
    return {
        names.DESTINATION_PARTITION_ID: str(result.message_queue.queue_id),
        names.BROKER_NAME: result.message_queue.broker_name,
        names.SEND_STATUS: result.send_status.value,
        names.QUEUE_OFFSET: result.queue_offset,
    }


def _send_attributes(group: str, outgoing: PreparedMessage | PreparedBatch, messages: Sequence[Message]) -> Attributes:
    attributes: Attributes = {names.PRODUCER_GROUP: group}
    if isinstance(outgoing, PreparedBatch):
        attributes[names.BATCH_MESSAGE_COUNT] = len(messages)
        return attributes
    message = messages[0]
    attributes[names.MESSAGE_BODY_SIZE] = len(message.body)
    attributes[names.MESSAGE_TYPE] = NORMAL
    if message.tag is not None:
        attributes[names.MESSAGE_TAG] = message.tag
    if message.keys:
        attributes[names.MESSAGE_KEYS] = [message.keys] if isinstance(message.keys, str) else list(message.keys)
    if outgoing.own_batch:
        attributes[names.MESSAGE_TYPE] = DELAYED
        attributes.update(_delay(message, outgoing))
    if isinstance(outgoing, PreparedHalf):
        attributes[names.MESSAGE_TYPE] = TRANSACTION
    return attributes


def _delay(message: Message, outgoing: PreparedMessage) -> Attributes:
    if message.delay_level:
        return {names.MESSAGE_DELAY_TIME_LEVEL: message.delay_level}
    if message.delay_ms:
        return {names.MESSAGE_DELIVERY_TIMESTAMP: outgoing.born_timestamp_ms + message.delay_ms}
    if message.deliver_at is not None:
        return {names.MESSAGE_DELIVERY_TIMESTAMP: deliver_timestamp_ms(message.deliver_at)}
    return {}


def _created_before(messages: Sequence[Message]) -> list[Link]:
    """Links with the contexts that the application has given its messages; nearly always none."""
    own = [one.properties for one in messages if one.properties is not None and TRACEPARENT in one.properties]
    return links_to([extract(properties) for properties in own])


async def traced_transaction(
    group: str, topic: str, transaction_id: str, half: SpanContext, executing: Coroutine[Any, Any, T]
) -> T:
    """What the local transaction `executing` returns or raises; `half` is the context that its half carries."""
    with OperationSpan(names.TRANSACTION, "", topic, SpanKind.INTERNAL, parent=inside(half)) as span:
        span.set_attributes(_of_transaction(group, transaction_id))
        try:
            state = await executing
        except LocalTransactionRolledBackError as error:
            span.set_attribute(names.TRANSACTION_STATE, LocalTransactionState.ROLLBACK_MESSAGE.value)
            failed(span, error.cause)  # what its sender gets
            rolled_back = error
        else:
            if isinstance(state, LocalTransactionState):
                span.set_attribute(names.TRANSACTION_STATE, state.value)
            return state
    raise rolled_back


async def traced_end(
    group: str,
    topic: str,
    transaction_id: str,
    state: LocalTransactionState,
    *,
    half: SpanContext | None,
    telling: Coroutine[Any, Any, T],
) -> T:
    """What `telling` the broker returns or raises. Without `half` it belongs to the current span, which is a check."""
    parent = None if half is None else inside(half)
    operation = SETTLEMENTS.get(state, state.value.lower())
    with OperationSpan(operation, names.OPERATION_SETTLE, topic, SpanKind.CLIENT, parent=parent) as span:
        span.set_attributes({**_of_transaction(group, transaction_id), names.TRANSACTION_STATE: state.value})
        return await telling


async def traced_check(
    message: MessageExt, topic: str, checking: Coroutine[Any, Any, LocalTransactionState | None]
) -> LocalTransactionState | None:
    """What `checking` returns, in the trace of the half message; None when there was no answer."""
    parent: Context = extract(message.properties)
    with OperationSpan(names.CHECK, "", topic, SpanKind.INTERNAL, parent=parent) as span:
        if span.is_recording():
            span.set_attributes(message_attributes(message))
            checks = message.properties.get(TRANSACTION_CHECK_TIMES, "")
            if checks.isdigit():
                span.set_attribute(names.TRANSACTION_CHECKS, int(checks))
        state = await checking
        if state is not None:
            span.set_attribute(names.TRANSACTION_STATE, state.value)
        return state


def check_failed(error: BaseException) -> None:
    """The listener has raised this in the check of the current span."""
    failed(trace.get_current_span(), error)


def _of_transaction(group: str, transaction_id: str) -> Attributes:
    return {names.PRODUCER_GROUP: group, names.TRANSACTION_ID: transaction_id}
