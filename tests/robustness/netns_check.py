"""What must be true of every history of a pair (figure G7), whatever was done to it.

- What was acknowledged with SEND_OK is there in the end, at its place, byte for byte.
- What was acknowledged as less safe is there too, unless a replica that did not have it was promoted by force; and then
  the old master has it in quarantine.
- Nothing is there that was not sent. No broker has stored a message twice, and of one sender and queue nothing stands
  before what had been acknowledged when it was sent.
- Nothing was consumed that is not there in the end. Where a master may acknowledge alone, what it has shown of
  that is excused as its acknowledgement is.
- A group's progress has passed nothing that it has not consumed, and in the end it has passed everything.
- Each epoch has one master: one store was seen to be writable in it, one broker has written in it, and no other has
  acknowledged what it wrote, unless that was master after it.

Each function returns sentences for people, one for each violation.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from netns_history import SEND_OK, STORED, History, Name, Place, Promotion, Seen, Sent, Stored, body_of, name_of

Epoch = tuple[int, int]


class _Index:
    """A history, ready to be asked."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sent = {one.name: one for one in history.sent}
        self.at_place = {one.place: one for one in history.stored}
        self.copies: dict[Name, list[Stored]] = defaultdict(list)
        for one in history.stored:
            if (name := name_of(one.body)) is not None:
                self.copies[name].append(one)

    @cached_property
    def bodies_seen(self) -> dict[Place, set[Name | None]]:
        """What was consumed at each place."""
        seen: dict[Place, set[Name | None]] = defaultdict(set)
        for one in self.history.seen:
            seen[one.place].add(one.name)
        return seen

    def excuses(self, began_at: float, known_at: float, log_offset: int) -> list[Promotion]:
        """The promotions by force that may have cost a message which was on its way from `began_at` on, and of which
        was known at `known_at` where it stood.
        """
        return [
            promotion
            for promotion in self.history.promotions
            if began_at <= promotion.over_at
            and not any(
                known_at <= both.at <= promotion.at and log_offset < both.log_offset for both in self.history.together
            )
        ]

    def epoch_at(self, log_offset: int) -> Epoch | None:
        """In which epoch this was written."""
        newest = None
        for epoch, begin in self.history.epochs:
            if begin <= log_offset:
                newest = epoch
        return newest


def violations(history: History) -> list[str]:
    """Everything that is wrong with it."""
    index = _Index(history)
    checks = (_acknowledged, _strangers, _doubled, _disorder, _phantoms, _progress, _masters)
    return [sentence for check in checks for sentence in check(index)]


def _acknowledged(index: _Index) -> Iterator[str]:
    for one in index.history.sent:
        if one.outcome not in STORED:
            continue
        body = body_of(index.history.seed, one.name)
        there = index.at_place.get(one.place)
        if there is not None and there.body == body:
            if one.log_offset not in (-1, there.log_offset):
                yield f"{one.name} was told log offset {one.log_offset}, and stands at {there.log_offset}"
            continue
        excuses = index.excuses(one.sent_at, one.answered_at, one.log_offset)
        if one.outcome == SEND_OK or not excuses:
            what = "nothing" if there is None else name_of(there.body) or "garbage"
            yield f"{one.name} was answered {one.outcome} at {one.place} by {one.broker}, and {what} is there"
        elif all(one.keeps_tail for one in excuses) and body not in index.history.kept and not index.copies[one.name]:
            yield f"{one.name} was answered {one.outcome} by {one.broker}, was cut off, and is in no quarantine"


def _strangers(index: _Index) -> Iterator[str]:
    offsets: dict[int, int] = defaultdict(int)
    for one in sorted(index.history.stored, key=lambda stored: stored.place):
        if one.place.queue_offset != offsets[one.place.queue_id]:
            yield f"{one.place}: expected was offset {offsets[one.place.queue_id]}"
        offsets[one.place.queue_id] = one.place.queue_offset + 1
        name = name_of(one.body)
        if name is None or name not in index.sent or one.body != body_of(index.history.seed, name):
            yield f"{one.place}: never sent {one.body[:40]!r} with {len(one.body)} bytes"


