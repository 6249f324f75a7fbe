"""Calls of listeners that are traced and measured."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from opentelemetry.trace import Span, SpanKind

from mqclient.message import MessageExt, MessageQueue
from mqclient.observed.metrics import client_metrics
from mqclient.observed.spans import Attributes, OperationSpan, error_type, failed, links_to, refused
from mqproto.properties import DELAY, PropertiesError
from mqproto.record import RecordError
from osenv import Clock
from telemetry import extract, is_measuring, is_tracing, names

Outcome = tuple[bool, object]


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
    """Whether there is anything to tell of it; what to do with a broken one is its listener's business."""
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
            refused(span, _failure(success, status), f"the listener answered {answer}")


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
