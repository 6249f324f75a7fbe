"""The errors of this package, split by what the caller should do.

RemotingError
├── NotSentError          no byte of the request has left: try again, here or elsewhere
│   └── Http2PeerError        the peer speaks HTTP/2, as it has shown: gRPC may reach it
├── OutcomeUnknownError   the peer may have done what was asked
│   ├── ConnectionLostError   the connection broke before the end
│   └── DeadlineError         no response within the time that the caller gave
├── RejectedError         the peer says no, with a code and a sentence; a handler raises it to say no itself
└── FrameError            bytes that are no frame, or a command that fits in none: a bug, or another protocol
"""

from __future__ import annotations


class RemotingError(Exception):
    """The root of this package's errors."""


class NotSentError(RemotingError):
    """No byte of the request has left. The message says why: no connection, a connection that closes, a limit."""


class Http2PeerError(NotSentError):
    """The first bytes of the peer are HTTP/2's. Nothing of a frame means anything to it."""


class OutcomeUnknownError(RemotingError):
    """The request has left, and the response has not come."""


class ConnectionLostError(OutcomeUnknownError):
    """The connection ended before the response, or the end of the stream, had come."""


class DeadlineError(OutcomeUnknownError):
    """The response had not come when the caller's time was over. The peer is told to give the request up."""


class RejectedError(RemotingError):
    """`code` is a response code, RocketMQ's or the application's, other than 0; `remark` is the sentence with it."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark


class FrameError(RemotingError):
    """The message says what was wrong and what is allowed. The bytes behind it cannot be read any more."""
