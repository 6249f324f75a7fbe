"""The HTTP server: uvicorn on a socket of our own, stopped by an event and not by its own signal handlers.

Invariant: what a client holds without a finished request is bounded in bytes (a head), in time (a head, a body,
silence) and in number (connections). h11 parses because it limits heads that are not complete; httptools has no limit
(ADR 102).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from osenv.pooled_files import raise_open_files_limit

DRAIN_MAX_S = 4
BACKLOG = 2048
OPEN_FILES_WANTED = 4_096
# Databases, the queue and log files need descriptors, too.
OPEN_FILES_RESERVED = 256


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What clients may hold without a finished request.

    `head_max_bytes` is Node.js's default and four times what the shop's pages send. `head_max_s` begins with the
    connection or with the answer before; uvicorn ends a connection that is idle after an answer in 5 s. `body_max_s` is
    for what the application does not wait for (it answers 408 earlier, see BodyLimit): the rest of a
    body that it has rejected. `connections_max` leaves room for 1,000 streams of events.
    """

    head_max_bytes: int = 16 * 1024
    head_max_s: float = 10.0
    body_max_s: float = 15.0
    connections_max: int = 2_000


DEFAULT_LIMITS = ConnectionLimits()


class HttpServer:
    """Takes its address when it is made, before anything else has started; connections wait until it serves.

    A context manager that gives the address back. Raises OSError when the address is taken. At most as many connections
    are served as `limits` and the operating system's limit on open files allow.

    `trusted_proxies` are addresses and networks. Of a connection from one of them, the client is the last address of
    X-Forwarded-For that is not itself in them, and the scheme is that of X-Forwarded-Proto. The headers of other peers
    are ignored.
    """

    def __init__(
        self, host: str, port: int, limits: ConnectionLimits = DEFAULT_LIMITS, *, trusted_proxies: Sequence[str] = ()
    ) -> None:
        self._limits = limits
        self._trusted_proxies = list(trusted_proxies)
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
        files = raise_open_files_limit(OPEN_FILES_WANTED)
        connections_max = min(self._limits.connections_max, max(1, files - OPEN_FILES_RESERVED))
        connection = partial(_Connection, limits=self._limits, connections_max=connections_max, waiting={})
        server = _Server(
            uvicorn.Config(
                app,
                http=cast(type[asyncio.Protocol], connection),
                ws="none",  # an upgrade would leave the limits
                h11_max_incomplete_event_size=self._limits.head_max_bytes,
                lifespan="off",  # the runner starts and stops what the application needs
                log_config=None,
                access_log=False,  # a request has a span, which says more
                timeout_graceful_shutdown=DRAIN_MAX_S,
                forwarded_allow_ips=self._trusted_proxies,  # None would be uvicorn's own variable
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


class _Connection(H11Protocol):
    """uvicorn's connection with limits in time: a request arrives within them, or its connection ends.

    `waiting` has the connections of the server that have no complete head, in the order in which they began to wait.
    One connection too many ends the first of them, so that silent clients do not keep others out.
    """

    def __init__(
        self, *, limits: ConnectionLimits, connections_max: int, waiting: dict[_Connection, None], **uvicorns: Any
    ) -> None:
        super().__init__(**uvicorns)
        self._limits = limits
        self._connections_max = connections_max
        self._waiting = waiting
        self._expected: object = None  # h11's state of the client: what is awaited from it
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self._connections_max:
            next(iter(self._waiting)).shutdown()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._reject(HTTPStatus(hint))

    def _watch(self) -> None:
        """Set the deadline for what the client has to send next; keep it while that stays the same."""
        state = self.conn.their_state
        expected = state if state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing() else None
        if expected is self._expected:
            return
        self._expected = expected
        self._waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if expected is h11.IDLE:
            self._waiting[self] = None
            self._deadline = self.loop.call_later(self._limits.head_max_s, self._end_late_request)
        elif expected is h11.SEND_BODY:
            self._deadline = self.loop.call_later(self._limits.body_max_s, self._end_late_request)

    def _end_late_request(self) -> None:
        has_begun, _ = self.conn.trailing_data
        if self._expected is h11.IDLE and has_begun:
            self._reject(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.transport.close()
        self._watch()

    def _reject(self, status: HTTPStatus) -> None:
        """Answer a request that h11 does not take, and end the connection."""
        text = f"{status.phrase}\n".encode()
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(text))), ("Connection", "close")]
        response = h11.Response(status_code=status, headers=headers, reason=status.phrase)
        for event in (response, h11.Data(data=text), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
