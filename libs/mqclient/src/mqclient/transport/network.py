"""The transports to a real queue by the scheme of their URL, and where the addresses of its name servers come from.

| scheme                                             | name servers                                            |
|----------------------------------------------------|---------------------------------------------------------|
| `mq://host:port;host:port`                         | these; without any, those of the variable NAMESRV_ADDR  |
| `mq+http://host:port/path`                         | an HTTP server that answers `host:port;host:port`       |
| `mq+dns://name:port`                               | every A record of the name, as for a headless service   |

`mq+frames`, `mq+frames+http` and `mq+frames+dns` are the same by RocketMQ's frames (frames_transport.py) and with the
addresses of name servers' ports for frames; `mq+grpc` and so on say gRPC, which is what `mq` alone means.

The HTTP server is one as for RocketMQ's TopAddressing: status 200, the first line of the body, 3 s at most. An answer
that is empty or broken is a NoRouteError, and the older addresses stay in use.

This is the only module of the client that knows sockets.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import TypeVar
from urllib.parse import urlsplit

from mqclient.errors import IllegalArgumentError, NoRouteError
from mqclient.lifecycle import call_for
from mqclient.transport import Channel, NameServerSource
from mqclient.transport.frames_transport import FramesChannel
from mqclient.transport.grpc_transport import GrpcChannel
from mqproto.names import Address, parse_address, parse_address_list
from osenv import Clock, RealClock, Rng, SystemRng
from osenv.network import own_ipv4

NAMESRV_ADDR = "NAMESRV_ADDR"  # RocketMQ's environment variable

HTTP_PORT = 80
HTTP_OK = 200
HTTP_TIMEOUT_S = 3.0  # RocketMQ's for fetchNSAddr
ANSWER_BYTES_MAX = 65_536

T = TypeVar("T")


class NetworkTransport:
    """Implements `Transport` on the real network and the real clock, by frames or by gRPC."""

    def __init__(
        self, name_servers: tuple[str, ...], source: NameServerSource | None = None, *, uses_frames: bool = True
    ) -> None:
        self.clock: Clock = RealClock()
        self.rng: Rng = SystemRng()
        self.local_ip = own_ipv4()
        self.name_servers = name_servers
        self.name_server_source = source
        self.uses_frames = uses_frames

    def open_channel(self, address: str) -> Channel:
        return FramesChannel(address, self.clock) if self.uses_frames else GrpcChannel(address)


def open_transport(rest: str, *, uses_frames: bool = True) -> NetworkTransport:
    """`mq://`: `rest` is the list of name servers, or empty for the one in NAMESRV_ADDR.

    As in RocketMQ, the variable counts only where the program names no address. Raises IllegalArgumentError.
    """
    scheme = "mq+frames://" if uses_frames else "mq://"
    addresses, origin = rest, f"{scheme}{rest}"
    if not rest:
        addresses, origin = os.environ.get(NAMESRV_ADDR, ""), f"{scheme} with the environment variable {NAMESRV_ADDR}"
    try:
        name_servers = tuple(str(address) for address in parse_address_list(addresses))
    except ValueError as error:
        raise IllegalArgumentError(f"{origin}: {error}") from error
    return NetworkTransport(name_servers, uses_frames=uses_frames)


def open_transport_by_http(rest: str, *, uses_frames: bool = True) -> NetworkTransport:
    """`mq+http://`: `rest` is `host:port/path`. Raises IllegalArgumentError."""
    return NetworkTransport((), http_source(rest), uses_frames=uses_frames)


def open_transport_by_dns(rest: str, *, uses_frames: bool = True) -> NetworkTransport:
    """`mq+dns://`: `rest` is `name:port`. Raises IllegalArgumentError."""
    return NetworkTransport((), dns_source(rest), uses_frames=uses_frames)


# By gRPC.
open_grpc_transport = partial(open_transport, uses_frames=False)
open_grpc_transport_by_http = partial(open_transport_by_http, uses_frames=False)
open_grpc_transport_by_dns = partial(open_transport_by_dns, uses_frames=False)


class HttpNameServerSource:
    """Asks `host:port` for `path`. No redirects, no proxy: it is a server of the own network."""

    def __init__(self, server: Address, path: str) -> None:
        self._server = server
        self._path = path

    def __str__(self) -> str:
        return f"http://{self._server}{self._path}"

    async def look_up(self) -> tuple[str, ...]:
        """What the server says now. Raises NoRouteError."""
        connection = HTTPConnection(self._server.host, self._server.port, timeout=HTTP_TIMEOUT_S)
        try:
            body = await _in_thread(partial(self._get, connection), f"mqclient look-up {self}")
            return tuple(str(address) for address in parse_address_list(_first_line(body)))
        except (OSError, HTTPException, ValueError) as error:
            raise NoRouteError(f"{self} did not tell the name servers: {error}") from error
        except asyncio.CancelledError:
            if connection.sock is not None:
                abort(connection.sock)
            raise

    def _get(self, connection: HTTPConnection) -> bytes:
        try:
            connection.request("GET", self._path)
            response = connection.getresponse()
            if response.status != HTTP_OK:
                raise HTTPException(f"it answered {response.status} {response.reason}")
            body = response.read(ANSWER_BYTES_MAX)
            if response.length:  # of what the headers had promised; nothing tells a part of a list from a list
                raise HTTPException(f"its answer lacks {response.length} bytes, or has more than {ANSWER_BYTES_MAX}")
            return body
        finally:
            connection.close()


class DnsNameServerSource:
    """Asks the resolver of this machine for the A records of a name."""

    def __init__(self, name: Address) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"the name {self._name.host}"

    async def look_up(self) -> tuple[str, ...]:
        """One name server for each A record. Raises NoRouteError."""
        try:
            found = await _in_thread(partial(ipv4_addresses, self._name.host), f"mqclient look-up {self}")
        except OSError as error:
            raise NoRouteError(f"{self} has no address: {error}") from error
        return tuple(str(Address(ip, self._name.port)) for ip in found)


def http_source(rest: str) -> HttpNameServerSource:
    """The source of `mq+http://` and `rest`. Raises IllegalArgumentError."""
    try:
        parts = urlsplit(f"http://{rest}")
        host, _, port = parts.netloc.partition(":")
        server = parse_address(f"{host}:{port or HTTP_PORT}")
    except ValueError as error:
        raise IllegalArgumentError(f"mq+http://{rest} is not mq+http://host:port/path: {error}") from error
    query = f"?{parts.query}" if parts.query else ""
    return HttpNameServerSource(server, (parts.path or "/") + query)


def dns_source(rest: str) -> DnsNameServerSource:
    """The source of `mq+dns://` and `rest`. Raises IllegalArgumentError."""
    try:
        return DnsNameServerSource(parse_address(rest))
    except ValueError as error:
        raise IllegalArgumentError(f"mq+dns://{rest} is not mq+dns://name:port: {error}") from error


def _first_line(body: bytes) -> str:
    lines = body.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else ""


async def _in_thread(call: Callable[[], T], name: str) -> T:
    """The result of a call that blocks. A cancelled caller leaves the thread behind, which ends with its call.

    A thread of its own, and a daemon: the loop's pool would keep it, and have the interpreter wait for it at its exit.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    threading.Thread(target=call_for, args=(loop, result, call), name=name, daemon=True).start()
    return await result


def ipv4_addresses(name: str) -> tuple[str, ...]:
    """Every A record of the name, sorted. Blocks. Raises OSError when it has none, or no resolver answers."""
    found = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    return tuple(sorted({str(address[0]) for *_, address in found}))


def abort(connection: socket.socket) -> None:
    """End the connection, so that a thread which waits for it does not wait any longer."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already, which is all that this call wanted to reach
