"""Local transactions, their ends, and the checks of brokers, traced."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, SpanKind

from mqclient.errors import LocalTransactionRolledBackError
from mqclient.message import LocalTransactionState, MessageExt
from mqclient.observed.processing import message_attributes
from mqclient.observed.spans import Attributes, OperationSpan, failed, inside
from mqproto.properties import TRANSACTION_CHECK_TIMES
from telemetry import extract, names

T = TypeVar("T")

SETTLEMENTS = {
    LocalTransactionState.COMMIT_MESSAGE: names.COMMIT,
    LocalTransactionState.ROLLBACK_MESSAGE: names.ROLLBACK,
}


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
