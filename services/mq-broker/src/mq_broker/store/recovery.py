"""Recovery of a stopped broker's files (mechanisms S6-S8): how a store opens and closes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.replica_state import Cut
from mq_broker.core.rewrite import entry_tags_code
from mq_broker.store.commit_log import CommitLog, SegmentFiles
from mq_broker.store.consume_queue import ConsumeQueue, ConsumeQueues, Given, QueueKey, QueueNumbers
from mq_broker.store.copying import LogCutter
from mq_broker.store.durability import Checkpointer, Watermark, read_watermark
from mq_broker.store.errors import StoreDamagedError
from mq_broker.store.layout import Checkpoint, read_checkpoint
from mq_broker.store.log_scan import Damage, Quarantine, explain, is_unsealed_record, resynchronise, scan_whole
from mq_broker.store.queue_ends import Bounds, QueueEnds
from mq_broker.store.reader import filler
from mqproto.properties import PropertiesError
from mqproto.record import Record
from osenv.disk import read_file

if TYPE_CHECKING:
    from mq_broker.store.message_store import MessageStore


log = logging.getLogger(__name__)

TAIL_LOOK_BYTES = 64 * 1024 * 1024  # how far behind a torn record others are looked for, to be kept aside
FLUSH_ENTRIES = 65_536  # consume-queue entries gathered in memory before they are written


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found."""

    scanned_from: int = 0
    log_end: int = 0
    records: int = 0
    newest_store_ms: int = 0
    rebuilt: bool = False
    damaged_stretches: int = 0
    clean: bool = True  # whether the broker before had stopped in order
    has_checkpoint: bool = True  # one that is whole; a copy that was restored has none
    same_boot: bool = False  # whether the machine has run on since: then all that was written is there


