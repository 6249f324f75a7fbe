"""Background work of a service, the event that wakes it, and gauges whose values are in a database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from opentelemetry.metrics import CallbackOptions, Observation

import telemetry
from osenv import Clock
from osenv.clock import timeout
from servicekit.errors import StorageUnavailableError


@dataclass(frozen=True, slots=True)
class Background:
    """Work that runs beside the requests. `run` returns soon after `stop`; it is cancelled when it does not."""

    name: str
    run: Callable[[], Awaitable[None]]
    stop: Callable[[], None]


class WakeUp:
    """Is set when there is something to do.

    Invariant: a `set` between `reset` and `wait` is not lost: a loop resets, looks for work, and waits only then.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        """Whether it was set since the last `reset`."""
        return self._event.is_set()

    def set(self) -> None:
        """Let the loop look again, now or when it waits next."""
        self._event.set()

    def reset(self) -> None:
        """Forget what was set before."""
        self._event.clear()

    async def wait(self, clock: Clock, seconds_max: float) -> None:
        """Return when it is set, or after `seconds_max`: another process may have left work, and sets nothing here."""
        try:
            async with timeout(clock, seconds_max):
                await self._event.wait()
        except TimeoutError:
            return


READ_INTERVAL_S = 10.0

log = structlog.get_logger(__name__)

# The values of a gauge by the values of its one attribute, which are texts.
ReadValues = Callable[[], Awaitable[Mapping[Any, int]]]


class StoredGauge:
    """A gauge with one attribute, whose values are in a database: read now and then, and not with the metrics.

    Between two readings it tells what the last one has found.
    """

    def __init__(
        self,
        name: str,
        read: ReadValues,
        clock: Clock,
        *,
        unit: str,
        description: str,
        attribute: str | None = None,
        interval_s: float = READ_INTERVAL_S,
    ) -> None:
        """Without `attribute`, `read` gives one value, whatever its key."""
        self._name = name
        self._read = read
        self._clock = clock
        self._attribute = attribute
        self._interval_s = interval_s
        self._end = WakeUp()
        self._values: Mapping[str, int] = {}
        telemetry.meter("servicekit").create_observable_gauge(name, [self.observe], unit=unit, description=description)

    def observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        """What the last reading has found; called by OpenTelemetry, in a thread of its own."""
        for key, value in self._values.items():
            yield Observation(value, {} if self._attribute is None else {self._attribute: key})

    async def run(self) -> None:
        """Read again and again, until `stop`."""
        while not self._end.is_set:
            try:
                self._values = await self._read()
            except StorageUnavailableError as error:
                self._values = {}  # a value of long ago would be taken for one of now
                log.warning("a gauge cannot be read now", gauge=self._name, error=str(error))
            await self._end.wait(self._clock, self._interval_s)

    def stop(self) -> None:
        """Let `run` return."""
        self._end.set()


def stored_gauges(*gauges: Callable[[], StoredGauge]) -> list[Background]:
    """The gauges as background work, if measurements go anywhere; else none, and the database is not asked."""
    made = [gauge() for gauge in gauges] if telemetry.is_measuring() else []
    return [Background("gauge", gauge.run, gauge.stop) for gauge in made]
