"""The fakes behind a real gRPC server on loopback: what a test of the `mq://` transport talks to.

Not imported by `mqclient.testing` itself, which needs no gRPC server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from mqclient.errors import ConnectionLostError
from mqclient.testing.fake_broker import FakeBroker
from mqclient.testing.fake_channel import FakeStream
from mqclient.testing.fake_cluster import FakeCluster
from mqclient.transport import Method, methods
from mqproto.grpc_options import SERVER_OPTIONS

STREAMS = (methods.PRODUCE, methods.POLL, methods.SESSION)
UNARIES = tuple(
    method
    for method in vars(methods).values()
    if isinstance(method, Method) and method.path not in {stream.path for stream in STREAMS}
)


@dataclass
class Loopback:
    """One process that is name server and broker at once."""

    cluster: FakeCluster
    broker: FakeBroker
    server: grpc.aio.Server
    peers: dict[str, set[str]] = field(default_factory=lambda: {"stream": set(), "unary": set()})

    @property
    def url(self) -> str:
        return f"mq://{self.broker.address}"


class Handlers(grpc.GenericRpcHandler):
    """Every method of the protocol, passed on to the fakes."""

    def __init__(self, loopback: Loopback) -> None:
        self._loopback = loopback

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        path = handler_call_details.method
        for stream in STREAMS:
            if path == stream.path:
                return grpc.stream_stream_rpc_method_handler(
                    self._stream(path), stream.request_type.FromString, stream.response_type.SerializeToString
                )
        for unary in UNARIES:
            if path == unary.path:
                return grpc.unary_unary_rpc_method_handler(
                    self._unary(path), unary.request_type.FromString, unary.response_type.SerializeToString
                )
        return None

    def _unary(self, path: str) -> Callable[..., Any]:
        loopback = self._loopback

        async def call(request: Any, context: Any) -> Any:
            if "NameService" in path:
                return await loopback.cluster.name_servers["name-server-0"].unary(path, request)
            loopback.peers["unary"].add(context.peer())
            return await loopback.broker.unary(path, request)

        return call

    def _stream(self, path: str) -> Callable[..., Any]:
        loopback = self._loopback

        async def call(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            loopback.peers["stream"].add(context.peer())
            stream = FakeStream(loopback.broker.address, path, loopback.broker)

            async def feed() -> None:
                async for request in requests:
                    loopback.broker.stream_request(stream, request)
                await stream.done_writing()

            feeder = asyncio.create_task(feed())
            try:
                while (answer := await stream.read()) is not None:
                    yield answer
            except ConnectionLostError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            finally:
                feeder.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feeder
                stream.cancel()

        return call


@asynccontextmanager
async def loopback_server() -> AsyncIterator[Loopback]:
    cluster = FakeCluster("loopback")
    broker = cluster.add_broker("broker-a")
    broker.create_topic("orders")
    server = grpc.aio.server(options=SERVER_OPTIONS)
    loopback = Loopback(cluster, broker, server)
    server.add_generic_rpc_handlers((Handlers(loopback),))
    broker.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield loopback
    finally:
        await server.stop(None)
