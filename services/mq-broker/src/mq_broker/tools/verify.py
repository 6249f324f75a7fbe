"""A whole store against its log: one pass over the log, everything else compared on the way.

Invariants: nothing is written; memory grows with the number of queues and of damaged stretches, not with the log.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from mq_broker.core.rewrite import entry_tags_code
from mq_broker.store.index import IndexPoint
from mq_broker.store.layout import StoreLayout
from mq_broker.store.log_scan import Damage
from mq_broker.tools.findings import INDEX, LOG, DamageMap, Finding, Findings
from mq_broker.tools.index_chains import FileChains
from mq_broker.tools.index_check import IndexCheck
from mq_broker.tools.index_reader import IndexLengthError, IndexReader, index_names
from mq_broker.tools.log_reader import Tail, read_log
from mq_broker.tools.queue_check import QueueChecks
from mq_broker.tools.small_state import SmallState
from mq_broker.tools.state_check import PlacesCheck, check_documents
from mq_broker.tools.stored_files import StoredFiles
from mqproto.properties import PropertiesError
from mqproto.record import CRC_MASK, Record
from osenv import Disk


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification has looked at, and how much of it was wrong."""

    log_begin: int
    log_end: int
    records: int
    index_entries: int
    differences: int
    hidden: int

    def __str__(self) -> str:
        looked_at = (
            f"{self.records} records from {self.log_begin} to {self.log_end}, {self.index_entries} index entries"
        )
        hidden = f" ({self.hidden} more lines than shown)" if self.hidden else ""
        return f"{looked_at}: {self.differences} differences{hidden}"


def verify(
    disk: Disk,
    layout: StoreLayout,
    state: SmallState,
    show: Callable[[Finding], None],
    *,
    index_slots: int | None = None,
) -> Verdict:
    """Compare everything; `show` gets the findings as they are made. Raises OSError."""
    findings, damages = Findings(show), DamageMap()
    files = StoredFiles(disk, layout.commit_log)
    for fault in files.faults:
        findings.difference(LOG, fault)
    for fault in files.short:
        findings.judge(LOG, fault, allowed=state.was_open)
    queues = QueueChecks(disk, layout, findings, damages, log_begin=files.begin)
    if state.was_open:
        queues.safe_end = state.checkpoint.log_offset if state.checkpoint else 0
    index = _index_check(
        disk, layout, state, findings=findings, damages=damages, log_begin=files.begin, slots=index_slots
    )
    places = PlacesCheck(state, queues, findings, log_begin=files.begin)
    walk = _Walk(state, findings, damages, queues, index, places)
    try:
        walk.run(files)
    finally:
        files.close()
    check_documents(state, queues, findings, walk.log_end)
    return Verdict(files.begin, walk.log_end, walk.records, index.entries, findings.differences, findings.hidden)


@dataclass
class _Walk:
    """The pass over the log."""

    state: SmallState
    findings: Findings
    damages: DamageMap
    queues: QueueChecks
    index: IndexCheck
    places: PlacesCheck
    records: int = 0
    log_end: int = 0

    def run(self, files: StoredFiles) -> None:
        for found in read_log(files, files.begin, self.state.durable_end):
            if isinstance(found, Record):
                self._record(found)
            elif isinstance(found, Damage):
                self._damage(found)
            elif isinstance(found, Tail):
                self._tail(found)
                break
            self.places.boundary(found.log_offset + found.size)
        self.queues.finish(self.log_end)
        self.index.finish()
        self.places.finish(self.log_end, self.damages)

    def _record(self, record: Record) -> None:
        self.records += 1
        if zlib.crc32(record.body) & CRC_MASK != record.body_crc:
            self.findings.difference(LOG, f"the record at {record.log_offset}: the body does not match its CRC")
        try:
            code = entry_tags_code(record)
        except (PropertiesError, ValueError) as error:
            self.findings.difference(LOG, f"the record at {record.log_offset}: {error}")
            return
        self.queues.record(record, code)
        self.index.record(record)
        self.places.record(record)

    def _damage(self, damage: Damage) -> None:
        self.damages.add(damage)
        name = f"{damage.log_offset:020d}-"
        known = ", a copy is in quarantine" if any(put.startswith(name) for put in self.state.put_aside) else ""
        self.findings.difference(
            LOG, f"offsets {damage.log_offset} to {damage.end - 1} are damaged: {damage.reason}{known}"
        )

    def _tail(self, tail: Tail) -> None:
        self.log_end = tail.log_offset
        if tail.written:
            last = tail.log_offset + tail.written - 1
            text = f"the log ends at {tail.log_offset}; what stands there up to {last} is no record: {tail.reason}"
            self.findings.judge(LOG, text, allowed=self.state.was_open)


def _index_check(
    disk: Disk,
    layout: StoreLayout,
    state: SmallState,
    *,
    findings: Findings,
    damages: DamageMap,
    log_begin: int,
    slots: int | None,
) -> IndexCheck:
    readers = []
    for name in index_names(disk, layout.index):
        try:
            readers.append(IndexReader(disk, layout.index / name, slots=slots))
        except IndexLengthError as error:
            findings.difference(INDEX, str(error))
    point = state.checkpoint.index if state.checkpoint else _point_of_heads(readers)
    files: list[FileChains] = []
    for reader in readers:
        if reader.number > point.file_name:
            text = f"{reader.path.name} is newer than the file in which the index ends, {point.file_name:017d}"
            findings.judge(INDEX, text, allowed=state.was_open or state.checkpoint is None)
            reader.close()
            continue
        is_last = reader.number == point.file_name
        end = point.next_number if is_last else reader.size.entries
        files.append(FileChains(reader, end, findings, is_open=is_last and state.was_open))
    if point.file_name and point.file_name not in {reader.number for reader in readers}:
        findings.difference(INDEX, f"{point.file_name:017d} is missing, in which the checkpoint says the index ends")
    return IndexCheck(files, point, findings, damages, log_begin=log_begin)


def _point_of_heads(readers: list[IndexReader]) -> IndexPoint:
    """How far the index says itself that it is, when no checkpoint tells."""
    for reader in reversed(readers):
        if reader.head.next_number > 1:
            return IndexPoint(reader.number, reader.head.next_number, reader.head.end_offset + 1)
    return IndexPoint()
