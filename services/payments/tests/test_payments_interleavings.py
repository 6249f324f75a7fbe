"""Webhook, repeated webhook, answer and question about one payment, and refunds of it, in every order in which their
steps can meet.

Each use case is cut before each of its units of work; one that loses and looks again is cut there too.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from osenv import SimClock
from payments.adapters.sql_unit_of_work import SqlUnitOfWork
from payments.app import MIGRATIONS
from payments.domain.errors import RefundTooLargeError, StatusChangedError
from payments.domain.gateway_event import EventKind, GatewayEvent
from payments.domain.payment import Payment, PaymentMethod, PaymentRequest, PaymentStatus, begin
from payments.domain.refund import RefundRequest, WholeRefundRequest
from payments.service.receive_event import ReceiveEvent
from payments.service.refund_payment import RefundPart, RefundPayment
from payments.service.settlement import ORDER_CLOSED, Bookkeeper, Settlement
from payments.service.use_case import UnitOfWork
from payments.testing import OPERATOR, ScriptedGateway, ScriptedOrders
from servicekit.background import WakeUp
from servicekit.config import SQLITE_PREFIX
from servicekit.message import MessageBody
from servicekit.sql.database import Database, SqlUnits
from servicekit.sql.outbox import OutboxPublisher
from servicekit.sql.units import TransactionalPublisher
from servicekit.testing import RecordingPublisher
from servicekit.testing.interleavings import Choices, Stage, SteppedUnits, every_choice

AMOUNT_MINOR = 100


class Desk:
    """The use cases over units that can be stepped, and one payment at a time."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.units: SteppedUnits[UnitOfWork] = SteppedUnits(SqlUnits(database, SqlUnitOfWork))
        self.queue = RecordingPublisher()
        self.clock = SimClock()
        self.gateway = ScriptedGateway(self.clock)
        transactions: TransactionalPublisher[UnitOfWork] = TransactionalPublisher(self.units, self.queue, self.clock)
        publisher = OutboxPublisher(self.units, transactions, self.clock, WakeUp(), is_queue_there=lambda: True)
        bookkeeper = Bookkeeper(self.units, publisher, self.clock, ScriptedOrders())
        self.settlement = Settlement(self.units, self.gateway, bookkeeper, ScriptedOrders(), self.clock)
        self.orders_of_the_other = ScriptedOrders()
        self.settlement_of_the_other = Settlement(
            self.units, self.gateway, bookkeeper, self.orders_of_the_other, self.clock
        )
        self.receive_event = ReceiveEvent(self.units, bookkeeper)
        self.refund_part = RefundPart(self.units, self.settlement, WakeUp(), self.clock)
        self.refund_whole = RefundPayment(self.units, self.settlement, WakeUp(), self.clock)

    async def begin(self, number: int) -> Payment:
        request = PaymentRequest(f"order-{number}", "buyer-1", AMOUNT_MINOR, "CNY", PaymentMethod.CARD)
        payment, first = begin(f"payment-{number}", request, self.clock.wall_ms())
        async with self.units.writing() as unit:
            await unit.payments.add(payment, first)
            await unit.commit()
        self.queue.messages.clear()
        return payment

    async def race(
        self, contenders: dict[str, Coroutine[Any, Any, object]], choices: Choices
    ) -> dict[str, object] | None:
        """What the contenders returned or raised; None for a schedule that another one stands for."""
        self.units.stage = Stage(choices)
        results = await self.units.stage.run(contenders)
        self.units.stage = None
        return results

    async def payment(self, payment_id: str) -> Payment:
        async with self.units.snapshot() as unit:
            return await unit.payments.get(payment_id)

    async def postings(self, payment_id: str) -> list[tuple[str, int]]:
        """Posting and amount of what was booked for the buyers."""
        async with self.database.snapshot() as connection:
            statement = text(
                "SELECT posting_id, amount_minor FROM ledger_entries"
                " WHERE payment_id = :payment_id AND account = 'buyer-funds' ORDER BY entry_id"
            )
            return [tuple(row) for row in await connection.execute(statement, {"payment_id": payment_id})]


def event_of(payment: Payment, event_id: str, **changes: Any) -> GatewayEvent:
    members: dict[str, Any] = {
        "kind": EventKind.CHARGE_CAPTURED,
        "occurred_at_ms": 7,
        "payment_id": payment.payment_id,
        "order_id": payment.order_id,
        "amount_minor": AMOUNT_MINOR,
        "currency": "CNY",
    }
    return GatewayEvent(f"{event_id}-{payment.payment_id}", **(members | changes))


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"{SQLITE_PREFIX}{tmp_path / 'payments.db'}"


async def every_schedule(
    database_url: str,
    prepare: Callable[[Desk, int], Coroutine[Any, Any, dict[str, Coroutine[Any, Any, object]]]],
    check: Callable[[Desk, str, dict[str, object]], Coroutine[Any, Any, None]],
) -> int:
    """How many schedules there were; after each of them `check` has held."""
    database = Database(database_url)
    try:
        await MIGRATIONS.upgrade(database)
        desk = Desk(database)
        schedules = 0
        for number, choices in enumerate(every_choice()):
            results = await desk.race(await prepare(desk, number), choices)
            if results is None:
                desk.queue.halves.clear()
                continue
            schedules += 1
            try:
                await check(desk, f"payment-{number}", results)
            except AssertionError as error:
                error.add_note(f"after the choices {choices.made}: {results}")
                raise
        return schedules
    finally:
        await database.dispose()


