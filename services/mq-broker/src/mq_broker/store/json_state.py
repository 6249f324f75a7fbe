"""Small state as JSON files under config/, each with its previous version beside it (MISSION S5).

Each document carries its own CRC, so that a damaged digit is noticed. Documents without one come from RocketMQ.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from pathlib import Path
from typing import Any

from osenv import Disk, replace_file
from osenv.disk import read_file

log = logging.getLogger(__name__)

LOG_OFFSET = "logOffset"  # every document names the log offset that it covers
FORMAT_VERSION = "formatVersion"
FORMAT = 1
_BARE_NUMBER = re.compile(rb"([{,]\s*)(\d+)\s*:")
CRC32 = "crc32"  # the last field: eight hexadecimal digits over the whole file, taken while they are zeros
_CRC_HEAD, _CRC_DIGITS, _CRC_TAIL = f'"{CRC32}": "'.encode(), 8, b'"\n}\n'


class NewerFormatError(ValueError):
    """The document is whole, and of a version that this program does not know."""

    def __init__(self, version: int, known: int) -> None:
        super().__init__(f"format version {version}; this broker reads version {known}")
        self.version, self.known = version, known


def encode_document(document: dict[str, Any], log_offset: int) -> bytes:
    """The file's bytes."""
    fields = {**document, LOG_OFFSET: log_offset, FORMAT_VERSION: FORMAT, CRC32: "0" * _CRC_DIGITS}
    lines = ",\n".join(f" {json.dumps(name)}: {_json(value)}" for name, value in fields.items())
    data = f"{{\n{lines}\n}}\n".encode()
    digits_at = len(data) - len(_CRC_TAIL) - _CRC_DIGITS
    return data[:digits_at] + b"%08x" % zlib.crc32(data) + _CRC_TAIL


def _json(value: Any) -> str:
    """As json.dumps, an entry of a table at a time: one call of it lets no other thread run until it is over."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{" + ", ".join([f"{json.dumps(str(name))}: {json.dumps(entry)}" for name, entry in value.items()]) + "}"


def decode_document(data: bytes) -> dict[str, Any]:
    """The inverse. Raises NewerFormatError, and ValueError when the bytes are damaged."""
    if CRC32.encode() not in data:
        data = _BARE_NUMBER.sub(rb'\1"\2":', data)  # RocketMQ's JSON library writes {0:7} for {"0":7}
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one kind of error for every kind of damage
    if FORMAT_VERSION not in document and CRC32 not in document:
        return document  # RocketMQ's
    digits_at = len(data) - len(_CRC_TAIL) - _CRC_DIGITS
    head_at = digits_at - len(_CRC_HEAD)
    zeroed = data[:digits_at] + b"0" * _CRC_DIGITS + _CRC_TAIL
    if (
        data[head_at:digits_at] != _CRC_HEAD
        or not data.endswith(_CRC_TAIL)
        or document.get(CRC32) != f"{zlib.crc32(zeroed):08x}"
    ):
        raise ValueError("the CRC does not match")
    version = document.get(FORMAT_VERSION)
    if type(version) is not int or version < 1:
        raise ValueError(f"the format version is {version!r}")
    if version > FORMAT:
        raise NewerFormatError(version, FORMAT)
    return document


def write_document(disk: Disk, path: Path, content: bytes, *, keep_previous: bool = True) -> None:
    """Durable on return, the previous content kept as .bak."""
    disk.make_dirs(path.parent)
    replace_file(disk, path, content, keep_previous=keep_previous)


def read_document(disk: Disk, path: Path) -> dict[str, Any] | None:
    """The document, or None when it is missing or damaged; damage is reported in the log.

    Raises NewerFormatError, OSError.
    """
    try:
        return decode_document(read_file(disk, path))
    except FileNotFoundError:
        return None
    except NewerFormatError:
        raise
    except ValueError as error:
        log.error("%s is damaged: %s", path, error)  # noqa: TRY400 - the sentence says it all
        return None
