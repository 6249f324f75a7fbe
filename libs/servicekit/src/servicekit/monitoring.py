"""Readiness of a service, and the spans of its database statements and HTTP calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import structlog
from opentelemetry import trace
from opentelemetry.instrumentation.environment_variables import OTEL_SEMCONV_STABILITY_OPT_IN
from opentelemetry.trace import Span, Tracer, TracerProvider
from sqlalchemy.ext.asyncio import AsyncEngine

import telemetry
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
    """Asks every part by name, all at once.

    Invariants: a report comes within CHECK_MAX_S, whatever its parts do; callers share the report that is being made,
    so that no client can make the service ask its database and its queue more than once at a time.
    """

    def __init__(self, parts: Mapping[str, HealthCheck], clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._making: asyncio.Task[HealthReport] | None = None

    async def report(self) -> HealthReport:
        """Never raises: what does not answer, or not in time, is in the report."""
        if self._making is None or self._making.done():
            self._making = asyncio.ensure_future(self._report())
        return await asyncio.shield(self._making)  # a cancelled caller does not cancel it for the others

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


STABLE_NAMES = "http,database"
CONNECTIONS = "db.client.connection.count"


def use_stable_names() -> None:
    """Attributes and metrics get the conventions' present names; without a word the instrumentations use old ones.

    They read this once, when the first of them is used. What the environment says already is left as it is.
    """
    os.environ.setdefault(OTEL_SEMCONV_STABILITY_OPT_IN, STABLE_NAMES)


def trace_statements(engine: AsyncEngine) -> None:
    """Make spans of the engine's statements, if spans go anywhere.

    They are put in, and imported, only while spans go anywhere, and they make a span only inside one that is recorded:
    the spans of periodic work (polls, checks of its health) would fill the traces. A statement's span has its text,
    with the places of the values and not the values. Taking a connection makes no span.
    """
    if not telemetry.is_tracing():
        return
    from opentelemetry.instrumentation.sqlalchemy.engine import EngineTracer  # noqa: PLC0415

    use_stable_names()
    # The instrumentor itself would patch every engine of the process, and make spans of connecting.
    connections = telemetry.meter("servicekit").create_up_down_counter(
        CONNECTIONS, unit="{connection}", description="connections with the database, idle and used"
    )
    tracer = _InsideTracer(telemetry.tracer("servicekit.sql"))
    EngineTracer(tracer, engine.sync_engine, connections)  # type: ignore[no-untyped-call]


def trace_requests(client: httpx.AsyncClient) -> None:
    """Make spans of the client's requests, and send their context along, if spans go anywhere."""
    if telemetry.is_tracing():
        from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor  # noqa: PLC0415

        use_stable_names()
        HTTPXClientInstrumentor.instrument_client(client, tracer_provider=_InsideTracerProvider())


class _InsideTracerProvider(TracerProvider):
    """Gives out tracers that make a span only inside one that is recorded."""

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> Tracer:
        return _InsideTracer(trace.get_tracer_provider().get_tracer(instrumenting_module_name, *args, **kwargs))


class _InsideTracer(Tracer):
    """Where there is nothing to be inside of, the current span, whatever it is, stays the current one."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def start_span(self, name: str, *args: Any, **kwargs: Any) -> Span:
        current = trace.get_current_span()
        if not current.is_recording():
            return trace.NonRecordingSpan(current.get_span_context())
        # A statement's name ends with that of its database, which is the path of a file on SQLite.
        return self._tracer.start_span(name.partition(" ")[0], *args, **kwargs)

    @contextmanager
    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Iterator[Span]:  # type: ignore[override]
        with trace.use_span(self.start_span(*args, **kwargs), end_on_exit=True) as span:
            yield span
