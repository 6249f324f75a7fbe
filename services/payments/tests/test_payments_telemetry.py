"""Money moves in its order's trace, whatever moves it; and what is counted of payments."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import telemetry
from osenv import SimClock
from payments.adapters.outside import OtelPaymentMeter
from payments.domain.payment import PaymentStatus
from payments.service import events
from payments.testing import RunningPayments, ScriptedGateway, Step, running_payments
from servicekit.testing.databases import NewDatabaseUrl
from telemetry.testing.recorder import Recorder
from telemetry.trace_tree import ReceivedSpan

TRACER = telemetry.tracer("test")


def named(recorder: Recorder, name: str) -> ReceivedSpan:
    (found,) = [span for span in recorder.spans() if span.name == name]
    return found


def pending(database_url: str) -> AbstractAsyncContextManager[RunningPayments]:
    """Payments whose gateway decides the first charge when the test says so."""
    clock = SimClock()
    return running_payments(database_url, gateway=ScriptedGateway(clock, Step.PEND), clock=clock)


async def heard_of(payments: RunningPayments) -> None:
    with TRACER.start_as_current_span("hearing"):
        await payments.open_order()


async def paid(payments: RunningPayments) -> str:
    with TRACER.start_as_current_span("paying"):
        return (await payments.pay("k")).payment.payment_id


async def test_a_payment_is_settled_in_the_trace_of_its_order_and_linked_with_its_request(
    new_database_url: NewDatabaseUrl,
) -> None:
    with Recorder() as recorder:
        async with running_payments(new_database_url("payments")) as payments:
            await heard_of(payments)
            payment_id = await paid(payments)
        hearing, paying, settled = (named(recorder, name) for name in ("hearing", "paying", "settle payment"))
    assert (settled.trace_id, settled.parent_span_id) == (hearing.trace_id, hearing.span_id)
    assert settled.links == [(paying.trace_id, paying.span_id)]
    assert settled.attributes[telemetry.names.ORDER_ID] == "order-1"
    assert settled.attributes[telemetry.names.PAYMENT_ID] == payment_id


async def test_a_webhook_a_question_and_a_refund_are_in_the_trace_of_the_order(
    new_database_url: NewDatabaseUrl,
) -> None:
    with Recorder() as recorder:
        async with pending(new_database_url("payments")) as payments:
            await heard_of(payments)
            payment_id = await paid(payments)
            assert (await payments.payment(payment_id)).status is PaymentStatus.CREATED
            await payments.application.resumer.resume()
            assert (await payments.webhook(payments.scripted.decide(payment_id))).status_code == 200
            with TRACER.start_as_current_span("refunding"):
                await payments.refund_part(payment_id, "r", 1)
        trace_id = named(recorder, "hearing").trace_id
        done = [named(recorder, name) for name in ("ask for payment", "receive event", "refund payment")]
        links = [len(span.links) for span in done]
    assert {span.trace_id for span in done} == {trace_id}
    assert links == [0, 1, 1]  # no request made the resumer ask
    assert telemetry.names.REFUND_ID in done[2].attributes


async def test_a_message_that_waited_for_the_queue_is_told_in_the_trace_of_the_order(
    new_database_url: NewDatabaseUrl,
) -> None:
    with Recorder() as recorder:
        async with pending(new_database_url("payments")) as payments:
            await heard_of(payments)
            payment_id = await paid(payments)
            payments.queue.is_down = True
            await payments.webhook(payments.scripted.decide(payment_id))
            payments.queue.is_down = False
            assert payments.told(events.SUCCEEDED_TAG) == []
            assert await payments.application.relay.relay() == 1
            assert len(payments.told(events.SUCCEEDED_TAG)) == 1
        relayed, received = named(recorder, "relay message"), named(recorder, "receive event")
    assert (relayed.trace_id, relayed.parent_span_id) == (received.trace_id, received.span_id)


async def test_what_happens_to_payments_is_counted(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        refund = (await payments.refund_part(payment.payment_id, "r", 1)).refund
    with Recorder() as recorder:
        meter = OtelPaymentMeter()
        meter.settled(payment, payment.created_at_ms + 500)
        meter.refunded(refund)
        points = {point.name: point for point in recorder.metrics()}
    assert points["hourglass.payments.succeeded"].value == 1
    assert points["hourglass.payments.refunded"].value == 1
    assert "hourglass.payments.failed" not in points
    duration = points["hourglass.payments.settlement.duration"]
    assert (duration.count, duration.value, duration.unit) == (1, 0.5, "s")
