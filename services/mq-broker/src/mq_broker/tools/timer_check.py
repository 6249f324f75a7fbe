"""The order of due times against the queue of the timer: every run whole and in order, and nothing that waits left out.

Invariants: nothing is written; one block is in memory, and a bit for each message of the queue.

What may differ: the files of a write that did not end stay until the next start. Beside a broker that is at work, runs
that its manifest names may be gone a moment later. Whether a message waits is known after a clean stop only; else the
log has more to say than the files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mq_broker.core.delays import OffsetSet, done_of
from mq_broker.core.topics import TIMER as TIMER_LEVEL
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
from mq_broker.store.layout import StoreLayout
from mq_broker.store.state_files import decode_document
from mq_broker.tools.findings import TIMER, Findings
from mq_broker.tools.small_state import SmallState, read_whole
from osenv import Disk

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
