"""The watermark: up to where the log was synced, as of the latest sync (Hourglass's own file, FORMAT.md).

It tells a torn tail from damage: what is broken below it had been durable, so it is quarantined, and what follows it is
kept; what is broken above it may never have been acknowledged, and the log is cut there. It is written after each sync
and not synced itself: after a power cut it may be older than the truth, never newer.

Invariant: everything below each value that ever stood here had been synced. Two slots are written in turn, so that a
torn write leaves the one before.
"""

from __future__ import annotations

import logging
import zlib
from struct import Struct

from mq_broker.store.layout import StoreLayout
from osenv import Disk, DiskFile
from osenv.disk import read_file

log = logging.getLogger(__name__)

SLOT_BYTES, SLOTS = 512, 2
_OFFSET, _CRC = Struct(">q"), Struct(">I")


def encode_slot(log_offset: int) -> bytes:
    """What one slot holds; the rest of its 512 bytes is zero."""
    offset = _OFFSET.pack(log_offset)
    return offset + _CRC.pack(zlib.crc32(offset))


def encode_watermark(log_offset: int) -> bytes:
    """A whole file, as of a store whose log has been synced once, up to `log_offset`."""
    return encode_slot(log_offset).ljust(SLOTS * SLOT_BYTES, b"\0")


def decode_watermark(data: bytes) -> int | None:
    """The largest offset that one of the slots holds whole; None when none does."""
    best: int | None = None
    for at in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES):
        slot = data[at : at + _OFFSET.size + _CRC.size]
        if len(slot) == _OFFSET.size + _CRC.size:
            offset = _OFFSET.unpack_from(slot)[0]
            if slot == encode_slot(offset):
                best = max(best or 0, offset)
    return best


def read_watermark(disk: Disk, layout: StoreLayout) -> int | None:
    """The log offset below which everything had been synced, as far as the file tells; None when it does not.

    Raises OSError.
    """
    try:
        return decode_watermark(read_file(disk, layout.watermark))
    except FileNotFoundError:
        return None


class Watermark:
    """The file, held open. Written by the sync that is running, and by a checkpoint."""

    def __init__(self, disk: Disk, layout: StoreLayout, found: int | None, *, is_new: bool) -> None:
        """Go on from what `read_watermark` has found. In a new store the file begins with 0, durably: from now on a
        missing one means damage. A store that has lost it gets a value with its first sync. Raises OSError.
        """
        self._file: DiskFile = disk.open(layout.watermark, create=True)
        self._file.allocate(0, SLOTS * SLOT_BYTES)
        self._slot = 0
        self._newest = found or 0
        if is_new:
            self._file.pwrite(encode_slot(0), 0)
            self._slot = 1
        elif found is not None and decode_watermark(self._file.pread(SLOT_BYTES, 0)) == found:
            self._slot = 1  # the next one goes where the older one stands
        # Also when it was there: whoever wrote it may have been killed before it was on disk.
        self._file.sync_data()
        disk.sync_dir(layout.root)

    def write(self, log_offset: int) -> None:
        """Everything below `log_offset` has been synced. A disk that refuses this costs precision, not safety."""
        if log_offset <= self._newest:
            return
        try:
            self._file.pwrite(encode_slot(log_offset), self._slot * SLOT_BYTES)
        except OSError as error:
            log.warning("the watermark could not be written: %s", error)
            return
        self._slot = (self._slot + 1) % SLOTS
        self._newest = log_offset

    def write_durably(self, log_offset: int) -> None:
        """The same, on disk on return. Raises SyncError."""
        self.write(log_offset)
        self._file.sync_data()

    def close(self) -> None:
        """Give the file back."""
        self._file.close()
