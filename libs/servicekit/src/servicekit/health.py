"""Whether a service can do its work now: each part that it needs is asked, not assumed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

OK = "ok"

# What one part says: "ok", or what is wrong with it. Never raises.
HealthCheck = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What each part answered: "ok", or what is wrong."""

    checks: dict[str, str]

    @property
    def is_ready(self) -> bool:
        return all(answer == OK for answer in self.checks.values())


class Health:
    """Asks every part by name."""

    def __init__(self, parts: Mapping[str, HealthCheck]) -> None:
        self._parts = parts

    async def report(self) -> HealthReport:
        """Never raises: what does not answer is in the report."""
        return HealthReport({name: await ask() for name, ask in self._parts.items()})
