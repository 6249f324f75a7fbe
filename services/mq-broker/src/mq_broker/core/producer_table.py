"""The numbered messages of one producer: which are stored, where, and how many are remembered."""

from __future__ import annotations

import logging
import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mq_broker.core.limits import (
    DRAWN_PRODUCERS_BYTES_MAX,
    PRODUCER_LIVE_MS,
    QUEUE_STRETCHES_MAX,
    RETURNING_PRODUCERS_BYTES_MAX,
    WRITE_PRODUCERS_BYTES_MAX,
)
from mqproto.properties import RETURNING_PRODUCERS_FROM, WRITE_PRODUCERS_FROM

log = logging.getLogger(__name__)

EXPIRY_MS = 3_600_000  # far beyond any send's budget (3 s, mechanism P4), and the next try of a task of Spark
# A producer that comes back with what a checkpoint told it: longer than messages are kept (72 h) and a weekend lasts.
RETURNING_EXPIRY_MS = 7 * 24 * 3_600_000
PRODUCER_BYTES, PAIR_BYTES = 80, 24  # of a producer in the file, and of a pair beside its topic and its first stretch
SHARES = 4  # no producer has more than one of so many parts of `bytes_max`

PairKey = tuple[int, str, int]  # producer id, topic and queue id


class ProducersFullError(Exception):
    """There is no room for another pair of a producer that has to be recognised. Nothing has happened."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Producers whose ids are from `ids_from` on. One that `must_be_known` is rejected when there is no room for it."""

    name: str
    ids_from: int
    expiry_ms: int
    bytes_max: int
    must_be_known: bool

    @property
    def gap_bytes_max(self) -> int:
        """Of all stretches beyond one for each pair."""
        return self.bytes_max // 2


KINDS = (
    Kind("producers that draw an id", 0, EXPIRY_MS, DRAWN_PRODUCERS_BYTES_MAX, must_be_known=False),
    Kind(
        "producers that return",
        RETURNING_PRODUCERS_FROM,
        RETURNING_EXPIRY_MS,
        RETURNING_PRODUCERS_BYTES_MAX,
        must_be_known=True,
    ),
    Kind("producers of one write", WRITE_PRODUCERS_FROM, EXPIRY_MS, WRITE_PRODUCERS_BYTES_MAX, must_be_known=True),
)


@dataclass(slots=True)
class _Producer:
    """`epoch` is that of its newest stream."""

    epoch: int = 0
    bytes: int = 0  # of its pairs, in the file


class Frozen(NamedTuple):
    """What a table had at one moment."""

    pairs: list[tuple[PairKey, Numbers]]
    epochs: dict[int, int]


