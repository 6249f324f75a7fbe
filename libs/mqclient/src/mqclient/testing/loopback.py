"""The fakes behind a real server on loopback, of gRPC or of frames: what a test of the transports talks to.

Not imported by `mqclient.testing` itself, which needs no server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from hourglass.mq.v1 import admin_service_pb2, broker_service_pb2, name_service_pb2
from mqclient.errors import ConnectionLostError
from mqclient.testing.fake_broker import FakeBroker
from mqclient.testing.fake_channel import FakeStream
from mqclient.testing.fake_cluster import FakeCluster
from mqclient.transport import Method, methods
from mqproto.frames_service import FramesService, server_config
from mqproto.grpc_options import SERVER_OPTIONS
from mqremoting import Server
from telemetry.grpc_server import frames_call_span

GRPC_PORT = 8082  # where gRPC clients of the port of frames are sent; nothing listens there
STREAMS = (methods.PRODUCE, methods.POLL, methods.SESSION)
UNARIES = tuple(
    method
    for method in vars(methods).values()
    if isinstance(method, Method) and method.path not in {stream.path for stream in STREAMS}
)
SERVICES = tuple(
    descriptor
    for file in (name_service_pb2, broker_service_pb2, admin_service_pb2)
    for descriptor in file.DESCRIPTOR.services_by_name.values()
)


@dataclass
class Loopback:
    """One process that is name server and broker at once."""

    cluster: FakeCluster
    broker: FakeBroker
    by_frames: bool
    peers: dict[str, set[str]] = field(default_factory=lambda: {"stream": set(), "unary": set()})
    stop: Callable[[], Awaitable[None]] = field(init=False)
    """Break every connection off, and listen no more."""

    @property
    def url(self) -> str:
        return f"{'mq+frames' if self.by_frames else 'mq+grpc'}://{self.broker.address}"


class Servicer:
    """Every method of the protocol, passed on to the fakes."""

    def __init__(self, loopback: Loopback) -> None:
        self._loopback = loopback
        for method in STREAMS:
            setattr(self, _name(method), self._stream(method.path))
        for method in UNARIES:
            setattr(self, _name(method), self._unary(method.path))

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

        async def call(_requests: Any, context: Any) -> None:
            loopback.peers["stream"].add(context.peer())
            stream = FakeStream(loopback.broker.address, path, loopback.broker)

            async def feed() -> None:
                while (request := await context.read()) is not grpc.aio.EOF:
                    loopback.broker.stream_request(stream, request)
                await stream.done_writing()

            feeder = asyncio.create_task(feed())
            try:
                while (answer := await stream.read()) is not None:
                    await context.write(answer)
            except ConnectionLostError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            finally:
                feeder.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feeder
                stream.cancel()

        return call


class Handlers(grpc.GenericRpcHandler):
    """The servicer by gRPC."""

    def __init__(self, servicer: Servicer) -> None:
        self._servicer = servicer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        for methods_of_kind, handler in (
            (STREAMS, grpc.stream_stream_rpc_method_handler),
            (UNARIES, grpc.unary_unary_rpc_method_handler),
        ):
            for method in methods_of_kind:
                if handler_call_details.method == method.path:
                    serve = getattr(self._servicer, _name(method))
                    return handler(serve, method.request_type.FromString, method.response_type.SerializeToString)
        return None


def _name(method: Method[Any, Any]) -> str:
    return method.path.rpartition("/")[2]


@asynccontextmanager
async def loopback_server(*, by_frames: bool = False, port: int = 0) -> AsyncIterator[Loopback]:
    """The fakes behind gRPC, or behind frames; by default on a free port."""
    cluster = FakeCluster("loopback")
    broker = cluster.add_broker("broker-a")
    broker.create_topic("orders")
    loopback = Loopback(cluster, broker, by_frames=by_frames)
    servicer = Servicer(loopback)
    if by_frames:
        frames = FramesService(span=frames_call_span)
        for service in SERVICES:
            frames.add(service, servicer)
        server = Server(frames, server_config("127.0.0.1", GRPC_PORT))
        port, loopback.stop = await server.listen("127.0.0.1", port), server.close
    else:
        grpc_server = grpc.aio.server(options=SERVER_OPTIONS)
        grpc_server.add_generic_rpc_handlers((Handlers(servicer),))
        port, loopback.stop = grpc_server.add_insecure_port(f"127.0.0.1:{port}"), partial(grpc_server.stop, None)
        await grpc_server.start()
    broker.address = f"127.0.0.1:{port}"
    try:
        yield loopback
    finally:
        await loopback.stop()
