"""Random operations, many at once, against a gateway and a queue that fail, with webhooks that come twice, late, wrong
and in any order: money, ledger, messages and history add up.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from osenv import SimClock
from payments.domain.payment import TOOK_MONEY, PaymentStatus
from payments.domain.refund import RefundStatus
from payments.service import events
from payments.service.gateway import Pending
from payments.testing import (
    OPERATOR,
    TOTAL_MINOR,
    RunningPayments,
    ScriptedGateway,
    Step,
    order_event,
    running_payments,
)
from servicekit.config import SQLITE_PREFIX
from servicekit.errors import ServiceError
from servicekit.message import MessageBody

ORDERS = ("a", "b", "c")
steps = st.sampled_from([Step.SUCCEED, Step.PEND, Step.PEND, Step.DECLINE, Step.FAIL_BEFORE, Step.FAIL_AFTER])
numbers = st.integers(0, 5)
operation = st.one_of(
    st.tuples(st.just("pay"), st.sampled_from(ORDERS), numbers),
    st.tuples(st.just("refund"), st.sampled_from(ORDERS), st.just(0)),
    st.tuples(st.just("part"), st.sampled_from(ORDERS), numbers),
    st.tuples(st.sampled_from(["webhook", "lie", "decide"]), st.just(""), numbers),
    st.tuples(st.sampled_from([events.CREATED_TAG, events.CLOSED_TAG]), st.sampled_from(ORDERS), st.just(0)),
    st.tuples(st.sampled_from(["resume", "relay", "check", "queue down", "queue up"]), st.just(""), st.just(0)),
)
# The operations of one inner list run at once.
rounds = st.lists(st.lists(operation, min_size=1, max_size=6), min_size=1, max_size=8)
Operation = tuple[str, str, int]

UNBALANCED = (
    "SELECT posting_id FROM ledger_entries GROUP BY posting_id HAVING sum(amount_minor) <> 0 OR count(*) <> 2"
    " OR count(DISTINCT currency) <> 1"
)


async def run_one(payments: RunningPayments, one: Operation) -> None:
    kind, order_id, number = one
    if kind == "pay":
        await payments.pay(f"key-{order_id}-{number}", order_id)
    elif kind == "refund":
        for payment in await payments.payments(order_id):
            await payments.request_refund(payment)
    elif kind == "part":
        for payment in await payments.payments(order_id):
            key = f"{payment.payment_id}-{number}"
            await payments.refund_part(payment.payment_id, key, 1 + number * TOTAL_MINOR // 5)
    elif kind in ("webhook", "lie", "decide"):
        await run_gateway(payments, kind, number)
    elif kind == "resume":
        await payments.application.resumer.resume()
    elif kind == "relay":
        await payments.application.relay.relay()
    elif kind == "check":
        await payments.check_back()
    elif kind.startswith("queue"):
        payments.queue.is_down = kind == "queue down"
    else:
        await payments.tell(order_event(kind, order_id))


async def run_gateway(payments: RunningPayments, kind: str, number: int) -> None:
    """Decide something, or tell something that was decided, or lie about it."""
    gateway = payments.scripted
    if kind == "decide":
        pending = [its_id for its_id in known_ids(gateway) if is_pending(gateway, its_id)]
        if pending:
            gateway.decide(pending[number % len(pending)], declines=number == 5)
        return
    decided = [its_id for its_id in known_ids(gateway) if not is_pending(gateway, its_id)]
    if decided:
        event = gateway.event_of(decided[number % len(decided)])
        changes: dict[str, Any] = {"amount_minor": 1_000_000 + number} if kind == "lie" else {}
        event["event_id"] += "/lie" if kind == "lie" else ""
        assert (await payments.webhook(event, **changes)).status_code == 200


def known_ids(gateway: ScriptedGateway) -> list[str]:
    return [*gateway.charges, *gateway.refunds]


def is_pending(gateway: ScriptedGateway, its_id: str) -> bool:
    known = gateway.refunds.get(its_id) or gateway.charges[its_id]
    return isinstance(known[1], Pending)


async def settle(payments: RunningPayments) -> None:
    """The queue is back, the gateway decides everything, and every request is answered."""
    payments.queue.is_down = False
    gateway = payments.scripted
    gateway.script.clear()
    for _ in range(2):  # what the first pass begins, the second one finds done
        assert await payments.application.resumer.resume() == 0
        for its_id in known_ids(gateway):
            if is_pending(gateway, its_id):
                gateway.decide(its_id)
    await payments.application.relay.relay()
    await payments.check_back()


ADDED_UP = (
    "SELECT 'payment', status, COUNT(*) FROM payments GROUP BY status"
    " UNION ALL SELECT 'refund', status, COUNT(*) FROM refunds GROUP BY status"
    " UNION ALL SELECT 'event', status, COUNT(*) FROM gateway_events GROUP BY status"
    " UNION ALL SELECT 'ledger', account, SUM(amount_minor) FROM ledger_entries GROUP BY account"
)


async def check_everything_adds_up(payments: RunningPayments) -> None:
    queries = payments.application.use_cases.queries
    statistics = await queries.statistics()
    assert statistics.captured_minor == statistics.gateway.captured_minor
    assert statistics.refunded_minor == statistics.gateway.refunded_minor
    assert sum(statistics.ledger.values()) == 0
    assert statistics.payments[PaymentStatus.CREATED] == statistics.refunds[RefundStatus.REQUESTED] == 0
    assert statistics.outbox_messages == 0
    succeeded: Counter[str] = Counter()
    refunded: Counter[str] = Counter()
    for payment in await payments.payments():
        history = await queries.history(payment.payment_id, OPERATOR)
        assert [change.new_status for change in history][-1] is payment.status
        refunds = await payments.refunds_of(payment.payment_id)
        assert sum(refund.amount_minor for refund in refunds) == payment.refunded_minor <= payment.amount_minor
        succeeded[payment.order_id] += payment.status in TOOK_MONEY
        refunded[payment.order_id] += payment.refunded_minor
    assert max(succeeded.values(), default=0) <= 1
    assert Counter(message.key for message in payments.told(events.SUCCEEDED_TAG)) == +succeeded
    told: Counter[str] = Counter()
    for message in payments.told(events.REFUNDED_TAG):
        told[message.key] += MessageBody(message.body).number("amount_minor")
    assert told == +refunded
    async with payments.database.snapshot() as connection:
        assert (await connection.execute(text(UNBALANCED))).all() == []
        found = [(row[0], row[1], int(row[2])) for row in await connection.execute(text(ADDED_UP)) if row[2]]
    counts = (("payment", statistics.payments), ("refund", statistics.refunds), ("event", statistics.gateway_events))
    listed = [
        (kind, name, value) for kind, named in (*counts, ("ledger", statistics.ledger)) for name, value in named.items()
    ]
    assert sorted(found) == sorted(one for one in listed if one[2])


async def play(folder: Path, script: list[list[Operation]], gateway_steps: list[Step]) -> None:
    gateway = ScriptedGateway(SimClock(), *gateway_steps)
    async with running_payments(f"{SQLITE_PREFIX}{folder / 'payments.db'}", gateway=gateway) as payments:
        for order_id in ORDERS[:2]:
            await payments.open_order(order_id)
        for at_once in script:
            results = await asyncio.gather(*(run_one(payments, one) for one in at_once), return_exceptions=True)
            unexpected = [result for result in results if result is not None and not isinstance(result, ServiceError)]
            assert unexpected == []
            # The ledger is balanced at every moment, and not only in the end.
            async with payments.application.units.snapshot() as unit:
                assert sum((await unit.ledger.balances()).values()) == 0
        await settle(payments)
        await check_everything_adds_up(payments)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds, st.lists(steps, max_size=12))
def test_money_ledger_messages_and_history_add_up(script: list[list[Operation]], gateway_steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), script, gateway_steps))
