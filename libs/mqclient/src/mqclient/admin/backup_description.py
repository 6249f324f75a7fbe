"""backup.json: what a folder with a copy of a store holds. It is written last: without it the copy is not complete.

    {"formatVersion": 1, "brokerName": "broker-a", ..., "files": [{"path": ..., "size": ..., ...}], "crc32": "0f3a9c51"}

`crc32` is the last field, over the whole file while its digits are zeros, as in the documents of a store. Their codec
is the broker's, which a client does not import, and gives each the log offset that it covers.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from mqproto.store_backup import VERSION_PATH, check_path

DESCRIPTION_NAME = "backup.json"
FORMAT = 1
_NO_CRC = "0" * 8


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    """One file of the copy: `path` is below the folder, and below the root of a store, where it is `full_size` long."""

    path: str
    size: int
    full_size: int
    crc32: int


@dataclass(frozen=True, slots=True)
class BackupDescription:
    """A copy of the store of `broker_name`, as it was at `timestamp_ms` (ms since 1970, the broker's time).

    The log of the copy runs from `log_min_offset` to `log_max_offset`.
    """

    broker_name: str
    timestamp_ms: int
    log_min_offset: int
    log_max_offset: int
    files: tuple[BackedUpFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """The content of backup.json."""
        fields = {
            "formatVersion": FORMAT,
            "brokerName": self.broker_name,
            "timestampMs": self.timestamp_ms,
            "logMinOffset": self.log_min_offset,
            "logMaxOffset": self.log_max_offset,
            "files": [
                {"path": file.path, "size": file.size, "fullSize": file.full_size, "crc32": f"{file.crc32:08x}"}
                for file in self.files
            ],
        }
        return _sealed(fields)

    @classmethod
    def decode(cls, content: bytes) -> BackupDescription:
        """The inverse. Raises ValueError for what is damaged, newer, or describes no copy of a store."""
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is damaged: {error}") from None
        if not isinstance(fields, dict) or content != _sealed({**fields, "crc32": _NO_CRC}):
            raise ValueError("it is damaged: the CRC does not match")
        version = fields.get("formatVersion")
        if version != FORMAT:
            raise ValueError(f"it is of version {version!r}; this program reads version {FORMAT}")
        return cls(
            fields["brokerName"],
            fields["timestampMs"],
            fields["logMinOffset"],
            fields["logMaxOffset"],
            tuple(_file(file) for file in fields["files"]),
        ).checked()

    def checked(self) -> BackupDescription:
        """Itself. Raises ValueError when it describes no copy of a store."""
        paths = [str(check_path(file.path)) for file in self.files]
        if len(set(paths)) < len(paths) or DESCRIPTION_NAME in paths:
            raise ValueError("a file of it is named twice")
        if VERSION_PATH not in paths:
            raise ValueError(f"it has no file {VERSION_PATH!r}, which every store has")
        if any(not 0 <= file.size <= file.full_size for file in self.files):
            raise ValueError("a file of it is longer than in the store")
        return self


def _file(fields: dict[str, Any]) -> BackedUpFile:
    return BackedUpFile(fields["path"], fields["size"], fields["fullSize"], int(fields["crc32"], 16))


def _sealed(fields: dict[str, Any]) -> bytes:
    content = json.dumps({**fields, "crc32": _NO_CRC}, indent=1) + "\n"
    crc = f'"crc32": "{zlib.crc32(content.encode()):08x}"'
    head, _, tail = content.rpartition(f'"crc32": "{_NO_CRC}"')
    return (head + crc + tail).encode()
