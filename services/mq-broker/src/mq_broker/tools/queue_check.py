"""Every consume queue against the log, record by record as the log is read.

Invariants: each entry of each queue is looked at once; the memory used grows with the number of queues only.

What may differ: entries of messages above `safe_end`, the checkpoint of a store that was not stopped cleanly, may be
missing, torn or too many, because recovery tells them again or takes them away. Entries of messages that were lost to
damage in the log stay, or share the offset of the damage.
"""

from __future__ import annotations

from dataclasses import dataclass

from mq_broker.store.consume_queue import ENTRY_SIZE_MAX
from mq_broker.store.layout import StoreLayout
from mq_broker.tools.findings import QUEUE, DamageMap, Findings
from mq_broker.tools.stored_files import NEVER_WRITTEN, Entry, QueueReader, names_in
from mqproto.record import Record
from osenv import Disk

_FIELDS = ("log offset", "size", "tag hash or due time")


@dataclass(slots=True)
class _Missing:
    """A run of entries that were never written: numbers, and the log offset of the last one's record."""

    first: int
    last: int
    log_offset: int


class QueueCheck:
    """One queue. `following` is the number that its next record must have, None before the first one."""

    def __init__(self, name: str, reader: QueueReader, checks: QueueChecks) -> None:
        self.name, self._reader, self._checks = name, reader, checks
        self.following: int | None = None
        self.end = 0  # behind every number that was ever given, as far as log and entries tell
        self._last_log_offset = -1
        self._missing: _Missing | None = None
        for fault in reader.faults:
            checks.findings.difference(QUEUE, fault)
        for short in reader.short:
            checks.findings.note(QUEUE, short)

    def record(self, record: Record, code: int) -> None:
        """The next record of this queue in the log; `code` is what its entry has to say of its tag."""
        number = record.queue_offset
        if self.following is None:
            self._check_before_first(number)
        elif number < self.following:
            self._differ(
                f"the record at log offset {record.log_offset} is number {number}, which was given before; "
                f"{self.following} was next"
            )
            return
        elif number > self.following:
            self._check_gap(self.following, number, record.log_offset)
        self.following = self.end = number + 1
        self._last_log_offset = record.log_offset
        wanted = (record.log_offset, record.size, code)
        found = self._reader.entry(number)
        if found != wanted:
            found = self._reader.fresh_entry(number)
        if found == NEVER_WRITTEN:
            self._add_missing(number, record.log_offset)
        elif found != wanted:
            self._flush_missing()
            text = f"{self.name}: entry {number} {_compare(found, wanted)}"
            self._checks.findings.judge(QUEUE, text, allowed=self._checks.is_above_safe_end(record.log_offset))

    def finish(self) -> None:
        """The log has ended: whatever else the queue has is too much."""
        self._flush_missing()
        checks = self._checks
        first = self._reader.first if self.following is None else self.following
        for number, (log_offset, size, _) in self._reader.written_from(first):
            if size == ENTRY_SIZE_MAX or log_offset + size <= checks.log_begin:
                self.end = number + 1  # stands for a message that was deleted
            elif checks.damages.touches(log_offset):
                self.end = number + 1
                checks.findings.note(QUEUE, f"{self.name}: number {number} was lost to the damage at {log_offset}")
            elif log_offset >= checks.log_end:
                text = f"{self.name}: entry {number} names log offset {log_offset}; the log ends at {checks.log_end}"
                checks.findings.judge(QUEUE, text, allowed=checks.is_above_safe_end(log_offset))
            else:
                self._differ(f"entry {number} is too many: no record at log offset {log_offset} is that number")

    def _check_before_first(self, number: int) -> None:
        """Entries before the first record in the log belong to messages that were deleted or lost."""
        checks = self._checks
        if checks.log_begin == 0 and number > 0 and not checks.damages.any_between(0, checks.at):
            self._differ(f"the first record is number {number}; numbers 0 to {number - 1} are not in the log")
        for before in range(self._reader.first, min(number, self._reader.capacity)):
            entry = self._reader.entry(before)
            log_offset, size, _ = entry
            is_old = entry == NEVER_WRITTEN or size == ENTRY_SIZE_MAX or log_offset + size <= checks.log_begin
            if not is_old and not checks.damages.touches(log_offset):
                self._differ(f"entry {before} names log offset {log_offset}; the first record is number {number}")

    def _check_gap(self, first: int, number: int, log_offset: int) -> None:
        """Numbers from `first` to `number` - 1 have no record: damage before `log_offset` has to explain them."""
        checks = self._checks
        if not checks.damages.any_between(self._last_log_offset, log_offset):
            self._differ(f"numbers {first} to {number - 1} are not in the log; the record at {log_offset} is {number}")
            return
        checks.findings.note(QUEUE, f"{self.name}: numbers {first} to {number - 1} were lost to damage in the log")
        for lost in range(first, number):
            entry = self._reader.entry(lost)
            if entry != NEVER_WRITTEN and not checks.damages.touches(entry[0]):
                self._differ(f"entry {lost} names log offset {entry[0]}, where its message never was")

    def _add_missing(self, number: int, log_offset: int) -> None:
        allowed = self._checks.is_above_safe_end(log_offset)
        if self._missing and (
            self._missing.last != number - 1 or allowed != self._checks.is_above_safe_end(self._missing.log_offset)
        ):
            self._flush_missing()
        if self._missing is None:
            self._missing = _Missing(number, number, log_offset)
        else:
            self._missing.last, self._missing.log_offset = number, log_offset

    def _flush_missing(self) -> None:
        missing, self._missing = self._missing, None
        if missing is not None:
            which = f"entries {missing.first} to {missing.last} are"
            text = f"{self.name}: {which if missing.last > missing.first else f'entry {missing.first} is'} missing"
            allowed = self._checks.is_above_safe_end(missing.log_offset)
            self._checks.findings.judge(QUEUE, text, allowed=allowed)

    def _differ(self, text: str) -> None:
        self._flush_missing()
        self._checks.findings.difference(QUEUE, f"{self.name}: {text}")


