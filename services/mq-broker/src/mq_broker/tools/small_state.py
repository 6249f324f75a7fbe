"""The small files of a store as they are on disk: checkpoint, watermark, state documents and their journal, marks, what
was put aside.

Invariant: nothing is repaired and nothing is taken for something else; what cannot be read says why.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mq_broker.store.durability import SLOT_BYTES, SLOTS, encode_slot
from mq_broker.store.layout import (
    CHECKPOINT_BYTES,
    STORE_VERSION,
    Checkpoint,
    StoreLayout,
    decode_version,
    encode_version,
)
from mq_broker.store.progress_journal import Scan, journal_number, scan
from mq_broker.store.state_files import FORMAT_VERSION, LOG_OFFSET, decode_document
from osenv import Disk

TEMPORARY, BACKUP = ".tmp", ".bak"
MISSING = "missing"
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class StateDocument:
    """One file below config/. Either `content` or `fault` is set."""

    name: str
    content: dict[str, Any] | None = None
    fault: str = ""

    @property
    def log_offset(self) -> int | None:
        """The log's end when it was written; None in a document of another broker."""
        offset = self.content.get(LOG_OFFSET) if self.content else None
        return offset if isinstance(offset, int) else None

    @property
    def data_version(self) -> int | None:
        """How often it had changed when it was written."""
        version = self.content.get("dataVersion") if self.content else None
        counter = version.get("counter") if isinstance(version, dict) else None
        return counter if isinstance(counter, int) else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the content itself."""
        content = self.content or {}
        return {
            "name": self.name,
            "format_version": content.get(FORMAT_VERSION),
            "data_version": self.data_version,
            "log_offset": self.log_offset,
            "fault": self.fault,
        }


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One file of the journal of progress."""

    name: str
    found: Scan

    @property
    def faults(self) -> list[str]:
        """What cannot be read before whole entries."""
        return [f"{size} bytes at {at} are no entry" for at, size in self.found.damages]

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the entries themselves."""
        versions = [entry.data_version for entry in self.found.entries]
        return {
            "name": self.name,
            "entries": len(versions),
            "first_data_version": min(versions, default=None),
            "last_data_version": max(versions, default=None),
            "torn_bytes": self.found.torn,
            "faults": self.faults,
        }


@dataclass(frozen=True, slots=True)
class SmallState:
    """Everything but log, consume queues and index."""

    version: int | None  # None without one that can be read
    version_fault: str
    lock: str
    was_open: bool
    checkpoint: Checkpoint | None
    checkpoint_fault: str
    watermarks: list[int]
    watermark_faults: list[str]
    documents: list[StateDocument]
    journal: list[JournalFile] = field(default_factory=list)  # in the order in which they were written
    put_aside: list[str] = field(default_factory=list)

    @property
    def durable_end(self) -> int:
        """The log offset below which everything had been synced, as far as the files tell."""
        return max([self.checkpoint.log_offset if self.checkpoint else 0, *self.watermarks])

    @property
    def is_changing(self) -> bool:
        """Whether a broker has the store right now."""
        return self.lock == HELD


HELD, FREE, UNKNOWN = "held", "free", "unknown"


def read_small_state(disk: Disk, layout: StoreLayout) -> SmallState:
    """Read it all. Raises OSError."""
    version, version_fault = _read_version(disk, layout)
    checkpoint, checkpoint_fault = _read_checkpoint(disk, layout)
    watermarks, watermark_faults = _read_watermarks(disk, layout)
    names = disk.list_dir(layout.config)
    journal = sorted((number, name) for name in names if (number := journal_number(name)) is not None)
    return SmallState(
        version=version,
        version_fault=version_fault,
        lock=_probe_lock(disk, layout.lock),
        was_open=disk.exists(layout.abort),
        checkpoint=checkpoint,
        checkpoint_fault=checkpoint_fault,
        watermarks=watermarks,
        watermark_faults=watermark_faults,
        documents=[_read_document(disk, layout.config / name) for name in names if journal_number(name) is None],
        journal=[JournalFile(name, scan(read_whole(disk, layout.config / name) or b"")) for _, name in journal],
        put_aside=disk.list_dir(layout.quarantine),
    )


def read_whole(disk: Disk, path: Path) -> bytes | None:
    """The content, None when there is no such file. Raises OSError."""
    try:
        file = disk.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _probe_lock(disk: Disk, path: Path) -> str:
    """Whether a process has the store. There is no way to ask but to try: a free lock is given back at once."""
    if not disk.exists(path):
        return FREE
    try:
        disk.lock(path).release()
    except BlockingIOError:
        return HELD
    except OSError:  # a store that this user, or this file system, lets nobody write
        return UNKNOWN
    return FREE


def _read_version(disk: Disk, layout: StoreLayout) -> tuple[int | None, str]:
    data = read_whole(disk, layout.version)
    if data is None:
        return None, MISSING
    try:
        version = decode_version(data)
    except ValueError as error:
        return None, f"damaged: {error}"
    if version > STORE_VERSION:
        return version, f"version {version}; this program knows versions up to {STORE_VERSION}"
    return version, "" if data == encode_version(version) else "one of its lines is damaged"


def _read_checkpoint(disk: Disk, layout: StoreLayout) -> tuple[Checkpoint | None, str]:
    data = read_whole(disk, layout.checkpoint)
    if data is None:
        return None, MISSING
    checkpoint = Checkpoint.decode(data)
    if checkpoint is not None:
        return checkpoint, ""
    length = f"{len(data)} bytes long, not {CHECKPOINT_BYTES}"
    return None, length if len(data) != CHECKPOINT_BYTES else "the CRC does not match"


def _read_watermarks(disk: Disk, layout: StoreLayout) -> tuple[list[int], list[str]]:
    data = read_whole(disk, layout.watermark)
    if data is None:
        return [], [MISSING]
    offsets, faults = [], []
    if len(data) != SLOTS * SLOT_BYTES:
        faults.append(f"{len(data)} bytes long, not {SLOTS * SLOT_BYTES}")
    for number in range(SLOTS):
        slot = data[number * SLOT_BYTES : (number + 1) * SLOT_BYTES]
        if not slot.strip(b"\0"):
            continue  # never written
        offset = struct.unpack_from(">q", slot.ljust(_OFFSET_BYTES, b"\0"))[0]
        if slot == encode_slot(offset).ljust(SLOT_BYTES, b"\0"):
            offsets.append(offset)
        else:
            faults.append(f"slot {number} is damaged: the CRC does not match")
    return offsets, faults


def _read_document(disk: Disk, path: Path) -> StateDocument:
    data = read_whole(disk, path)
    if data is None:
        return StateDocument(path.name, fault="gone since the folder was listed")
    try:
        return StateDocument(path.name, decode_document(data))
    except ValueError as error:
        return StateDocument(path.name, fault=str(error))
