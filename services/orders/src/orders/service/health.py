"""Whether orders can do its work now: each part that it needs is asked, not assumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orders.domain.errors import StorageUnavailableError
from orders.service.unit_of_work import Units

OK = "ok"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What each part answered: "ok", or what is wrong."""

    checks: dict[str, str]

    @property
    def is_ready(self) -> bool:
        return all(answer == OK for answer in self.checks.values())


class Health:
    """Asks the database by a query, and every other part by its own answer."""

    def __init__(self, units: Units, parts: Mapping[str, Callable[[], str]]) -> None:
        self._units = units
        self._parts = parts

    async def report(self) -> HealthReport:
        """Never raises: what does not answer is in the report."""
        return HealthReport({"database": await self._database()} | {name: ask() for name, ask in self._parts.items()})

    async def _database(self) -> str:
        try:
            async with self._units.reading() as unit:
                await unit.outbox.unpublished(1)
        except StorageUnavailableError as error:
            return str(error)
        return OK
