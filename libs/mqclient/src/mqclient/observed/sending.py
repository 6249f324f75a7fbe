"""Sends that are traced and measured."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind

from mqclient.message import Message, MessageQueue, SendResult, deliver_timestamp_ms
from mqclient.observed.metrics import client_metrics
from mqclient.observed.spans import Attributes, OperationSpan, error_type, links_to
from mqclient.producer.outgoing import Outgoing, OutgoingBatch, OutgoingHalf
from osenv import Clock
from telemetry import extract, is_measuring, is_tracing, names
from telemetry.context import TRACEPARENT

T = TypeVar("T")

# Values of messaging.rocketmq.message.type.
NORMAL, DELAY, TRANSACTION = "normal", "delay", "transaction"


async def observed_send(
    group: str, outgoing: Outgoing | OutgoingBatch, sending: Coroutine[Any, Any, T], clock: Clock
) -> T:
    """What `sending` returns or raises, which has not begun and encodes `outgoing`."""
    began = clock.monotonic()
    error: BaseException | None = None
    try:
        return await (_traced(group, outgoing, sending) if is_tracing() else sending)
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


async def _traced(group: str, outgoing: Outgoing | OutgoingBatch, sending: Coroutine[Any, Any, T]) -> T:
    messages = outgoing.messages
    kind = SpanKind.PRODUCER
    with OperationSpan("send", names.OPERATION_SEND, outgoing.topic, kind, links=_created_before(messages)) as span:
        outgoing.carry(span.get_span_context())
        if span.is_recording():
            span.set_attributes(_attributes(group, outgoing, messages))
        try:
            result = await sending
        finally:
            if span.is_recording():
                _tell_id(span, outgoing)
        if isinstance(result, SendResult) and span.is_recording():
            span.set_attributes(_place(result))
        return result


def _tell_id(span: Span, outgoing: Outgoing | OutgoingBatch) -> None:
    """The id that it has now: that of a half message changes with each try."""
    if isinstance(outgoing, Outgoing):
        span.set_attribute(names.MESSAGE_ID, outgoing.unique_id)


def _place(result: SendResult) -> Attributes:
    return {
        names.DESTINATION_PARTITION_ID: str(result.message_queue.queue_id),
        names.BROKER_NAME: result.message_queue.broker_name,
        names.SEND_STATUS: result.send_status.value,
        names.QUEUE_OFFSET: result.queue_offset,
    }


def _attributes(group: str, outgoing: Outgoing | OutgoingBatch, messages: Sequence[Message]) -> Attributes:
    attributes: Attributes = {names.PRODUCER_GROUP: group}
    if isinstance(outgoing, OutgoingBatch):
        attributes[names.BATCH_MESSAGE_COUNT] = len(messages)
        return attributes
    message = messages[0]
    attributes[names.MESSAGE_BODY_SIZE] = len(message.body)
    attributes[names.MESSAGE_TYPE] = NORMAL
    if message.tag is not None:
        attributes[names.MESSAGE_TAG] = message.tag
    if message.keys:
        attributes[names.MESSAGE_KEYS] = [message.keys] if isinstance(message.keys, str) else list(message.keys)
    if outgoing.alone:
        attributes[names.MESSAGE_TYPE] = DELAY
        attributes.update(_delay(message, outgoing))
    if isinstance(outgoing, OutgoingHalf):
        attributes[names.MESSAGE_TYPE] = TRANSACTION
    return attributes


def _delay(message: Message, outgoing: Outgoing) -> Attributes:
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
