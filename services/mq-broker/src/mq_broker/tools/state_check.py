"""The small files of a store, compared with the log."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mq_broker.core.consumer_offsets import Progress, progress_of
from mq_broker.core.delays import done_of
from mq_broker.core.producer_sequences import ProducerSequences
from mq_broker.core.topics import deletions_of, waiting_queue
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
from mq_broker.tools.findings import CHECKPOINT, CONFIG, VERSION, WATERMARK, DamageMap, Findings
from mq_broker.tools.queue_check import QueueChecks
from mqproto.names import HALF_TOPIC, OP_HALF_TOPIC
from mqproto.record import Record
from osenv import Disk

CONSUMER_OFFSETS = "consumerOffset.json"
STATE_NAMES = (
    CONSUMER_OFFSETS,
    "delayOffset.json",
    "subscriptionGroup.json",
    "topics.json",
    "transactionOffset.json",
)


class PlacesCheck:
    """The log offsets that checkpoint and watermark name: each has to be where a record or a file begins.

    What may differ when the store was not stopped cleanly: a document may speak of log that a power cut has taken; the
    broker brings such offsets back at its next start.
    """

    def __init__(self, state: SmallState, queues: QueueChecks, findings: Findings, *, log_begin: int) -> None:
        self._state, self._queues, self._findings = state, queues, findings
        self._wanted = dict.fromkeys(state.watermarks, WATERMARK)
        self._checkpoint = state.checkpoint
        self._counted: int | None = None
        self._newest_ms = self._newest_below_ms = 0
        if self._checkpoint is not None:
            self._wanted[self._checkpoint.log_offset] = CHECKPOINT
        self.boundary(log_begin)
        for offset in [offset for offset in self._wanted if offset < log_begin]:
            del self._wanted[offset]  # from before that part of the log was deleted

    def record(self, record: Record) -> None:
        """The next whole record of the log."""
        self._newest_ms = max(self._newest_ms, record.store_timestamp_ms)

    def boundary(self, log_offset: int) -> None:
        """A record, a blank or damage has ended there; the queues know everything below."""
        if log_offset in self._wanted:
            del self._wanted[log_offset]
            if self._checkpoint is not None and log_offset == self._checkpoint.log_offset:
                self._counted, self._newest_below_ms = self._queues.count(), self._newest_ms

    def finish(self, log_end: int, damages: DamageMap) -> None:
        """The log has ended."""
        for fault in self._state.watermark_faults:
            self._findings.difference(WATERMARK, fault)
        if self._state.checkpoint_fault:  # it is removed while consume queues are rebuilt
            allowed = self._state.was_open and self._state.checkpoint_fault == MISSING
            self._findings.judge(CHECKPOINT, self._state.checkpoint_fault, allowed=allowed)
        for offset, part in sorted(self._wanted.items()):
            if offset > log_end:
                self._findings.difference(part, f"says durable up to {offset}; the log ends at {log_end}")
            elif not damages.touches(offset):
                self._findings.difference(part, f"names log offset {offset}, where no record begins")
        if self._checkpoint is not None and self._counted is not None:
            self._check_fields(self._checkpoint, self._counted, damages)

    def _check_fields(self, checkpoint: Checkpoint, counted: int, damages: DamageMap) -> None:
        is_whole = self._queues.log_begin == 0 and not damages.any_between(0, checkpoint.log_offset)
        entries, newest_ms = checkpoint.entry_count, checkpoint.newest_store_ms
        if entries != counted if is_whole else entries < counted:
            self._findings.difference(CHECKPOINT, f"counts {entries} consume-queue entries; the log has {counted}")
        newest_below_ms = self._newest_below_ms
        if newest_ms != newest_below_ms if is_whole else newest_ms < newest_below_ms:
            self._findings.difference(
                CHECKPOINT, f"says newest store timestamp {newest_ms}; the log says {newest_below_ms}"
            )
        if not 0 <= checkpoint.index.log_offset <= checkpoint.log_offset:
            self._findings.difference(
                CHECKPOINT,
                f"says that the index reaches {checkpoint.index.log_offset}, the log {checkpoint.log_offset}",
            )


def check_version(state: SmallState, findings: Findings) -> None:
    """Whether this program may judge the store at all. Stores of before there was a version have none."""
    if state.version_fault not in ("", MISSING):
        findings.difference(VERSION, state.version_fault)


def check_documents(state: SmallState, queues: QueueChecks, findings: Findings, log_end: int) -> None:
    """Every file below config/: readable, and not ahead of the log."""
    by_name = {document.name: document for document in state.documents}
    for document in state.documents:
        if document.name.endswith(TEMPORARY):
            findings.note(CONFIG, f"{document.name} is left from a write that did not end")
        elif document.fault:
            backup = by_name.get(document.name + BACKUP)
            rest = "; the version before it is whole" if backup and not backup.fault else ""
            findings.difference(CONFIG, f"{document.name}: {document.fault}{rest}")
        elif document.log_offset is not None and document.log_offset > log_end:
            text = f"{document.name} was written when the log ended at {document.log_offset}; it ends at {log_end}"
            findings.judge(CONFIG, text, allowed=state.was_open)
    for name in STATE_NAMES:
        if name not in by_name:
            findings.judge(CONFIG, f"{name} is missing", allowed=state.was_open and state.checkpoint is None)
    for name, check in _OFFSET_CHECKS.items():
        current = by_name.get(name)
        if current is not None and current.content is not None:
            _check_offsets(current, check, queues, findings, allowed=state.was_open)
    _check_journal(state, queues, findings)


Position = tuple[str, str, int, int]  # owner, topic, queue id, offset


def _check_offsets(
    document: StateDocument,
    positions: Callable[[dict[str, Any]], list[Position]],
    queues: QueueChecks,
    findings: Findings,
    *,
    allowed: bool,
) -> None:
    try:
        found = positions(document.content or {})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        findings.difference(CONFIG, f"{document.name} is not of its form: {type(error).__name__}: {error}")
        return
    for owner, topic, queue_id, offset in found:
        end = queues.end_of(topic, queue_id)
        if offset > end:
            text = f"{document.name}: {owner} is at {offset} of {topic}/{queue_id}, which ends at {end}"
            findings.judge(CONFIG, text, allowed=allowed)


def _check_journal(state: SmallState, queues: QueueChecks, findings: Findings) -> None:
    """Every file of the journal of progress; what is newer than the document must not be ahead of the log."""
    document = next((one for one in state.documents if one.name == CONSUMER_OFFSETS and not one.fault), None)
    covered = document.data_version if document else None
    newest: dict[tuple[str, str, int], Progress | None] = {}
    for file in state.journal:
        for fault in file.faults:
            findings.difference(CONFIG, f"{file.name}: {fault}")
        if file.found.torn:
            findings.note(CONFIG, f"{file.name} ends with {file.found.torn} bytes that are no entry")
        versions = [entry.data_version for entry in file.found.entries]
        if versions != sorted(versions):
            findings.difference(CONFIG, f"{file.name}: its entries are not in the order of their data versions")
        for entry in file.found.entries:
            if covered is not None and entry.data_version > covered:
                newest[entry.group, entry.topic, entry.queue_id] = entry.progress
    for (group, topic, queue_id), progress in newest.items():
        end = queues.end_of(topic, queue_id)
        if progress is not None and progress.end > end:
            text = f"the journal: group {group} is at {progress.end} of {topic}/{queue_id}, which ends at {end}"
            findings.judge(CONFIG, text, allowed=state.was_open)


def _consumer_positions(content: dict[str, Any]) -> list[Position]:
    return [
        (f"group {group}", topic, queue_id, progress.end)
        for (topic, group), queues in progress_of(content).items()
        for queue_id, progress in queues.items()
    ]


def _delay_positions(content: dict[str, Any]) -> list[Position]:
    return [(f"level {level}", *waiting_queue(level), done.end) for level, done in done_of(content).items()]


def _transaction_positions(content: dict[str, Any]) -> list[Position]:
    table = content["offsetTable"]
    return [("the scan", topic, 0, int(table[key])) for key, topic in (("half", HALF_TOPIC), ("op", OP_HALF_TOPIC))]


def _producer_positions(content: dict[str, Any]) -> list[Position]:
    sequences = ProducerSequences()
    sequences.load_json(content)
    return [(f"producer {producer:016x}", topic, queue, offset) for producer, topic, queue, offset in sequences.ends()]


def _deletion_positions(content: dict[str, Any]) -> list[Position]:
    return [
        ("its deletion", topic, queue_id, offset)
        for topic, queues in deletions_of(content).items()
        for queue_id, offset in queues.items()
    ]


_OFFSET_CHECKS: dict[str, Callable[[dict[str, Any]], list[Position]]] = {
    CONSUMER_OFFSETS: _consumer_positions,
    "delayOffset.json": _delay_positions,
    "producerSequence.json": _producer_positions,
    "topics.json": _deletion_positions,
    "transactionOffset.json": _transaction_positions,
}


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
    """The small files of a store as they are on disk: checkpoint, watermark, state documents and their journal, marks,
    what was put aside.

    Everything but log, consume queues and index.

    Invariant: nothing is repaired and nothing is taken for something else; what cannot be read says why.
    """

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
    except OSError:  # a store that this user may not write, or a read-only file system
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
