"""One connection to a name server for one registration: by RocketMQ's frames, or by gRPC to one that shows HTTP/2.

That is a name server of an earlier version, or the port of gRPC of one. Nothing else leads to gRPC. Pings and time-outs
of the connection are of real time, as the network is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc

from hourglass.mq.v1 import name_service_pb2 as pb
from hourglass.mq.v1 import name_service_pb2_grpc
from mqproto.frames_service import CLIENT_CONFIG
from mqproto.grpc_options import CHANNEL_OPTIONS
from mqproto.names import Address
from mqproto.request_codes import REQUEST_CODES
from mqremoting import Command, Connection, Http2PeerError, RejectedError, RemotingError, connect

CONNECT_TIMEOUT_S = 3.0
_REGISTER, _UNREGISTER = (
    REQUEST_CODES[f"/hourglass.mq.v1.NameService/{name}"] for name in ("RegisterBroker", "UnregisterBroker")
)


class WireError(Exception):
    """The name server was not reached, or the connection or the call has ended; the message says how."""


class Wire(Protocol):
    """A registration's stream, and the polite way out."""

    async def register(self, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerResponse | None:
        """The answer; None when the name server has ended the stream. Raises WireError."""

    async def unregister(self, request: pb.UnregisterBrokerRequest, timeout_s: float) -> None:
        """Raises WireError."""


@asynccontextmanager
async def open_wire(address: Address, ended: Callable[[], None]) -> AsyncIterator[Wire]:
    """The connection, until the block is left; `ended` is called when the stream ends before. Raises WireError."""
    try:
        connection = await connect(*address, config=CLIENT_CONFIG, timeout_s=CONNECT_TIMEOUT_S)
        try:
            await connection.confirm(CONNECT_TIMEOUT_S)
            yield _Frames(connection, ended)
        finally:
            await connection.close()
    except Http2PeerError:
        async with _grpc_wire(address, ended) as wire:
            yield wire
    except RemotingError as error:
        raise WireError(str(error)) from error


class _Frames:
    def __init__(self, connection: Connection, ended: Callable[[], None]) -> None:
        self._connection = connection
        self._ended = ended
        self._answer: asyncio.Future[Command | None] | None = None
        self._stream = connection.open_stream(_REGISTER)
        self._stream.deliver_to(self._received)

    def _received(self, command: Command | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(command)
        if command is None:
            self._ended()

    async def register(self, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerResponse | None:
        if not self._stream.is_open:
            if self._stream.error is not None:
                raise self._stream.error
            return None
        self._answer = asyncio.get_running_loop().create_future()
        await self._stream.write(request.SerializeToString())
        command = await self._answer
        if command is None:
            if self._stream.error is not None:
                raise self._stream.error
            return None
        return pb.RegisterBrokerResponse.FromString(bytes(command.body))

    async def unregister(self, request: pb.UnregisterBrokerRequest, timeout_s: float) -> None:
        try:
            response = await self._connection.request(_UNREGISTER, request.SerializeToString(), timeout_s=timeout_s)
        except RemotingError as error:
            raise WireError(str(error)) from error
        if response.code:
            raise WireError(str(RejectedError(response.code, response.remark)))


@asynccontextmanager
async def _grpc_wire(address: Address, ended: Callable[[], None]) -> AsyncIterator[Wire]:
    async with grpc.aio.insecure_channel(str(address), options=CHANNEL_OPTIONS) as channel:
        stub: Any = name_service_pb2_grpc.NameServiceStub(channel)
        call = stub.RegisterBroker()
        call.add_done_callback(lambda _call: ended())
        try:
            yield _Grpc(stub, call)
        except grpc.aio.AioRpcError as error:
            raise WireError(error.details()) from error
        finally:
            call.cancel()


class _Grpc:
    def __init__(self, stub: Any, call: Any) -> None:
        self._stub, self._call = stub, call

    async def register(self, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerResponse | None:
        with contextlib.suppress(asyncio.InvalidStateError):  # the stream has ended; the read says how
            await self._call.write(request)
        response = await self._call.read()
        return None if response is grpc.aio.EOF else response

    async def unregister(self, request: pb.UnregisterBrokerRequest, timeout_s: float) -> None:
        try:
            await self._stub.UnregisterBroker(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise WireError(error.details()) from error