@dataclass
class Recovery:
    """One run over the files of a store. `on_record` sees every record that is read again, in order.

    The log decides. Below the checkpoint, log and consume queues were durable together; from there on the log is read
    again, record by record, and everything that is derived from it is rebuilt. What is broken below the durable
    watermark is put into quarantine and passed over; at the first bytes above it that are no whole record the log ends.
    A record whose frame and CRC are intact is never such an end, even if this version cannot read it.

    Invariants: no record that was durable is cut; what is cut is gone from the log and from every consume queue, and
    never comes back; running recovery again, or crashing in it and running it again, gives the same result.
    """

    commit_log: CommitLog
    files: SegmentFiles
    queues: ConsumeQueues
    quarantine: Quarantine
    numbers: QueueNumbers
    ends: QueueEnds
    # Durably, and what is known to be durable is kept: a crash while the queues are rebuilt must not find the old one.
    forget_checkpoint: Callable[[int | None], None]
    on_record: Callable[[Record], None]
    report: RecoveryReport = field(default_factory=RecoveryReport)
    as_noted: set[ConsumeQueue] = field(default_factory=set)  # the queues that are as they were at the checkpoint
    _fresh: dict[ConsumeQueue, list[bytes]] = field(default_factory=dict)
    _fresh_count: int = 0
    _given: dict[ConsumeQueue, Given] = field(default_factory=dict)
    _damages: list[Damage] = field(default_factory=list)

    def run(
        self, checkpoint: Checkpoint | None, *, watermark: int | None, rebuild: bool, clean: bool, same_boot: bool
    ) -> RecoveryReport:
        """Find the log's end, cut what is torn, and bring the consume queues up to it.

        With `rebuild` everything is read, from the first file. Without a watermark it is unknown what was durable: then
        nothing is cut that has a whole record behind it. Raises StoreDamagedError when whole files are missing, or when
        the log contradicts itself; OSError.
        """
        if checkpoint is None and watermark is None:
            self._reject_unsealed()
        durable = max(checkpoint.log_offset if checkpoint else 0, watermark or 0)
        self._drop_strays(durable, keep_all=watermark is None)
        if durable > self.files.capacity_end:
            raise StoreDamagedError(
                f"the commit log was durable up to offset {durable}, but its files end at {self.files.capacity_end}: "
                "the last ones are missing; put them back"
            )
        report = self.report
        report.clean, report.same_boot = clean, same_boot
        report.newest_store_ms = checkpoint.newest_store_ms if checkpoint else 0
        trusted = None if rebuild else self._in_log(checkpoint)
        self._look_at_queues(durable, trusted)
        if trusted is not None and self._queues_agree(trusted):
            report.scanned_from = max(trusted.log_offset, self.files.begin)
        else:
            report.rebuilt, report.scanned_from = True, self.files.begin
            self.forget_checkpoint(None if watermark is None else durable)
            self.numbers.note({(queue.topic, queue.queue_id): given for queue, given in self._given.items()})
            self.queues.wipe()
            self.as_noted.clear()
        report.log_end = self._scan(report.scanned_from, durable, keep_all=watermark is None)
        self._write_fresh()
        self._go_on_counting()
        if not clean:
            self._keep_tail(report.log_end)
        report.damaged_stretches = len(self._damages)
        self.commit_log.recovered(report.log_end, durable_end=durable)
        return report

    def _reject_unsealed(self) -> None:
        """A log that is not ours may be RocketMQ's, which leaves the CRC property out unless it is told otherwise."""
        if is_unsealed_record(self.files, self.files.begin):
            raise StoreDamagedError(
                "the records of this log have no CRC property, so that damage could not be told from data: it was "
                "written by RocketMQ without enabledAppendPropCRC=true; nothing has been changed"
            )

    def _drop_strays(self, durable: int, *, keep_all: bool) -> None:
        """Log files whose name reached the disk when the name of one before them did not; nothing in them was durable.

        Raises StoreDamagedError when there had been something durable where a file is missing.
        """
        files = self.files
        if durable == 0 and files.begin > 0 and not keep_all:
            log.warning("the first file of the log was lost before anything was durable: it begins anew")
            files.drop(files.starts + files.stray)
            self.commit_log.begin = 0
        if not files.stray:
            return
        if keep_all or durable > files.capacity_end:
            raise StoreDamagedError(
                f"the commit log has no file {files.capacity_end:020d}, but later ones, and was durable up to "
                f"{durable}; put the missing file back"
            )
        log.warning("log files from %020d on were lost before they were durable", files.capacity_end)
        files.drop(files.stray)

    def _scan(self, start: int, durable: int, *, keep_all: bool) -> int:
        """Tell the queues of everything from `start` on; returns where the log ends."""
        at = start
        while True:
            for found in scan_whole(self.files, at, self.files.capacity_end):
                if isinstance(found, Record):
                    self._dispatch(found)
                elif isinstance(found, Damage):
                    self._put_aside(found)
                at = found.log_offset + found.size
            limit = self.files.capacity_end if keep_all else durable
            go_on = resynchronise(self.files, at, limit) if at < limit else None
            if go_on is None and at >= durable:
                return at
            go_on = min(go_on or durable, limit)
            self._put_aside(Damage(at, go_on - at, explain(self.files, at)))
            at = go_on

    def _put_aside(self, damage: Damage) -> None:
        self.quarantine.put_aside(self.files, damage)
        self._damages.append(damage)

    def _look_at_queues(self, durable: int, checkpoint: Checkpoint | None) -> None:
        """Which numbers were given, by the queues' files and by what a rebuild has noted that a crash came into.

        With a checkpoint each queue is brought to its end as well, while its file is open. What was noted with it is
        enough for a queue that has taken nothing since: after a stop in order, or when only the process died, for then
        all that it had written is there, and a queue with something behind its noted end shows it (ADR 141).
        """
        has_all = self.report.clean or self.report.same_boot
        ends = self.ends.read(checkpoint, self.files.begin) if checkpoint is not None and has_all else {}
        for key in self.queues.stored():
            if checkpoint is not None and key in ends and self._is_as_noted(key, ends[key], checkpoint.log_offset):
                continue
            queue = self.queues.get_or_open(*key)
            self._given[queue] = queue.numbers_given(durable)
            if checkpoint is not None:
                queue.recover(checkpoint.log_offset, clean=self.report.clean)
        for (topic, queue_id), noted in self.numbers.read().items():
            queue = self.queues.get_or_open(topic, queue_id)
            self._given[queue] = max(noted, self._given.get(queue, noted))

    def _is_as_noted(self, key: QueueKey, bounds: Bounds, log_end: int) -> bool:
        newest = self.queues.open_noted(*key, *bounds, log_end)
        if newest is None:
            return False
        queue = self.queues.get_or_open(*key)
        self._given[queue] = bounds[1], newest
        self.as_noted.add(queue)
        return True

    def _examine(self, queue: ConsumeQueue) -> ConsumeQueue:
        """The same queue, examined after all: the log has a message behind the end that was noted.

        Then not all that was written is there, and whatever stands behind the end goes, files included.
        """
        self.as_noted.discard(queue)
        examined = self.queues.open_again(queue)
        self._given[examined] = self._given.pop(queue)
        examined.recover(self.report.scanned_from)
        return examined

    def _go_on_counting(self) -> None:
        """A number that a queue has given to a durable message is never given again, though the message be lost."""
        for queue, (given, newest) in self._given.items():
            damage = next((one for one in self._damages if one.log_offset <= newest < one.end), None)
            if queue.max_offset == 0 and (damage is not None or 0 <= newest < self.files.begin):
                queue.begin_at(given)  # all of them were deleted with the beginning of the log, or damaged
                queue.distrust()
            elif 0 < queue.max_offset < given and damage is not None:
                queue.append(filler(damage) * (given - queue.max_offset))
                queue.distrust()

    def _keep_tail(self, end: int) -> None:
        """Records behind the torn one were never durable and are cut with it; a copy stays for inspection."""
        limit = min(end + TAIL_LOOK_BYTES, self.files.capacity_end)
        first = resynchronise(self.files, end, limit) if end < limit else None
        last = end
        while first is not None and first < limit:
            for found in scan_whole(self.files, first, limit):
                if isinstance(found, Record):
                    last = found.log_offset + found.size
                first = found.log_offset + found.size
            first = resynchronise(self.files, first, limit) if first < limit else None
        if last > end:
            self.quarantine.keep_tail(self.files, Damage(end, last - end, explain(self.files, end)))

    def _in_log(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """The checkpoint, unless the log does not reach there."""
        if checkpoint is None or self.files.begin <= checkpoint.log_offset <= self.files.capacity_end:
            return checkpoint
        log.error("the checkpoint speaks of offset %d, which the log does not have", checkpoint.log_offset)
        return None

    def _queues_agree(self, checkpoint: Checkpoint) -> bool:
        """Whether the consume queues, each brought to its end, hold all that the checkpoint says."""
        found = self.queues.entry_count
        if found != checkpoint.entry_count:
            log.error("consume queues hold %d entries, not %d: rebuilding them", found, checkpoint.entry_count)
        return found == checkpoint.entry_count

    def _dispatch(self, record: Record) -> None:
        queue = self.queues.get_or_open(record.topic, record.queue_id)
        if queue in self.as_noted:
            queue = self._examine(queue)
        entries = self._fresh.setdefault(queue, [])
        if not entries and queue.max_offset == queue.min_offset == 0 and record.queue_offset > 0:
            # The ones before have been deleted with the beginning of the log, or damaged.
            queue.begin_at(record.queue_offset)
        expected = queue.max_offset + len(entries)
        lost = self._lost_before(record, queue, entries) if record.queue_offset > expected else None
        if lost is not None:
            # The ones in between were in the damaged stretch before this record: their entries say so.
            entries.extend([filler(lost)] * (record.queue_offset - expected))
        elif record.queue_offset != expected:
            raise StoreDamagedError(
                f"the record at log offset {record.log_offset} is number {record.queue_offset} of queue "
                f"{record.queue_id} of {record.topic}, where number {expected} was expected"
            )
        try:
            code = entry_tags_code(record)
        except (PropertiesError, ValueError) as error:
            raise StoreDamagedError(f"the record at log offset {record.log_offset}: {error}") from error
        entries.append(CQ_ENTRY.pack(record.log_offset, record.size, code))
        self.on_record(record)
        self.report.records += 1
        self.report.newest_store_ms = max(self.report.newest_store_ms, record.store_timestamp_ms)
        self._fresh_count += 1
        if self._fresh_count >= FLUSH_ENTRIES:
            self._write_fresh()

    def _lost_before(self, record: Record, queue: ConsumeQueue, entries: list[bytes]) -> Damage | None:
        """The stretch of damage between the queue's last entry and this record.

        One that this run has not met lies below the checkpoint: it came from a master, with no message of the queue
        behind it then.
        """
        if self._damages:
            return self._damages[-1]
        before = self.files.begin
        if entries:
            before = CQ_ENTRY.unpack(entries[-1])[0]
        elif queue.max_offset > queue.first_offset:
            before = queue.entry(queue.max_offset - 1)[0]
        return self.quarantine.newest_between(before, record.log_offset)

    def _write_fresh(self) -> None:
        for queue, entries in self._fresh.items():
            queue.append(b"".join(entries))
            queue.distrust()
        self._fresh.clear()
        self._fresh_count = 0


# The first and the last moments of a store: what it finds when it is opened, and what it leaves when it is closed.
#
# Invariants: before anything is believed, what has to be cut from the log is cut; while the store is in use the file
# `abort` says so, and only a stop after which nothing has to be recovered takes it away; it names the boot of the
# machine only while the store is sound, and only after everything that follows from an earlier boot is written.


def open_store(
    store: MessageStore, checkpointer: Checkpointer, on_record: Callable[[Record], None], cut: Cut | None
) -> RecoveryReport:
    """Load the states, recover, and mark the store as in use; may block for long. See `LogCutter` for `cut`.

    Raises StoreDamagedError, ValueError when the log cannot be cut there, OSError.
    """
    disk, layout = store.disk, store.layout
    store.is_new = not store.log.files.capacity_end
    cutter = LogCutter(disk, layout, store.log, store.quarantine, store.states, store.numbers)
    if cut is not None:
        cutter.make(cut)
        store.flusher.durable_end = store.log.begin
    existing = bool(store.log.files.capacity_end)
    clean = not disk.exists(layout.abort)
    same_boot = not clean and is_same_boot(store)
    missing = store.states.load()
    if existing and missing and cut is None:
        log.error("%s: lost, or back to an older version; the log is read again", ", ".join(missing))
    if cut is not None:
        cutter.distrust(store.queues, cut)
    checkpoint, watermark = read_checkpoint(disk, layout), read_watermark(disk, layout)
    checkpointer.watermark = Watermark(disk, layout, watermark, is_new=not existing)
    forget = checkpointer.forget
    recovery = Recovery(
        store.log, store.log.files, store.queues, store.quarantine, store.numbers, store.ends, forget, on_record
    )
    report = recovery.run(
        checkpoint,
        watermark=watermark if existing else 0,
        rebuild=existing and (cut is not None or bool(missing)),
        clean=clean,
        same_boot=same_boot,
    )
    for queue in store.queues:
        if queue not in recovery.as_noted:
            store.repairer.trim_at_start(queue)
    if cut is not None:
        cutter.finish(store.queues)
    store.newest_store_ms = report.newest_store_ms
    if store.keeps_index:
        store.index.open(checkpoint.index if checkpoint else None, clean=clean)
    report.has_checkpoint = checkpoint is not None
    _mark_in_use(store)
    try:
        store.log.prepare()
    except OSError as error:  # a full disk: what is stored can be read all the same
        log.error("no room for the log to grow: %s", error)  # noqa: TRY400
    return report


def _mark_in_use(store: MessageStore) -> None:
    store.disk.open(store.layout.abort, create=True).close()
    store.disk.sync_dir(store.layout.root)


def is_same_boot(store: MessageStore) -> bool:
    """Whether `abort` names the boot of the machine that runs now."""
    try:
        noted = read_file(store.disk, store.layout.abort)
    except OSError as error:
        log.warning("%s cannot be read: %s", store.layout.abort, error)
        return False
    return noted != b"" and noted == store.disk.boot_id().encode()


def note_boot(store: MessageStore, boot_id: str) -> None:
    """Let `abort` name this boot of the machine, or none. Not synced: it is of use to the same boot alone.

    Raises OSError.
    """
    file = store.disk.open(store.layout.abort, create=True)
    try:
        file.pwrite(boot_id.encode(), 0)
        file.truncate(len(boot_id))
    finally:
        file.close()


async def close_store(store: MessageStore) -> None:
    """Leave the store so that the next start finds everything at its place: without failure, a clean stop."""
    indexed = await _finish_index(store)
    await store.checkpoint()
    try:
        covered = store.checkpointed_end == store.log.end
        if store.failure is not None:  # what was not synced may be lost although the machine runs on
            note_boot(store, "")
        elif covered and indexed:
            store.disk.unlink(store.layout.abort)
            store.disk.sync_dir(store.layout.root)
    except OSError as error:
        log.error("the store is closed, but not marked so: %s", error)  # noqa: TRY400
    finally:
        store.release()


async def _finish_index(store: MessageStore) -> bool:
    """Whether the index has everything; RocketMQ would not look for what it lacks after a clean stop."""
    try:
        return not store.keeps_index or await store.index.catch_up()
    except OSError as error:
        log.error("the index stays behind: %s", error)  # noqa: TRY400
        return False
