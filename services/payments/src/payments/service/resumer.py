"""What was begun and is not finished, by this process or one before it; captures on which orders has not acted, or that
were never told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from osenv import Clock
from payments.domain.errors import GatewayRejectedError
from payments.domain.gateway_event import PayableOrder, PayableStatus
from payments.domain.payment import TOOK_MONEY, Payment, PaymentStatus
from payments.domain.refund import RefundStatus, WholeRefundRequest
from payments.service import events
from payments.service.gateway import Captured, ChargeRequest, PaymentGateway
from payments.service.refund_payment import RefundPayment
from payments.service.settlement import ORDER_CLOSED, Bookkeeper, Settlement
from payments.service.use_case import PageKey, PaymentFilter, UnitOfWork, Units, in_trace_of
from servicekit.background import WakeUp
from servicekit.errors import RejectedError, ServiceError, StorageUnavailableError
from servicekit.message import MessagePublisher
from servicekit.process.reconciler import Finding, Sweep

BATCH_PAYMENTS = 64
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 2.0
LOOK_INTERVAL_S = 10.0  # another process may have died with what it had begun
ASK_AGAIN_AFTER_S = 3600.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A payment or refund: which, and since which wall-clock millisecond."""

    its_id: str
    since_ms: int


PageOfUnfinished = Callable[[UnitOfWork, str, int], Awaitable[list[Unfinished]]]


@dataclass(slots=True)
class _Pass:
    """What a pass has come to."""

    errors: list[Exception]
    next_due_s: float | None = None  # from now; None: nothing waits for the gateway

    def wait_for(self, seconds: float) -> None:
        self.next_due_s = seconds if self.next_due_s is None else min(self.next_due_s, seconds)


