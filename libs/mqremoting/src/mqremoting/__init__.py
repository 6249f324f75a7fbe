"""RocketMQ's remoting frames: a codec without I/O. Feed bytes as they come, get commands; see codec.py."""

from mqremoting.codec import Decoder, encode, encode_head
from mqremoting.command import Command, FrameLimits, Language, ResponseCode, Serialization
from mqremoting.errors import (
    ConnectionLostError,
    DeadlineError,
    FrameError,
    NotSentError,
    OutcomeUnknownError,
    RefusedError,
    RemotingError,
)

__all__ = [
    "Command",
    "ConnectionLostError",
    "DeadlineError",
    "Decoder",
    "FrameError",
    "FrameLimits",
    "Language",
    "NotSentError",
    "OutcomeUnknownError",
    "RefusedError",
    "RemotingError",
    "ResponseCode",
    "Serialization",
    "encode",
    "encode_head",
]
