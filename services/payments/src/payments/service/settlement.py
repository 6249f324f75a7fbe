"""Settlement: the effects of a gateway's decision, and its entries in the books."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import structlog

from osenv import Clock
from payments.domain.errors import (
    GatewayRejectedError,
    OrderNotPayableError,
    OrdersUnavailableError,
    StatusChangedError,
)
from payments.domain.gateway_event import EventStatus, GatewayEvent, Judgement
from payments.domain.ledger import capture_posting, refund_posting
from payments.domain.payment import TOOK_MONEY, Payment, PaymentStatus, StatusChange
from payments.domain.refund import Refund, RefundStatus
from payments.service import events
from payments.service.gateway import (
    Captured,
    ChargeRequest,
    Declined,
    OrderHolds,
    PaymentGateway,
    Pending,
    Refunded,
    RefundOrder,
)
from payments.service.use_case import NOT_METERED, KnownEvent, PaymentMeter, UnitOfWork, Units, in_trace_of
from servicekit.errors import ServiceError
from servicekit.sql.outbox import OutboxPublisher

log = structlog.get_logger(__name__)


class Bookkeeper:
    """Each method takes what its caller has read, and the event that told of the change, if it was one.

    All raise StatusChangedError when the payment has changed since: read it again. EventKnownError when another
    delivery of the same event was faster. StorageUnavailableError. Nothing was written or told then.

    The bookkeeper: writes down that money moved, or never will, and tells it. Every way to learn of it, by an answer of
    the gateway, a question or a webhook, leads here.

        status by compare-and-set + history + ledger posting + the event, if one told it + message: one unit, or nothing

    Invariants: a payment has one capture posting at most, whatever tells of it, how often and in which order; a change
    is told by exactly one message, through the queue or, while that is away, through the outbox. The capture of a
    payment that was declined is booked and told as every other, so that orders decides about the money (ADR 144).
    """

    def __init__(
        self,
        units: Units,
        publisher: OutboxPublisher[UnitOfWork],
        clock: Clock,
        holds: OrderHolds,
        meter: PaymentMeter = NOT_METERED,
    ) -> None:
        self._units = units
        self._holds = holds
        self._publisher = publisher
        self._clock = clock
        self._meter = meter

    async def captured(self, payment: Payment, at_ms: int, event: GatewayEvent | None = None) -> Payment:
        """The gateway took the money at `at_ms`. Raises IllegalTransitionError as well."""
        changed, change = payment.captured(at_ms)
        if payment.status is PaymentStatus.DECLINED:
            log.warning(
                "the gateway has taken the money of a payment that was declined",
                payment_id=payment.payment_id,
                decline_reason=payment.decline_reason,
            )

        async def write(unit: UnitOfWork) -> None:
            await self._note(unit, event)
            await _change_status(unit, payment, changed, change)
            await unit.ledger.post(capture_posting(changed))

        await self._publisher.publish(events.succeeded(changed), write)
        self._meter.settled(changed, self._clock.wall_ms())
        return changed

    async def declined(
        self, payment: Payment, reason: str, at_ms: int | None = None, event: GatewayEvent | None = None
    ) -> Payment:
        """The gateway said no, at `at_ms` if it said when; the order is let go. Raises IllegalTransitionError too."""
        changed, change = payment.declined(reason, self._clock.wall_ms() if at_ms is None else at_ms)
        async with self._units.writing() as unit:
            await self._note(unit, event)
            await _change_status(unit, payment, changed, change)
            await unit.commit()
        self._meter.settled(changed, self._clock.wall_ms())
        try:
            await self._holds.release(changed)
        except OrdersUnavailableError as error:
            log.info("the hold of an order ends by itself", order_id=changed.order_id, error=str(error))
        return changed

    async def refunded(
        self, payment: Payment, refund: Refund, at_ms: int, event: GatewayEvent | None = None
    ) -> tuple[Payment, Refund]:
        """The gateway gave the refund's money back at `at_ms`. Raises IllegalTransitionError as well."""
        changed, change = payment.refunded(refund.amount_minor, at_ms)
        done = refund.refunded(at_ms)

        async def write(unit: UnitOfWork) -> None:
            await self._note(unit, event)
            if not await unit.refunds.change(refund.status, done):
                raise StatusChangedError("refund", done.refund_id)
            await _change_status(unit, payment, changed, change)
            await unit.ledger.post(refund_posting(done))

        await self._publisher.publish(events.refunded(changed, done), write)
        self._meter.refunded(done)
        return changed, done

    async def refund_failed(self, refund: Refund, failure: str) -> Refund:
        """The gateway has rejected the refund; no money moved. Raises IllegalTransitionError as well."""
        return await self._change_refund(refund, refund.failed(failure))

    async def refund_retried(self, refund: Refund) -> Refund:
        """A refund that has failed is to be tried again. Raises IllegalTransitionError as well."""
        return await self._change_refund(refund, refund.retried())

    async def _change_refund(self, refund: Refund, changed: Refund) -> Refund:
        async with self._units.writing() as unit:
            if not await unit.refunds.change(refund.status, changed):
                raise StatusChangedError("refund", refund.refund_id)
            await unit.commit()
        return changed

    async def noted(self, event: GatewayEvent, judgement: Judgement) -> None:
        """The event changed nothing; that it came is remembered."""
        async with self._units.writing() as unit:
            await unit.gateway_events.add(KnownEvent(event, judgement, self._clock.wall_ms()))
            await unit.commit()

    async def _note(self, unit: UnitOfWork, event: GatewayEvent | None) -> None:
        if event is not None:
            await unit.gateway_events.add(KnownEvent(event, Judgement(EventStatus.HANDLED), self._clock.wall_ms()))


