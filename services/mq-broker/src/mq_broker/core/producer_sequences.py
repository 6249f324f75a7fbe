"""The numbered records that this broker has stored, by which it recognises a repeated send (ADR 15).

A producer numbers the records that it sends to a queue. After an unknown outcome it sends the same records with the
same numbers again, before any higher number; those that are stored already are answered with the places they have.

Invariants: for each producer and queue the stretches are sorted and share no number; every number from the first
unanswered one on that was stored is in one of them; a number below it is never stored again; what an older epoch of a
producer sends late is rejected. Reading the log again adds what is missing and changes nothing else.

What is remembered has limits, for each kind of producers its own (`producer_table.py`, ADR 114): none loses by what the
producers of another kind send, and no live pair of producer and queue is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from mq_broker.core import documents as tables
from mq_broker.core.producer_table import (
    KINDS,
    Frozen,
    Numbers,
    PairKey,
    ProducersFullError,
    ProducerTable,
    QueueKey,
    Stretch,
    kind_of,
    parse_queue,
    queue_of,
    queue_text,
)
from mq_broker.core.rewrite import promised_queue
from mqproto.properties import (
    PRODUCER_SEQUENCE,
    parse_producer_sequence,
    property_start,
    property_value,
)
from mqproto.record import Record

_Sender = tuple[int, int, QueueKey]  # producer id, epoch, and the queue that records were sent to

_SEQUENCE = property_start(PRODUCER_SEQUENCE)


class SequenceError(ValueError):
    """Numbers that make no sense, or that come too late; the message says why. Nothing has happened."""


class BatchSequence(NamedTuple):
    """How a batch is numbered: the first record has `base_sequence`, the others follow."""

    producer_id: int
    epoch: int
    base_sequence: int
    first_unanswered: int


class OpenStream:
    """A stream of requests of one producer: while it is open, what is known of the producer is not forgotten."""

    def __init__(self, open_producers: Counter[int]) -> None:
        self._open = open_producers
        self._producer_id: int | None = None

    def of(self, producer_id: int) -> None:
        """The stream is this producer's; the last one that a request names counts."""
        if producer_id != self._producer_id:
            self.close()
            self._producer_id = producer_id
            self._open[producer_id] += 1

    def close(self) -> None:
        """The stream has ended."""
        if self._producer_id is not None:
            self._open[self._producer_id] -= 1
            if not self._open[self._producer_id]:
                del self._open[self._producer_id]
            self._producer_id = None


