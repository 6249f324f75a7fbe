"""The resumer: finishes whatever was begun and not finished, by this process or by one before it.

Invariants: what it finds is what the database says, so that nothing has to survive in memory; it leaves alone what a
request has in hand; it ends a pass only when it has tried everything, so that one payment that fails holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from osenv import Clock
from payments.service.settlement import Settlement
from payments.service.unit_of_work import UnitOfWork, Units
from servicekit.errors import RefusedError, ServiceError, StorageUnavailableError

BATCH_PAYMENTS = 64
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 2.0

log = structlog.get_logger(__name__)

PageOfIds = Callable[[UnitOfWork, str, int], Awaitable[list[str]]]


class ResumerWake:
    """Rings when something was begun and not finished."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    def reset(self) -> None:
        self._event.clear()

    async def wait(self) -> None:
        await self._event.wait()


class Resumer:
    """A loop that makes a pass at its start and whenever it is woken, and backs off while passes leave something."""

    def __init__(self, units: Units, settlement: Settlement, clock: Clock, wake: ResumerWake) -> None:
        self._units = units
        self._settlement = settlement
        self._clock = clock
        self._wake = wake
        self._stopping = False
        self._left = 0

    @property
    def left(self) -> int:
        """How many payments and refunds the last pass could not finish."""
        return self._left

    async def run(self) -> None:
        """Until `stop`."""
        backoff_s = BACKOFF_FIRST_S
        while not self._stopping:
            self._wake.reset()  # before reading: what is begun after the read rings again
            try:
                left = await self.resume()
            except StorageUnavailableError as error:
                left = max(self._left, 1)
                self._say(left, error)
            if left:
                await self._clock.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            backoff_s = BACKOFF_FIRST_S
            if not self._stopping:
                await self._wake.wait()

    def stop(self) -> None:
        """Let `run` return after the pass in hand; a resumer that backs off is cancelled by its owner."""
        self._stopping = True
        self._wake.ring()

    async def resume(self) -> int:
        """One pass over everything; returns how much is left. Raises StorageUnavailableError."""
        errors = [
            *await self._each(lambda unit, after, limit: unit.payments.unfinished(after, limit), self._finish_payment),
            *await self._each(lambda unit, after, limit: unit.refunds.unfinished(after, limit), self._finish_refund),
        ]
        self._say(len(errors), errors[0] if errors else None)
        return len(errors)

    async def _each(self, page: PageOfIds, finish: Callable[[str], Awaitable[None]]) -> list[Exception]:
        errors: list[Exception] = []
        after = ""
        while True:
            async with self._units.reading() as unit:
                ids = await page(unit, after, BATCH_PAYMENTS)
            if not ids:
                return errors
            after = ids[-1]
            free = [payment_id for payment_id in ids if not self._settlement.is_held(payment_id)]
            results = await asyncio.gather(*(finish(payment_id) for payment_id in free), return_exceptions=True)
            for payment_id, result in zip(free, results, strict=True):
                if result is None:
                    continue
                if not isinstance(result, ServiceError):
                    raise result
                if isinstance(result, RefusedError):
                    log.error("a payment cannot be finished", payment_id=payment_id, error=str(result))
                errors.append(result)

    async def _finish_payment(self, payment_id: str) -> None:
        with self._settlement.holding(payment_id):
            await self._settlement.finish_payment(payment_id)

    async def _finish_refund(self, payment_id: str) -> None:
        with self._settlement.holding(payment_id):
            await self._settlement.finish_refund(payment_id)

    def _say(self, left: int, error: Exception | None) -> None:
        if left and not self._left:
            log.warning("payments or refunds are unfinished; trying again until they are", left=left, error=str(error))
        if self._left and not left:
            log.info("every payment and every refund is finished")
        self._left = left
