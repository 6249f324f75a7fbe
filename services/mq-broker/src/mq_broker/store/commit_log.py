"""The commit log: every message of every topic, end to end, in files of one size (MISSION S2).

Invariants: `begin` <= `end`; every byte below `end` belongs to a record or to the blank at a file's end; a run of bytes
given to `append` lies in one file; beyond `end` there is nothing that could be taken for a record.
"""

from __future__ import annotations

from collections.abc import Callable

from mq_broker.store.errors import StoreWriteError
from mq_broker.store.hot_tail import HotTail
from mq_broker.store.segment_files import SegmentFiles
from mqproto.record import SEGMENT_HEAD, encode_blank

BLANK_BYTES_MIN = SEGMENT_HEAD.size  # room for a blank always remains at a file's end, as in RocketMQ


class CommitLog:
    """Appends runs of sealed records and reads them back."""

    def __init__(self, files: SegmentFiles, file_bytes: int) -> None:
        self.files = files
        self._file_bytes = file_bytes
        self.run_bytes_max = file_bytes - BLANK_BYTES_MIN  # the longest run that a file can take
        self._tail = HotTail()
        self._unclean_to = 0  # a failed write may have left bytes up to here
        self.begin = files.begin
        self.end = files.begin  # recovery moves it

    @property
    def file_bytes(self) -> int:
        """Length of each file."""
        return self._file_bytes

    def place(self, size: int) -> int:
        """The offset at which a run of `size` bytes will stand; closes the current file with a blank if it must.

        Raises StoreWriteError when the run is longer than a file, or when the disk refuses the blank.
        """
        if size > self.run_bytes_max:
            raise StoreWriteError(f"{size} bytes do not fit a commit-log file of {self._file_bytes} bytes")
        if size + BLANK_BYTES_MIN > self.files.room(self.end):
            self.append_blank()
        return self.end

    def append_blank(self) -> None:
        """Close the current file. Raises StoreWriteError."""
        room = self.files.room(self.end)
        self._write(encode_blank(room), self.end)
        self.end += room

    def append_damaged(self, data: bytes) -> None:
        """Write bytes that are no record, because they stand here in the log that this one is a copy of.

        Raises StoreWriteError; then nothing of them is there.
        """
        self._write(data, self.end)
        self.end += len(data)

    def append(self, run: bytes | bytearray) -> None:
        """Write `run` at `end`, where `place` has put it. Raises StoreWriteError; then nothing of it is there."""
        self._write(run, self.end)
        self._tail.add(self.end, run)
        self.end += len(run)

    def read_hot(self, offset: int, size: int) -> bytes | None:
        """The bytes when they are in memory, else None."""
        return self._tail.read(offset, size)

    def hot_chunk(self, offset: int) -> tuple[bytes | bytearray, int] | None:
        """Whole records in memory with the place of the one at `offset` among them, or None."""
        return self._tail.chunk(offset)

    def is_hot_from(self, offset: int) -> bool:
        """Whether every record from `offset` on is in memory; blanks never are."""
        return self._tail.begin <= offset

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from disk; may block on it. Raises ValueError outside of the log."""
        if offset < self.begin or offset + size > self.end:
            raise ValueError(f"{size} bytes at {offset} are not in the log, which runs from {self.begin} to {self.end}")
        return self.files.read(size, offset)

    def read_if_there(self, offset: int, size: int) -> bytes | None:
        """The bytes from disk, or None when the log does not have them; may block. Raises OSError."""
        return self.read(offset, size) if size > 0 and self.begin <= offset and offset + size <= self.end else None

    def recovered(self, end: int, *, durable_end: int) -> None:
        """Recovery found the log's true end: what lies beyond becomes zeros.

        From `durable_end` on, all of it is durable only after the next sync.
        """
        self.files.cut(end, keep_place=True)  # a log without files says no more where it begins
        self.files.distrust(durable_end)
        self._tail.clear(end)
        self.end = end

    def reopened(self) -> None:
        """Its files are others now, and recovery has not looked at them yet."""
        self.begin = self.end = self.files.begin
        self._tail.clear(self.begin)

    def prepare(self) -> None:
        """Have the file that takes the next bytes, and the one after it. May block; raises OSError."""
        self.files.ensure(self.end)
        if self.files.room(self.end) < self._file_bytes // 2:
            self.files.ensure(self.end + self.files.room(self.end))

    def take_sync(self) -> Callable[[], None]:
        """The call that makes everything below the present `end` durable; see `SegmentFiles.take_sync`."""
        return self.files.take_sync()

    def close(self) -> None:
        """Give the files back."""
        self.files.close()

    def _write(self, data: bytes | bytearray, offset: int) -> None:
        try:
            if self._unclean_to > offset:
                # Leftovers of a failed write could look like records behind this one: they go first.
                self.files.write(bytes(self._unclean_to - offset), offset)
                self._unclean_to = 0
            self.files.write(data, offset)
        except OSError as error:
            self._unclean_to = max(self._unclean_to, offset + len(data))
            raise StoreWriteError(f"the disk refused {len(data)} bytes: {error}") from error
