"""One connection, the same at both ends: frames on an asyncio transport, requests and streams both ways.

Made for uvloop; asyncio's own loop will do. On both, each write to a transport is a system call. So the frames of one
turn of the event loop, among them the responses to what one read has brought, are written together.

Invariants:
- A request or stream is in flight until both sides are done with it; what is not in flight takes no memory.
- Everything that waits, waits for a frame, the transport, or one timer of `clock`, and ends with the connection.
- The connection ends once; `error` says why, and everything in flight ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from mqremoting.calls import Request, Service, Unsupported, give_up_command
from mqremoting.codec import Decoder, encode_head
from mqremoting.command import ONE_WAY, RESPONSE, Command
from mqremoting.config import (
    CLOSE,
    GO_AWAY,
    OPEN,
    OWN_BITS,
    PING,
    STREAM,
    ConnectionConfig,
)
from mqremoting.errors import ConnectionLostError, FrameError, Http2PeerError, NotSentError, RemotingError
from mqremoting.http2 import Rejection, is_preface, is_settings
from mqremoting.incoming import Incoming
from mqremoting.liveness import Liveness
from mqremoting.streams import Stream
from osenv import Clock, RealClock, Timer
from osenv.clock import timeout

log = logging.getLogger(__name__)

_JOINED_BYTES_MAX = 16 * 1024  # a larger body goes to the transport by itself: not copied behind its header
_TURN_BYTES_MAX = 64 * 1024  # frames of one turn beyond this are written at once
_OPAQUE_MASK = 0x7FFF_FFFF


class Connection(asyncio.Protocol):
    """Both ends of one connection. `service` does what the peer begins; without one, everything is rejected."""

    def __init__(
        self, service: Service | None = None, config: ConnectionConfig | None = None, clock: Clock | None = None
    ) -> None:
        self.config = config or ConnectionConfig()
        self.clock = clock or RealClock()
        self.error: RemotingError | None = None
        """Why the connection has ended, or is ending; None while it is open."""
        self.peer = ""
        """The peer's address as `host:port`; empty before the connection is made."""
        self.loop: asyncio.AbstractEventLoop
        self._decoder = Decoder(self.config.frames)
        self._transport: asyncio.Transport | None = None
        self._opaque = 0
        self._sent: dict[int, Request | Stream] = {}  # begun here
        self._streams_sent = 0
        self.incoming = Incoming(self, service or Unsupported())
        self._unwritten: list[bytes | memoryview] = []  # the frames of this turn
        self._unwritten_bytes = 0
        self._will_flush = False
        self._may_write = False
        self._writers: list[asyncio.Future[None]] = []
        self._drains = self._peer_drains = False
        self._emptied, self._gone = asyncio.Event(), asyncio.Event()
        self._abort: Timer | None = None
        self._on_lost: list[Callable[[], None]] = []
        self._liveness = Liveness(self)
        self._first: asyncio.Future[None] | None = None  # done with the first frame of the peer
        self._has_heard = False
        self._rejection: Rejection | None = None  # of a peer that is a gRPC client

    async def confirm(self, timeout_s: float) -> None:
        """Return when the peer has shown that it takes frames, by an answer to a ping.

        Raises Http2PeerError when it has shown that it speaks HTTP/2, and NotSentError when it has shown nothing.
        """
        self.check_usable()
        self._first = self.loop.create_future()
        self._liveness.ping()
        try:
            async with timeout(self.clock, timeout_s):
                await self._first
        except TimeoutError:
            raise NotSentError(f"{self.peer} has not answered a ping within {timeout_s:g} s") from None
        finally:
            self._first = None

    async def request(
        self,
        code: int,
        body: bytes | memoryview = b"",
        *,
        timeout_s: float,
        ext_fields: dict[str, str] | None = None,
        remark: str = "",
    ) -> Command:
        """The peer's response, whatever its code.

        Raises NotSentError, ConnectionLostError, DeadlineError, FrameError. Cancelled, it tells the peer to give up.
        """
        deadline = self.clock.monotonic() + timeout_s
        self.check_usable()
        if not self._may_write:
            await self._writable_within(timeout_s)
        if len(self._sent) >= self.config.requests_max:
            raise NotSentError(f"{len(self._sent):,} requests to {self.peer} are in flight; no more are allowed")
        command = self._begin(code, 0, body, ext_fields, remark)
        request = Request(command, deadline, self.loop.create_future())
        self._sent[command.opaque] = request
        try:
            self.write_command(command)
            self._liveness.expect(deadline)
            return await request.response
        except BaseException as error:
            if not isinstance(error, ConnectionLostError | FrameError):
                self.write_command(give_up_command(command, CLOSE))
            raise
        finally:
            self._sent.pop(command.opaque, None)
            self.one_is_done()

    async def send_one_way(
        self, code: int, body: bytes | memoryview = b"", *, ext_fields: dict[str, str] | None = None
    ) -> None:
        """Send a request without a response, as soon as the transport takes it. Raises NotSentError, FrameError."""
        self.check_usable()
        while not self._may_write:
            await self.writable()
            self.check_usable()
        self.write_command(self._begin(code, ONE_WAY, body, ext_fields))
        self._liveness.used()

    def open_stream(
        self, code: int, *, ext_fields: dict[str, str] | None = None, timeout_s: float | None = None
    ) -> Stream:
        """Begin a stream; with `timeout_s`, it ends with DeadlineError after that. Raises NotSentError, FrameError."""
        self.check_usable()
        if self._streams_sent >= self.config.streams_max:
            raise NotSentError(f"{self._streams_sent:,} streams to {self.peer} are open; no more are allowed")
        opening = self._begin(code, STREAM | OPEN, b"", ext_fields)
        stream = Stream(self, opening, began_here=True)
        self._sent[opening.opaque] = stream
        self._streams_sent += 1
        try:
            self.write_command(opening)
        except FrameError:
            self.forget_stream(stream, began_here=True)
            raise
        stream.widen()
        self.used()
        if timeout_s is not None:
            stream.deadline = self.clock.monotonic() + timeout_s
            self._liveness.expect(stream.deadline)
        return stream

    @property
    def drains(self) -> bool:
        """Whether this side takes nothing new."""
        return self._drains

    @property
    def unread_bytes(self) -> int:
        """What waits in the transport for the peer to read, once it is enough to hold writers up."""
        return 0 if self._may_write or self._transport is None else self._transport.get_write_buffer_size()

    def used(self) -> None:
        """A request or stream begins."""
        self._liveness.used()

    @property
    def is_usable(self) -> bool:
        """Whether new requests and streams can be sent here."""
        return self.error is None and self._transport is not None and not (self._drains or self._peer_drains)

    def check_usable(self) -> None:
        """Raise NotSentError when no new request or stream can be sent here."""
        if self.error is not None:
            raise NotSentError(f"the connection to {self.peer} has ended: {self.error}")
        if self._transport is None:
            raise NotSentError("the connection is not made yet")
        if self._drains or self._peer_drains:
            side = "this side" if self._drains else self.peer
            raise NotSentError(f"the connection to {self.peer} takes nothing new: {side} is shutting down")

    def _begin(
        self, code: int, flag: int, body: bytes | memoryview, ext_fields: dict[str, str] | None, remark: str = ""
    ) -> Command:
        """A command under an opaque that is free."""
        while True:
            self._opaque = opaque = (self._opaque + 1) & _OPAQUE_MASK
            if opaque not in self._sent:
                break
        config = self.config
        fields = ext_fields or {}
        return Command(code, opaque, flag, body, fields, remark, config.language, config.version, config.serialization)

    @property
    def may_write(self) -> bool:
        """Whether the transport takes more at once."""
        return self._may_write

    def write_command(self, command: Command) -> int:
        """Give a frame to the transport; nothing happens when the connection has ended. Returns the frame's bytes.

        Raises FrameError for a command that fits in no frame.
        """
        head, body = encode_head(command, self.config.frames), command.body
        size = len(head) + len(body)
        if self._transport is None or self.error is not None:
            return size
        if len(body) > _JOINED_BYTES_MAX:
            self._unwritten += (head, body)
        else:
            self._unwritten.append(head + body if body else head)
        self._unwritten_bytes += size
        if self._unwritten_bytes > _TURN_BYTES_MAX:
            self._flush()
        elif not self._will_flush:
            self._will_flush = True
            self.loop.call_soon(self._flush)
        return size

    def _flush(self) -> None:
        """Give the frames of this turn to the transport."""
        self._will_flush = False
        frames, count = self._unwritten, self._unwritten_bytes
        if not frames or self._transport is None:
            return
        self._unwritten, self._unwritten_bytes = [], 0
        if count > _TURN_BYTES_MAX:
            self._transport.writelines(frames)
        else:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if (waiting := self.unread_bytes) > self.config.unread_bytes_max:
            self.fail(ConnectionLostError(f"{self.peer} does not read: {waiting:,} bytes wait for it"))

    async def writable(self) -> None:
        """Return when the transport takes more, or when the connection has ended."""
        while not self._may_write and self.error is None:
            waiter = self.loop.create_future()
            self.wake_when_writable(waiter)
            await waiter

    def wake_when_writable(self, waiter: asyncio.Future[None]) -> None:
        """Set its result when the transport takes more, or when the connection has ended."""
        self._writers.append(waiter)

    async def _writable_within(self, timeout_s: float) -> None:
        try:
            async with timeout(self.clock, timeout_s):
                while not self._may_write:
                    await self.writable()
                    self.check_usable()
        except TimeoutError:
            raise NotSentError(f"{self.peer} has read nothing for {timeout_s:g} s") from None

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._wake_writers()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for waiter in writers:
            if not waiter.done():
                waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.error is not None:
            return
        self._liveness.heard()
        if not self._has_heard and self._speaks_http2(data):
            return
        self._will_flush = True
        decoder = self._decoder
        for command in decoder.feed(data):
            if not self._take(command):
                return
        if decoder.error is not None:
            self.fail(decoder.error)
        self._flush()

    def _speaks_http2(self, data: bytes) -> bool:
        """Whether these bytes, which no frame has come before, are another protocol's."""
        if self._rejection is None and self.config.for_grpc_clients and is_preface(data):
            log.warning("a gRPC client has come from %s: %s", self.peer, self.config.for_grpc_clients)
            self._rejection = Rejection(self.config.for_grpc_clients)
        if self._rejection is not None:
            answer = self._rejection.feed(data)
            if answer is None or self._transport is None or self.unread_bytes > self.config.write_buffer_bytes:
                self.close_soon()
            elif answer:
                self._transport.write(answer)
            return True
        if is_settings(data):
            self.fail(Http2PeerError(f"{self.peer} speaks HTTP/2, so it may take gRPC, and takes no frames"))
            return True
        self._has_heard = True
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        return False

    def _take(self, command: Command) -> bool:
        """Whether the connection goes on."""
        try:
            self._received(command)
        except FrameError as error:
            self.fail(error)
        return self.error is None

    def _received(self, command: Command) -> None:
        flag = command.flag
        if flag & RESPONSE:
            if (sent := self._sent.get(command.opaque)) is not None:
                sent.received(command)
        elif not flag & OWN_BITS:
            self.incoming.request(command)
        elif flag & STREAM:
            self.incoming.stream_frame(command)
        elif flag & PING:
            self.write_command(Command(0, command.opaque, PING | RESPONSE, serialization=command.serialization))
        elif flag & GO_AWAY:
            self._peer_drains = True
            self.one_is_done()
        elif flag & CLOSE:
            self.incoming.give_up(command.opaque)

    def forget_stream(self, stream: Stream, *, began_here: bool) -> None:
        """It is not in flight any more."""
        if not began_here:
            self.incoming.forget_stream(stream)
        elif self._sent.get(stream.opening.opaque) is stream:
            del self._sent[stream.opening.opaque]
            self._streams_sent -= 1
            self.one_is_done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self.config.write_buffer_bytes)
        self.loop = asyncio.get_running_loop()
        self._may_write = True
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address or "")
        self._liveness.begin()

    @property
    def in_flight(self) -> int:
        """How many requests and streams both sides have begun and not ended."""
        return len(self._sent) + self.incoming.count

    @property
    def requests_sent(self) -> list[Request | Stream]:
        """What was begun here and has not ended."""
        return list(self._sent.values())

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call back once when the connection is gone, with everything in flight."""
        self._on_lost.append(callback)

    async def drain(self, within_s: float) -> None:
        """Take and send nothing new, tell the peer, let finish what is in flight, and close.

        What is in flight after `within_s` seconds ends with the connection. Handlers of streams that have no end of
        their own have to be told by the application to come to one.
        """
        if self.error is None and self._transport is not None:
            self._drains = True
            self.write_command(Command(0, 0, GO_AWAY | ONE_WAY, serialization=self.config.serialization))
            try:
                async with timeout(self.clock, within_s):
                    while self.in_flight and self.error is None:
                        self._emptied.clear()
                        await self._emptied.wait()
            except TimeoutError:
                log.info("closing the connection to %s with %d requests in flight", self.peer, self.in_flight)
            else:
                with suppress(TimeoutError):
                    async with timeout(self.clock, self.config.linger_s):
                        await self._gone.wait()
        await self.close()

    async def close(self) -> None:
        """Write what waits, and close; what is in flight ends with ConnectionLostError. Returns when it is closed.

        A peer that does not read is waited for at most `ping_timeout_s`.
        """
        if self._transport is not None:
            self.close_soon()
            await self._gone.wait()

    def close_soon(self) -> None:
        """Begin to `close`, and return at once."""
        self._end(ConnectionLostError(f"the connection to {self.peer} was closed by this side"))
        self._close_transport()

    def fail(self, error: RemotingError) -> None:
        """Break the connection off."""
        if self.error is None and self._transport is not None:
            log.info("breaking the connection to %s off: %s", self.peer, error)
            self._end(error)
            if isinstance(error, FrameError):
                self._close_transport()  # the responses to what came before are still written
            else:
                self._transport.abort()

    def _close_transport(self) -> None:
        if self._transport is not None and self._abort is None and not self._gone.is_set():
            self._flush()
            self._transport.close()
            self._abort = self.clock.call_later(self.config.ping_timeout_s, self._transport.abort)

    def one_is_done(self) -> None:
        """Something in flight has ended."""
        if not self.in_flight:
            self._liveness.used()
            self._emptied.set()
            if self._peer_drains and not self._drains:
                self.close_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc else " by the peer"
        inside = " inside a frame" if self._decoder.has_partial_frame else ""
        self._end(ConnectionLostError(f"the connection to {self.peer} was closed{inside}{why}"))
        self._liveness.end()
        self._unwritten.clear()
        if self._abort is not None:
            self._abort.cancel()
        self._gone.set()
        callbacks, self._on_lost = self._on_lost, []
        for callback in callbacks:
            callback()

    def _end(self, error: RemotingError) -> None:
        """Nothing is in flight any more."""
        if self.error is not None:
            return
        self.error = error
        if self._first is not None and not self._first.done():
            self._first.set_exception(error if isinstance(error, NotSentError) else NotSentError(str(error)))
        lost = error if isinstance(error, ConnectionLostError) else ConnectionLostError(str(error))
        for sent in list(self._sent.values()):
            sent.fail(lost)
        self.incoming.end(lost)
        self._wake_writers()
        self._emptied.set()
