"""One end of a stream of replication over gRPC: `ha.links.MasterLink` and `ha.links.SlaveLink`.

Invariants: at most one read and one write are under way, as gRPC wants it; who is cancelled while waiting for either
breaks neither off, so no frame is lost or torn by that; every failure of the stream is a LinkError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc

from mq_broker.replication.frames import LinkError
from mq_broker.rpc.replication_conversions import DATA_BYTES_MAX, STATE_BYTES_MAX
from mqproto.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS

SentT = TypeVar("SentT")
ReceivedT = TypeVar("ReceivedT")

OTHER_FIELDS_BYTES = 1024 * 1024  # of a frame: names, 4,096 epochs
REPLICA_FRAME_BYTES_MAX = DATA_BYTES_MAX + OTHER_FIELDS_BYTES
MASTER_FRAME_BYTES_MAX = STATE_BYTES_MAX + OTHER_FIELDS_BYTES

# A slave sees within 8 s that a master is gone which says nothing any more: stopped, or behind a network that swallows.
# It is gRPC's ping timeout that counts; the keepalive timeout alone would let a minute go by.
SLAVE_KEEPALIVE_MS, SLAVE_PING_TIMEOUT_MS = 3_000, 5_000
# A master has no hurry: it waits for a slave by haMaxTimeSlaveNotCatchup.
MASTER_KEEPALIVE_MS = 10_000
CONNECT_TIMEOUT_MS = 5_000


def _options(general: tuple[tuple[str, int], ...], own: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((dict(general) | own).items())


def server_options() -> tuple[tuple[str, int], ...]:
    """Of the server that slaves connect to."""
    return _options(
        SERVER_OPTIONS,
        {
            "grpc.max_receive_message_length": REPLICA_FRAME_BYTES_MAX,
            "grpc.max_send_message_length": MASTER_FRAME_BYTES_MAX,
            "grpc.http2.min_ping_interval_without_data_ms": SLAVE_KEEPALIVE_MS // 2,
            "grpc.keepalive_time_ms": MASTER_KEEPALIVE_MS,
            "grpc.http2.bdp_probe": 0,  # as on the slave's side (CHANNEL_OPTIONS)
        },
    )


def channel_options() -> tuple[tuple[str, int], ...]:
    """Of a slave's channel. It has a connection of its own, so that a new channel tries at once."""
    return _options(
        CHANNEL_OPTIONS,
        {
            "grpc.max_receive_message_length": MASTER_FRAME_BYTES_MAX,
            "grpc.max_send_message_length": REPLICA_FRAME_BYTES_MAX,
            "grpc.keepalive_time_ms": SLAVE_KEEPALIVE_MS,
            "grpc.keepalive_timeout_ms": SLAVE_PING_TIMEOUT_MS,
            "grpc.http2.ping_timeout_ms": SLAVE_PING_TIMEOUT_MS,
            "grpc.http2.max_pings_without_data": 0,
            "grpc.min_reconnect_backoff_ms": CONNECT_TIMEOUT_MS,
            "grpc.use_local_subchannel_pool": 1,
        },
    )


class GrpcLink(Generic[SentT, ReceivedT]):
    """`read` and `write` are the stream's; `encode` and `decode` stand between its messages and frames.

    `bad_frame` says what was wrong with a frame that could not be decoded, which ends the link; empty without one.
    """

    def __init__(
        self,
        peer: str,
        read: Callable[[], Awaitable[Any]],
        write: Callable[[Any], Awaitable[None]],
        encode: Callable[[SentT], Any],
        decode: Callable[[Any], ReceivedT],
    ) -> None:
        self.peer = peer
        self.bad_frame = ""
        self._read, self._write = read, write
        self._encode, self._decode = encode, decode
        self._turn = asyncio.Lock()
        self._reading: asyncio.Task[ReceivedT | None] | None = None
        self._writing: set[asyncio.Task[None]] = set()

    async def send(self, frame: SentT) -> None:
        """Send; waits while the other side does not keep up. Raises LinkError."""
        task = asyncio.create_task(self._send(self._encode(frame)), name=f"frame to {self.peer}")
        self._writing.add(task)
        task.add_done_callback(self._written)
        await asyncio.shield(task)

    async def receive(self) -> ReceivedT | None:
        """The next frame; None when the other side has ended the stream. Raises LinkError."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._receive(), name=f"frame from {self.peer}")
        frame = await asyncio.shield(self._reading)  # an error stays where it is: the link is gone for good
        if frame is not None:
            self._reading = None
        return frame

    async def written(self) -> None:
        """Return when nothing is being written: gRPC takes no status while a message is on its way."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [*self._writing, *([self._reading] if self._reading else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # whoever sent it has it, or is not there any more

    async def _send(self, message: Any) -> None:
        async with self._turn:
            await self._guarded(self._write(message))

    async def _receive(self) -> ReceivedT | None:
        message = await self._guarded(self._read())
        if message is grpc.aio.EOF:
            return None
        try:
            return self._decode(message)
        except ValueError as error:
            self.bad_frame = str(error)
            raise LinkError(f"{self.peer} has sent a frame that makes no sense: {error}") from error

    async def _guarded(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except asyncio.CancelledError:  # in a task of our own: gRPC says so that the stream is gone, or we close
            raise LinkError(f"the stream with {self.peer} was given up") from None
        except grpc.aio.AioRpcError as error:
            raise LinkError(f"the stream with {self.peer} is gone: {error.details()}") from error
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise LinkError(f"the stream with {self.peer} is gone: {error}") from error
