"""What a slave has and its master has not goes: the end of its log, or all of it when the master's begins behind it.

A cut is pending (config/replica.json) until a checkpoint was made after it; until then every start makes it again, so
what a crash has left half done is finished, and what it has left whole is done once more.

Invariants: the end that goes is in quarantine, durably, before anything of it has gone; watermark, checkpoint and small
state speak of nothing beyond the cut, durably, before the log is shorter; what was cut never comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from mq_broker.core.replication.replica_state import Cut
from mq_broker.core.state_names import DELAY_OFFSETS, PRODUCER_SEQUENCES, TRANSACTION_OFFSETS
from mq_broker.store.checkpoint import read_checkpoint
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queues import ConsumeQueues
from mq_broker.store.layout import StoreLayout
from mq_broker.store.log_scan import Damage, scan_log, scan_whole
from mq_broker.store.quarantine import Quarantine
from mq_broker.store.queue_numbers import QueueNumbers
from mq_broker.store.state_files import StateFiles
from mq_broker.store.watermark import encode_watermark, read_watermark
from mqproto.record import Record
from osenv import Disk, replace_file

log = logging.getLogger(__name__)

# What these tell may come from records that are cut; the log tells it anew. Topics and groups may stay.
FORGOTTEN_STATES = (DELAY_OFFSETS, PRODUCER_SEQUENCES, TRANSACTION_OFFSETS)


@dataclass(frozen=True, slots=True)
class LogCutter:
    """Makes the cut of one store, of which nothing but the files of its log is open."""

    disk: Disk
    layout: StoreLayout
    log: CommitLog
    quarantine: Quarantine
    states: StateFiles
    numbers: QueueNumbers

    def make(self, cut: Cut) -> None:
        """Everything that the cut takes away is gone, durably, on return. Recovery has to read the whole log then.

        Raises ValueError, before anything has changed, when the log cannot be cut there; OSError. May block for long.
        """
        self._require_boundary(cut)
        durable = self._durable()
        if cut.begin is None:
            for begin, end in self._parts_from(cut.end, durable or 0):
                self.quarantine.keep_cut(self.log.files, begin, end)
            self._forget_from(cut.end, None if durable is None else min(durable, cut.end))
            self._shorten(cut.end)
        else:
            self._forget_from(0, cut.begin)  # nothing is kept of what the master has had and deleted
            self.log.files.drop(self.log.files.starts + self.log.files.stray)
            self.log.files.ensure(cut.begin)
        self.log.files.take_sync()()
        self.log.reopened()
        log.warning("the log is cut: it ends at %d at the most", cut.end if cut.begin is None else cut.begin)

    def distrust(self, queues: ConsumeQueues, cut: Cut) -> None:
        """Before recovery tells them anew: a process before this one may have done so, and not synced it.

        A log that begins anew gives its queues the numbers that its master gives.
        """
        for queue in queues.open_all():
            queue.distrust()
        if cut.begin is not None:
            queues.wipe()

    def finish(self, queues: ConsumeQueues) -> None:
        """What recovery has told the queues is durable on return: entries of cut records cannot come back among those
        of others, whatever becomes of the cut's note. Raises OSError.
        """
        for queue in queues:
            queue.take_sync()()

    def _require_boundary(self, cut: Cut) -> None:
        files = self.log.files
        if cut.begin is not None:
            if cut.begin != files.file_begin(cut.begin):
                raise ValueError(
                    f"the log cannot begin at offset {cut.begin}: its files have {self.log.file_bytes} bytes each; "
                    "mappedFileSizeCommitLog has to be the master's"
                )
            return
        if cut.end < files.begin:
            raise ValueError(f"the log cannot end at offset {cut.end}: it begins at {files.begin}")
        if cut.end >= files.capacity_end:
            return
        for found in scan_whole(files, files.file_begin(cut.end), cut.end):
            if found.log_offset + found.size > cut.end:
                raise ValueError(f"the log cannot end at offset {cut.end}: a record at {found.log_offset} goes beyond")

    def _durable(self) -> int | None:
        """Up to where the log is known to have been synced; None when nothing tells."""
        watermark, checkpoint = read_watermark(self.disk, self.layout), read_checkpoint(self.disk, self.layout)
        return None if watermark is None else max(watermark, checkpoint.log_offset if checkpoint else 0)

    def _parts_from(self, first: int, durable: int) -> Iterator[tuple[int, int]]:
        """What of each file is worth being kept: up to its last record, or durable damage."""
        files = self.log.files
        for start in [*files.starts, *files.stray]:
            begin, file_end = max(start, first), start + self.log.file_bytes
            if begin < file_end:
                end = self._last_end(begin, file_end, durable)
                if begin < end:
                    yield begin, end

    def _last_end(self, begin: int, file_end: int, durable: int) -> int:
        last = begin
        for found in scan_log(self.log.files, begin, file_end):
            found_end = found.log_offset + found.size
            if isinstance(found, Record):
                last = found_end
            elif isinstance(found, Damage) and found.log_offset < durable:
                last = min(found_end, durable)
        return last

    def _forget_from(self, log_offset: int, durable: int | None) -> None:
        """Nothing else speaks any more of what stands from `log_offset` on; below `durable` the log has been synced."""
        disk, layout = self.disk, self.layout
        if durable is not None:
            replace_file(disk, layout.watermark, encode_watermark(durable))
        if disk.exists(layout.checkpoint):
            disk.unlink(layout.checkpoint)
        disk.sync_dir(layout.root)
        self.numbers.forget_from(log_offset)
        self.states.remove(FORGOTTEN_STATES)
        self.quarantine.forget_from(log_offset)
        if disk.exists(layout.timer):
            if disk.exists(layout.timer_manifest):
                disk.unlink(layout.timer_manifest)
            disk.sync_dir(layout.timer)

    def _shorten(self, end: int) -> None:
        files = self.log.files
        if files.stray and end <= files.capacity_end:
            files.drop(files.stray)
        if files.starts:
            files.cut(end, keep_place=True)
            files.distrust(end)  # a process before this one may have cut it, and not synced that