@pytest.mark.parametrize(
    "tellers", [("answer", "question", "webhook"), ("answer", "webhook", "again"), ("question", "webhook", "again")]
)
async def test_whatever_tells_of_a_capture_in_whatever_order_it_is_booked_and_told_once(
    database_url: str, tellers: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    async def prepare(desk: Desk, number: int) -> dict[str, Coroutine[Any, Any, object]]:
        payment = await desk.begin(number)
        coroutines: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "answer": lambda: desk.settlement.charge(payment),
            "question": lambda: desk.settlement.ask_charge(payment.payment_id),
            "webhook": lambda: desk.receive_event(event_of(payment, "event")),
            "again": lambda: desk.receive_event(event_of(payment, "event")),  # the very same, at the same moment
        }
        return {name: coroutines[name]() for name in tellers}

    async def check(desk: Desk, payment_id: str, results: dict[str, object]) -> None:
        payment = await desk.payment(payment_id)
        assert payment.status is PaymentStatus.CAPTURED
        assert await desk.postings(payment_id) == [(f"capture/{payment_id}", -AMOUNT_MINOR)]
        assert [message.tag for message in desk.queue.messages] == ["succeeded"]
        assert desk.queue.halves == {}
        assert all(results[name] == payment for name in tellers if name in ("answer", "question"))
        # Whichever delivery came second was told what became of the first.
        assert len({result for name, result in results.items() if name in ("webhook", "again")}) == 1

    schedules = await every_schedule(database_url, prepare, check)
    record_property("figure", f"payments: {schedules} orders of {', '.join(tellers)} end in one capture")
    assert schedules > 20


async def test_a_lie_never_wins_against_the_truth_in_whatever_order_they_come(database_url: str) -> None:
    async def prepare(desk: Desk, number: int) -> dict[str, Coroutine[Any, Any, object]]:
        payment = await desk.begin(number)
        return {
            "lie": desk.receive_event(event_of(payment, "lie", amount_minor=1)),
            "decline": desk.receive_event(event_of(payment, "decline", kind=EventKind.CHARGE_DECLINED)),
            "truth": desk.receive_event(event_of(payment, "truth")),
        }

    async def check(desk: Desk, payment_id: str, results: dict[str, object]) -> None:
        payment = await desk.payment(payment_id)
        # A decline that came first is overruled; one that comes later contradicts what is known.
        assert results == {
            "lie": "REFUSED",
            "truth": "HANDLED",
            "decline": "REFUSED" if payment.decline_reason is None else "HANDLED",
        }
        assert payment.status is PaymentStatus.CAPTURED
        assert len(await desk.postings(payment_id)) == len(desk.queue.messages) == 1

    assert await every_schedule(database_url, prepare, check) > 20


async def test_whatever_ends_a_payment_while_it_is_captured_the_money_is_booked_and_told_once(
    database_url: str,
) -> None:
    """One process stands still between its hold and the gateway; another ends the payment with its order meanwhile."""

    async def prepare(desk: Desk, number: int) -> dict[str, Coroutine[Any, Any, object]]:
        payment = await desk.begin(number)
        desk.orders_of_the_other.closed[payment.order_id] = None
        return {
            "answer": desk.settlement.charge(payment),
            "end": desk.settlement_of_the_other.charge(payment),
            "webhook": desk.receive_event(event_of(payment, "event")),
        }

    async def check(desk: Desk, payment_id: str, results: dict[str, object]) -> None:
        payment = await desk.payment(payment_id)
        assert payment.status is PaymentStatus.CAPTURED
        assert payment.decline_reason in (None, ORDER_CLOSED)
        assert await desk.postings(payment_id) == [(f"capture/{payment_id}", -AMOUNT_MINOR)]
        assert [message.tag for message in desk.queue.messages] == ["succeeded"]
        assert results["webhook"] in ("HANDLED", "REPEATED")
        assert results["answer"] == payment

    assert await every_schedule(database_url, prepare, check) > 20


async def test_parts_and_the_whole_in_whatever_order_are_together_never_more_than_was_captured(
    database_url: str,
) -> None:
    async def prepare(desk: Desk, number: int) -> dict[str, Coroutine[Any, Any, object]]:
        payment = await desk.settlement.charge(await desk.begin(number))
        desk.queue.messages.clear()
        whole = WholeRefundRequest(payment.order_id, payment.payment_id, AMOUNT_MINOR, "CNY", "the order had closed")
        part = RefundRequest(payment.payment_id, 60, "why")
        return {
            "part": desk.refund_part(part, OPERATOR, f"part-{number}"),
            "other part": desk.refund_part(part, OPERATOR, f"other-{number}"),
            "whole": desk.refund_whole(whole),
        }

    async def check(desk: Desk, payment_id: str, results: dict[str, object]) -> None:
        payment = await desk.payment(payment_id)
        lost = [result for result in results.values() if isinstance(result, Exception)]
        assert all(isinstance(error, RefundTooLargeError | StatusChangedError) for error in lost)
        postings = await desk.postings(payment_id)
        given_back_minor = sum(amount for posting, amount in postings if posting.startswith("refund/"))
        assert given_back_minor == payment.refunded_minor <= payment.refund_requested_minor <= AMOUNT_MINOR
        # What was asked for and is not back is for the resumer, which asks; it is never forgotten.
        async with desk.units.snapshot() as unit:
            left = [one.refund_id for one in await unit.refunds.unfinished("", 10)]
        for refund_id in left:
            await desk.settlement.ask_refund(refund_id)
        payment = await desk.payment(payment_id)
        assert payment.status is PaymentStatus.REFUNDED
        told = [MessageBody(message.body).number("amount_minor") for message in desk.queue.messages]
        assert sorted(told) in ([40, 60], [100])

    assert await every_schedule(database_url, prepare, check) > 20
