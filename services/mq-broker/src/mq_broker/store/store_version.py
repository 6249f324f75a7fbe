"""The version of a store as a whole: who is older than it must not touch it (Hourglass's own file, FORMAT.md).

It speaks for everything that has no version of its own: log, consume queues, index, checkpoint, watermark, journal. A
store without the file is RocketMQ's, or was written before there was one: version 1.

Invariant: the file is on disk before anything else is written into a new store, and no store is changed before its
version has been looked at.
"""

from __future__ import annotations

import logging
import re
import zlib
from pathlib import Path

from mq_broker.store.errors import StoreDamagedError, StoreVersionError
from mq_broker.store.json_state import NewerFormatError, decode_document
from mq_broker.store.layout import StoreLayout
from osenv import Disk, SyncError, replace_file
from osenv.disk import read_file

log = logging.getLogger(__name__)

STORE_VERSION = 1  # the newest that this program knows
LINE_BYTES, LINES = 512, 2  # the same line twice, a sector each
_LINE = re.compile(r"Hourglass store, version (\d+), crc32 ")
_DOCUMENT = re.compile(r".+\.json(\.bak)?")


def encode_version(version: int) -> bytes:
    """The file's bytes."""
    return _line(version) * LINES


def decode_version(data: bytes) -> int:
    """The inverse: what the largest whole line says. Raises ValueError when there is none."""
    versions = []
    for at in range(0, len(data), LINE_BYTES):
        line = data[at : at + LINE_BYTES]
        match = _LINE.match(line.decode("ascii", "replace"))
        if match is not None and line == _line(int(match[1])):
            versions.append(int(match[1]))
    if not versions:
        raise ValueError("no line of it is whole")
    return max(versions)


def _line(version: int) -> bytes:
    text = f"Hourglass store, version {version}"
    return f"{text}, crc32 {zlib.crc32(text.encode()):08x}".ljust(LINE_BYTES - 1).encode() + b"\n"


def refuse_newer(disk: Disk, layout: StoreLayout) -> None:
    """Look at a store before anything is done to it.

    Raises StoreVersionError when this program is too old for the store or for one of its documents, StoreDamagedError
    when nobody can tell, OSError.
    """
    try:
        version = decode_version(read_file(disk, layout.version))
    except FileNotFoundError:
        version = None
    except ValueError as error:
        raise StoreDamagedError(
            f"{layout.version} is damaged, {error}, so that the store may be of a newer version; nothing has been "
            f"changed. If this program, or an older one, has written the store, remove the file"
        ) from error
    if version is not None and version > STORE_VERSION:
        raise _too_new(layout.version, version, STORE_VERSION)
    for name in disk.list_dir(layout.config):
        if _DOCUMENT.fullmatch(name):
            _refuse_newer_document(disk, layout.config / name)


def mark_version(disk: Disk, layout: StoreLayout) -> None:
    """Have the version written down, durably: where it is not yet, and where one of its lines is damaged.

    Raises OSError; for a store in use only SyncError.
    """
    whole = encode_version(STORE_VERSION)
    try:
        if disk.exists(layout.version):
            if read_file(disk, layout.version) == whole:
                disk.sync_dir(layout.root)  # who wrote it may have been killed before its name was on disk
                return
            log.error("%s is damaged, and written anew", layout.version)
        replace_file(disk, layout.version, whole, keep_previous=False)
    except OSError as error:
        is_new = not disk.list_dir(layout.commit_log)
        if is_new or isinstance(error, SyncError):
            raise
        log.warning("%s could not be written: %s", layout.version, error)


def _refuse_newer_document(disk: Disk, path: Path) -> None:
    try:
        decode_document(read_file(disk, path))
    except NewerFormatError as error:
        raise _too_new(path, error.version, error.known) from error
    except ValueError:
        return  # damage: whoever needs the document reports it


def _too_new(path: Path, version: int, known: int) -> StoreVersionError:
    return StoreVersionError(
        f"{path} says version {version}, and this program knows versions up to {known}: a newer one has written the "
        "store; start that one; nothing has been changed"
    )
