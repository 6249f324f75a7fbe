"""The broker's spans (core/life.py) by OpenTelemetry, with the names of its semantic conventions."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Tracer

import telemetry
from mq_broker.core.life import NO_SPANS, Operation, Spans, Step, Subject
from telemetry import names
from telemetry.context import span_context_of

NANOSECONDS_PER_MS = 1_000_000

Attributes = dict[str, str | int | float]


def broker_spans(broker_name: str) -> Spans:
    """Spans of the broker with this name, if the process records any."""
    return RecordedSpans(broker_name, telemetry.tracer("mq_broker")) if telemetry.is_tracing() else NO_SPANS


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """One that has begun."""

    span: trace.Span
    end_ms: int

    @property
    def span_id(self) -> str:
        return trace.format_span_id(self.span.get_span_context().span_id)

    def end(self) -> None:
        self.span.end(self.end_ms * NANOSECONDS_PER_MS)


class RecordedSpans:
    """Spans of one broker. Their times are those of store timestamps: whole milliseconds of the broker's time."""

    is_on = True

    def __init__(self, broker_name: str, tracer: Tracer) -> None:
        self._broker_name, self._tracer = broker_name, tracer

    def begin(self, step: Step, subject: Subject, traceparent: str) -> RecordedSpan | None:
        context = telemetry.context_of(traceparent)
        if not span_context_of(context).is_valid:
            return None
        span = self._tracer.start_span(
            names.span_name(step.operation.value, subject.topic),
            context,
            SpanKind.INTERNAL,
            self._attributes(step, subject),
            start_time=step.start_ms * NANOSECONDS_PER_MS,
        )
        return RecordedSpan(span, max(step.start_ms, step.end_ms)) if span.is_recording() else None

    def _attributes(self, step: Step, subject: Subject) -> Attributes:
        attributes: Attributes = {
            names.SYSTEM: names.SYSTEM_VALUE,
            names.OPERATION_NAME: step.operation.value,
            names.DESTINATION_NAME: subject.topic,
            names.DESTINATION_PARTITION_ID: str(subject.queue_id),
            names.MESSAGE_ID: subject.message_id,
            names.CONSUMER_GROUP_NAME: subject.consumer_group,
            names.RECONSUME_TIMES: subject.reconsume_times,
            names.BROKER_NAME: self._broker_name,
        }
        if step.operation is Operation.HALF:
            attributes |= {
                names.PRODUCER_GROUP: step.producer_group,
                names.TRANSACTION_CHECKS: step.checks,
                names.TRANSACTION_STATE: step.outcome,
            }
        elif step.operation is Operation.WAIT:
            attributes |= {
                names.MESSAGE_DELIVERY_TIMESTAMP: step.due_ms,
                names.DELAY_LATENESS: (step.end_ms - step.due_ms) / 1000,
            }
            if step.delay_level:
                attributes[names.MESSAGE_DELAY_TIME_LEVEL] = step.delay_level
        return {name: value for name, value in attributes.items() if value != ""}
