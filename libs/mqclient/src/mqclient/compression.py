"""Compressed bodies, as RocketMQ marks them in the sysflag of a record.

RocketMQ 4 knows zlib alone and does not say so; RocketMQ 5 names the type. Hourglass writes zlib, with its type, and
reads both spellings. The two other types need packages that Hourglass does not depend on.
"""

from __future__ import annotations

import zlib

from mqclient.errors import UnreadableBodyError
from mqproto.record import (
    FLAG_COMPRESSED,
    FLAG_COMPRESSION_LZ4,
    FLAG_COMPRESSION_TYPE_MASK,
    FLAG_COMPRESSION_ZLIB,
    FLAG_COMPRESSION_ZSTD,
)

ZLIB_FLAGS = FLAG_COMPRESSED | FLAG_COMPRESSION_ZLIB
# A producer takes bodies of up to 4 MiB before it compresses them (MISSION M7), one of RocketMQ more if it is told so.
# A few KiB can become gigabytes, so there has to be an end.
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
_ZLIB_TYPES = frozenset({0, FLAG_COMPRESSION_ZLIB})
_OTHER_TYPES = {FLAG_COMPRESSION_LZ4: "LZ4", FLAG_COMPRESSION_ZSTD: "ZSTD"}


def compress(body: bytes, level: int) -> bytes | None:
    """The body in zlib's format; None when that would not be smaller."""
    compressed = zlib.compress(body, level)
    return compressed if len(compressed) < len(body) else None


def decompress(body: bytes, sys_flag: int, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The body as its producer gave it. Raises UnreadableBodyError."""
    if not sys_flag & FLAG_COMPRESSED:
        return body
    kind = sys_flag & FLAG_COMPRESSION_TYPE_MASK
    if kind not in _ZLIB_TYPES:
        name = _OTHER_TYPES.get(kind, f"type {kind >> 8}")
        raise UnreadableBodyError(f"the body is compressed with {name}; this client reads zlib only")
    decompressor = zlib.decompressobj()
    try:
        result = decompressor.decompress(body, bytes_max)
    except zlib.error as error:
        raise UnreadableBodyError(f"the body is marked as compressed with zlib, and is not: {error}") from error
    if decompressor.unconsumed_tail:
        raise UnreadableBodyError(f"the body becomes larger than {bytes_max:,} bytes when it is decompressed")
    if not decompressor.eof:
        raise UnreadableBodyError("the compressed body ends before its end")
    return result
