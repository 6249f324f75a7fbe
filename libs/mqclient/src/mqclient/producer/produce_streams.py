"""The produce streams of one client instance, one for each broker name (MISSION P20, H6).

Invariant: a broker name has one stream and one numbering as long as a route names it or a message waits for it, whoever
is its master; so what went to an old master without an answer is recognised by the new one.
"""

from __future__ import annotations

from collections.abc import Callable

from mqclient.config import ClientConfig
from mqclient.errors import BrokerUnreachableError, IllegalStateError
from mqclient.lifecycle import BackgroundTasks
from mqclient.producer.produce_stream import ProduceStream
from mqclient.route_table import RouteTable
from mqclient.transport import Channel, Transport

StreamChannel = Callable[[str], Channel]  # the channel for streams to an address


class RoutedMaster:
    """The master of `broker_name`, as the routes know it; a `Master` for a ProduceStream."""

    def __init__(self, broker_name: str, routes: RouteTable, channel_to: StreamChannel) -> None:
        self._broker_name = broker_name
        self._routes = routes
        self._channel_to = channel_to
        self._last_address: str | None = None

    @property
    def address(self) -> str | None:
        return self._routes.master_address(self._broker_name)

    def channel(self) -> Channel:
        """A master that no name server knows now may still be there, so it is tried where it was."""
        address = self._last_address = self.address or self._last_address
        if address is None:
            raise BrokerUnreachableError(f"no address of the master of broker {self._broker_name!r} is known")
        return self._channel_to(address)

    async def look_again(self) -> None:
        await self._routes.refresh_brokers()


class ProduceStreams:
    """By broker name; made at first use."""

    def __init__(
        self, transport: Transport, config: ClientConfig, routes: RouteTable, channel_to: StreamChannel
    ) -> None:
        self._transport = transport
        self._config = config
        self._routes = routes
        self._channel_to = channel_to
        self._tasks = BackgroundTasks(transport.clock)
        self._streams: dict[str, ProduceStream] = {}
        self._closed = False

    def to(self, broker_name: str) -> ProduceStream:
        """The stream to the master of this name, wherever it is and will be.

        Raises BrokerUnreachableError when no route names the broker, IllegalStateError after `close`.
        """
        stream = self._streams.get(broker_name)
        if stream is None:
            if self._closed:
                raise IllegalStateError(f"the client has been shut down and sends nothing to {broker_name}")
            if not self._routes.addresses(broker_name):
                raise BrokerUnreachableError(f"no address of the master of broker {broker_name!r} is known")
            master = RoutedMaster(broker_name, self._routes, self._channel_to)
            stream = ProduceStream(master, self._transport, self._config, self._tasks)
            self._streams[broker_name] = stream
        return stream

    def follow_masters(self) -> None:
        """The routes have changed."""
        for stream in self._streams.values():
            stream.follow_master()

    def clean(self) -> None:
        """Close what goes to a broker that no route names, and for which no message waits."""
        for broker_name, stream in list(self._streams.items()):
            if stream.is_idle and not self._routes.addresses(broker_name):
                del self._streams[broker_name]
                stream.close()

    def use(self, address: str) -> bool:
        """Whether a message waits for its answer from there."""
        return any(stream.address == address and not stream.is_idle for stream in self._streams.values())

    async def close(self) -> None:
        """Fail what has not been answered, leave nothing behind."""
        self._closed = True
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.close()
        await self._tasks.close()
