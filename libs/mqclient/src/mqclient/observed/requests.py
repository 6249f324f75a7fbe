"""Requests to brokers that an application has asked for, or that are the end of a listener's call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from opentelemetry.trace import Span, SpanKind

from mqclient.errors import MQClientError
from mqclient.message import MessageExt
from mqclient.observed.metrics import client_metrics
from mqclient.observed.processing import is_readable, message_attributes
from mqclient.observed.spans import OperationSpan, client_tracer, failed, links_to, operation_attributes
from mqclient.recall import RecallResult
from osenv import Clock
from telemetry import extract, is_measuring, is_tracing, names

T = TypeVar("T")


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
