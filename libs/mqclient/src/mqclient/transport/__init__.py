"""Transports: channels to an address, and their environment (time, random numbers, the own address).

A transport is chosen by the scheme of the URL, through the entry-point group `mqclient.transports`; only its own module
knows how it works.

Every method raises only errors of `mqclient.errors`. For a request that certainly never left that is
BrokerUnreachableError; where it may have left, ConnectionLostError or RequestTimeoutError; for one that the other side
calls senseless, IllegalArgumentError.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Protocol, TypeVar, cast

from google.protobuf.message import Message as ProtobufMessage

from mqclient.errors import IllegalArgumentError, UnknownTransportError
from osenv import Clock, Rng

ENTRY_POINT_GROUP = "mqclient.transports"

RequestT = TypeVar("RequestT", bound=ProtobufMessage)
ResponseT = TypeVar("ResponseT", bound=ProtobufMessage)
RequestT_contra = TypeVar("RequestT_contra", bound=ProtobufMessage, contravariant=True)
ResponseT_co = TypeVar("ResponseT_co", bound=ProtobufMessage, covariant=True)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """One remote method: its full gRPC path and the messages that go each way."""

    path: str
    request_type: type[RequestT]
    response_type: type[ResponseT]


class Stream(Protocol[RequestT_contra, ResponseT_co]):
    """One call with many requests and many answers. One task writes, one task reads.

    Cancelling a task inside `write` or `read` may end the stream.
    """

    async def write(self, request: RequestT_contra) -> None:
        """Return when the transport has taken the request, which is when the next one may follow."""

    async def read(self) -> ResponseT_co | None:
        """The next answer, or None when the other side has ended the stream in order."""

    async def done_writing(self) -> None:
        """Tell the other side that no request follows; answers may still come. Never raises for a broken stream."""

    def cancel(self) -> None:
        """Give the stream up at once. A `read` or `write` that runs raises ConnectionLostError."""


class Channel(Protocol):
    """One connection to one address, opened at first use and again when it broke."""

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """One request, one answer, within `timeout_s`."""

    def stream(self, method: Method[RequestT, ResponseT]) -> Stream[RequestT, ResponseT]:
        """Begin a stream. An unreachable address shows at the first write or read."""

    async def close(self) -> None:
        """Break off what runs and let the connection go."""


class NameServerSource(Protocol):
    """The source of the name servers' addresses, which may change (mechanism L6)."""

    async def look_up(self) -> tuple[str, ...]:
        """The addresses as `host:port`, at least one. Raises NoRouteError when they cannot be had."""


class Transport(Protocol):
    """The door to the network, and its environment.

    The addresses of the name servers are either fixed, in `name_servers`, or looked up in `name_server_source`.
    """

    clock: Clock
    rng: Rng
    local_ip: str
    name_servers: tuple[str, ...]
    name_server_source: NameServerSource | None

    def open_channel(self, address: str) -> Channel:
        """A channel of its own: two channels to one address share no connection."""


def open_transport(url: str) -> Transport:
    """The transport of `scheme://rest`; its entry point is a function that takes the rest.

    Raises UnknownTransportError, or IllegalArgumentError for a rest that the transport cannot use.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise IllegalArgumentError(f"{url!r} is not a URL of the queue; write mq://host:port, several separated by ;")
    transport = _installed().get(scheme)
    if transport is None:
        known = ", ".join(sorted(_installed())) or "none"
        raise UnknownTransportError(f"no transport is installed for {scheme}://; there is: {known}")
    return cast("Transport", transport.load()(rest))


@cache
def _installed() -> dict[str, EntryPoint]:
    """By scheme; read once, because every file of every installed package is looked at for it."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
