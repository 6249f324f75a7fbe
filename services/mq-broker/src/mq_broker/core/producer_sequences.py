"""What producers have numbered and this broker has stored, so that a repeated send is recognised (ADR 15).

A producer numbers the records that it sends to a queue. After an unknown outcome it sends the same records with the
same numbers again, before any higher number; those that are stored already are answered with the places they have.

Invariants: for each producer and queue the stretches are sorted and share no number; every number from the first
unanswered one on that was stored is in one of them; a number below it is never stored again; what an older epoch of a
producer sends late is refused. Reading the log again adds what is missing and changes nothing else.

What is remembered has limits. Of more than `PRODUCER_QUEUES_MAX` pairs of producer and queue, the producer that was
silent longest is forgotten. A pair keeps its newest `QUEUE_STRETCHES_MAX` stretches. One stretch of each pair does not
count further; when all others together take more than `STRETCHES_BYTES_MAX` in the file, no pair keeps more than the
newest N, where N is the largest power of two with which half of that suffices. So producers that leave many gaps lose,
and others do not.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

from mq_broker.core import documents as tables
from mq_broker.core.limits import PRODUCER_QUEUES_MAX, QUEUE_STRETCHES_MAX, STRETCHES_BYTES_MAX
from mq_broker.core.rewrite import promised_queue
from mqproto.properties import (
    PRODUCER_SEQUENCE,
    RETURNING_PRODUCERS_FROM,
    parse_producer_sequence,
    property_start,
    property_value,
)
from mqproto.record import Record

log = logging.getLogger(__name__)

EXPIRY_MS = 3_600_000  # far beyond any send's budget (3 s, MISSION P4)
# A producer that comes back with what a checkpoint told it: longer than messages are kept (72 h) and a weekend lasts.
RETURNING_EXPIRY_MS = 7 * 24 * 3_600_000
STRETCH_BYTES = 40  # of a stretch in the file, beside the name of its topic

QueueKey = tuple[str, int]  # topic and queue id
_Sender = tuple[int, int, QueueKey]  # producer id, epoch, and the queue that records were sent to

_SEQUENCE = property_start(PRODUCER_SEQUENCE)
_QUEUE_TEXT = re.compile(r"([^:; ]+):(\d+) (\d+)((?: \d+\+\d+@[^:; ]+:\d+:\d+)*)")
_STRETCH_TEXT = re.compile(r" (\d+)\+(\d+)@([^:; ]+):(\d+):(\d+)")


class SequenceError(ValueError):
    """Numbers that make no sense, or that come too late; the message says why. Nothing has happened."""


class Numbering(NamedTuple):
    """How a batch is numbered: the first record has `base_sequence`, the others follow."""

    producer_id: int
    epoch: int
    base_sequence: int
    first_unanswered: int


@dataclass(slots=True, order=True)
class Stretch:
    """Records with the numbers from `base_sequence` on, which stand one behind the other in a consume queue.

    Never changed once it is remembered, and not frozen: a start makes one for each record that it reads.
    """

    base_sequence: int
    count: int
    topic: str
    queue_id: int
    base_queue_offset: int

    @property
    def end(self) -> int:
        """The number behind the last one."""
        return self.base_sequence + self.count

    def part(self, begin: int, end: int) -> Stretch:
        """What it has of the numbers from `begin` to `end` - 1."""
        first, last = max(begin, self.base_sequence), min(end, self.end)
        base_queue_offset = self.base_queue_offset + first - self.base_sequence
        return Stretch(first, last - first, self.topic, self.queue_id, base_queue_offset)

    def continued_by(self, other: Stretch) -> bool:
        """Whether the two are one."""
        return (
            self.base_sequence + self.count == other.base_sequence
            and self.base_queue_offset + self.count == other.base_queue_offset
            and self.queue_id == other.queue_id
            and self.topic == other.topic
        )

    def and_more(self, count: int) -> Stretch:
        """This one with so many records more, or fewer."""
        return Stretch(self.base_sequence, self.count + count, self.topic, self.queue_id, self.base_queue_offset)


@dataclass(slots=True)
class _Numbers:
    """One producer's numbers for one queue."""

    first_unanswered: int = 0
    stretches: list[Stretch] = field(default_factory=list)
    freezes: int = 0  # as of its producer

    def between(self, begin: int, end: int) -> list[Stretch]:
        """What is stored of these numbers."""
        if not self.stretches or self.stretches[-1].end <= begin:
            return []
        at = bisect_left(self.stretches, begin, key=lambda stretch: stretch.end - 1)
        found = []
        for stretch in self.stretches[at:]:
            if stretch.base_sequence >= end:
                break
            found.append(stretch.part(begin, end))
        return found

    @property
    def excess(self) -> int:
        """Stretches beyond the one that every queue may have."""
        return len(self.stretches) - 1 if self.stretches else 0

    def add(self, new: Stretch) -> None:
        """Remember numbers that are in no stretch yet."""
        stretches = self.stretches
        at = len(stretches)
        if stretches and stretches[-1].base_sequence > new.base_sequence:
            at = bisect_left(stretches, new.base_sequence, key=lambda stretch: stretch.base_sequence)
        if at and stretches[at - 1].continued_by(new):
            stretches[at - 1] = stretches[at - 1].and_more(new.count)
        else:
            stretches.insert(at, new)
            del stretches[:-QUEUE_STRETCHES_MAX]

    def answered_below(self, sequence: int) -> None:
        """Nothing below this number is asked for again."""
        if sequence > self.first_unanswered:
            self.first_unanswered = sequence
            answered = bisect_right(self.stretches, sequence, key=lambda stretch: stretch.end)
            del self.stretches[:answered]


