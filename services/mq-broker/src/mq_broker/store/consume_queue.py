"""Consume queues: for each message of one queue, its offset in the log (mechanism S3)."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mq_broker.core import documents
from mq_broker.core.batches import CQ_ENTRY
from mq_broker.store.commit_log import SegmentFiles
from mq_broker.store.errors import StoreDamagedError
from mq_broker.store.layout import CONSUME_QUEUE_AHEAD_BYTES, StoreLayout
from mq_broker.store.state_files import encode_document, read_document, write_document
from mqproto.names import WAITING_TOPICS
from osenv import Disk, PooledFile, PooledFiles

log = logging.getLogger(__name__)

TAIL_ENTRIES = 2_048  # newest entries kept in memory
LOOK_ENTRIES = 204  # read at once while an entry is looked for: a page of the disk
SIZE_SAMPLES, SAMPLE_ENTRIES = 64, 64  # 80 KiB are read of a long queue to say how many bytes its messages take
ENTRY_SIZE_MAX = 0x7FFF_FFFF
NOTHING = (0, b"")
PRE_BLANK = CQ_ENTRY.pack(0, ENTRY_SIZE_MAX, 0)  # before the first message that is left, as RocketMQ writes it


class ConsumeQueue:
    """One queue of one topic.

    Invariants: entry k describes the message with queue offset k; entries from `first_offset` to `max_offset` - 1 are
    there, without a gap; their log offsets never fall (messages that were lost to one stretch of damage share its
    offset). Readers begin at `min_offset`, which is behind everything that was deleted with its topic. Everything in
    the queue can be rebuilt from the log.
    """

    def __init__(self, topic: str, queue_id: int, files: SegmentFiles) -> None:
        self.topic, self.queue_id = topic, queue_id
        self.topic_field = len(topic).to_bytes(1, "big") + topic.encode()  # as it stands in a record
        self.keeps_due_times = topic in WAITING_TOPICS  # where others keep the hash of the tag
        self._files = files
        self.first_offset = files.begin // CQ_ENTRY.size  # of the entries that the queue keeps, read or not
        self.max_offset = self.first_offset
        self.deleted_below = 0  # the numbers below it were deleted with their topic
        self._unwritten: dict[int, bytes] = {}  # repaired entries that the disk has rejected
        self._tail = bytearray()
        self._tail_from = self.max_offset
        self._looked_at = NOTHING
        self.dirty = False

    @property
    def min_offset(self) -> int:
        """The first number that readers may have; a replica can hear of a deletion before it has what was deleted."""
        return max(self.first_offset, min(self.deleted_below, self.max_offset))

    def append(self, entries: bytes) -> None:
        """Add entries at `max_offset`. Raises OSError; then none of them counts."""
        self._files.write(entries, self.max_offset * CQ_ENTRY.size)
        self._tail += entries
        self.max_offset += len(entries) // CQ_ENTRY.size
        self.dirty = True
        surplus = len(self._tail) - TAIL_ENTRIES * CQ_ENTRY.size
        if surplus > len(self._tail) // 2:
            del self._tail[:surplus]
            self._tail_from += surplus // CQ_ENTRY.size

    def reserve(self, end: int) -> None:
        """Make sure that the disk has room for the entries below number `end`, and that their files stay open until the
        next `PooledFiles.new_turn`. Raises OSError.
        """
        begin, end = self.max_offset * CQ_ENTRY.size, end * CQ_ENTRY.size
        self._files.reserve(begin, end)
        self._files.hold(begin, end)

    def read_hot(self, offset: int, count: int) -> bytes | None:
        """Up to `count` entries from `offset` when they are in memory, else None."""
        if offset < self._tail_from:
            return None
        at = (offset - self._tail_from) * CQ_ENTRY.size
        return bytes(self._tail[at : at + count * CQ_ENTRY.size])

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` entries from `offset`, from disk; may block on it."""
        count = min(count, self.max_offset - offset)
        return self._files.read(count * CQ_ENTRY.size, offset * CQ_ENTRY.size) if count > 0 else b""

    def about_bytes(self, begin: int, end: int) -> int:
        """How many bytes of the log the messages from offset `begin` up to `end` take; may block on the disk.

        Of more than SIZE_SAMPLES * SAMPLE_ENTRIES messages only so many are looked at, spread evenly.
        """
        count = end - begin
        if count <= SIZE_SAMPLES * SAMPLE_ENTRIES:
            return _sizes(self.read(begin, count))
        last = count - SAMPLE_ENTRIES
        samples = (begin + number * last // (SIZE_SAMPLES - 1) for number in range(SIZE_SAMPLES))
        looked_at = sum(_sizes(self.read(offset, SAMPLE_ENTRIES)) for offset in samples)
        return looked_at * count // (SIZE_SAMPLES * SAMPLE_ENTRIES)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(log offset, size, tag hash) of the entry at `offset`. Raises ValueError when it is not there."""
        if not self.first_offset <= offset < self.max_offset:
            raise ValueError(f"{self}: no entry {offset}, there are {self.first_offset} to {self.max_offset - 1}")
        entry = self._unwritten.get(offset) or self.read_hot(offset, 1) or self._look(offset, 1)
        log_offset, size, code = CQ_ENTRY.unpack(entry)
        return log_offset, size, code

    def recover(self, log_end: int, *, clean: bool = False) -> None:
        """Find the end: entries are trusted as long as they point below `log_end`, which was durable with them.

        Everything behind is wiped, and the file has to be synced; recovery of the log tells it again. After a `clean`
        stop nothing stands behind, and all of it is on disk: the file stays as it is. Raises OSError.
        """
        end = self._first_where(lambda offset, size: size <= 0 or not _is_below(offset, size, log_end))
        if clean and self._files.ends_at(end * CQ_ENTRY.size, CQ_ENTRY.size):
            self.max_offset = self._tail_from = end
            self._tail.clear()
        else:
            self._cut(end)

    @property
    def is_in_one_file(self) -> bool:
        """Whether one file has the last entry and the place behind it, and there is no other."""
        return self._files.has_one_file_around(self.max_offset * CQ_ENTRY.size)

    def go_on(self, first: int, end: int, log_end: int) -> int | None:
        """Have the entries from `first` up to `end`, if the file agrees: the last one points below `log_end`, and
        nothing stands behind it. Returns where the last message stands in the log, None when the file does not agree.

        Raises OSError.
        """
        entries = self._files.read(2 * CQ_ENTRY.size, (end - 1) * CQ_ENTRY.size)
        if len(entries) < 2 * CQ_ENTRY.size or any(entries[CQ_ENTRY.size :]):
            return None
        log_offset, size, _ = CQ_ENTRY.unpack_from(entries)
        if size <= 0 or not _is_below(log_offset, size, log_end) or not self._files.ends_at(end * CQ_ENTRY.size, 0):
            return None
        self.first_offset, self.max_offset, self._tail_from = first, end, end
        newest: int = log_offset
        return newest

    def first_at(self, log_offset: int, *, begin: int | None = None) -> int:
        """The first entry from `begin` (or the queue's first one) on that stands at or behind `log_offset`."""
        first = self._first_where(
            lambda offset, size: size <= 0 or (size < ENTRY_SIZE_MAX and offset >= log_offset),
            begin or self.first_offset,
        )
        return min(first, self.max_offset)

    def trim(self, first: int) -> None:
        """The messages before `first` have been deleted."""
        self._looked_at = NOTHING
        self.first_offset = max(self.first_offset, min(first, self.max_offset))

    def delete_below(self, offset: int) -> None:
        """The topic was deleted when `offset` was the next number: what was before is not read any more; the log keeps
        it for as long as it keeps its neighbours.
        """
        self.deleted_below = max(self.deleted_below, offset)

    def numbers_given(self, log_end: int) -> tuple[int, int]:
        """How many numbers the files say were given to messages below `log_end`, and where the last of them stood.

        They may be wrong. The place is -1 when none was given, 0 when the message stands in no file any more. What was
        read of the end is kept until `trim` or `distrust`, with what stands behind it.
        """
        begin = self._files.begin // CQ_ENTRY.size
        self._keep_look(begin)
        given = self._first_where(lambda offset, size: size <= 0 or not _is_below(offset, size, log_end))
        if given <= begin:
            return given, 0 if given else -1  # the files before have gone, and their messages with them
        if given >= begin + LOOK_ENTRIES:
            self._keep_look(given - LOOK_ENTRIES + 1)
        log_offset = CQ_ENTRY.unpack(self._look(given - 1, 1))[0]
        return given, log_offset  # 0 in a blank before the first message that was left: what it stood for is gone

    def wipe(self) -> None:
        """Forget every entry; the log tells them again from the first one."""
        self.first_offset = 0
        self._cut(0)

    def begin_at(self, offset: int) -> None:
        """The log's first message of this queue is number `offset`: the ones before it have been deleted with it.

        Raises OSError.
        """
        if self.max_offset != self.first_offset:
            raise ValueError(f"{self} already has entries")
        file_begin = self._files.file_begin(offset * CQ_ENTRY.size)
        self._files.ensure(file_begin)  # its name keeps the number, also where no entry does
        self._files.write(PRE_BLANK * (offset - file_begin // CQ_ENTRY.size), file_begin)
        self.first_offset = self.max_offset = self._tail_from = offset
        self.dirty = True

    def repair(self, offset: int, entries: bytes) -> None:
        """Put `entries`, which the log has told again, in the place of damaged ones.

        They count from now on, also when the disk rejects them: then they wait in memory. Raises OSError.
        """
        if not self.first_offset <= offset <= self.max_offset - len(entries) // CQ_ENTRY.size:
            raise ValueError(f"{self}: no entries from {offset} on to be repaired")
        repaired = {offset + k: bytes(entry) for k, entry in enumerate(_cut_up(entries))}
        self._looked_at = NOTHING
        self._unwritten.update(repaired)
        self._files.write(entries, offset * CQ_ENTRY.size)
        for number in repaired:
            del self._unwritten[number]
        begin = max(offset, self._tail_from)
        if begin < (end := offset + len(entries) // CQ_ENTRY.size):
            at = (begin - self._tail_from) * CQ_ENTRY.size
            self._tail[at : at + (end - begin) * CQ_ENTRY.size] = entries[(begin - offset) * CQ_ENTRY.size :]
        self.dirty = True

    def has_surplus_file(self) -> bool:
        """Whether the first file holds only messages that have been deleted. The last file always stays: it keeps the
        queue's numbers.
        """
        end = self._files.first_file_end
        return end is not None and end <= self.first_offset * CQ_ENTRY.size

    def unlink_first(self) -> None:
        """See `SegmentFiles.unlink_first`."""
        self._files.unlink_first()

    def forget_first(self) -> PooledFile:
        """See `SegmentFiles.forget_first`."""
        return self._files.forget_first()

    def distrust(self) -> None:
        """See `SegmentFiles.distrust`: what another process has left here is not known to be on disk."""
        self._looked_at = NOTHING
        self._files.distrust(0)
        self.dirty = True

    def take_parents(self) -> list[Path]:
        """See `SegmentFiles.take_parents`."""
        return self._files.take_parents()

    def take_sync(self) -> Callable[[], None]:
        """See `SegmentFiles.take_sync`."""
        self.dirty = False
        return self._files.take_sync()

    def close(self) -> None:
        """Give the files back."""
        self._files.close()

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic!r}, {self.queue_id})"

    def _first_where(self, wanted: Callable[[int, int], bool], begin: int = 0) -> int:
        """The first entry from `begin` on whose (log offset, size) is wanted; the others come before all that are."""
        low, high = max(begin, self._files.begin // CQ_ENTRY.size), self._files.capacity_end // CQ_ENTRY.size
        at = low  # most queues are short
        while low < high:
            count = min(LOOK_ENTRIES, high - at)
            page = self._look(at, count)
            count, found = len(page) // CQ_ENTRY.size, _first_in(page, wanted)
            if 0 < found < count or (found == 0 and at == low):
                return at + found
            low, high = (low, at) if found == 0 else (at + count, high)
            at = (low + high) // 2
        return low

    def _cut(self, offset: int) -> None:
        at = offset * CQ_ENTRY.size
        self._files.cut(at, keep_place=0 < at == self._files.begin)
        self.max_offset = self._tail_from = offset
        self._tail.clear()
        self._looked_at = NOTHING
        self.dirty = True

    def _keep_look(self, offset: int) -> None:
        """Read a page of entries from `offset` on, for a start that looks at them several times."""
        count = min(LOOK_ENTRIES, self._files.capacity_end // CQ_ENTRY.size - offset)
        self._looked_at = offset, self._files.read(count * CQ_ENTRY.size, offset * CQ_ENTRY.size)

    def _look(self, offset: int, count: int) -> bytes:
        """Some of the `count` entries from `offset`: a start looks several times at what it has read once."""
        begin, entries = self._looked_at
        at = (offset - begin) * CQ_ENTRY.size
        if 0 <= at < len(entries):
            return entries[at : at + count * CQ_ENTRY.size]
        return self._files.read(count * CQ_ENTRY.size, offset * CQ_ENTRY.size)


def _is_below(log_offset: int, size: int, log_end: int) -> bool:
    return size == ENTRY_SIZE_MAX or log_offset + size <= log_end


def _first_in(entries: bytes, wanted: Callable[[int, int], bool]) -> int:
    numbers = range(len(entries) // CQ_ENTRY.size)
    return bisect_left(
        numbers, True, key=lambda number: wanted(*CQ_ENTRY.unpack_from(entries, number * CQ_ENTRY.size)[:2])
    )


def _cut_up(entries: bytes) -> list[bytes]:
    return [entries[at : at + CQ_ENTRY.size] for at in range(0, len(entries), CQ_ENTRY.size)]


def _sizes(entries: bytes) -> int:
    return sum(size for _, size, _ in CQ_ENTRY.iter_unpack(entries))


class ConsumeQueues:
    """All consume queues of a store, by topic and queue id.

    Invariant: the folder of a queue is named after its topic and its id, and a queue that has a folder is here.
    """

    def __init__(self, open_files: PooledFiles, layout: StoreLayout) -> None:
        self._open_files, self._disk, self._layout = open_files, open_files.disk, layout
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._of_topic: defaultdict[str, list[ConsumeQueue]] = defaultdict(list)

    def stored(self) -> Iterator[QueueKey]:
        """Every queue that has a folder. Raises StoreDamagedError."""
        for topic in self._disk.list_dir(self._layout.consume_queues):
            for queue_id in self._disk.list_dir(self._layout.consume_queues / topic):
                if not queue_id.isdigit():
                    folder = self._layout.consume_queues / topic / queue_id
                    raise StoreDamagedError(f"{folder}: a queue's folder is named by its number; move this away")
                yield topic, int(queue_id)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, when anything was ever stored in it."""
        return self._queues.get((topic, queue_id))

    def get_or_open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one has no file before its first entry. Raises OSError, StoreDamagedError."""
        return self._queues.get((topic, queue_id)) or self._open(topic, queue_id)

    def open_noted(self, topic: str, queue_id: int, first: int, end: int, log_end: int) -> int | None:
        """Open a queue that had these bounds when all of its entries stood in one file. See `ConsumeQueue.go_on`: None
        also without that file, and then the queue is not open.
        """
        start = end * CQ_ENTRY.size // self._layout.consume_queue_file_bytes * self._layout.consume_queue_file_bytes
        queue = ConsumeQueue(topic, queue_id, self._files(topic, queue_id, only_file=start))
        try:
            newest = queue.go_on(first, end, log_end)
        except FileNotFoundError:
            newest = None
        if newest is None:
            queue.close()
        else:
            self._add(queue)
        return newest

    def open_again(self, queue: ConsumeQueue) -> ConsumeQueue:
        """Open a noted queue with all the files that it has. Raises StoreDamagedError, OSError."""
        queue.close()
        self._of_topic[queue.topic].remove(queue)
        return self._open(queue.topic, queue.queue_id)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """The queues of this topic in which anything was ever stored."""
        return list(self._of_topic.get(topic, ()))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    @property
    def entry_count(self) -> int:
        """Entries that were ever written, over all queues."""
        return sum(queue.max_offset for queue in self)

    def wipe(self) -> None:
        """Forget every entry of every queue; the log tells them again."""
        for queue in self:
            queue.wipe()

    def close(self) -> None:
        """Give the files back."""
        for queue in self:
            queue.close()

    def _open(self, topic: str, queue_id: int) -> ConsumeQueue:
        try:
            files = self._files(topic, queue_id)
        except ValueError as error:
            raise StoreDamagedError(str(error)) from error
        if files.stray:
            log.error("queue %d of %s: files are missing before %020d", queue_id, topic, files.stray[0])
            files.drop(files.stray)
        return self._add(ConsumeQueue(topic, queue_id, files))

    def _files(self, topic: str, queue_id: int, only_file: int | None = None) -> SegmentFiles:
        return SegmentFiles(
            self._open_files,
            self._layout.root,
            self._layout.consume_queue(topic, queue_id),
            self._layout.consume_queue_file_bytes,
            ahead_bytes=CONSUME_QUEUE_AHEAD_BYTES,
            keeps_name_order=True,
            only_file=only_file,
        )

    def _add(self, queue: ConsumeQueue) -> ConsumeQueue:
        self._queues[queue.topic, queue.queue_id] = queue
        self._of_topic[queue.topic].append(queue)
        return queue


QueueKey = tuple[str, int]  # topic and queue id
Given = tuple[int, int]  # how many numbers were given, and where in the log the last of them stood; -1: not known


class QueueNumbers:
    """The next number of each queue, noted while the consume queues are built anew.

    A number that was given to a durable message is never given again. A queue whose messages are all gone, deleted with
    the beginning of the log or damaged, knows its next number from its own files only, and a rebuild wipes these: so it
    is noted before, durably, and the note goes when a checkpoint has made the new files durable.
    """

    def __init__(self, disk: Disk, layout: StoreLayout) -> None:
        self._disk, self._path = disk, layout.queue_numbers
        self._is_there = False

    def read(self) -> dict[QueueKey, Given]:
        """What a rebuild that did not come to its end has noted; empty without one. Raises OSError."""
        self._is_there = self._disk.exists(self._path)
        document = read_document(self._disk, self._path)
        try:
            return numbers_of(document) if document is not None else {}
        except (KeyError, TypeError, ValueError) as error:
            log.error("%s is not of the form it should have: %r", self._path, error)  # noqa: TRY400
            return {}

    def note(self, numbers: Mapping[QueueKey, Given]) -> None:
        """Keep the numbers, durably. Raises OSError."""
        told = {key: given for key, given in numbers.items() if given[0]}
        if not told:
            return
        write_document(self._disk, self._path, encode_numbers(told), keep_previous=False)
        self._is_there = True

    def forget_from(self, log_offset: int) -> None:
        """The log is cut there: what was noted of messages from there on does not count, durably. Raises OSError."""
        noted = self.read()
        kept = {key: given for key, given in noted.items() if given[1] < log_offset}
        if not kept:
            self.forget()
        elif kept != noted:
            self.note(kept)

    def forget(self) -> None:
        """The files are durable again. Raises OSError."""
        if self._is_there:
            self._disk.unlink(self._path)
            self._disk.sync_dir(self._path.parent)
            self._is_there = False


def encode_numbers(numbers: Mapping[QueueKey, Given]) -> bytes:
    """The note's bytes."""
    table = {f"{topic}:{queue_id}": list(given) for (topic, queue_id), given in sorted(numbers.items())}
    return encode_document({"numbers": table}, 0)


def numbers_of(document: dict[str, Any]) -> dict[QueueKey, Given]:
    """What a note says. Raises KeyError, TypeError, ValueError when it is not of this form."""
    numbers = {}
    for name, (given, newest) in documents.table(document, "numbers").items():
        topic, _, queue_id = name.rpartition(":")
        numbers[topic, int(queue_id)] = int(given), int(newest)
    return numbers
