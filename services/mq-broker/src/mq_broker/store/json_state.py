"""Small state as JSON files under config/, each with its previous version beside it (MISSION S5)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from osenv import Disk, replace_file
from osenv.disk import read_file

log = logging.getLogger(__name__)

LOG_OFFSET = "logOffset"  # every document names the log offset that it covers
FORMAT_VERSION = "formatVersion"
FORMAT = 1


def encode_document(document: dict[str, Any], log_offset: int) -> bytes:
    """The file's bytes."""
    return json.dumps({**document, LOG_OFFSET: log_offset, FORMAT_VERSION: FORMAT}, indent=1).encode() + b"\n"


def write_document(disk: Disk, path: Path, content: bytes) -> None:
    """Durable on return, the previous content kept as .bak."""
    disk.make_dirs(path.parent)
    replace_file(disk, path, content)


def read_document(disk: Disk, path: Path) -> dict[str, Any] | None:
    """The document, or its previous version when it is missing or damaged, or None when both are.

    A damaged file is reported in the log; it is never taken for an empty one.
    """
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            document = json.loads(read_file(disk, candidate))
        except FileNotFoundError:
            continue
        except ValueError as error:
            log.error("%s is damaged: %s", candidate, error)  # noqa: TRY400 - the sentence says it all
            continue
        if isinstance(document, dict) and document.get(FORMAT_VERSION, FORMAT) == FORMAT:
            return document
        log.error("%s is not a document of format version %d", candidate, FORMAT)
    return None
