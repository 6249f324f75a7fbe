"""A peer of the other protocol: what shows that it speaks HTTP/2, and an answer that its gRPC client understands.

A gRPC server writes its settings as soon as a connection is made, and a client the preface: either is no frame, and no
frame begins so. Nothing else shows it: a connection that breaks or stays silent says nothing about its peer.

The answer to each call is a status with a sentence, in so little of HTTP/2 that no header has to be decoded. A client
that gets no status, but a GOAWAY or the end of the connection, tries again and again until its time is over.
"""

from __future__ import annotations

from urllib.parse import quote

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PREFACE_SHOWN_BYTES = 4  # as the length of a frame they would be 1.3 GB
_HEAD_BYTES = 9
_HEADERS, _SETTINGS, _PING = 1, 4, 6
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_SETTING_BYTES, _SETTINGS_MAX = 6, 64
_FRAME_BYTES_MAX = 16_384  # HTTP/2's, unless a side allows more
_FAILED_PRECONDITION = 9  # of gRPC: the same call would fail again


def is_preface(data: bytes) -> bool:
    """Whether an HTTP/2 client begins like this."""
    return data[:_PREFACE_SHOWN_BYTES] == PREFACE[:_PREFACE_SHOWN_BYTES]


def is_settings(data: bytes) -> bool:
    """Whether an HTTP/2 server begins like this: settings on stream 0, which have a length that fits."""
    count, rest = divmod(int.from_bytes(data[:3], "big"), _SETTING_BYTES)
    return not rest and count <= _SETTINGS_MAX and data[3:_HEAD_BYTES] == bytes([_SETTINGS, 0, 0, 0, 0, 0])


class Rejection:
    """Answers each gRPC call of a connection with `sentence`; bytes in, bytes out."""

    def __init__(self, sentence: str) -> None:
        self._trailers = _literal("grpc-message", quote(sentence[:1_000], safe=" ;,:/'()"))
        self._received = bytearray()
        self._is_begun = False

    def feed(self, data: bytes) -> bytes | None:
        """What to write; None when the connection is to be closed, because no HTTP/2 comes."""
        self._received += data
        answer = b""
        if not self._is_begun:
            if len(self._received) < len(PREFACE):
                return answer if PREFACE.startswith(self._received) else None
            if not self._received.startswith(PREFACE):
                return None
            del self._received[: len(PREFACE)]
            self._is_begun = True
            answer = _frame(_SETTINGS, 0, 0, b"")
        while len(self._received) >= _HEAD_BYTES:
            size = int.from_bytes(self._received[:3], "big")
            if size > _FRAME_BYTES_MAX:
                return None
            if len(self._received) < _HEAD_BYTES + size:
                break
            kind, flags = self._received[3], self._received[4]
            stream = int.from_bytes(self._received[5:_HEAD_BYTES], "big")
            body = bytes(self._received[_HEAD_BYTES : _HEAD_BYTES + size])
            del self._received[: _HEAD_BYTES + size]
            answer += self._answer(kind, flags, stream, body)
        return answer

    def _answer(self, kind: int, flags: int, stream: int, body: bytes) -> bytes:
        if kind == _HEADERS:
            headers = (
                b"\x88"  # :status 200, of HTTP/2's own table
                + _literal("content-type", "application/grpc")
                + _literal("grpc-status", str(_FAILED_PRECONDITION))
                + self._trailers
            )
            return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, headers)
        if kind in {_SETTINGS, _PING} and not flags & _ACK:
            return _frame(kind, _ACK, 0, body if kind == _PING else b"")
        return b""


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _literal(name: str, value: str) -> bytes:
    """A header that neither side's table has to know (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    data = text.encode()
    prefix = 127
    if len(data) < prefix:
        return bytes([len(data)]) + data
    rest, length = len(data) - prefix, [prefix]
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + data