async def _change_status(unit: UnitOfWork, payment: Payment, changed: Payment, change: StatusChange) -> None:
    if not await unit.payments.change_status(changed, change, payment.refunded_minor):
        raise StatusChangedError("payment", changed.payment_id)


# A loser of a compare-and-set looks again: each time another task has got one step further.
ATTEMPTS_MAX = 5

# A charge that was sent while the order was held may reach the gateway late, but not so late; nor does it come so late
# after a gateway that did not answer has begun to answer, and to work off what has waited there.
CHARGE_LATE_MAX_MS = 60_000
ORDER_CLOSED = "order-closed"

# Names of spans.
SETTLE_PAYMENT = "settle payment"
ASK_FOR_PAYMENT = "ask for payment"
REFUND_PAYMENT = "refund payment"
ASK_FOR_REFUND = "ask for refund"


class Settlement:
    """Finishes payments and refunds. `holding` keeps two of this process's tasks off one of them.

    Settlement: from a recorded intent to its end, however often it is begun and wherever it breaks off.

        intent (CREATED or REQUESTED, committed) -> hold of the order -> gateway -> bookkeeper

    Invariants: the gateway is asked only after the intent is committed, always under the same id, and never inside a
    unit of work; and only while orders holds the order for the payment, so that no card is charged for an order that is
    over. So money that moved is written down once: a process that dies before leaves the intent, which is asked about
    again; and what the gateway has not decided yet is decided by its webhook, or by asking again.
    """

    def __init__(
        self,
        units: Units,
        gateway: PaymentGateway,
        bookkeeper: Bookkeeper,
        holds: OrderHolds,
        clock: Clock,
        *,
        charge_late_max_ms: int = CHARGE_LATE_MAX_MS,
    ) -> None:
        self._units = units
        self._gateway = gateway
        self._bookkeeper = bookkeeper
        self._holds = holds
        self._clock = clock
        self._charge_late_max_ms = charge_late_max_ms
        self._held: set[str] = set()
        # By payment id: when the gateway first said that it knows of no charge, without a break since.
        self._unknown_since: dict[str, float] = {}

    def is_held(self, its_id: str) -> bool:
        """Whether a task of this process has the payment or refund in hand."""
        return its_id in self._held

    @contextmanager
    def holding(self, its_id: str) -> Iterator[None]:
        """A task that sees `is_held` leaves it alone. Two processes need no such thing: the database decides."""
        self._held.add(its_id)
        try:
            yield
        finally:
            self._held.discard(its_id)

    def forget_others(self, unfinished: Collection[str]) -> None:
        """Keep nothing in memory about payments that are not among these ids."""
        self._unknown_since = {its_id: at for its_id, at in self._unknown_since.items() if its_id in unfinished}

    async def charge(self, payment: Payment) -> Payment:
        """Let the gateway take the money of a CREATED payment; returns the payment as it stands then.

        It is still CREATED when the gateway decides later, and DECLINED when the order is over. Raises
        OrdersUnavailableError (nothing was captured), GatewayUnavailableError, StorageUnavailableError and
        StatusChangedError: this may be called again, and has to be. Raises GatewayRejectedError, which needs a person.
        """
        with in_trace_of(payment, SETTLE_PAYMENT):
            try:
                await self._holds.take(payment)
            except OrderNotPayableError as error:
                return await self._give_up(payment, error)
            return await self._write_down(payment, await self._gateway.charge(ChargeRequest.of(payment)))

    async def ask_charge(self, payment_id: str) -> Payment:
        """Ask what became of a payment, and begin it if the gateway has never heard of it. Raises as `charge` does."""
        async with self._units.snapshot() as unit:
            payment = await unit.payments.get(payment_id)
        if payment.status is not PaymentStatus.CREATED:
            return payment
        with in_trace_of(payment, ASK_FOR_PAYMENT):
            unknown_since = self._unknown_since.pop(payment_id, self._clock.monotonic())
            answer = await self._gateway.find_charge(ChargeRequest.of(payment))
            if answer is None:
                self._unknown_since[payment_id] = unknown_since
                return await self.charge(payment)
            if isinstance(answer, Pending):
                await self._hold_on(payment)
            return await self._write_down(payment, answer)

    async def refund(self, refund: Refund, payment: Payment) -> Refund:
        """Let the gateway give the money of a REQUESTED refund of `payment` back; returns the refund as it stands then.

        It is still REQUESTED when the gateway does so later, and FAILED when the gateway rejects it. Raises as `charge`
        does, but no GatewayRejectedError.
        """
        with in_trace_of(payment, REFUND_PAYMENT, refund):
            try:
                answer = await self._gateway.refund(RefundOrder.of(refund))
            except GatewayRejectedError as error:
                log.error(  # noqa: TRY400 - no fault of the code
                    "the gateway has rejected a refund; a person has to look",
                    refund_id=refund.refund_id,
                    payment_id=refund.payment_id,
                    error=str(error),
                )
                return await self._bookkeeper.refund_failed(refund, str(error))
            return await self._write_down_refund(refund, answer)

    async def ask_refund(self, refund_id: str) -> Refund | None:
        """Ask what became of a refund, and begin it if the gateway has never heard of it; None if there is none.

        Raises as `charge` does.
        """
        async with self._units.snapshot() as unit:
            refund = await unit.refunds.find(refund_id)
            if refund is None or refund.status is not RefundStatus.REQUESTED:
                return refund
            payment = await unit.payments.get(refund.payment_id)
        with in_trace_of(payment, ASK_FOR_REFUND, refund):
            answer = await self._gateway.find_refund(RefundOrder.of(refund))
            if answer is None:
                return await self.refund(refund, payment)
            return await self._write_down_refund(refund, answer)

    async def _give_up(self, payment: Payment, error: OrderNotPayableError) -> Payment:
        """End a payment of an order that is over, once no charge of it can be on its way or wait in the gateway."""
        if error.hold_ended_ms_ago is not None:
            now = self._clock.monotonic()
            unknown_ms = (now - self._unknown_since.get(payment.payment_id, now)) * 1000
            if min(error.hold_ended_ms_ago, unknown_ms) < self._charge_late_max_ms:
                return payment
        log.info("a payment ends with its order; nothing was charged", payment_id=payment.payment_id)
        return await self._write_down(payment, Declined(ORDER_CLOSED))

    async def _hold_on(self, payment: Payment) -> None:
        """Keep the order for a charge that the gateway has not decided; if that fails, money may have to go back."""
        try:
            await self._holds.take(payment)
        except ServiceError as error:
            log.warning("an undecided charge may outlive its order", payment_id=payment.payment_id, error=str(error))

    async def _write_down(self, payment: Payment, answer: Pending | Captured | Declined) -> Payment:
        if isinstance(answer, Pending):
            return payment
        try:
            if isinstance(answer, Captured):
                return await self._bookkeeper.captured(payment, answer.at_ms)
            return await self._bookkeeper.declined(payment, answer.reason)
        except StatusChangedError:  # the webhook, or another process, was faster
            return await self._look_again(payment.payment_id, answer)

    async def _look_again(self, payment_id: str, answer: Captured | Declined) -> Payment:
        async with self._units.snapshot() as unit:
            payment = await unit.payments.get(payment_id)
        took_money = payment.status in TOOK_MONEY
        if isinstance(answer, Captured) and not took_money:  # another task has ended it
            return await self._write_down(payment, answer)
        if took_money and isinstance(answer, Declined):
            log.error(
                "the gateway contradicts itself", payment_id=payment_id, status=payment.status, answer=str(answer)
            )
        return payment

    async def _write_down_refund(self, refund: Refund, answer: Pending | Refunded) -> Refund:
        if isinstance(answer, Pending):
            return refund
        for _ in range(ATTEMPTS_MAX):
            async with self._units.snapshot() as unit:
                payment = await unit.payments.get(refund.payment_id)
                found = await unit.refunds.find(refund.refund_id)
            if found is None or found.status is RefundStatus.REFUNDED:
                return found or refund
            try:
                return (await self._bookkeeper.refunded(payment, found, answer.at_ms))[1]
            except StatusChangedError:
                continue
        raise StatusChangedError("payment", refund.payment_id)
