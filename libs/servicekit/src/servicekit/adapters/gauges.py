"""Gauges whose values are in a database: read now and then, and not whenever somebody asks for the metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import structlog
from opentelemetry.metrics import CallbackOptions, Observation

import telemetry
from osenv import Clock
from servicekit.errors import StorageUnavailableError
from servicekit.runner import Background
from servicekit.wake import Wake

READ_INTERVAL_S = 10.0

log = structlog.get_logger(__name__)

# The values of a gauge by the values of its one attribute, which are texts.
ReadValues = Callable[[], Awaitable[Mapping[Any, int]]]


class StoredGauge:
    """A gauge with one attribute; between two readings it tells what the last one has found."""

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
        self._end = Wake()
        self._values: Mapping[str, int] = {}
        telemetry.meter("servicekit").create_observable_gauge(name, [self.observe], unit=unit, description=description)

    def observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        """What the last reading has found; called by OpenTelemetry, in a thread of its own."""
        for key, value in self._values.items():
            yield Observation(value, {} if self._attribute is None else {self._attribute: key})

    async def run(self) -> None:
        """Read again and again, until `stop`."""
        while not self._end.has_rung:
            try:
                self._values = await self._read()
            except StorageUnavailableError as error:
                self._values = {}  # a value of long ago would be taken for one of now
                log.warning("a gauge cannot be read now", gauge=self._name, error=str(error))
            await self._end.wait(self._clock, self._interval_s)

    def stop(self) -> None:
        """Let `run` return."""
        self._end.ring()


def stored_gauges(*gauges: Callable[[], StoredGauge]) -> list[Background]:
    """The gauges as background work, if measurements go anywhere; else none, and nobody asks the database."""
    made = [gauge() for gauge in gauges] if telemetry.is_measuring() else []
    return [Background("gauge", gauge.run, gauge.stop) for gauge in made]
