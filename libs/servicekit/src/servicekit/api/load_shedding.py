"""More requests than the service can carry out are answered 503, with when to come back: see servicekit.admission.

Metrics: hourglass.http.requests.in_flight (in work now), hourglass.http.requests.shed (answered so), by method.
"""

from __future__ import annotations

from html import escape

from fastapi.responses import HTMLResponse, Response
from opentelemetry.metrics import CallbackOptions, Observation
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import telemetry
from servicekit.admission import Admission, Kind, OverloadedError
from servicekit.api.problem import OVERLOADED, problem_response
from servicekit.api.request_limit import UNLIMITED_PREFIXES

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_METHOD = "http.request.method"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<h1>{title}</h1><p>Nothing has happened: {detail}.</p><p>Please try again in {seconds} s.</p></html>
"""


class LoadShedding:
    """ASGI middleware inside BodyLimit: a request, which is complete, has its place in work until its answer begins.

    A stream of events, which lasts for minutes, holds no place once it has begun. Whoever watches the service and the
    payment gateway's webhooks need none: what they ask is little, and what money does has to be heard.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

        def in_flight(_options: CallbackOptions) -> list[Observation]:
            return [Observation(admission.in_work)]  # for as long as the process lives: the application need not

        meter = telemetry.meter("servicekit")
        meter.create_observable_up_down_counter(
            "hourglass.http.requests.in_flight", [in_flight], unit="{request}", description="requests in work"
        )
        self._shed = meter.create_counter(
            "hourglass.http.requests.shed", unit="{request}", description="requests refused because of too much work"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(UNLIMITED_PREFIXES):
            await self._app(scope, receive, send)
            return
        try:
            ticket = await self._admission.enter(Kind.READ if scope["method"] in _READING else Kind.WRITE)
        except OverloadedError as error:
            self._shed.add(1, {_METHOD: scope["method"]})
            await _refusal(scope, error)(scope, receive, send)
            return

        async def send_and_leave(message: Message) -> None:
            if message["type"] == "http.response.start":
                ticket.leave()
            await send(message)

        try:
            await self._app(scope, receive, send_and_leave)
        finally:
            ticket.leave()


def _refusal(scope: Scope, error: OverloadedError) -> Response:
    headers = {"Retry-After": str(error.retry_after_s)}
    if "text/html" not in Headers(scope=scope).get("accept", ""):
        return problem_response(OVERLOADED, str(error), headers=headers)
    page = _PAGE.format(title=escape(OVERLOADED.title), detail=escape(str(error)), seconds=error.retry_after_s)
    return HTMLResponse(page, OVERLOADED.status, headers | {"Content-Security-Policy": "default-src 'none'"})
