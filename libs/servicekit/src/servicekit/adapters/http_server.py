"""The HTTP server: uvicorn on a socket of our own, stopped by an event and not by its own signal handlers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp

DRAIN_MAX_S = 4
BACKLOG = 2048


class HttpServer:
    """Takes its address when it is made, before anything else has started; connections wait until it serves.

    A context manager that gives the address back. Raises OSError when the address is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._listener.close()

    @property
    def port(self) -> int:
        """The port in use, which the operating system has chosen if 0 was asked for."""
        return int(self._listener.getsockname()[1])

    async def serve(
        self, app: ASGIApp, stop: asyncio.Event, *, before_drain: Callable[[], None] = lambda: None
    ) -> None:
        """Serve until `stop` is set, then finish the requests in hand, for `DRAIN_MAX_S` at most.

        `before_drain` is called in between: what would never end by itself ends there.
        """
        server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",  # the runner starts and stops what the application needs
                log_config=None,
                access_log=False,  # a request has a span, which says more
                timeout_graceful_shutdown=DRAIN_MAX_S,
            )
        )
        serving = asyncio.ensure_future(server.serve(sockets=[self._listener]))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            before_drain()
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn raises them again after its stop, and the exit code would not be 0."""
        yield
