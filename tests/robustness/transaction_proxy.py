"""A gRPC server between a client and the queue that stops in the gaps of the transaction protocol.

It is name server and broker to its clients, and passes on what it gets, as bytes. Whatever a name server tells of a
broker's address, in a route or in the list of brokers, names the proxy, so that nothing goes around it. What stops
behind an answer loses the answer: the broker has done its work, and the client never hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from transaction_gaps import Gap, Gaps

from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import name_service_pb2 as name_pb
from hourglass_local.ports import LOOPBACK, free_ports
from mqclient.transport.methods import END_TRANSACTION, LIST_CLUSTERS, POLL, PRODUCE, QUERY_ROUTE, SESSION
from mqproto.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS

STREAMS = frozenset({PRODUCE.path, POLL.path, SESSION.path})
CALL_TIMEOUT_S = 10.0
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)  # no waiting for a backoff that another call has begun
LOST = (grpc.StatusCode.UNAVAILABLE, "the answer is lost")


class TransactionProxy(grpc.GenericRpcHandler):
    """One name server and one broker behind it. `gaps` says where to stop; the test that arms one releases it."""

    def __init__(self, name_server: str, broker: str) -> None:
        self.gaps = Gaps()
        self.address = f"{LOOPBACK}:{free_ports(1)[0]}"
        self._name_server, self._broker = name_server, broker

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TransactionProxy]:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self,))
        server.add_insecure_port(self.address)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        path = handler_call_details.method
        if path in STREAMS:
            return grpc.stream_stream_rpc_method_handler(self._stream(path))
        return grpc.unary_unary_rpc_method_handler(self._unary(path))

    def _unary(self, path: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def call(request: bytes, context: Any) -> bytes:
            sent, written, stored = _gaps_of(path, request)
            await self._reach(sent)
            async with self._channel(path) as channel:
                method: Any = channel.unary_unary(path)
                answering = method(request, timeout=CALL_TIMEOUT_S)
                try:
                    if written is not None and self.gaps.is_armed(written):
                        await answering.wait_for_connection()
                        await self._reach(written)
                    response: bytes = await answering
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details() or "")
            if await self._reach(stored):
                await context.abort(*LOST)
            return self._as_own(path, response)

        return call

    def _stream(self, path: str) -> Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]:
        async def call(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            produces = path == PRODUCE.path
            async with self._channel(path) as channel:
                method: Any = channel.stream_stream(path)
                upstream = method()

                async def feed() -> None:
                    async for request in requests:
                        await self._reach(Gap.BEFORE_HALF if produces else None)
                        await upstream.write(request)
                        await self._reach(Gap.HALF_WRITTEN if produces else None)
                    await upstream.done_writing()

                feeding = asyncio.create_task(feed())
                try:
                    async for response in upstream:
                        if await self._reach(Gap.HALF_STORED if produces else None):
                            await context.abort(*LOST)
                        yield response
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details() or "")
                finally:
                    feeding.cancel()
                    with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await feeding
                    upstream.cancel()

        return call

    async def _reach(self, gap: Gap | None) -> bool:
        return gap is not None and await self.gaps.reach(gap)

    def _channel(self, path: str) -> grpc.aio.Channel:
        target = self._name_server if "NameService" in path else self._broker
        return grpc.aio.insecure_channel(target, options=(*CHANNEL_OPTIONS, OWN_CONNECTION))

    def _as_own(self, path: str, response: bytes) -> bytes:
        """What a name server tells of brokers, with this address for theirs."""
        if path == QUERY_ROUTE.path:
            route = name_pb.QueryRouteResponse.FromString(response)
            self._stand_in(route.route.brokers)
            return route.SerializeToString()
        if path == LIST_CLUSTERS.path:
            clusters = name_pb.ListClustersResponse.FromString(response)
            self._stand_in(clusters.brokers)
            return clusters.SerializeToString()
        return response

    def _stand_in(self, brokers: Iterable[name_pb.BrokerData]) -> None:
        for broker in brokers:
            for broker_id in broker.addresses:
                broker.addresses[broker_id] = self.address


def _gaps_of(path: str, request: bytes) -> tuple[Gap | None, Gap | None, Gap | None]:
    """Before the request, behind it, and behind its answer."""
    if path != END_TRANSACTION.path:
        return None, None, None
    if pb.EndTransactionRequest.FromString(request).from_check:
        return Gap.CHECK_SENT, Gap.CHECK_WRITTEN, Gap.CHECK_STORED
    return Gap.END_SENT, Gap.END_WRITTEN, Gap.END_STORED
