"""A limit on request bodies, kept before anything reads them into memory."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servicekit.api.problem import BODY_TOO_LARGE, problem_response

BODY_MAX_BYTES = 64 * 1024  # the longest legal request, an order of 50 lines, has about 6 KiB


class BodyLimit:
    """ASGI middleware: a body over `BODY_MAX_BYTES` is answered with a problem, its length declared or not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > BODY_MAX_BYTES:
            response = problem_response(BODY_TOO_LARGE, _detail())
            await response(scope, receive, send)
            return
        received_bytes = 0

        async def limited_receive() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > BODY_MAX_BYTES:
                # FastAPI lets this kind of error pass while it reads a body, and hides others.
                raise HTTPException(BODY_TOO_LARGE.status, _detail())
            return message

        await self._app(scope, limited_receive, send)


def _detail() -> str:
    return f"a body of at most {BODY_MAX_BYTES} bytes is taken"
