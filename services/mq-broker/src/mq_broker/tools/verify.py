"""A whole store against its log: one pass over the log, everything else compared on the way."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mq_broker.core.delays import OffsetSet, done_of
from mq_broker.core.rewrite import entry_tags_code
from mq_broker.core.topics import TIMER as TIMER_LEVEL
from mq_broker.core.topics import waiting_queue
from mq_broker.schedule.timer_runs import (
    KEY,
    MANIFEST_NAME,
    DamagedRunError,
    KeyRun,
    Manifest,
    RunEntry,
    decode_manifest,
    run_name,
    run_number,
)
from mq_broker.store.index import IndexPoint
from mq_broker.store.layout import StoreLayout
from mq_broker.store.log_scan import Damage
from mq_broker.store.state_files import decode_document
from mq_broker.tools.findings import INDEX, LOG, TIMER, DamageMap, Finding, Findings
from mq_broker.tools.index_check import FileChains, IndexCheck
from mq_broker.tools.queue_check import QueueChecks
from mq_broker.tools.state_check import PlacesCheck, SmallState, check_documents, check_version, read_whole
from mq_broker.tools.stored_files import (
    IndexLengthError,
    IndexReader,
    StoredFiles,
    Tail,
    index_names,
    read_log,
    record_at,
)
from mqproto.properties import PropertiesError
from mqproto.record import CRC_MASK, Record
from osenv import Disk


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification has looked at, and how much of it was wrong.

    Invariants: nothing is written; memory grows with the number of queues and of damaged stretches, not with the log.
    """

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
    check_version(state, findings)
    files = StoredFiles(disk, layout.commit_log, layout.commit_log_file_bytes)
    for fault in files.faults:
        findings.difference(LOG, fault)
    if _was_never_used(disk, layout, state, files):
        findings.note(LOG, "nothing was ever stored here; the first start has not ended")
        return Verdict(files.begin, files.begin, 0, 0, findings.differences, findings.hidden)
    for short in files.short:
        findings.note(LOG, short)
    queues = QueueChecks(disk, layout, findings, damages, log_begin=files.begin)
    if state.was_open:
        queues.safe_end = state.checkpoint.log_offset if state.checkpoint else 0
    index = _index_check(disk, layout, state, log=files, findings=findings, damages=damages, slots=index_slots)
    places = PlacesCheck(state, queues, findings, log_begin=files.begin)
    walk = _Walk(state, findings, damages, queues, index, places)
    try:
        walk.run(files)
    finally:
        files.close()
    check_documents(state, queues, findings, walk.log_end)
    check_timer(disk, layout, state, queues.end_of(*waiting_queue(TIMER_LEVEL)), findings)
    entries = index.entries if index else 0
    return Verdict(files.begin, walk.log_end, walk.records, entries, findings.differences, findings.hidden)


@dataclass
class _Walk:
    """The pass over the log."""

    state: SmallState
    findings: Findings
    damages: DamageMap
    queues: QueueChecks
    index: IndexCheck | None
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
        if self.index is not None:
            self.index.finish(self.log_end, self.state.checkpoint, was_open=self.state.was_open)
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
        if self.index is not None:
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


def _was_never_used(disk: Disk, layout: StoreLayout, state: SmallState, log: StoredFiles) -> bool:
    """Whether all that is here is what a first start makes before it is ready."""
    made_later = (layout.checkpoint, layout.consume_queues, layout.index, layout.quarantine)
    return (
        not any(disk.exists(path) for path in made_later)
        and not state.documents
        and state.durable_end == log.begin == 0
        and record_at(log, 0) is None
    )


def _index_check(
    disk: Disk,
    layout: StoreLayout,
    state: SmallState,
    *,
    log: StoredFiles,
    findings: Findings,
    damages: DamageMap,
    slots: int | None,
) -> IndexCheck | None:
    """The comparison of the index files; None when one of them cannot be read at all, which is a difference."""
    readers: list[IndexReader] = []
    strange: dict[int, str] = {}
    for name in index_names(disk, layout.index):
        try:
            readers.append(IndexReader(disk, layout.index / name, slots=slots))
        except IndexLengthError as error:
            strange[int(name)] = str(error)
    point = state.checkpoint.index if state.checkpoint else _point_of_heads(readers)
    is_readable = True
    for number, fault in strange.items():
        allowed = state.was_open and number > point.file_name
        findings.judge(INDEX, fault, allowed=allowed)
        is_readable &= allowed
    if not is_readable:
        for reader in readers:
            reader.close()
        return None
    files: list[FileChains] = []
    is_off = state.checkpoint is not None and point == IndexPoint()
    for reader in readers:
        if is_off:
            findings.note(INDEX, f"{reader.path.name} is left from when the index was switched on")
            reader.close()
            continue
        if reader.number > point.file_name:
            text = f"{reader.path.name} is newer than the file in which the index ends, {point.file_name:017d}"
            findings.judge(INDEX, text, allowed=state.was_open or state.checkpoint is None)
            reader.close()
            continue
        is_last = reader.number == point.file_name
        end = point.next_number if is_last else reader.size.entries
        files.append(FileChains(reader, end, findings, is_open=is_last and state.was_open))
    if point.file_name and all(reader.number != point.file_name for reader in readers):
        findings.difference(INDEX, f"{point.file_name:017d} is missing, in which the checkpoint says the index ends")
    return IndexCheck(files, point, log, findings, damages)


