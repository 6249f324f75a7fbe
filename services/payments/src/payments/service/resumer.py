"""The resumer: asks about whatever was begun and is not finished, by this process or by one before it.

Invariants: what it finds is what the database says, so that nothing has to survive in memory; it leaves alone what a
request has in hand, and what the gateway may still tell by itself; it ends a pass only when it has tried everything, so
that one payment that fails holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from osenv import Clock
from payments.domain.payment_status import PaymentStatus
from payments.domain.refund import RefundStatus
from payments.service.settlement import Settlement
from payments.service.unit_of_work import UnitOfWork, Units
from servicekit.background import Wake
from servicekit.errors import RefusedError, ServiceError, StorageUnavailableError

BATCH_PAYMENTS = 64
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 2.0
LOOK_INTERVAL_S = 10.0  # another process may have died with what it had begun

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
    """

    def __init__(self, units: Units, settlement: Settlement, clock: Clock, wake: Wake, *, silence_ms: int) -> None:
        self._units = units
        self._settlement = settlement
        self._clock = clock
        self._wake = wake
        self._silence_s = silence_ms / 1000
        self._end = Wake()
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
        while not self._end.has_rung:
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
        self._end.ring()
        self._wake.ring()

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
            async with self._units.reading() as unit:
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
            if isinstance(result, RefusedError):
                log.error("a payment cannot be finished", id=its_id, error=str(result))
            done.errors.append(result)

    async def _ask_charge(self, payment_id: str) -> bool:
        """Whether the payment is decided now."""
        with self._settlement.holding(payment_id):
            return (await self._settlement.ask_charge(payment_id)).status is not PaymentStatus.CREATED

    async def _ask_refund(self, refund_id: str) -> bool:
        """Whether the refund is done now, or refused."""
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
