"""A command: what one frame carries, the same in both forms of its header.

`code` is what a request wants or how a response ended (0 is success), `opaque` the number that a response has in common
with its request. RocketMQ uses two bits of `flag`; what this package does with others is in `connection.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

RESPONSE = 1 << 0  # of `flag`: a response; without it, a request
ONE_WAY = 1 << 1  # a request to which no response is wanted


class ResponseCode(IntEnum):
    """The codes with which this package answers by itself. They are RocketMQ's, so that its clients know them."""

    SUCCESS = 0
    SYSTEM_ERROR = 1  # the handler failed
    SYSTEM_BUSY = 2  # too much is in flight on this connection
    REQUEST_CODE_NOT_SUPPORTED = 3
    SERVICE_NOT_AVAILABLE = 14  # the connection drains: ask elsewhere


class Language(IntEnum):
    """In which language a peer is written, by the numbers of RocketMQ 5. A language unknown here is OTHER."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Serialization(IntEnum):
    """How the header is written: the first byte of the header's length."""

    JSON = 0
    ROCKETMQ = 1  # 21 bytes, and what remark and fields take


@dataclass(slots=True)
class Command:
    """One request, response, or part of a stream.

    Numbers are signed: `opaque` and `flag` have 32 bits, `code` and `version` 32 in JSON and 16 in the ROCKETMQ form.
    RocketMQ's codes of pop consumption (from 200,050) therefore go in JSON only. A remark or field that is absent, or
    null, is not told apart from one that was never set.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    body: bytes | memoryview = b""
    """Read-only bytes. A view keeps the memory in which they came, at most four times as much."""
    ext_fields: dict[str, str] = field(default_factory=dict)
    remark: str = ""
    language: Language = Language.PYTHON
    version: int = 0
    serialization: Serialization = Serialization.ROCKETMQ
    size: int = field(default=0, compare=False)
    """Bytes of the frame from which the command was decoded; 0 for another."""

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY)


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """How much one frame may have; beyond it is a FrameError, on the way out as on the way in. In bytes, of UTF-8."""

    frame_bytes_max: int = 16 * 1024 * 1024
    """What the length field may say; RocketMQ's com.rocketmq.remoting.frameMaxLength."""
    header_bytes_max: int = 128 * 1024
    fields_max: int = 256
    name_bytes_max: int = 1_024
    """At most 32,767: the ROCKETMQ form has two bytes for it."""
    value_bytes_max: int = 64 * 1024
    """Of a field's value and of the remark. The properties of a message are a field: 32,767 bytes."""
    nesting_max: int = 8
    """How deep a header in JSON is nested. RocketMQ's has 2 levels; unknown fields are read over, and may have more."""
