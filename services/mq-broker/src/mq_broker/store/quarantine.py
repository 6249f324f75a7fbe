"""Damaged stretches of the log: a copy of each kept aside, for whoever wants to look (RELIABILITY.md (a)).

The log itself is left as it is. What lies behind the damage stays where it was and can be read.

Invariant: a stretch is known here from the moment in which it was found, also after a restart; one is never reported
twice, and nothing that was put aside is changed again.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from mq_broker.store.log_scan import Damage
from mq_broker.store.segment_files import NAME_DIGITS, SegmentFiles
from osenv import Disk, SyncError
from osenv.disk import make_durable_dirs

log = logging.getLogger(__name__)

COPY_BYTES = 4 * 1024 * 1024
TEMPORARY_SUFFIX = ".tmp"  # a copy that is not whole
TAIL_SUFFIX = ".tail"  # what was cut from the log: behind a torn record, or because the master does not have it
CUT_SUFFIX = ".cut"  # a damaged stretch that was cut from the log later
_NAME = re.compile(rf"(\d{{{NAME_DIGITS}}})-(\d+)")


class Quarantine:
    """The folder of damaged stretches: files named `<log offset>-<size>`, with their bytes."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._known: dict[int, int] = {}
        self.uncopied = 0  # stretches that were found and could not be copied aside
        for name in disk.list_dir(folder):
            if match := _NAME.fullmatch(name):
                self._remember(int(match[1]), int(match[2]))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(log offset, size) of each stretch, by offset."""
        return iter(sorted(self._known.items()))

    def __len__(self) -> int:
        return len(self._known)

    @property
    def size(self) -> int:
        """Bytes of the log that are damaged."""
        return sum(self._known.values())

    def covers(self, log_offset: int, size: int) -> bool:
        """Whether this stretch, or a larger one from the same offset, is known."""
        return 0 < size <= self._known.get(log_offset, 0)

    def newest_between(self, begin: int, end: int) -> Damage | None:
        """Of the known stretches that begin from `begin` on and below `end` the last one."""
        offset = max((known for known in self._known if begin <= known < end), default=None)
        return None if offset is None else Damage(offset, self._known[offset], "known")

    def stretch_at(self, log_offset: int) -> Damage | None:
        """The known stretch that has this byte."""
        return next((Damage(at, size, "known") for at, size in self if at <= log_offset < at + size), None)

    def put_aside(self, files: SegmentFiles, damage: Damage) -> None:
        """Report the stretch and copy it, durably. Raises SyncError; a copy that fails otherwise is logged.

        May block.
        """
        if self.covers(damage.log_offset, damage.size):
            return
        log.error(
            "the log is damaged: %d bytes at offset %d (%s); a copy goes to %s",
            damage.size, damage.log_offset, damage.reason, self._folder,
        )  # fmt: skip
        self._remember(damage.log_offset, damage.size)
        self._copy(files, damage, f"{damage.log_offset:0{NAME_DIGITS}d}-{damage.size}")

    def keep_tail(self, files: SegmentFiles, tail: Damage) -> None:
        """Copy records that recovery has to cut, because one before them is torn; they were never durable."""
        log.warning(
            "%d bytes at offset %d are cut from the log (%s); a copy goes to %s",
            tail.size, tail.log_offset, tail.reason, self._folder,
        )  # fmt: skip
        self._copy(files, tail, f"{tail.log_offset:0{NAME_DIGITS}d}-{tail.size}{TAIL_SUFFIX}")

    def keep_cut(self, files: SegmentFiles, begin: int, end: int) -> None:
        """Copy what is going to be cut from the log, because its master does not have it, durably. Raises OSError.

        The CRC-32 in the name tells it from what was cut at the same place another time.
        """
        crc = 0
        for at in range(begin, end, COPY_BYTES):
            crc = zlib.crc32(files.read(min(COPY_BYTES, end - at), at), crc)
        name = f"{begin:0{NAME_DIGITS}d}-{end - begin}-{crc:08x}{TAIL_SUFFIX}"
        make_durable_dirs(self._disk, self._folder)
        if self._disk.exists(self._folder / name):
            self._disk.sync_dir(self._folder)
            return
        log.warning("%d bytes at offset %d are cut from the log; a copy goes to %s", end - begin, begin, self._folder)
        self._write(files, Damage(begin, end - begin, "cut"), self._folder / name)

    def forget_from(self, log_offset: int) -> None:
        """The log is cut at `log_offset`: stretches behind it are no part of it any more, durably; their copies stay.

        Raises OSError.
        """
        if not self._disk.exists(self._folder):
            return
        for name in self._disk.list_dir(self._folder):
            if (match := _NAME.fullmatch(name)) and int(match[1]) >= log_offset:
                self._disk.replace(self._folder / name, self._folder / f"{name}{CUT_SUFFIX}")
        self._disk.sync_dir(self._folder)
        self._known = {offset: size for offset, size in self._known.items() if offset < log_offset}

    def _remember(self, log_offset: int, size: int) -> None:
        self._known[log_offset] = max(size, self._known.get(log_offset, 0))

    def _copy(self, files: SegmentFiles, damage: Damage, name: str) -> None:
        try:
            make_durable_dirs(self._disk, self._folder)
            self._write(files, damage, self._folder / name)
        except SyncError:
            raise
        except OSError as error:
            self.uncopied += 1
            log.error("the bytes at offset %d could not be copied: %s", damage.log_offset, error)  # noqa: TRY400

    def _write(self, files: SegmentFiles, damage: Damage, target: Path) -> None:
        temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
        copy = self._disk.open(temporary, create=True)
        try:
            copy.truncate(0)
            for at in range(damage.log_offset, damage.end, COPY_BYTES):
                part = files.read(min(COPY_BYTES, damage.end - at), at)
                copy.pwrite(part, at - damage.log_offset)
            copy.sync_data()
        finally:
            copy.close()
        self._disk.replace(temporary, target)
        self._disk.sync_dir(self._folder)
