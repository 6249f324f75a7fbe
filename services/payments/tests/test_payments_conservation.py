"""Random operations, many at once, against a gateway and a queue that fail: money, messages and history add up."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osenv import SimClock
from payments.domain.payment_status import PaymentStatus
from payments.service import events
from payments.testing import RunningPayments, ScriptedGateway, Step, order_event, running_payments
from servicekit.errors import ServiceError

ORDERS = ("a", "b", "c")
steps = st.sampled_from([Step.SUCCEED, Step.SUCCEED, Step.DECLINE, Step.FAIL_BEFORE, Step.FAIL_AFTER])
operation = st.one_of(
    st.tuples(st.just("pay"), st.sampled_from(ORDERS), st.integers(0, 5)),
    st.tuples(st.just("refund"), st.sampled_from(ORDERS), st.just(0)),
    st.tuples(st.sampled_from([events.CREATED_TAG, events.CLOSED_TAG]), st.sampled_from(ORDERS), st.just(0)),
    st.tuples(st.sampled_from(["resume", "check", "queue down", "queue up"]), st.just(""), st.just(0)),
)
# The operations of one inner list run at once.
rounds = st.lists(st.lists(operation, min_size=1, max_size=6), min_size=1, max_size=6)
Operation = tuple[str, str, int]


async def run_one(payments: RunningPayments, one: Operation) -> None:
    kind, order_id, number = one
    if kind == "pay":
        await payments.pay(f"key-{order_id}-{number}", order_id)
    elif kind == "refund":
        for payment in (await payments.application.use_cases.queries.payments(order_id, 10, None)).items:
            await payments.request_refund(payment)
    elif kind == "resume":
        await payments.application.resumer.resume()
    elif kind == "check":
        await payments.check_back()
    elif kind.startswith("queue"):
        payments.queue.is_down = kind == "queue down"
    else:
        await payments.tell(order_event(kind, order_id))


async def check_everything_adds_up(payments: RunningPayments) -> None:
    queries = payments.application.use_cases.queries
    statistics = await queries.statistics()
    assert statistics.captured_minor == statistics.gateway.captured_minor
    assert statistics.refunded_minor == statistics.gateway.refunded_minor
    assert statistics.payments[PaymentStatus.CREATED] == 0
    found = (await queries.payments(None, 200, None)).items
    succeeded: Counter[str] = Counter()
    refunded: Counter[str] = Counter()
    for payment in found:
        history = await queries.history(payment.payment_id)
        assert [change.new_status for change in history][-1] is payment.status
        succeeded[payment.order_id] += payment.captured_at_ms is not None
        refunded[payment.order_id] += payment.refunded_at_ms is not None
    assert max(succeeded.values(), default=0) <= 1
    assert Counter(message.key for message in payments.told(events.SUCCEEDED_TAG)) == +succeeded
    assert Counter(message.key for message in payments.told(events.REFUNDED_TAG)) == +refunded


async def play(folder: Path, script: list[list[Operation]], gateway_steps: list[Step]) -> None:
    gateway = ScriptedGateway(SimClock(), *gateway_steps)
    async with running_payments(folder, gateway=gateway) as payments:
        for order_id in ORDERS[:2]:
            await payments.open_order(order_id)
        for at_once in script:
            results = await asyncio.gather(*(run_one(payments, one) for one in at_once), return_exceptions=True)
            unexpected = [result for result in results if result is not None and not isinstance(result, ServiceError)]
            assert unexpected == []
        payments.queue.is_down = False
        gateway.script.clear()
        assert await payments.application.resumer.resume() == 0
        await payments.check_back()
        await check_everything_adds_up(payments)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds, st.lists(steps, max_size=8))
def test_money_messages_and_history_add_up(script: list[list[Operation]], gateway_steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), script, gateway_steps))
