"""Limits and timeouts of a connection, and the bits of `flag` that are this package's own.

RocketMQ uses two bits of a flag (command.py) and looks at no others. The bits below begin at the ninth. A peer that
knows RocketMQ's frames only takes a frame with one of them for a request of code 0, which it does not have. It answers
a ping with a rejection, which shows that it lives, and drops the others, which are one-way. Streams are for peers that
know them.

| frame | bits | what it says |
|---|---|---|
| open | STREAM, OPEN | a stream begins, with its code and fields |
| message | STREAM | one message of a stream |
| end | STREAM, END | the sender sends no more messages; it still reads |
| close | STREAM, CLOSE | the sender neither sends nor reads any more: code 0 in order, else why, with a remark |
| window | STREAM, WINDOW | the body, 4 bytes: so many more bytes may be sent |
| give up | CLOSE, ONE_WAY | the sender no longer waits for the response to its request |
| ping | PING | answered at once by PING, RESPONSE |
| go away | GO_AWAY, ONE_WAY | the sender takes no new requests and streams, and closes when it has none |

The opaque of all frames of a stream, and of a request and its response, is a number of the side that began it. What
that side sends goes without RESPONSE, and what the other side sends with it, so that both may use the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mqremoting.command import FrameLimits, Language, Serialization

STREAM = 1 << 8
OPEN = 1 << 9
END = 1 << 10
CLOSE = 1 << 11
WINDOW = 1 << 12
PING = 1 << 13
GO_AWAY = 1 << 14
OWN_BITS = STREAM | OPEN | END | CLOSE | WINDOW | PING | GO_AWAY

INITIAL_WINDOW_BYTES = 256 * 1024  # what each side of a new stream may send before it has heard of any window
MESSAGE_COST_BYTES = 256  # what a message takes in memory beside its frame; both sides count it


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """One connection's limits and times. Limits of what comes in are for each peer; nothing here counts all peers."""

    frames: FrameLimits = field(default_factory=FrameLimits)
    requests_max: int = 4_096
    """Requests in flight in each direction; one more is rejected with SYSTEM_BUSY, or not sent."""
    request_bytes_max: int = 32 * 1024 * 1024
    """Frames of the requests being handled, and responses that the peer has not read; beyond it as above."""
    unread_bytes_max: int = 64 * 1024 * 1024
    """A connection breaks when so much waits for a peer that does not read, rejections included."""
    streams_max: int = 32
    """Streams in flight in each direction, each with one window and one frame of memory at most."""
    window_bytes: int = 1024 * 1024
    """What the peer may send on a stream before this side's reader has read it; the last frame may exceed it."""
    write_buffer_bytes: int = 256 * 1024
    """Writers wait while the transport holds more than this."""
    idle_s: float | None = 120.0
    """A connection without requests and streams closes after this time (RocketMQ's serverChannelMaxIdleTimeSeconds)."""
    keepalive_s: float | None = 20.0
    """A peer that has sent nothing for so long is pinged."""
    ping_timeout_s: float = 5.0
    """A peer that has sent nothing for so long after a ping is gone."""
    linger_s: float = 0.25
    """After a drain the peer has this time to read what was written last and to close first. A connection closed on
    unread bytes is reset, and the peer may lose what it has not read."""
    serialization: Serialization = Serialization.ROCKETMQ
    """Of requests; a response has its request's."""
    language: Language = Language.PYTHON
    version: int = 0
    """RocketMQ's number of the own version, as its clients and servers tell each other."""
    for_grpc_clients: str = ""
    """A sentence for gRPC clients that come here by mistake; without it, their connections break as with any bytes that
    are no frames."""

    def __post_init__(self) -> None:
        if self.window_bytes < INITIAL_WINDOW_BYTES:
            raise ValueError(f"window_bytes is {self.window_bytes:,}; at least {INITIAL_WINDOW_BYTES:,} are allowed")
        least = (
            self.write_buffer_bytes + self.frames.frame_bytes_max
        )  # one frame is written to a buffer that is not full
        if self.unread_bytes_max < least:
            raise ValueError(f"unread_bytes_max is {self.unread_bytes_max:,}; at least {least:,} are allowed")
        for name in ("idle_s", "keepalive_s", "ping_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and seconds <= 0:
                raise ValueError(f"{name} is {seconds:g}; more than 0, or for the first two None, is allowed")