class QueueChecks:
    """All queues. `at` is where the log is read; `log_end` is set when that is known."""

    def __init__(
        self, disk: Disk, layout: StoreLayout, findings: Findings, damages: DamageMap, *, log_begin: int
    ) -> None:
        self._disk, self._layout = disk, layout
        self.findings, self.damages, self.log_begin = findings, damages, log_begin
        self.safe_end: int | None = None
        self.at = self.log_end = log_begin
        self._queues: dict[tuple[str, int], QueueCheck] = {}

    def is_above_safe_end(self, log_offset: int) -> bool:
        """Whether recovery is going to look at the record there, so that its entry may be missing or wrong."""
        return self.safe_end is not None and log_offset >= self.safe_end

    def record(self, record: Record, code: int) -> None:
        """The next whole record of the log. Raises OSError."""
        self.at = record.log_offset
        self._queue(record.topic, record.queue_id).record(record, code)

    def end_of(self, topic: str, queue_id: int) -> int:
        """The number that the queue's next message gets; 0 for a queue that there is not."""
        queue = self._queues.get((topic, queue_id))
        return queue.end if queue else 0

    def count(self) -> int:
        """Over all queues, the numbers that were given so far, as a checkpoint counts them."""
        return sum(queue.following or 0 for queue in self._queues.values())

    def finish(self, log_end: int) -> None:
        """Look at what the queues have beyond the log, and at queues that the log does not know. Raises OSError."""
        self.log_end = log_end
        folder = self._layout.consume_queues
        for topic in self._disk.list_dir(folder):
            queue_ids = names_in(self._disk, folder / topic)
            if queue_ids is None:
                self.findings.difference(QUEUE, f"{folder / topic}: a file, where a topic has a folder")
            for queue_id in queue_ids or []:
                if queue_id.isascii() and queue_id.isdigit():
                    self._queue(topic, int(queue_id))
                else:
                    self.findings.difference(QUEUE, f"{folder / topic / queue_id}: not the number of a queue")
        for queue in self._queues.values():
            queue.finish()

    def _queue(self, topic: str, queue_id: int) -> QueueCheck:
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            reader = QueueReader(self._disk, self._layout.consume_queue(topic, queue_id))
            queue = self._queues[key] = QueueCheck(f"{topic}/{queue_id}", reader, self)
        return queue


def _compare(found: Entry, wanted: Entry) -> str:
    """What of an entry is wrong, in words."""
    wrong = [
        f"says {name} {have}, the record has {want}"
        for name, have, want in zip(_FIELDS, found, wanted, strict=True)
        if have != want
    ]
    return "; ".join(wrong)
