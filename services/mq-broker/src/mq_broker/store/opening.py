"""The first and the last moments of a store: what it finds when it is opened, and what it leaves when it is closed.

Invariants: before anything is believed, what has to be cut from the log is cut; while the store is in use the file
`abort` says so, and only a stop after which nothing has to be recovered takes it away; it names the boot of the machine
only while the store is sound, and only after everything that follows from an earlier boot is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mq_broker.core.replication.replica_state import Cut
from mq_broker.store.checkpoint import read_checkpoint
from mq_broker.store.checkpointing import Checkpointer
from mq_broker.store.log_cut import LogCutter
from mq_broker.store.recovery import Recovery, RecoveryReport
from mq_broker.store.watermark import Watermark, read_watermark
from mqproto.record import Record
from osenv.disk import read_file

if TYPE_CHECKING:
    from mq_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)


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
    report = Recovery(store.log, store.log.files, store.queues, store.quarantine, store.numbers, forget, on_record).run(
        checkpoint,
        watermark=watermark if existing else 0,
        rebuild=existing and (cut is not None or bool(missing)),
        clean=clean,
    )
    for queue in store.queues:
        store.mender.trim_at_start(queue)
    if cut is not None:
        cutter.finish(store.queues)
    store.newest_store_ms = report.newest_store_ms
    if store.keeps_index:
        store.index.open(checkpoint.index if checkpoint else None, clean=clean)
    report.has_checkpoint, report.same_boot = checkpoint is not None, same_boot
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
