"""A limit on request bodies in bytes and in time, kept before a request gets a place in work."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osenv import Clock
from osenv.clock import timeout
from servicekit.api.problem import BODY_TOO_LARGE, REQUEST_TIMEOUT, ProblemType, problem_response

BODY_MAX_BYTES = 64 * 1024  # the longest legal request, an order of 50 lines, has about 6 KiB
BODY_MAX_S = 10.0  # 64 KiB at 52 kbit/s


class BodyLimit:
    """ASGI middleware: the application gets a request once its whole body is there.

    A body over `BODY_MAX_BYTES`, its length declared or not, and one that takes longer than `BODY_MAX_S` are answered
    with a problem; their rest is not read.
    """

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > BODY_MAX_BYTES:
            await _refuse(BODY_TOO_LARGE, _TOO_LARGE, scope, receive, send)
            return
        if b"content-length" not in headers and b"transfer-encoding" not in headers:  # no body: RFC 9112, 6.3
            await self._app(scope, receive, send)
            return
        try:
            async with timeout(self._clock, BODY_MAX_S):
                body = await _body(receive)
        except TimeoutError:
            await _refuse(REQUEST_TIMEOUT, _TOO_LATE, scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)


_TOO_LARGE = f"a body of at most {BODY_MAX_BYTES} bytes is taken"
_TOO_LATE = f"the body has to arrive within {BODY_MAX_S:g} s; send the request again"


async def _body(receive: Receive) -> bytes | None:
    """The body, or as much as shows that it is too long; None when the client has gone meanwhile."""
    body = bytearray()
    while len(body) <= BODY_MAX_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message, and then what the server tells."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        if len(body) > BODY_MAX_BYTES:
            # FastAPI lets this kind of error pass while it reads a body: a problem for programs, a page for people.
            raise HTTPException(BODY_TOO_LARGE.status, _TOO_LARGE)
        return messages.pop() if messages else await receive()

    return replay


async def _refuse(kind: ProblemType, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    await problem_response(kind, detail, headers={"Connection": "close"})(scope, receive, send)