class ProducerTable:
    """`open_producers` are those with an open stream: they count as live.

    Invariants: pairs stand in the order in which they were last used; those of closed producers that were silent for
    `LIVE_MS` go first, the longest silent one before the others, and no other ones go; what all pairs take in the file
    is within `bytes_max`, and their stretches beyond one for each pair within half as much again.
    """

    def __init__(self, kind: Kind, open_producers: Container[int]) -> None:
        self.kind, self._open = kind, open_producers
        self._pairs: OrderedDict[PairKey, Numbers] = OrderedDict()
        self._producers: dict[int, _Producer] = {}
        self.bytes = self.gap_bytes = 0
        self._freezes = 0
        self._told_ms = -PRODUCER_LIVE_MS  # when it was last said that there is no room

    def epoch(self, producer_id: int) -> int:
        """Of the producer's newest stream; -1 when the producer is not known."""
        producer = self._producers.get(producer_id)
        return -1 if producer is None else producer.epoch

    def note_epoch(self, producer_id: int, epoch: int) -> None:
        """The producer has opened a stream with this epoch; nothing of an earlier one is stored any more."""
        if producer_id in self._producers:
            self._producers[producer_id].epoch = epoch

    def get(self, key: PairKey) -> Numbers | None:
        """What is known of a pair; not to be changed."""
        return self._pairs.get(key)

    def items(self) -> Iterable[tuple[PairKey, Numbers]]:
        """All pairs, the one that was silent longest first; not to be changed."""
        return self._pairs.items()

    def used(self, key: PairKey, epoch: int, now_ms: int) -> Numbers | None:
        """A pair's numbers, to be changed by `change`; a new pair makes room for itself. None when there is none."""
        numbers = self._pairs.get(key)
        if numbers is None:
            if not self._make_room(key, now_ms):
                return None
            numbers = self._insert(key, Numbers(freezes=self._freezes))
        else:
            numbers = self._own(key, numbers)
            self._pairs.move_to_end(key)
        numbers.seen_ms = max(numbers.seen_ms, now_ms)
        producer = self._producers[key[0]]
        producer.epoch = max(producer.epoch, epoch)
        return numbers

    def has_grown(self, key: PairKey, excess: int, now_ms: int) -> None:
        """A pair has so many stretches more beyond one; fewer, when it is negative."""
        if excess:
            self.gap_bytes += excess * _stretch_bytes(key)
            if self.gap_bytes > self.kind.gap_bytes_max:
                self._cut_gaps(now_ms)

    def expire(self, now_ms: int) -> bool:
        """Forget the pairs that were silent for too long; whether there were any."""
        silent_since, before = now_ms - self.kind.expiry_ms, len(self._pairs)
        while self._pairs and next(iter(self._pairs.values())).seen_ms < silent_since:
            self._forget_first()
        return len(self._pairs) < before

    def replace_all(self, pairs: Iterable[tuple[PairKey, int, Numbers]]) -> None:
        """Have these pairs and no others, each with its producer's epoch; of too many the newest."""
        self._pairs, self._producers = OrderedDict(), {}
        self.bytes = self.gap_bytes = 0
        for key, epoch, numbers in sorted(pairs, key=lambda one: one[2].seen_ms):
            self._insert(key, numbers)
            self._producers[key[0]].epoch = epoch
            self.gap_bytes += numbers.excess * _stretch_bytes(key)
        while self.bytes > self.kind.bytes_max:
            self._forget_first()

    def map(self, change: Iterable[tuple[PairKey, Numbers]]) -> None:
        """Have other numbers for these pairs, which are all known."""
        for key, numbers in change:
            numbers.freezes = self._freezes
            self.gap_bytes += (numbers.excess - self._pairs[key].excess) * _stretch_bytes(key)
            self._pairs[key] = numbers

    def frozen(self) -> Frozen:
        """What it has now: from here on changes go to copies."""
        self._freezes += 1
        return Frozen(
            list(self._pairs.items()), {producer_id: one.epoch for producer_id, one in self._producers.items()}
        )

    # ------------------------------------------------------------------------------------------------- inside

    def _make_room(self, key: PairKey, now_ms: int) -> bool:
        """Forget silent pairs until one more has room; False when there are only live ones."""
        producer, share = self._producers.get(key[0]), self.kind.bytes_max // SHARES
        fits = producer is None or producer.bytes + self._bytes_of(key) <= share
        while fits and self.bytes + self._bytes_of(key) > self.kind.bytes_max:
            fits = self._forget_silent(now_ms)
        if not fits and now_ms - self._told_ms >= PRODUCER_LIVE_MS:
            self._told_ms = now_ms
            what = "rejected for now" if self.kind.must_be_known else "stored, and a repeat of it is not recognised"
            log.warning(
                "%s: %d pairs of producer and queue take %d bytes (at most %d, and %d for one producer) and all are "
                "live: what producer %016x sends to another queue is %s",
                *(self.kind.name, len(self._pairs), self.bytes, self.kind.bytes_max, share, key[0], what),
            )
        return fits

    def _forget_silent(self, now_ms: int) -> bool:
        """Forget the pair that was silent longest; False when all are live. Those of open streams count as used now."""
        while self._pairs:
            key, numbers = next(iter(self._pairs.items()))
            if self._is_live(numbers, now_ms):
                return False
            if key[0] not in self._open:
                self._forget_first()
                return True
            self._own(key, numbers).seen_ms = now_ms
            self._pairs.move_to_end(key)
        return False

    @staticmethod
    def _is_live(numbers: Numbers, now_ms: int) -> bool:
        return now_ms - numbers.seen_ms < PRODUCER_LIVE_MS

    def _insert(self, key: PairKey, numbers: Numbers) -> Numbers:
        size, producer = self._bytes_of(key), self._producers.setdefault(key[0], _Producer())
        producer.bytes += size
        self.bytes += size
        self._pairs[key] = numbers
        return numbers

    def _forget_first(self) -> None:
        key, numbers = self._pairs.popitem(last=False)
        producer = self._producers[key[0]]
        size = _pair_bytes(key)
        if producer.bytes - size <= PRODUCER_BYTES:
            size = producer.bytes
            del self._producers[key[0]]
        producer.bytes -= size
        self.bytes -= size
        self.gap_bytes -= numbers.excess * _stretch_bytes(key)

    def _own(self, key: PairKey, numbers: Numbers) -> Numbers:
        """The same, and in no frozen document."""
        if numbers.freezes != self._freezes:
            numbers = self._pairs[key] = numbers.copy(self._freezes)
        return numbers

    def _bytes_of(self, key: PairKey) -> int:
        """What a new pair takes."""
        return _pair_bytes(key) + (0 if key[0] in self._producers else PRODUCER_BYTES)

    def _cut_gaps(self, now_ms: int) -> None:
        """Forget the oldest stretches of the pairs with most, until half of what all may take is free.

        Of silent pairs first: one that is live loses only when those with gaps that are live have too many alone.
        """
        half = self.kind.gap_bytes_max // 2
        silent = [
            (key, numbers)
            for key, numbers in self._pairs.items()
            if numbers.excess and key[0] not in self._open and not self._is_live(numbers, now_ms)
        ]
        self._keep_newest(silent, half - self.gap_bytes + sum(map(_gap_bytes, silent)))
        if self.gap_bytes > self.kind.gap_bytes_max:
            self._keep_newest([pair for pair in self._pairs.items() if pair[1].excess], half)

    def _keep_newest(self, pairs: list[tuple[PairKey, Numbers]], room: int) -> None:
        """Have these take at most `room` bytes beyond one stretch each, by keeping the newest N stretches of each."""
        most = QUEUE_STRETCHES_MAX
        while most > 1 and sum(min(one.excess, most - 1) * _stretch_bytes(key) for key, one in pairs) > room:
            most //= 2
        cut = [(key, one) for key, one in pairs if len(one.stretches) > most]
        if cut:
            log.warning(
                "%s have left too many gaps in their numbers: %d pairs of producer and queue keep their newest %d "
                "stretches",
                *(self.kind.name, len(cut), most),
            )
        self.map((key, replace(one, stretches=one.stretches[-most:])) for key, one in cut)


