"""Paying and refunding, alone and against each other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from osenv import SimClock
from payments.adapters.sql_unit_of_work import SqlUnitOfWork
from payments.domain.errors import (
    AlreadyPaidError,
    IllegalTransitionError,
    NotCapturedYetError,
    OrderClosedError,
    PaymentInProgressError,
    QueueUnavailableError,
    RefundMismatchError,
    StatusChangedError,
    UnknownOrderError,
    UnknownPaymentError,
    WrongAmountError,
    WrongCurrencyError,
)
from payments.domain.payment import ChangeReason, PaymentMethod, PaymentRequest, PaymentStatus
from payments.domain.refund import whole_refund_id
from payments.service import events
from payments.service.gateway import PATIENCE_S, GatewayBook
from payments.service.pay_order import Paid
from payments.service.use_case import PaymentFilter
from payments.testing import (
    OPERATOR,
    TOTAL_MINOR,
    RunningPayments,
    ScriptedGateway,
    Step,
    order_event,
    running_payments,
)
from servicekit.errors import (
    KeyReusedError,
    PublishError,
    RequestInFlightError,
    ServiceError,
    StorageUnavailableError,
)
from servicekit.message import MessageBody
from servicekit.testing import until
from servicekit.testing.databases import NewDatabaseUrl

SUCCEEDED, REFUNDED = events.SUCCEEDED_TAG, events.REFUNDED_TAG


def scripted(*script: Step) -> ScriptedGateway:
    return ScriptedGateway(SimClock(), *script)


async def reasons(payments: RunningPayments, payment_id: str) -> list[ChangeReason]:
    return [change.reason for change in await payments.application.use_cases.queries.history(payment_id, OPERATOR)]


async def test_a_payment_is_captured_written_down_and_told(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        assert payment.status is PaymentStatus.CAPTURED
        assert payment == await payments.payment(payment.payment_id)
        assert await reasons(payments, payment.payment_id) == [ChangeReason.REQUESTED, ChangeReason.CAPTURED]
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)
        (message,) = payments.told(SUCCEEDED)
        assert message.key == "order-1"
        body = MessageBody(message.body)
        assert (body.number("version"), body.text("payment_id")) == (1, payment.payment_id)
        assert (body.text("order_id"), body.number("amount_minor"), body.text("currency")) == (
            "order-1",
            TOTAL_MINOR,
            "CNY",
        )
        assert body.number("paid_at_ms") == payment.captured_at_ms == payments.clock.wall_ms()
        assert payments.queue.halves == {}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (PaymentRequest("ghost", "buyer-1", TOTAL_MINOR, "CNY", PaymentMethod.CARD), UnknownOrderError),
        (PaymentRequest("order-1", "buyer-2", TOTAL_MINOR, "CNY", PaymentMethod.CARD), UnknownOrderError),
        (PaymentRequest("order-1", "buyer-1", TOTAL_MINOR - 1, "CNY", PaymentMethod.CARD), WrongAmountError),
        (PaymentRequest("order-1", "buyer-1", TOTAL_MINOR + 1, "CNY", PaymentMethod.CARD), WrongAmountError),
        (PaymentRequest("order-1", "buyer-1", TOTAL_MINOR, "EUR", PaymentMethod.CARD), WrongCurrencyError),
        (PaymentRequest("closed", "buyer-1", TOTAL_MINOR, "CNY", PaymentMethod.CARD), OrderClosedError),
        (PaymentRequest("paid", "buyer-1", TOTAL_MINOR, "CNY", PaymentMethod.CARD), AlreadyPaidError),
    ],
)
async def test_a_rejected_payment_leaves_no_trace_and_its_key_may_be_used_again(
    new_database_url: NewDatabaseUrl, request_: PaymentRequest, error: type[ServiceError]
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        await payments.tell(order_event(events.CLOSED_TAG, "closed"), order_event(events.PAID_TAG, "paid"))
        with pytest.raises(error):
            await payments.application.use_cases.pay_order(request_, "k")
        assert await payments.payments() == []
        assert payments.queue.attempts == 0
        assert await payments.gateway.book() == GatewayBook(0, 0, 0, 0)
        assert not (await payments.pay("k")).replayed


async def test_a_repeated_key_answers_with_the_payment_as_it_was_answered_first(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        first = await payments.pay("k")
        await payments.tell(order_event(events.CLOSED_TAG))
        await payments.request_refund(first.payment)
        assert (await payments.payment(first.payment.payment_id)).status is PaymentStatus.REFUNDED
        assert await payments.pay("k") == Paid(first.payment, replayed=True)
        with pytest.raises(KeyReusedError):
            await payments.pay("k", "order-2")
        assert len(payments.told(SUCCEEDED)) == 1


async def test_of_concurrent_requests_with_one_key_one_pays_and_the_others_are_told_to_wait(
    new_database_url: NewDatabaseUrl,
) -> None:
    gateway = scripted(Step.HOLD)
    async with running_payments(new_database_url("payments"), gateway=gateway) as payments:
        await payments.open_order()
        first = asyncio.create_task(payments.pay("k"))
        await until(lambda: gateway.calls == 1)
        for _ in range(3):
            with pytest.raises(RequestInFlightError):
                await payments.pay("k")
        gateway.release.set()
        assert (await first).payment.status is PaymentStatus.CAPTURED
        assert (await payments.pay("k")).replayed
        assert await gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)


async def test_of_concurrent_requests_with_different_keys_exactly_one_captures(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        results = await asyncio.gather(*(payments.pay(f"k{n}") for n in range(10)), return_exceptions=True)
        assert sum(isinstance(result, Paid) for result in results) == 1
        assert sum(isinstance(result, PaymentInProgressError | AlreadyPaidError) for result in results) == 9
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)
        assert len(payments.told(SUCCEEDED)) == 1
        with pytest.raises(AlreadyPaidError):
            await payments.pay("another")


async def test_the_database_decides_between_two_processes_that_begin_at_once(new_database_url: NewDatabaseUrl) -> None:
    gateway = scripted(Step.HOLD)
    async with (
        running_payments(new_database_url("payments"), gateway=gateway) as one,
        running_payments(new_database_url("payments"), gateway=gateway, seed=2) as other,
    ):
        await one.open_order()
        first = asyncio.create_task(one.pay("k1"))
        await until(lambda: gateway.calls == 1)
        with pytest.raises(PaymentInProgressError):
            await other.pay("k2")
        in_progress = await other.pay("k1")  # another process holds the key: the answer is how far it came
        assert (in_progress.replayed, in_progress.payment.status) == (True, PaymentStatus.CREATED)
        async with other.application.units.writing() as unit:
            (again,) = await unit.payments.page(PaymentFilter(), None, 1)
            history = await unit.payments.history(again.payment_id)
            with pytest.raises(PaymentInProgressError):
                await unit.payments.add(replace(again, payment_id="another"), history[0])
        gateway.release.set()
        assert (await first).payment.status is PaymentStatus.CAPTURED


async def test_two_processes_that_finish_one_payment_tell_it_once(new_database_url: NewDatabaseUrl) -> None:
    gateway = scripted(Step.HOLD)
    async with running_payments(new_database_url("payments"), gateway=gateway) as one:
        await one.open_order()
        first = asyncio.create_task(one.pay("k"))
        await until(lambda: gateway.calls == 1)
        async with running_payments(new_database_url("payments"), gateway=gateway, queue=one.queue, seed=2) as other:
            # The other one asks before the charge has arrived, and charges; then the first one's answer comes.
            assert await other.application.resumer.resume() == 0
            gateway.release.set()
            paid = await first
        assert paid.payment.status is PaymentStatus.CAPTURED
        assert paid.payment == await one.payment(paid.payment.payment_id)
        assert len(one.told(SUCCEEDED)) == 1
        assert one.queue.halves == {}
        assert await gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)


async def test_a_declined_payment_is_final_and_the_order_can_be_paid_by_another(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments"), gateway=scripted(Step.DECLINE)) as payments:
        await payments.open_order()
        declined = (await payments.pay("k1")).payment
        assert (declined.status, declined.decline_reason) == (PaymentStatus.DECLINED, "no money")
        assert await reasons(payments, declined.payment_id) == [ChangeReason.REQUESTED, ChangeReason.DECLINED]
        assert await payments.pay("k1") == Paid(declined, replayed=True)
        assert payments.queue.attempts == 0
        assert (await payments.pay("k2")).payment.status is PaymentStatus.CAPTURED
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)


@pytest.mark.parametrize("step", [Step.FAIL_BEFORE, Step.FAIL_AFTER])
async def test_a_payment_whose_gateway_gave_no_answer_is_in_progress_until_the_resumer_asks_again(
    new_database_url: NewDatabaseUrl, step: Step
) -> None:
    async with running_payments(new_database_url("payments"), gateway=scripted(step)) as payments:
        await payments.open_order()
        paid = await payments.pay("k")
        assert paid.payment.status is PaymentStatus.CREATED
        assert payments.told(SUCCEEDED) == []
        with pytest.raises(PaymentInProgressError):
            await payments.pay("another")
        assert await payments.application.resumer.resume() == 0
        assert (await payments.pay("k")).payment.status is PaymentStatus.CAPTURED
        assert len(payments.told(SUCCEEDED)) == 1
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)


async def test_a_gateway_that_is_too_slow_is_asked_again(new_database_url: NewDatabaseUrl) -> None:
    gateway = scripted(Step.HOLD)
    async with running_payments(new_database_url("payments"), gateway=gateway) as payments:
        await payments.open_order()
        paying = asyncio.create_task(payments.pay("k"))
        await until(lambda: gateway.calls == 1)
        await payments.clock.advance(PATIENCE_S)
        assert (await paying).payment.status is PaymentStatus.CREATED
        assert await payments.application.resumer.resume() == 0
        assert (await payments.pay("k")).payment.status is PaymentStatus.CAPTURED


async def test_money_that_moved_while_the_queue_went_away_is_told_once_it_is_back(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments"), gateway=scripted(Step.HOLD)) as payments:
        await payments.open_order()
        paying = asyncio.create_task(payments.pay("k"))
        await until(lambda: payments.scripted.calls == 1)
        payments.queue.is_down = True
        payments.scripted.release.set()
        assert (await paying).payment.status is PaymentStatus.CAPTURED
        assert await payments.application.resumer.resume() == 0
        assert payments.told(SUCCEEDED) == []
        with pytest.raises(PublishError):
            await payments.application.relay.relay()
        payments.queue.is_down = False
        assert await payments.application.relay.relay() == 1
        assert await payments.application.relay.relay() == 0
        assert len(payments.told(SUCCEEDED)) == 1


async def test_nothing_is_begun_while_the_queue_is_known_to_be_away(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        first = await payments.pay("k1")
        await payments.open_order("order-2")
        payments.queue.is_down = True
        with pytest.raises(QueueUnavailableError):
            await payments.pay("k2", "order-2")
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)
        assert await payments.pay("k1") == Paid(first.payment, replayed=True)


async def test_a_transaction_that_the_queue_gave_up_too_soon_is_kept_in_the_outbox(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:

        async def ask_too_soon(_transaction_id: str) -> None:
            await payments.check_back()

        await payments.open_order()
        payments.queue.before_local = ask_too_soon
        assert (await payments.pay("k")).payment.status is PaymentStatus.CAPTURED
        assert payments.told(SUCCEEDED) == []
        payments.queue.before_local = payments.queue.after_local  # which does nothing
        assert await payments.application.relay.relay() == 1
        assert len(payments.told(SUCCEEDED)) == 1
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)


async def test_a_commit_that_says_it_failed_and_did_not_is_found_by_the_queues_check(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SqlUnitOfWork.commit
    commits = 0

    async def commit_and_fail_the_second(unit: SqlUnitOfWork) -> None:
        nonlocal commits
        commits += 1
        await commit(unit)
        if commits == 2:
            raise StorageUnavailableError("the disk did not say")

    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        monkeypatch.setattr(SqlUnitOfWork, "commit", commit_and_fail_the_second)
        paid = await payments.pay("k")
        assert paid.payment.status is PaymentStatus.CREATED  # as far as is known
        assert await payments.application.resumer.resume() == 0
        assert payments.told(SUCCEEDED) == []
        await payments.check_back()
        assert len(payments.told(SUCCEEDED)) == 1
        assert (await payments.pay("k")).payment.status is PaymentStatus.CAPTURED


async def test_a_payment_that_loses_its_compare_and_set_is_not_told(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        created = (await payments.application.use_cases.queries.history(payment.payment_id, OPERATOR))[1]
        async with payments.application.units.writing() as unit:
            assert not await unit.payments.change_status(payment, created, 0)


async def test_a_refund_gives_the_money_back_writes_it_down_and_tells_it(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        captured = (await payments.pay("k")).payment
        await payments.clock.advance(60)
        await payments.request_refund(captured)
        payment = await payments.payment(captured.payment_id)
        assert payment.status is PaymentStatus.REFUNDED
        assert payment.refunded_at_ms == payments.clock.wall_ms()
        assert (await reasons(payments, payment.payment_id))[-1] is ChangeReason.REFUNDED
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, TOTAL_MINOR, 1, 1)
        (message,) = payments.told(REFUNDED)
        body = MessageBody(message.body)
        assert (message.key, body.text("order_id"), body.text("payment_id")) == (
            "order-1",
            "order-1",
            payment.payment_id,
        )
        assert (body.number("amount_minor"), body.text("currency")) == (TOTAL_MINOR, "CNY")
        assert body.text("refund_id") == whole_refund_id(payment.payment_id)
        assert body.number("refunded_at_ms") == payment.refunded_at_ms
        with pytest.raises(AlreadyPaidError):  # a refunded order is not paid again
            await payments.pay("another")


async def test_a_refund_that_is_asked_for_again_and_again_happens_once(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        await asyncio.gather(*(payments.request_refund(payment) for _ in range(5)))
        await payments.request_refund(payment)
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, TOTAL_MINOR, 1, 1)
        assert len(payments.told(REFUNDED)) == 1


async def test_a_refund_of_a_payment_that_is_still_being_captured_comes_again_later(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments"), gateway=scripted(Step.FAIL_AFTER)) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        with pytest.raises(NotCapturedYetError):
            await payments.request_refund(payment)
        await payments.application.resumer.resume()
        await payments.request_refund(payment)
        assert (await payments.payment(payment.payment_id)).status is PaymentStatus.REFUNDED


@pytest.mark.parametrize("step", [Step.FAIL_BEFORE, Step.FAIL_AFTER])
async def test_a_refund_whose_gateway_gave_no_answer_is_finished_by_the_resumer(
    new_database_url: NewDatabaseUrl, step: Step
) -> None:
    async with running_payments(new_database_url("payments"), gateway=scripted(Step.SUCCEED, step)) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        await payments.request_refund(payment)
        assert payments.told(REFUNDED) == []
        assert await payments.application.resumer.resume() == 0
        assert (await payments.payment(payment.payment_id)).status is PaymentStatus.REFUNDED
        await payments.request_refund(payment)
        assert len(payments.told(REFUNDED)) == 1
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, TOTAL_MINOR, 1, 1)


async def test_a_refund_that_makes_no_sense_is_not_taken(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments"), gateway=scripted(Step.DECLINE)) as payments:
        await payments.open_order()
        declined = (await payments.pay("k1")).payment
        with pytest.raises(IllegalTransitionError):
            await payments.request_refund(declined)
        payment = (await payments.pay("k2")).payment
        with pytest.raises(UnknownPaymentError):
            await payments.request_refund(payment, payment_id="ghost")
        for changes in ({"amount_minor": 1}, {"currency": "EUR"}, {"order_id": "order-2"}):
            with pytest.raises(RefundMismatchError):
                await payments.request_refund(payment, **changes)
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)
        async with payments.application.units.snapshot() as unit:
            assert await unit.refunds.find(whole_refund_id(payment.payment_id)) is None


async def test_a_refund_of_orders_cannot_be_written_twice(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        await payments.request_refund(payment)
        (refund,) = await payments.refunds_of(payment.payment_id)
        with pytest.raises(StatusChangedError):
            async with payments.application.units.writing() as unit:
                await unit.refunds.add(refund)