class ProducerSequences:
    """All producers by id, those of each kind in a table of their own."""

    def __init__(self) -> None:
        self._open = Counter[int]()  # open streams by producer id
        self._tables = tuple(ProducerTable(kind, self._open) for kind in KINDS)
        self.data_version = 0

    def stream(self) -> OpenStream:
        """For a stream that begins now; to be closed with it."""
        return OpenStream(self._open)

    def stored_before(self, batch_sequence: BatchSequence, topic: str, queue_id: int, count: int) -> list[Stretch]:
        """What of a batch of `count` records is stored already, in its order. Raises SequenceError."""
        producer_id, epoch, begin, first_unanswered = batch_sequence
        if producer_id == 0 or epoch < 0 or begin < 1 or not 0 <= first_unanswered <= begin:
            raise SequenceError(
                f"producer {producer_id:016x} with epoch {epoch}, sequence {begin} and first unanswered sequence "
                f"{first_unanswered}: a producer id is not 0, an epoch not below 0, sequences count from 1, and the "
                f"first unanswered one is at most the batch's"
            )
        table = self._table(producer_id)
        if epoch < (newest := table.epoch(producer_id)):
            raise SequenceError(
                f"producer {producer_id:016x} has opened a newer stream, with epoch {newest}; this batch of "
                f"epoch {epoch} comes too late and is not stored"
            )
        table.note_epoch(producer_id, epoch)
        numbers = table.get((producer_id, topic, queue_id))
        if numbers is None:
            return []
        if begin < numbers.first_unanswered:
            raise SequenceError(
                f"sequence {begin} of producer {producer_id:016x} comes too late: it has said that it needs no answer "
                f"below {numbers.first_unanswered} any more"
            )
        return numbers.between(begin, begin + count)

    def make_room(self, batch_sequence: BatchSequence, queue: QueueKey, now_ms: int) -> None:
        """A batch is about to be stored or was recognised: its pair counts as live, and has room if any is left.

        Raises ProducersFullError for a producer that must be recognised and has no room.
        """
        producer_id, table = batch_sequence.producer_id, self._table(batch_sequence.producer_id)
        if table.used((producer_id, *queue), batch_sequence.epoch, now_ms) is None and table.kind.must_be_known:
            raise ProducersFullError(
                f"no room to remember what producer {producer_id:016x} sends to queue {queue[1]} of {queue[0]!r}: "
                f"{table.kind.name} take {table.bytes} of {table.kind.bytes_max} bytes, and none of them is silent for "
                f"long enough to be forgotten; send it again later, or use fewer partitions and queues at a time"
            )

    def stored(self, batch_sequence: BatchSequence, queue: QueueKey, stretch: Stretch, now_ms: int) -> None:
        """Remember what was stored just now; `queue` is the one that it was sent to."""
        key, table = (batch_sequence.producer_id, *queue), self._table(batch_sequence.producer_id)
        numbers = table.used(key, batch_sequence.epoch, now_ms)
        if numbers is None:
            return
        before = numbers.excess
        numbers.answered_below(batch_sequence.first_unanswered)
        numbers.add(stretch)
        table.has_grown(key, numbers.excess - before, now_ms)
        self.data_version += 1

    def recovered(self, record: Record) -> None:
        """The log holds this record."""
        if (found := _numbered(record, promised_queue(record))) is not None:
            self.recovered_run(*found, record.store_timestamp_ms)

    def recovered_run(self, sender: _Sender, run: Stretch, store_ms: int) -> None:
        """The log holds these records, the last of which was stored then."""
        producer_id, epoch, queue = sender
        key, table = (producer_id, *queue), self._table(producer_id)
        numbers = table.used(key, epoch, store_ms)
        if numbers is None:
            return
        before, asked = numbers.excess, run.part(numbers.first_unanswered, run.end)
        for missing in asked.gaps(numbers.between(asked.base_sequence, asked.end)):
            numbers.add(missing)
            self.data_version += 1
        table.has_grown(key, numbers.excess - before, store_ms)

    def ends(self) -> Iterator[tuple[int, str, int, int]]:
        """Where each stretch ends in its consume queue: (producer id, topic, queue id, offset)."""
        for table in self._tables:
            for key, numbers in table.items():
                for one in numbers.stretches:
                    yield key[0], one.topic, one.queue_id, one.base_queue_offset + one.count

    def clamp(self, max_offset: Callable[[str, int], int]) -> None:
        """Forget what stands behind the end of its queue, as after a lost tail."""
        for table in self._tables:
            table.map([(key, _clamped(numbers, max_offset)) for key, numbers in table.items()])
        self.data_version += 1

    def expire(self, now_ms: int) -> None:
        """Forget the pairs that were silent for an hour; of producers that return, for a week."""
        for table in self._tables:
            if table.expire(now_ms):
                self.data_version += 1

    def take_over(self, other: ProducerSequences) -> None:
        """Know what the master of this log knew when the log ended here, and nothing else; `other` is used up.

        It knows what the records do not tell: which numbers are asked for no more, what stood in deleted files, and
        what it has forgotten.
        """
        for mine, theirs in zip(self._tables, other._tables, strict=True):
            mine.replace_all([(key, theirs.epoch(key[0]), numbers) for key, numbers in theirs.items()])
        self.data_version += 1

    def _table(self, producer_id: int) -> ProducerTable:
        return self._tables[kind_of(producer_id)]

    # ------------------------------------------------------------------------------------------------ the file

    def to_json(self) -> dict[str, Any]:
        """Ours alone: RocketMQ has no such file. The queues of a producer are one text, because there may be many."""
        return self.frozen()()

    def frozen(self) -> Callable[[], dict[str, Any]]:
        """What makes the document of this moment, also in another thread: from here on changes go to copies."""
        counter = self.data_version
        frozen = [table.frozen() for table in self._tables]
        return lambda: {
            "dataVersion": {"counter": counter},
            "producerTable": {name: entry for one in frozen for name, entry in _entries(one).items()},
        }

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what the file says. Raises KeyError, TypeError or ValueError when it is not of that form."""
        found = tables.table(document, "producerTable")
        pairs: list[list[tuple[PairKey, int, Numbers]]] = [[] for _ in KINDS]
        for name in found:
            producer_id, entry = int(name, 16), tables.table(found, name)
            pairs[kind_of(producer_id)] += [
                ((producer_id, *queue), int(entry["epoch"]), numbers) for queue, numbers in _queues(entry)
            ]
        self.data_version = int(tables.table(document, "dataVersion")["counter"])
        for table, its_pairs in zip(self._tables, pairs, strict=True):
            table.replace_all(its_pairs)


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


def _clamped(numbers: Numbers, max_offset: Callable[[str, int], int]) -> Numbers:
    return replace(
        numbers,
        stretches=[
            stretch.and_more(min(0, left - stretch.count))
            for stretch in numbers.stretches
            if (left := max_offset(stretch.topic, stretch.queue_id) - stretch.base_queue_offset) > 0
        ],
    )


def _entries(frozen: Frozen) -> dict[str, dict[str, Any]]:
    """Of each producer: its queues as one text, and by how much later than the one before each of them was used.

    A version that does not know `laterMs` takes all queues of a producer as used when the last one was.
    """
    queues: dict[int, list[tuple[PairKey, Numbers]]] = {}
    for key, numbers in frozen.pairs:
        queues.setdefault(key[0], []).append((key, numbers))
    entries = {}
    for producer_id, pairs in queues.items():
        times = [numbers.seen_ms for _, numbers in pairs]
        entry = entries[f"{producer_id:016x}"] = {
            "epoch": frozen.epochs[producer_id],
            "lastTimestamp": times[-1],
            "queues": "; ".join(queue_text(queue_of(key), numbers) for key, numbers in pairs),
        }
        if times[0] != times[-1]:
            entry["laterMs"] = " ".join(str(time - before) for before, time in pairwise(times))
    return entries


def _queues(entry: dict[str, Any]) -> list[tuple[QueueKey, Numbers]]:
    texts = [text for text in str(entry["queues"]).split("; ") if text]
    later = [int(one) for one in str(entry.get("laterMs", "")).split()] or [0] * (len(texts) - 1)
    if len(later) != max(0, len(texts) - 1):
        raise ValueError(f"{len(texts)} queues, and {len(later)} times between them")
    times = list(accumulate(later, initial=int(entry["lastTimestamp"]) - sum(later)))
    return [parse_queue(text, time) for text, time in zip(texts, times, strict=False)]