def _point_of_heads(readers: list[IndexReader]) -> IndexPoint:
    """How far the index says itself that it is, when no checkpoint tells."""
    for reader in reversed(readers):
        if reader.head.next_number > 1:
            return IndexPoint(reader.number, reader.head.next_number, reader.head.end_offset + 1)
    return IndexPoint()


# The order of due times against the queue of the timer: every run whole and in order, and nothing that waits left out.
#
# Invariants: nothing is written; one block is in memory, and a bit for each message of the queue.
#
# What may differ: the files of a write that did not end stay until the next start. Beside a broker that is at work,
# runs that its manifest names may be gone a moment later. Whether a message waits is known after a clean stop only;
# else the log has more to say than the files.

DELAY_OFFSETS = "delayOffset.json"


def read_timer(disk: Disk, layout: StoreLayout) -> tuple[Manifest | None, str]:
    """The manifest of the order of due times, or what is wrong with it; neither when there is none. Raises OSError."""
    data = read_whole(disk, layout.timer / MANIFEST_NAME)
    try:
        return (None if data is None else decode_manifest(decode_document(data))), ""
    except ValueError as error:
        return None, str(error)


def check_timer(disk: Disk, layout: StoreLayout, state: SmallState, queue_end: int, findings: Findings) -> None:
    """Look at every file of the folder; `queue_end` is where the timer's queue ends. Raises OSError."""
    manifest, fault = read_timer(disk, layout)
    if fault:
        findings.difference(TIMER, f"{MANIFEST_NAME}: {fault}")
        return
    runs = manifest.runs if manifest else ()
    named = {MANIFEST_NAME, *(run_name(run.number) for run in runs)}
    for name in disk.list_dir(layout.timer):
        if name not in named:
            text = f"{name} is a file that {MANIFEST_NAME} does not name"
            ours = run_number(name) is not None or name.startswith(MANIFEST_NAME)
            findings.judge(TIMER, text, allowed=state.was_open or not ours)
    if manifest is not None:
        _TimerCheck(disk, layout.timer, state, manifest, findings).run(queue_end)


@dataclass
class _TimerCheck:
    """The runs that a manifest names."""

    disk: Disk
    folder: Path
    state: SmallState
    manifest: Manifest
    findings: Findings
    told: OffsetSet = field(default_factory=OffsetSet)  # queue offsets of keys that are still needed

    def run(self, queue_end: int) -> None:
        covered = self.manifest.covered
        if covered > queue_end:
            self.findings.difference(TIMER, f"tells of {covered} messages; the queue ends at {queue_end}")
        readable = [self._check_run(entry) for entry in self.manifest.runs]
        if all(readable) and not self.state.was_open:
            self._check_missing(min(covered, queue_end))

    def _check_run(self, entry: RunEntry) -> bool:
        """Whether all of it can be read."""
        before, misplaced = b"", 0
        try:
            run = KeyRun(self.disk, self.folder, entry.number, entry.blocks)
        except DamagedRunError as error:
            self.findings.judge(TIMER, str(error), allowed=self.state.is_changing)
            return False
        try:
            for block in range(entry.blocks):
                for key in run.read(block):
                    offset = KEY.unpack(key)[1]
                    misplaced += key <= before or offset >= self.manifest.covered
                    before = key
                    if block >= entry.from_block:
                        self.told.add(offset)
        except DamagedRunError as error:
            self.findings.difference(TIMER, str(error))
            return False
        finally:
            run.close()
        if misplaced:
            text = f"{misplaced} keys are out of order, or of messages from {self.manifest.covered} on"
            self.findings.difference(TIMER, f"{run.path}: {text}")
        return True

    def _check_missing(self, end: int) -> None:
        """What waits and is in no run. A document that cannot be read has been reported."""
        document = next((one for one in self.state.documents if one.name == DELAY_OFFSETS), None)
        try:
            done = done_of(document.content).get(TIMER_LEVEL, OffsetSet()) if document and document.content else None
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        if done is None:
            return
        missing = [offset for offset in range(done.next, end) if offset not in self.told and offset not in done]
        if missing:
            text = f"{len(missing)} messages wait and are in no run, the first is number {missing[0]} of the queue"
            self.findings.difference(TIMER, text)
