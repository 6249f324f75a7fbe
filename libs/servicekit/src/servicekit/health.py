"""Whether a service can do its work now: each part that it needs is asked, not assumed.

Invariants: a report comes within CHECK_MAX_S, whatever its parts do; while one is made, whoever asks waits for it, so
that nobody can make the service ask its database and its queue faster than one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from osenv import Clock
from osenv.clock import timeout

OK = "ok"
OK_BUT = "ok, but "  # begins the answer of a part that works, and of which its operator has to know something
CHECK_MAX_S = 2.0

# What one part says: "ok", or what is wrong with it.
HealthCheck = Callable[[], Awaitable[str]]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What each part answered: "ok", "ok, but ...", or what is wrong."""

    checks: dict[str, str]

    @property
    def is_ready(self) -> bool:
        return all(answer == OK or answer.startswith(OK_BUT) for answer in self.checks.values())


class Health:
    """Asks every part by name, all at once."""

    def __init__(self, parts: Mapping[str, HealthCheck], clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._making: asyncio.Task[HealthReport] | None = None

    async def report(self) -> HealthReport:
        """Never raises: what does not answer, or not in time, is in the report."""
        if self._making is None or self._making.done():
            self._making = asyncio.ensure_future(self._report())
        return await asyncio.shield(self._making)  # who goes away takes nobody else's answer along

    async def _report(self) -> HealthReport:
        answers = await asyncio.gather(*(self._ask(name, check) for name, check in self._parts.items()))
        return HealthReport(dict(zip(self._parts, answers, strict=True)))

    async def _ask(self, name: str, check: HealthCheck) -> str:
        try:
            async with timeout(self._clock, CHECK_MAX_S):
                return await check()
        except TimeoutError:
            return f"no answer in {CHECK_MAX_S:g} s"
        except Exception as error:  # a check that fails is an answer too
            log.exception("a check of readiness failed", part=name)
            return f"the check failed: {type(error).__name__}"