class Resumer:
    """A loop that makes a pass at its start and whenever it is woken, and backs off while passes leave something.

    The gateway is asked when it has been silent about something for `silence_ms`; at the start, about everything.

    Invariants: what it finds is what the database says, so that nothing has to survive in memory; it leaves alone what
    a request has in hand, and what the gateway may still tell by itself; it ends a pass only when it has tried
    everything, so that one payment that fails holds up no other.
    """

    def __init__(self, units: Units, settlement: Settlement, clock: Clock, wake: WakeUp, *, silence_ms: int) -> None:
        self._units = units
        self._settlement = settlement
        self._clock = clock
        self._wake = wake
        self._silence_s = silence_ms / 1000
        self._end = WakeUp()
        self._left = 0
        self._asked_at: dict[str, float] = {}  # on the monotonic clock; politeness, and nothing depends on it

    @property
    def left(self) -> int:
        """How many payments and refunds the last pass could not ask about. Those that wait for the gateway are fine."""
        return self._left

    async def run(self) -> None:
        """Until `stop`."""
        backoff_s = BACKOFF_FIRST_S
        is_first = True
        while not self._end.is_set:
            self._wake.reset()  # before reading: what is begun after the read rings again
            try:
                done = await self._look(self._silence_s if not is_first else 0.0)
            except StorageUnavailableError as error:
                self._say(max(self._left, 1), error)
                await self._end.wait(self._clock, backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            is_first = False
            if done.errors:
                await self._end.wait(self._clock, backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            backoff_s = BACKOFF_FIRST_S
            if done.next_due_s is None:
                await self._wake.wait(self._clock, LOOK_INTERVAL_S)
            else:
                await self._end.wait(self._clock, done.next_due_s)

    def stop(self) -> None:
        """Let `run` return after the pass in hand."""
        self._end.set()
        self._wake.set()

    async def resume(self) -> int:
        """One pass over everything, however young; returns how much could not be asked about.

        Raises StorageUnavailableError.
        """
        return len((await self._look(0.0)).errors)

    async def _look(self, silence_s: float) -> _Pass:
        done = _Pass([])
        seen = await self._each(_payments, self._ask_charge, silence_s, done)
        seen |= await self._each(_refunds, self._ask_refund, silence_s, done)
        self._asked_at = {its_id: at for its_id, at in self._asked_at.items() if its_id in seen}
        self._settlement.forget_others(seen)
        self._say(len(done.errors), done.errors[0] if done.errors else None)
        return done

    async def _each(
        self, page: PageOfUnfinished, ask: Callable[[str], Awaitable[bool]], silence_s: float, done: _Pass
    ) -> set[str]:
        """Ask about everything that is due, page by page; returns the ids of everything that was unfinished."""
        seen: set[str] = set()
        after = ""
        while True:
            async with self._units.snapshot() as unit:
                found = await page(unit, after, BATCH_PAYMENTS)
            if not found:
                return seen
            after = found[-1].its_id
            seen |= {one.its_id for one in found}
            due = []
            for one in found:
                if self._settlement.is_held(one.its_id):
                    continue
                rest_s = self._rest_s(one, silence_s)
                if rest_s > 0:
                    done.wait_for(rest_s)
                else:
                    due.append(one.its_id)
            await self._ask_together(due, ask, done)

    def _rest_s(self, one: Unfinished, silence_s: float) -> float:
        """For how long the gateway may still tell by itself; 0 or less: not any more."""
        silent_s = (self._clock.wall_ms() - one.since_ms) / 1000
        if one.its_id in self._asked_at:
            silent_s = self._clock.monotonic() - self._asked_at[one.its_id]
        # A wall clock that was set back must not put anything off.
        return silence_s - silent_s if silent_s >= 0 else 0.0

    async def _ask_together(self, due: list[str], ask: Callable[[str], Awaitable[bool]], done: _Pass) -> None:
        results = await asyncio.gather(*(ask(its_id) for its_id in due), return_exceptions=True)
        for its_id, result in zip(due, results, strict=True):
            if isinstance(result, bool):
                if not result:
                    self._asked_at[its_id] = self._clock.monotonic()
                    done.wait_for(self._silence_s)
                continue
            if not isinstance(result, ServiceError):
                raise result
            if isinstance(result, RejectedError):
                log.error("a payment cannot be finished", id=its_id, error=str(result))
            done.errors.append(result)

    async def _ask_charge(self, payment_id: str) -> bool:
        """Whether the payment is decided now."""
        with self._settlement.holding(payment_id):
            return (await self._settlement.ask_charge(payment_id)).status is not PaymentStatus.CREATED

    async def _ask_refund(self, refund_id: str) -> bool:
        """Whether the refund is done now, or rejected."""
        with self._settlement.holding(refund_id):
            refund = await self._settlement.ask_refund(refund_id)
        return refund is None or refund.status is not RefundStatus.REQUESTED

    def _say(self, left: int, error: Exception | None) -> None:
        if left and not self._left:
            log.warning("payments or refunds are unfinished; trying again until they are", left=left, error=str(error))
        if self._left and not left:
            log.info("every payment and every refund is finished, or waits for the gateway")
        self._left = left


async def _payments(unit: UnitOfWork, after: str, limit: int) -> list[Unfinished]:
    return [Unfinished(one.payment_id, one.created_at_ms) for one in await unit.payments.unfinished(after, limit)]


async def _refunds(unit: UnitOfWork, after: str, limit: int) -> list[Unfinished]:
    return [Unfinished(one.refund_id, one.requested_at_ms) for one in await unit.refunds.unfinished(after, limit)]


TELL_AGAIN = "tell again"  # the name of a span


def _sweep_of(units: Units, clock: Clock, wanted: PaymentFilter, window_ms: int | None) -> Sweep[Payment]:
    """Over the payments that are wanted, without those that are older than `window_ms`, if that is set."""

    async def page(after: Payment | None, limit: int) -> list[Payment]:
        place = None if after is None else PageKey(after.created_at_ms, after.payment_id)
        async with units.snapshot() as unit:
            found = await unit.payments.page(wanted, place, limit)
        since_ms = 0 if window_ms is None else clock.wall_ms() - window_ms
        return [one for one in found if one.created_at_ms >= since_ms]

    return Sweep(page)


class CapturesCheck:
    """Implements `Check`, over the payments from the newest to the oldest.

    Captures on which orders has not acted: they are told again, and the money of a closed order goes back (ADR 120).

        order OPEN     `succeeded` was lost on its way, or the answer to it was: it is told again
        order CLOSED   the money was not asked for, or the request was lost: it is told again, and the refund is made
        order PAID     a late capture (ADR 144) and another payment both keep money: orders is told of both again

    Invariant: nothing is done here that a message would not do. Orders knows a payment by its id, and the refund of a
    closed order is the one that orders would ask for, so that it is made once, whichever request is first.
    """

    def __init__(
        self,
        units: Units,
        publisher: MessagePublisher,
        refund_payment: RefundPayment,
        clock: Clock,
        *,
        after_ms: int,
        window_ms: int | None,
    ) -> None:
        """A capture is looked at when it is `after_ms` old; payments older than `window_ms`, if it is set, are not."""
        self._units = units
        self._publisher = publisher
        self._refund_payment = refund_payment
        self._clock = clock
        self._after_ms = after_ms
        self._sweep = _sweep_of(units, clock, PaymentFilter(), window_ms)

    @property
    def has_more(self) -> bool:
        return self._sweep.has_more

    async def find(self, limit: int) -> list[Finding]:
        captured = [one for one in await self._sweep.next(limit) if self._is_settled(one)]
        async with self._units.snapshot() as unit:
            orders = await unit.payable_orders.find_all([one.order_id for one in captured])
            others = {
                one.payment_id: await _others_that_keep_money(unit, one) for one in captured if one.decline_reason
            }
        found = [self._finding(one, orders.get(one.order_id), others.get(one.payment_id, [])) for one in captured]
        return [finding for finding in found if finding is not None]

    def _is_settled(self, payment: Payment) -> bool:
        """Whether money is here without a refund request, and messages have had their time."""
        captured_at_ms = payment.captured_at_ms
        is_kept = captured_at_ms is not None and payment.refundable_minor > 0
        return is_kept and self._clock.wall_ms() - (captured_at_ms or 0) >= self._after_ms

    def _finding(self, payment: Payment, order: PayableOrder | None, others: list[Payment]) -> Finding | None:
        status = PayableStatus.OPEN if order is None else order.status
        which = f"payment {payment.payment_id} of order {payment.order_id} is {payment.status}"
        if status is PayableStatus.PAID:
            return (
                Finding(f"{which}, and not alone: tell orders", lambda: self._tell(payment, *others))
                if others
                else None
            )
        if status is PayableStatus.OPEN:
            return Finding(f"{which}, and the order neither paid nor closed: tell orders", lambda: self._tell(payment))
        return Finding(f"{which}, and the order closed: send the money back", lambda: self._send_back(payment))

    async def _tell(self, *payments: Payment) -> bool:
        for payment in payments:
            with in_trace_of(payment, TELL_AGAIN):
                await self._publisher.publish(events.succeeded(payment))
        return True

    async def _send_back(self, payment: Payment) -> bool:
        """Orders is told first, so that its books have the request too."""
        await self._tell(payment)
        await self._refund_payment(
            WholeRefundRequest(
                payment.order_id, payment.payment_id, payment.amount_minor, payment.currency, ORDER_CLOSED
            )
        )
        return True


async def _others_that_keep_money(unit: UnitOfWork, payment: Payment) -> list[Payment]:
    """Of the newest payments of the same order: what is found is decided one by one."""
    found = await unit.payments.page(PaymentFilter(order_id=payment.order_id), None, BATCH_PAYMENTS)
    return [
        one
        for one in found
        if one.payment_id != payment.payment_id and one.status in TOOK_MONEY and one.refundable_minor > 0
    ]


class LateCapturesCheck:
    """Implements `Check`, over the payments that ended with their orders, from the newest to the oldest.

    A charge that was on its way then may have been carried out since, and its webhook be lost: the gateway is asked
    about each of them, an hour apart. What the gateway itself has declined it is not asked about.
    """

    def __init__(
        self,
        units: Units,
        gateway: PaymentGateway,
        bookkeeper: Bookkeeper,
        clock: Clock,
        *,
        window_ms: int | None,
    ) -> None:
        """Payments older than `window_ms`, if it is set, are not asked about."""
        self._gateway = gateway
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._asked_at: dict[str, float] = {}  # on the monotonic clock
        self._sweep = _sweep_of(units, clock, PaymentFilter(status=PaymentStatus.DECLINED), window_ms)

    @property
    def has_more(self) -> bool:
        return self._sweep.has_more

    async def find(self, limit: int) -> list[Finding]:
        now = self._clock.monotonic()
        self._asked_at = {its_id: at for its_id, at in self._asked_at.items() if now - at < ASK_AGAIN_AFTER_S}
        found = []
        for payment in await self._sweep.next(limit):
            if payment.decline_reason != ORDER_CLOSED or payment.payment_id in self._asked_at:
                continue
            answer = await self._ask(payment)
            if answer is None:
                self._asked_at[payment.payment_id] = now
            else:
                found.append(self._finding(payment, answer))
        return found

    async def _ask(self, payment: Payment) -> Captured | None:
        try:
            answer = await self._gateway.find_charge(ChargeRequest.of(payment))
        except GatewayRejectedError as error:
            log.error("a charge is not its payment's; a person has to look", id=payment.payment_id, error=str(error))  # noqa: TRY400
            return None
        return answer if isinstance(answer, Captured) else None

    def _finding(self, payment: Payment, answer: Captured) -> Finding:
        async def repair() -> bool:
            await self._bookkeeper.captured(payment, answer.at_ms)
            return True

        which = f"payment {payment.payment_id} of order {payment.order_id}"
        return Finding(f"{which} ended with its order, and the gateway has taken the money: book it", repair)