@dataclass(slots=True)
class _Producer:
    """One producer: the epoch of its newest stream, when it last stored something, and its queues."""

    epoch: int = 0
    seen_ms: int = 0
    queues: dict[QueueKey, _Numbers] = field(default_factory=dict)
    freezes: int = 0  # as many documents had been frozen when `queues` was made: a later one shares it


class ProducerSequences:
    """All producers by id, the one that was silent longest first."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._queue_count = 0
        self._excess_bytes = 0  # of the stretches beyond one for each queue, as text
        self._freezes = 0
        self.data_version = 0

    def stored_before(self, numbering: Numbering, topic: str, queue_id: int, count: int) -> list[Stretch]:
        """What of a batch of `count` records is stored already, in its order. Raises SequenceError."""
        producer_id, epoch, begin, first_unanswered = numbering
        if producer_id == 0 or epoch < 0 or begin < 1 or not 0 <= first_unanswered <= begin:
            raise SequenceError(
                f"producer {producer_id:016x} with epoch {epoch}, sequence {begin} and first unanswered sequence "
                f"{first_unanswered}: a producer id is not 0, an epoch not below 0, sequences count from 1, and the "
                f"first unanswered one is at most the batch's"
            )
        producer = self._producers.get(producer_id)
        if producer is None:
            return []
        if epoch < producer.epoch:
            raise SequenceError(
                f"producer {producer_id:016x} has opened a newer stream, with epoch {producer.epoch}; this batch of "
                f"epoch {epoch} comes too late and is not stored"
            )
        producer.epoch = epoch
        numbers = producer.queues.get((topic, queue_id))
        if numbers is None:
            return []
        if begin < numbers.first_unanswered:
            raise SequenceError(
                f"sequence {begin} of producer {producer_id:016x} comes too late: it has said that it needs no answer "
                f"below {numbers.first_unanswered} any more"
            )
        return numbers.between(begin, begin + count)

    def stored(self, numbering: Numbering, queue: QueueKey, stretch: Stretch, now_ms: int) -> None:
        """Remember what was stored just now; `queue` is the one that it was sent to."""
        numbers = self._numbers(numbering.producer_id, numbering.epoch, queue, now_ms)
        before = numbers.excess
        numbers.answered_below(numbering.first_unanswered)
        numbers.add(stretch)
        self._count(queue, numbers.excess - before)
        self.data_version += 1

    def recovered(self, record: Record) -> None:
        """The log holds this record."""
        if (found := _numbered(record, promised_queue(record))) is not None:
            self.recovered_run(*found, record.store_timestamp_ms)

    def recovered_run(self, sender: _Sender, run: Stretch, store_ms: int) -> None:
        """The log holds these records, the last of which was stored then."""
        producer_id, epoch, queue = sender
        numbers = self._numbers(producer_id, epoch, queue, store_ms)
        self._add_missing(queue, numbers, run.part(numbers.first_unanswered, run.end))

    def _add_missing(self, queue: QueueKey, numbers: _Numbers, stretch: Stretch) -> None:
        before = numbers.excess
        for begin, end in _gaps(stretch, numbers.between(stretch.base_sequence, stretch.end)):
            numbers.add(stretch.part(begin, end))
            self.data_version += 1
        self._count(queue, numbers.excess - before)

    def ends(self) -> Iterator[tuple[int, str, int, int]]:
        """Where each stretch ends in its consume queue: (producer id, topic, queue id, offset)."""
        for producer_id, producer in self._producers.items():
            for numbers in producer.queues.values():
                for one in numbers.stretches:
                    yield producer_id, one.topic, one.queue_id, one.base_queue_offset + one.count

    def clamp(self, max_offset: Callable[[str, int], int]) -> None:
        """Forget what stands behind the end of its queue, as after a lost tail."""
        for producer in self._producers.values():
            for numbers in producer.queues.values():
                numbers.stretches = [
                    stretch.and_more(min(0, left - stretch.count))
                    for stretch in numbers.stretches
                    if (left := max_offset(stretch.topic, stretch.queue_id) - stretch.base_queue_offset) > 0
                ]
        self._excess_bytes = sum(map(_excess_bytes, self._producers.values()))
        self.data_version += 1

    def expire(self, now_ms: int) -> None:
        """Forget producers that have been silent for an hour; those that come back, for a week."""
        silent = []
        for producer_id, producer in self._producers.items():
            if producer.seen_ms >= now_ms - EXPIRY_MS:
                break  # and so are all behind it
            if producer_id < RETURNING_PRODUCERS_FROM or producer.seen_ms < now_ms - RETURNING_EXPIRY_MS:
                silent.append(producer_id)
        for producer_id in silent:
            self._forget(producer_id)

    def merge(self, other: ProducerSequences) -> None:
        """Add what the master of this log knows, up to where the log here reaches at least.

        It knows what the records do not tell: which numbers are asked for no more, and what stood in deleted files.
        """
        for producer_id, theirs in other._producers.items():
            for queue, known in theirs.queues.items():
                numbers = self._numbers(producer_id, theirs.epoch, queue, theirs.seen_ms)
                for stretch in known.stretches:
                    self._add_missing(queue, numbers, stretch)
                before = numbers.excess
                numbers.answered_below(known.first_unanswered)
                self._count(queue, numbers.excess - before)
        self._producers = OrderedDict(sorted(self._producers.items(), key=lambda item: item[1].seen_ms))
        self.data_version += 1

    def _numbers(self, producer_id: int, epoch: int, queue: QueueKey, now_ms: int) -> _Numbers:
        """One producer's numbers for one queue, to be changed: what a frozen document shares is copied before."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(freezes=self._freezes)
        self._producers.move_to_end(producer_id)
        producer.epoch = max(producer.epoch, epoch)
        producer.seen_ms = max(producer.seen_ms, now_ms)
        if producer.freezes != self._freezes:
            producer.queues, producer.freezes = dict(producer.queues), self._freezes
        numbers = producer.queues.get(queue)
        if numbers is None:
            numbers = producer.queues[queue] = _Numbers(freezes=self._freezes)
            self._queue_count += 1
            while self._queue_count > PRODUCER_QUEUES_MAX and len(self._producers) > 1:
                self._forget_oldest()
        elif numbers.freezes != self._freezes:
            numbers = replace(numbers, stretches=numbers.stretches.copy(), freezes=self._freezes)
            producer.queues[queue] = numbers
        return numbers

    def _count(self, queue: QueueKey, more: int) -> None:
        if more:
            self._excess_bytes += more * _size(queue)
            if self._excess_bytes > STRETCHES_BYTES_MAX:
                self._cut()

    def _cut(self) -> None:
        """Forget the oldest stretches of the queues with most, until half of what all may take is free."""
        counts = [
            (numbers.excess, _size(queue))
            for producer in self._producers.values()
            for queue, numbers in producer.queues.items()
            if numbers.excess
        ]
        most = QUEUE_STRETCHES_MAX
        while sum(min(count, most - 1) * size for count, size in counts) > STRETCHES_BYTES_MAX // 2:
            most //= 2
        log.warning(
            "producers have left too many gaps in their numbers: each queue keeps its newest %d stretches", most
        )
        for producer in self._producers.values():
            if any(len(numbers.stretches) > most for numbers in producer.queues.values()):
                producer.queues = {
                    queue: replace(numbers, stretches=numbers.stretches[-most:], freezes=self._freezes)
                    for queue, numbers in producer.queues.items()
                }
                producer.freezes = self._freezes
        self._excess_bytes = sum(map(_excess_bytes, self._producers.values()))

    def _forget_oldest(self) -> None:
        """The one that was silent longest; of those that come back only when there are no others. Never the newest."""
        older = islice(self._producers, len(self._producers) - 1)
        drawn = (producer_id for producer_id in older if producer_id < RETURNING_PRODUCERS_FROM)
        self._forget(next(drawn, next(iter(self._producers))))

    def _forget(self, producer_id: int) -> None:
        producer = self._producers.pop(producer_id)
        self._queue_count -= len(producer.queues)
        self._excess_bytes -= _excess_bytes(producer)
        self.data_version += 1

    # ------------------------------------------------------------------------------------------------ the file

    def to_json(self) -> dict[str, Any]:
        """Ours alone: RocketMQ has no such file. The queues of a producer are one text, because there may be many."""
        return self.frozen()()

    def frozen(self) -> Callable[[], dict[str, Any]]:
        """What makes the document of this moment, also in another thread: from here on changes go to copies."""
        self._freezes += 1
        counter = self.data_version
        producers = [
            (producer_id, producer.epoch, producer.seen_ms, producer.queues)
            for producer_id, producer in self._producers.items()
        ]
        return lambda: _document(producers, counter)

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what the file says. Raises KeyError, TypeError or ValueError when it is not of that form."""
        found = tables.table(document, "producerTable")
        producers = {int(name, 16): _producer(tables.table(found, name)) for name in found}
        self.data_version = int(tables.table(document, "dataVersion")["counter"])
        self._producers = OrderedDict(sorted(producers.items(), key=lambda item: item[1].seen_ms))
        self._queue_count = sum(len(producer.queues) for producer in producers.values())
        self._excess_bytes = sum(map(_excess_bytes, producers.values()))


class JoinedRecords:
    """Records of the log, joined before they are remembered: those of a batch have numbers one behind the other."""

    def __init__(self, sequences: ProducerSequences) -> None:
        self._sequences = sequences
        self._run: tuple[_Sender, Stretch] | None = None
        self._store_ms = 0

    def add(self, record: Record, promised: QueueKey | None) -> None:
        """The next record, and the queue that it is going to, if that is another one than its own."""
        if (found := _numbered(record, promised)) is None:
            return
        if self._run is not None and self._run[0] == found[0] and self._run[1].continued_by(found[1]):
            self._run[1].count += 1
        else:
            self.end()
            self._run = found
        self._store_ms = record.store_timestamp_ms

    def end(self) -> None:
        """That was the last one."""
        if self._run is not None:
            self._sequences.recovered_run(*self._run, self._store_ms)
        self._run = None


def _numbered(record: Record, promised: QueueKey | None) -> tuple[_Sender, Stretch] | None:
    """What its producer has numbered, as a stretch of one; `promised` is the queue that it is going to."""
    value = property_value(record.properties, _SEQUENCE, 0, len(record.properties))
    if not value or (parsed := parse_producer_sequence(value)) is None:
        return None
    producer_id, epoch, sequence = parsed
    sender = producer_id, epoch, promised or (record.topic, record.queue_id)
    return sender, Stretch(sequence, 1, record.topic, record.queue_id, record.queue_offset)


def _gaps(stretch: Stretch, known: Sequence[Stretch]) -> Iterator[tuple[int, int]]:
    """The numbers of the stretch, from and to, that are in none of the known ones, which are parts of it in order."""
    at = stretch.base_sequence
    for one in known:
        if at < one.base_sequence:
            yield at, one.base_sequence
        at = one.end
    if at < stretch.end:
        yield at, stretch.end


def _size(queue: QueueKey) -> int:
    """Bytes of one stretch of the queue in the file, about."""
    return len(queue[0]) + STRETCH_BYTES


def _excess_bytes(producer: _Producer) -> int:
    return sum(numbers.excess * _size(queue) for queue, numbers in producer.queues.items())


def _document(producers: list[tuple[int, int, int, dict[QueueKey, _Numbers]]], counter: int) -> dict[str, Any]:
    table = {
        f"{producer_id:016x}": {
            "epoch": epoch,
            "lastTimestamp": seen_ms,
            "queues": "; ".join(_queue_text(key, numbers) for key, numbers in queues.items()),
        }
        for producer_id, epoch, seen_ms, queues in producers
    }
    return {"dataVersion": {"counter": counter}, "producerTable": table}


def _queue_text(queue: QueueKey, numbers: _Numbers) -> str:
    """`topic:queue first_unanswered sequence+count@topic:queue:offset ...`."""
    stretches = "".join(
        f" {one.base_sequence}+{one.count}@{one.topic}:{one.queue_id}:{one.base_queue_offset}"
        for one in numbers.stretches
    )
    return f"{queue[0]}:{queue[1]} {numbers.first_unanswered}{stretches}"


def _producer(entry: dict[str, Any]) -> _Producer:
    producer = _Producer(int(entry["epoch"]), int(entry["lastTimestamp"]))
    for text in filter(None, str(entry["queues"]).split("; ")):
        match = _QUEUE_TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not the numbers of a queue")
        stretches = [
            Stretch(int(one[1]), int(one[2]), one[3], int(one[4]), int(one[5]))
            for one in _STRETCH_TEXT.finditer(match[4])
        ]
        producer.queues[match[1], int(match[2])] = _Numbers(int(match[3]), stretches)
    return producer
