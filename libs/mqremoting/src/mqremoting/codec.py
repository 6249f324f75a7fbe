"""Frames to commands and back, without I/O: feed bytes as they come, get commands.

A frame, all numbers big-endian:

    4 B  bytes that follow
    1 B  serialize type: 0 for JSON, 1 for ROCKETMQ
    3 B  bytes of the header
         header
         body: the rest

The header in the ROCKETMQ form: 2 B code, 1 B language, 2 B version, 4 B opaque, 4 B flag, 4 B length of the remark,
remark, 4 B bytes of the fields, and each field as 2 B length of the name, name, 4 B length of the value, value. Texts
are UTF-8. In JSON: an object with code, language (by name), version, opaque, flag, remark, extFields (an object of
texts), serializeTypeCurrentRPC, of which each may be missing; others are read over, as RocketMQ does.

RocketMQ is more lenient with what no client writes, and is not followed there: lengths below 0 count as 0 in its older
versions, bytes left over in a header become the beginning of the body, and broken UTF-8 becomes replacement characters.
Here each of them is a FrameError.

Invariants: what a decoder holds is at most one frame's bytes, and only those that have come. A byte is copied once, and
the bytes of a body that came in several pieces not again.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any

from mqremoting.command import Command, FrameLimits, Language, Serialization
from mqremoting.errors import FrameError

LIMITS = FrameLimits()

_PREFIX = struct.Struct(">II")
_FIXED = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, length of the remark
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">h")
_PLAIN = struct.Struct(">IIhBhiiii")  # prefix and header of a command without remark and fields
_TYPE_SHIFT, _LENGTH_MASK = 24, 0xFF_FFFF
_PLAIN_TYPED = Serialization.ROCKETMQ << _TYPE_SHIFT | (_PLAIN.size - _PREFIX.size)
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_VIEW_SHARE = 4  # a body that is at least a fourth of the bytes with which it came is a view of them

_LANGUAGES = {language.value: language for language in Language}
_LANGUAGE_NAMES = {language.name: language for language in Language}
_FOREIGN = {
    b"PRI ": "HTTP/2, which gRPC speaks",
    b"GET ": "HTTP",
    b"POST": "HTTP",
    b"PUT ": "HTTP",
    b"HEAD": "HTTP",
    b"HTTP": "HTTP",
}
_TLS_HANDSHAKE = b"\x16\x03"
_JSON_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def encode(command: Command, limits: FrameLimits = LIMITS) -> bytes:
    """The frame of a command. Raises FrameError for one that does not fit."""
    return encode_head(command, limits) + command.body


def encode_head(command: Command, limits: FrameLimits = LIMITS) -> bytes:
    """The frame without its body, which is written behind it. Raises FrameError for a command that does not fit."""
    body_bytes = len(command.body)
    if command.serialization is Serialization.JSON:
        header = _json_header(command, limits)
    elif command.remark or command.ext_fields:
        header = _binary_header(command, limits)
    else:
        total = body_bytes + _PLAIN.size - 4
        if total > limits.frame_bytes_max:
            raise _too_long(total, limits)
        try:
            return _PLAIN.pack(
                total, _PLAIN_TYPED, command.code, command.language, command.version, command.opaque, command.flag, 0, 0
            )
        except struct.error:
            raise _out_of_range(command) from None
    _check_most("the header", len(header), limits.header_bytes_max)
    total = 4 + len(header) + body_bytes
    if total > limits.frame_bytes_max:
        raise _too_long(total, limits)
    return _PREFIX.pack(total, command.serialization << _TYPE_SHIFT | len(header)) + header


def _binary_header(command: Command, limits: FrameLimits) -> bytes:
    remark = _checked_bytes("the remark", command.remark, limits.value_bytes_max)
    parts = [b"", remark, b""]
    for name, value in _checked_fields(command.ext_fields, limits):
        parts += (_SHORT.pack(len(name)), name, _INT.pack(len(value)), value)
    parts[2] = _INT.pack(sum(map(len, parts)) - len(remark))
    try:
        parts[0] = _FIXED.pack(
            command.code, command.language, command.version, command.opaque, command.flag, len(remark)
        )
    except struct.error:
        raise _out_of_range(command) from None
    return b"".join(parts)


def _json_header(command: Command, limits: FrameLimits) -> bytes:
    for name in ("code", "version", "opaque", "flag"):
        if not _INT_MIN <= getattr(command, name) <= _INT_MAX:
            raise _out_of_range(command)
    header: dict[str, Any] = {
        "code": command.code,
        "flag": command.flag,
        "language": command.language.name,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark:
        _checked_bytes("the remark", command.remark, limits.value_bytes_max)
        header["remark"] = command.remark
    if command.ext_fields:
        _checked_fields(command.ext_fields, limits)
        header["extFields"] = command.ext_fields
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()


def _checked_fields(fields: dict[str, str], limits: FrameLimits) -> list[tuple[bytes, bytes]]:
    """Names and values as bytes."""
    _check_most("the fields", len(fields), limits.fields_max, "entries")
    return [
        (
            _checked_bytes("the name of a field", name, limits.name_bytes_max),
            _checked_bytes(f"field {name!r:.60}", value, limits.value_bytes_max),
        )
        for name, value in fields.items()
    ]


def _checked_bytes(what: str, text: str, most: int) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise FrameError(f"{what} has half of a surrogate pair, which is no text in UTF-8: {error}") from None
    _check_most(what, len(data), most)
    return data


def _check_most(what: str, count: int, most: int, unit: str = "bytes") -> None:
    if count > most:
        raise FrameError(f"{what}: {count:,} {unit}; at most {most:,} are allowed")


def _too_long(total: int, limits: FrameLimits) -> FrameError:
    return FrameError(f"the frame: {total:,} bytes behind its length; at most {limits.frame_bytes_max:,} are allowed")


def _out_of_range(command: Command) -> FrameError:
    of_code = "32 bits" if command.serialization is Serialization.JSON else "16 bits (JSON has 32)"
    return FrameError(
        f"code {command.code}, version {command.version}, opaque {command.opaque} or flag {command.flag} is out of "
        f"range: opaque and flag are signed numbers of 32 bits, code and version of {of_code}"
    )


class Decoder:
    """Commands from bytes that come in pieces of any size.

    After a frame that is malformed, `error` says what was wrong with it, and no more commands come.
    """

    def __init__(self, limits: FrameLimits = LIMITS) -> None:
        self.error: FrameError | None = None
        self._limits = limits
        self._frame = bytearray()  # the beginning of a frame
        self._frame_bytes = 0  # of the whole frame; 0 when its first eight bytes have not come

    @property
    def has_partial_frame(self) -> bool:
        """Whether the bytes end inside a frame."""
        return bool(self._frame)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Command]:
        """The commands that the bytes complete, in order. Look at `error` afterwards."""
        if self.error is not None:
            return []
        if type(data) is not bytes:
            data = bytes(data)  # bodies are views of it
        commands: list[Command] = []
        try:
            at = self._complete_frame(data, commands) if self._frame else 0
            end = len(data)
            while end - at >= _PREFIX.size:
                frame_end = at + self._size_of_frame(data, at)
                if frame_end > end:
                    self._frame_bytes = frame_end - at
                    break
                commands.append(self._decode(data, at, frame_end))
                at = frame_end
            if at < end:
                self._frame += memoryview(data)[at:]
        except FrameError as error:
            self.error = error
            self._frame = bytearray()
        return commands

    def _complete_frame(self, data: bytes, commands: list[Command]) -> int:
        """Continue the frame that has begun. Returns how many bytes of `data` belong to it."""
        frame, at = self._frame, 0
        if not self._frame_bytes:
            at = _PREFIX.size - len(frame)
            frame += data[:at]
            if len(frame) < _PREFIX.size:
                return len(data)
            self._frame_bytes = self._size_of_frame(frame, 0)
        end = at + self._frame_bytes - len(frame)
        frame += memoryview(data)[at:end]
        if len(frame) < self._frame_bytes:
            return len(data)
        commands.append(self._decode(frame, 0, self._frame_bytes))
        self._frame, self._frame_bytes = bytearray(), 0
        return end

    def _size_of_frame(self, data: bytes | bytearray, at: int) -> int:
        total, typed = _PREFIX.unpack_from(data, at)
        limits = self._limits
        if total > limits.frame_bytes_max:
            raise _foreign(bytes(data[at : at + 4])) or _too_long(total, limits)
        if total < 4:
            raise FrameError(f"the frame: {total} bytes behind its length; at least 4 are needed")
        header_bytes = typed & _LENGTH_MASK
        if header_bytes > total - 4:
            raise FrameError(f"the header: {header_bytes:,} bytes, of which the frame has room for {total - 4:,}")
        _check_most("the header", header_bytes, limits.header_bytes_max)
        return int(total) + 4

    def _decode(self, data: bytes | bytearray, at: int, end: int) -> Command:
        """The frame from `at` to `end`, whose lengths were checked."""
        _, typed = _PREFIX.unpack_from(data, at)
        body_at = at + _PREFIX.size + (typed & _LENGTH_MASK)
        body: bytes | memoryview
        if _VIEW_SHARE * (end - body_at) >= len(data):
            body = memoryview(data).toreadonly()[body_at:end]
        else:
            body = bytes(data[body_at:end])
        if typed == _PLAIN_TYPED:
            _, _, code, language, version, opaque, flag, remark_bytes, fields_bytes = _PLAIN.unpack_from(data, at)
            if not remark_bytes and not fields_bytes:
                known = _LANGUAGES.get(language, Language.OTHER)
                return Command(code, opaque, flag, body, {}, "", known, version, Serialization.ROCKETMQ, end - at)
        header = bytes(data[at + _PREFIX.size : body_at])
        kind = typed >> _TYPE_SHIFT
        if kind == Serialization.ROCKETMQ:
            command = _from_binary(header, self._limits)
        elif kind == Serialization.JSON:
            command = _from_json(header, self._limits)
        else:
            raise FrameError(f"serialize type {kind}; 0 (JSON) and 1 (ROCKETMQ) are allowed")
        command.body, command.size = body, end - at
        return command


def _foreign(first: bytes) -> FrameError | None:
    protocol = "TLS" if first.startswith(_TLS_HANDSHAKE) else _FOREIGN.get(first)
    return FrameError(f"the peer speaks {protocol}; this port takes RocketMQ's remoting frames") if protocol else None


def _from_binary(header: bytes, limits: FrameLimits) -> Command:
    if len(header) < _FIXED.size + _INT.size:
        raise FrameError(f"the header: {len(header)} bytes; the ROCKETMQ form has at least {_FIXED.size + _INT.size}")
    code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
    reader = _Reader(header, _FIXED.size)
    remark = reader.text("the remark", remark_bytes, limits.value_bytes_max)
    fields_bytes = reader.number(_INT, "the length of the fields")
    if fields_bytes != reader.left:
        raise FrameError(f"the fields: {fields_bytes:,} bytes; {reader.left:,} are left of the header for them")
    fields: dict[str, str] = {}
    while reader.left:
        size = reader.number(_SHORT, "the length of a name")
        name = reader.text("the name of a field", size, limits.name_bytes_max)
        size = reader.number(_INT, "the length of a value")
        fields[name] = reader.text(f"field {name!r:.60}", size, limits.value_bytes_max)
        _check_most("the fields", len(fields), limits.fields_max, "entries")
    known = _LANGUAGES.get(language, Language.OTHER)
    return Command(code, opaque, flag, b"", fields, remark, known, version)


class _Reader:
    """Reads a header in the ROCKETMQ form from left to right."""

    def __init__(self, header: bytes, at: int) -> None:
        self._header, self._at = header, at

    @property
    def left(self) -> int:
        return len(self._header) - self._at

    def number(self, form: struct.Struct, what: str) -> int:
        if self.left < form.size:
            raise FrameError(f"{what}: the header ends after {self.left} of {form.size} bytes")
        at, self._at = self._at, self._at + form.size
        return int(form.unpack_from(self._header, at)[0])

    def text(self, what: str, size: int, most: int) -> str:
        if not 0 <= size <= self.left:
            raise FrameError(f"{what}: {size:,} bytes, of which the header has {self.left:,}; at least 0 are allowed")
        _check_most(what, size, most)
        at, self._at = self._at, self._at + size
        try:
            return self._header[at : self._at].decode()
        except UnicodeDecodeError as error:
            raise FrameError(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None


def _from_json(header: bytes, limits: FrameLimits) -> Command:
    _check_nesting(header, limits)
    try:
        values = _JSON.decode(header.decode())
    except ValueError as error:  # UnicodeDecodeError, JSONDecodeError, a number of more digits than Python reads
        raise FrameError(f"the header is no JSON in UTF-8: {error}") from None
    if not isinstance(values, dict):
        raise FrameError(f"the header is {_kind(values)} in JSON; an object is allowed")
    fields = values.get("extFields")
    if fields is None:
        fields = {}
    elif not isinstance(fields, dict):
        raise FrameError(f"extFields is {_kind(fields)} in JSON; an object of texts is allowed")
    fields = {name: _json_text(f"field {name!r:.60}", value) for name, value in fields.items() if value is not None}
    _checked_fields(fields, limits)
    remark = "" if values.get("remark") is None else _json_text("the remark", values["remark"])
    _checked_bytes("the remark", remark, limits.value_bytes_max)
    return Command(
        _json_number(values, "code"),
        _json_number(values, "opaque"),
        _json_number(values, "flag"),
        b"",
        fields,
        remark,
        _json_language(values.get("language")),
        _json_number(values, "version"),
        Serialization.JSON,
    )


def _check_nesting(header: bytes, limits: FrameLimits) -> None:
    if header.count(b"{") + header.count(b"[") <= limits.nesting_max:
        return
    depth = 0
    for character in _JSON_TEXT.sub(b"", header):
        if character in b"{[":
            depth += 1
            if depth > limits.nesting_max:
                raise FrameError(
                    f"the header is nested too deep in JSON; at most {limits.nesting_max} levels are allowed"
                )
        elif character in b"}]":
            depth -= 1


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _json_number(values: dict[str, Any], name: str) -> int:
    number = values.get(name)
    if number is None:
        return 0
    if type(number) is not int or not _INT_MIN <= number <= _INT_MAX:
        raise FrameError(f"{name} is {number!r:.60} in JSON; a whole number of 32 bits is allowed")
    return number


def _json_text(what: str, value: object) -> str:
    """A text; numbers and booleans become one, as in RocketMQ."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise FrameError(f"{what} is {_kind(value)} in JSON; a text is allowed")


def _json_language(value: object) -> Language:
    if isinstance(value, str):
        return _LANGUAGE_NAMES.get(value, Language.OTHER)
    return _LANGUAGES.get(value, Language.OTHER) if isinstance(value, int) else Language.OTHER


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
