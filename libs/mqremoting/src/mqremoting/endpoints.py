"""The endpoints of connections: `connect` for clients, and `Server`."""

from __future__ import annotations

import asyncio
import logging
from ssl import SSLContext

from mqremoting.calls import Service
from mqremoting.config import ConnectionConfig
from mqremoting.connection import Connection
from mqremoting.errors import NotSentError
from osenv import Clock, RealClock
from osenv.clock import timeout

log = logging.getLogger(__name__)


async def connect(
    host: str,
    port: int,
    service: Service | None = None,
    config: ConnectionConfig | None = None,
    clock: Clock | None = None,
    *,
    timeout_s: float = 3.0,
    ssl: SSLContext | None = None,
) -> Connection:
    """A connection to a server; `service` does what the server asks for.

    Raises NotSentError, whose cause is the OSError (ssl.SSLError among them) or the TimeoutError.
    """
    connection = Connection(service, config, clock)
    try:
        async with timeout(connection.clock, timeout_s):
            await asyncio.get_running_loop().create_connection(lambda: connection, host, port, ssl=ssl)
    except TimeoutError as error:
        raise NotSentError(f"{host}:{port} was not reached within {timeout_s:g} s") from error
    except OSError as error:
        raise NotSentError(f"{host}:{port} cannot be reached: {error}") from error
    return connection


class Server:
    """Listens at one address. Beyond `connections_max` connections, one more is closed as soon as it is accepted."""

    def __init__(
        self,
        service: Service,
        config: ConnectionConfig | None = None,
        clock: Clock | None = None,
        *,
        connections_max: int = 1_024,
    ) -> None:
        self.connections: set[Connection] = set()
        """Those that are open."""
        self._service = service
        self._config = config or ConnectionConfig()
        self._clock = clock or RealClock()
        self._connections_max = connections_max
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int, *, ssl: SSLContext | None = None) -> int:
        """Begin to listen; 0 takes a port that is free. Returns the port. Raises OSError."""
        self._listener = await asyncio.get_running_loop().create_server(self.accept, host, port, ssl=ssl)
        return int(self._listener.sockets[0].getsockname()[1])

    def accept(self) -> Connection:
        """The protocol of one more connection, for callers with a transport of their own."""
        return _Accepted(self, self._service, self._config, self._clock)

    def add(self, connection: Connection) -> bool:
        """Whether there is room for it."""
        if len(self.connections) >= self._connections_max:
            log.warning("connection rejected: %d are open; at most as many are allowed", len(self.connections))
            return False
        self.connections.add(connection)
        connection.when_lost(lambda: self.connections.discard(connection))
        return True

    async def drain(self, within_s: float) -> None:
        """Accept nothing new, and drain all connections, each as `Connection.drain` says."""
        self._stop_listening()
        await asyncio.gather(*[connection.drain(within_s) for connection in list(self.connections)])

    async def close(self) -> None:
        """Accept nothing new, and close all connections."""
        self._stop_listening()
        await asyncio.gather(*[connection.close() for connection in list(self.connections)])

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class _Accepted(Connection):
    def __init__(self, server: Server, service: Service, config: ConnectionConfig, clock: Clock) -> None:
        super().__init__(service, config, clock)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._server.add(self):
            self.fail(NotSentError("too many connections"))
