"""Transports: channels to an address, and their environment (time, random numbers, the own address).

A transport is chosen by the scheme of the URL: those of this package are in a table here, those of other packages in
the entry-point group `mqclient.transports`. Only its own module knows how a transport works.

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
_NAME_SERVICE = "/hourglass.mq.v1.NameService/"
_OWN = {
    "mq": "mqclient.transport.network:open_grpc_transport",
    "mq+http": "mqclient.transport.network:open_grpc_transport_by_http",
    "mq+dns": "mqclient.transport.network:open_grpc_transport_by_dns",
    "mq+frames+http": "mqclient.transport.network:open_transport_by_http",
    "mq+frames+dns": "mqclient.transport.network:open_transport_by_dns",
    "mq+frames": "mqclient.transport.network:open_transport",
    "mq+grpc": "mqclient.transport.network:open_grpc_transport",
    "mq+grpc+http": "mqclient.transport.network:open_grpc_transport_by_http",
    "mq+grpc+dns": "mqclient.transport.network:open_grpc_transport_by_dns",
    "fake": "mqclient.testing:open_transport",
}

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

    @property
    def is_name_servers(self) -> bool:
        """Whether name servers have it, and not brokers."""
        return self.path.startswith(_NAME_SERVICE)


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

    The addresses of the name servers are either fixed, in `name_servers`, or looked up in `name_server_source`. Of a
    broker's two addresses, channels that take frames want the one for frames.
    """

    clock: Clock
    rng: Rng
    local_ip: str
    name_servers: tuple[str, ...]
    name_server_source: NameServerSource | None
    uses_frames: bool

    def open_channel(self, address: str) -> Channel:
        """A channel of its own: two channels to one address share no connection."""


def open_transport(url: str) -> Transport:
    """The transport of `scheme://rest`, of a function that takes the rest.

    Raises UnknownTransportError, or IllegalArgumentError for a rest that the transport cannot use.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise IllegalArgumentError(f"{url!r} is not a URL of the queue; write mq://host:port, several separated by ;")
    value = _OWN.get(scheme)
    transport = EntryPoint(scheme, value, ENTRY_POINT_GROUP) if value else _installed().get(scheme)
    if transport is None:
        known = ", ".join(sorted({*_OWN, *_installed()}))
        raise UnknownTransportError(f"no transport is installed for {scheme}://; there is: {known}")
    return cast("Transport", transport.load()(rest))


def not_a_name_server(address: str) -> str:
    """The sentence about a server that does not know the name servers' methods."""
    return (
        f"{address} is not a name server, but a broker, perhaps: it does not know the name servers' methods; "
        f"mq:// takes the addresses of name servers, which listen on port 9876 unless they are told otherwise"
    )


@cache
def _installed() -> dict[str, EntryPoint]:
    """By scheme; read once, because every file of every installed package is looked at for it."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