def kind_of(producer_id: int) -> int:
    """The place in KINDS."""
    return sum(producer_id >= kind.ids_from for kind in KINDS[1:])


def queue_of(key: PairKey) -> QueueKey:
    """The queue of the pair."""
    return key[1], key[2]


def _stretch_bytes(key: PairKey) -> int:
    """Of one stretch in the file, about."""
    return len(key[1]) + STRETCH_BYTES


def _pair_bytes(key: PairKey) -> int:
    return len(key[1]) + PAIR_BYTES + _stretch_bytes(key)


def _gap_bytes(pair: tuple[PairKey, Numbers]) -> int:
    return pair[1].excess * _stretch_bytes(pair[0])


STRETCH_BYTES = 40  # of a stretch in the file, beside the name of its topic

QueueKey = tuple[str, int]  # topic and queue id

_QUEUE_TEXT = re.compile(r"([^:; ]+):(\d+) (\d+)((?: \d+\+\d+@[^:; ]+:\d+:\d+)*)")
_STRETCH_TEXT = re.compile(r" (\d+)\+(\d+)@([^:; ]+):(\d+):(\d+)")


@dataclass(slots=True, order=True)
class Stretch:
    """Records with the numbers from `base_sequence` on, which stand one behind the other in a consume queue.

    It never changes once it is remembered: frozen documents share it. It is not frozen itself because each batch, and
    each record that a start reads, makes one, and a frozen one takes three times as long to make.
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

    def gaps(self, known: Sequence[Stretch]) -> Iterator[Stretch]:
        """What of it is in none of the known ones, which are parts of it in order."""
        at = self.base_sequence
        for one in known:
            if at < one.base_sequence:
                yield self.part(at, one.base_sequence)
            at = one.end
        if at < self.end:
            yield self.part(at, self.end)


@dataclass(slots=True)
class Numbers:
    """One producer's numbers for one queue: what of them is stored, where, and how that is written down.

    Invariants: stretches are sorted and share no number; every number from the first unanswered one on that was stored
    is in one of them, unless the oldest had to go.
    """

    first_unanswered: int = 0
    stretches: list[Stretch] = field(default_factory=list)
    seen_ms: int = 0  # when the producer last sent something to this queue
    freezes: int = 0  # as many documents had been frozen when it was made or copied: a later one shares it

    def copy(self, freezes: int) -> Numbers:
        """One that may be changed while a frozen document has this one."""
        return replace(self, stretches=self.stretches.copy(), freezes=freezes)

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


def queue_text(queue: QueueKey, numbers: Numbers) -> str:
    """`topic:queue first_unanswered sequence+count@topic:queue:offset ...`."""
    stretches = "".join(
        f" {one.base_sequence}+{one.count}@{one.topic}:{one.queue_id}:{one.base_queue_offset}"
        for one in numbers.stretches
    )
    return f"{queue[0]}:{queue[1]} {numbers.first_unanswered}{stretches}"


def parse_queue(text: str, seen_ms: int) -> tuple[QueueKey, Numbers]:
    """The inverse. Raises ValueError."""
    match = _QUEUE_TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not the numbers of a queue")
    stretches = [
        Stretch(int(one[1]), int(one[2]), one[3], int(one[4]), int(one[5])) for one in _STRETCH_TEXT.finditer(match[4])
    ]
    return (match[1], int(match[2])), Numbers(int(match[3]), stretches, seen_ms)
