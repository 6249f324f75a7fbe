"""One producer's numbers for one queue: what of them is stored, where, and how that is written down.

Invariants: stretches are sorted and share no number; every number from the first unanswered one on that was stored is
in one of them, unless the oldest had to go.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mq_broker.core.limits import QUEUE_STRETCHES_MAX

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
    """One producer's numbers for one queue."""

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