def _doubled(index: _Index) -> Iterator[str]:
    for name, copies in index.copies.items():
        writers = [one.writer for one in copies]
        if len(set(writers)) < len(writers):
            yield f"{name} was stored {len(copies)} times, by {', '.join(writers)}"
    places: dict[Place, Sent] = {}
    for one in index.history.sent:
        if one.outcome != SEND_OK:
            continue
        before = places.setdefault(one.place, one)
        if before is not one:
            yield f"{before.name} and {one.name} were both acknowledged at {one.place}"


def _disorder(index: _Index) -> Iterator[str]:
    """Every copy counts, also an unacknowledged one."""
    newest: dict[tuple[int, int], Sent] = {}  # by sender and queue: of the latest burst so far
    for stored in sorted(index.history.stored, key=lambda one: one.place):
        name = name_of(stored.body)
        one = index.sent.get(name) if name is not None else None
        if one is None:
            continue
        before = newest.setdefault((one.sender, stored.place.queue_id), one)
        if one.burst < before.burst and one.outcome in STORED and one.place == stored.place:
            yield f"{one.place}: {before.name} stands before {one.name}, which was acknowledged when it was sent"
        newest[one.sender, stored.place.queue_id] = max(before, one, key=lambda sent: sent.burst)


def _phantoms(index: _Index) -> Iterator[str]:
    for one in index.history.seen:
        there = index.at_place.get(one.place)
        if there is not None and _is_body(one, there.body):
            continue
        name = one.name
        if name is None or name not in index.sent or not _is_body(one, body_of(index.history.seed, name)):
            yield f"{one.place}: consumed {one.text!r} with {one.size} bytes, which was never sent"
            continue
        if index.history.synchronous or not index.excuses(index.sent[name].sent_at, one.at, one.log_offset):
            yield f"{one.place}: {name} was consumed, and is not there in the end"


def _is_body(seen: Seen, body: bytes) -> bool:
    return (seen.size, seen.crc32) == (len(body), zlib.crc32(body))


def _progress(index: _Index) -> Iterator[str]:
    ends: dict[int, int] = defaultdict(int)
    for one in index.history.stored:
        ends[one.place.queue_id] = max(ends[one.place.queue_id], one.place.queue_offset + 1)
        if one.place.queue_offset < index.history.progress.get(one.place.queue_id, 0):
            yield from _unconsumed(index, one)
    for queue_id, end in ends.items():
        reached = index.history.progress.get(queue_id, 0)
        if reached != end:
            yield f"queue {queue_id}: the group has come to {reached}, and the queue ends at {end}"


def _unconsumed(index: _Index, stored: Stored) -> Iterator[str]:
    seen = index.bodies_seen[stored.place]
    name = name_of(stored.body)
    if name in seen:
        return
    # What a lone master has shown, and what took its place later: who saw the one may be past the other.
    if index.history.synchronous or not seen:
        yield f"{stored.place}: the group is past {name}, which it has not consumed"


def _masters(index: _Index) -> Iterator[str]:
    reigning: dict[Epoch, set[str]] = defaultdict(set)
    masters: dict[Epoch, set[str]] = defaultdict(set)  # their addresses
    for reign in index.history.reigns:
        reigning[reign.epoch].add(reign.replica_id)
        masters[reign.epoch].add(reign.broker)
    for epoch, stores in sorted(reigning.items()):
        if len(stores) > 1:
            yield f"epoch {epoch}: the stores {', '.join(sorted(stores))} were all seen to be its master"
    writing: dict[Epoch, set[str]] = defaultdict(set)
    for one in index.history.stored:
        named = index.epoch_at(one.log_offset)
        if named is None:
            yield f"{one.place}: {one.writer} wrote it in no epoch at all"
        else:
            writing[named].add(one.writer)
            masters[named].add(one.writer)
    for epoch, writers in sorted(writing.items()):
        if len(writers) > 1:
            yield f"epoch {epoch}: {', '.join(sorted(writers))} have all written in it"
    yield from _wrong_acknowledgements(index, masters)


def _wrong_acknowledgements(index: _Index, masters: dict[Epoch, set[str]]) -> Iterator[str]:
    """A later master may answer for what an earlier one wrote, to a client that asks again."""
    for one in index.history.sent:
        there = index.at_place.get(one.place)
        epoch = index.epoch_at(there.log_offset) if there is not None else None
        if one.outcome != SEND_OK or epoch is None:
            continue
        if not any(one.broker in brokers for later, brokers in masters.items() if later >= epoch):
            yield f"{one.name} of epoch {epoch} was acknowledged by {one.broker}, which was no master from then on"
