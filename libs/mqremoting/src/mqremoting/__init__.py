"""RocketMQ's remoting frames: a codec without I/O, and one asyncio protocol for both ends.

    connection = await connect("127.0.0.1", 10911)
    response = await connection.request(20_001, request.SerializeToString(), timeout_s=3)
    if response.code: ...                       # 0 is success; what others mean is the caller's
    answer = Answer.FromString(response.body)

    stream = connection.open_stream(20_002)     # many messages each way
    await stream.write(body)                    # waits while the peer's window is full
    message = await stream.read()               # None at the end
    stream.end()                                # no more from this side; the peer may still write

A server, or a client of which the server may want something, has a service: an object that is asked for each request
and each stream that the peer begins.

    class Service:
        def on_request(self, call):             # a plain answer, at once
            call.respond(b"...")

        async def on_stream(self, stream):      # or a coroutine, which runs as a task
            while (message := await stream.read()) is not None:
                await stream.write(message.body)

    server = Server(Service())
    port = await server.listen("127.0.0.1", 10911)
    ...
    await server.drain(within_s=10)             # finish what runs, reject what is new, close

- Requests and streams go both ways on one connection, in any number, and none waits for another: each stream has a
  window in bytes each way.
- Whatever one peer can make the other hold or do is bounded by `ConnectionConfig` and `FrameLimits`; beyond a limit it
  is rejected with RocketMQ's code and a sentence.
- All times are of an `osenv.Clock`. Deadlines are not sent: a caller that no longer waits tells the peer, and the
  handler is cancelled.
- `errors.py` has the tree of errors, `config.py` what the frames of streams look like, `codec.py` a frame's bytes, and
  `testing.py` two joined connections with a faulty network between them.

The package knows nothing of brokers and messages, and imports osenv and the standard library only. Request codes 20,000
to 20,999 are ours (RocketMQ has none there); the application gives them their meaning.
"""

import warnings
from typing import Any

from mqremoting.calls import Call, Service, not_supported
from mqremoting.codec import Decoder, encode, encode_head
from mqremoting.command import Command, FrameLimits, Language, ResponseCode, Serialization
from mqremoting.config import ConnectionConfig
from mqremoting.connection import Connection
from mqremoting.endpoints import Server, connect
from mqremoting.errors import (
    ConnectionLostError,
    DeadlineError,
    FrameError,
    Http2PeerError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    RemotingError,
)
from mqremoting.streams import Stream

__all__ = [
    "Call",
    "Command",
    "Connection",
    "ConnectionConfig",
    "ConnectionLostError",
    "DeadlineError",
    "Decoder",
    "FrameError",
    "FrameLimits",
    "Http2PeerError",
    "Language",
    "NotSentError",
    "OutcomeUnknownError",
    "RejectedError",
    "RemotingError",
    "ResponseCode",
    "Serialization",
    "Server",
    "Service",
    "Stream",
    "connect",
    "encode",
    "encode_head",
    "not_supported",
]


def __getattr__(name: str) -> Any:
    if name != "RefusedError":  # the name before; it goes with the next version
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("mqremoting.RefusedError is mqremoting.RejectedError now", DeprecationWarning, stacklevel=2)
    return RejectedError
