"""What must be true of consumer groups, whatever happens to their members and their broker.

- At least once: what is stored is consumed by every group, in the end, unless an operator has set the offset past it.
- Offsets never pass a message that no listener of the group has answered for, and never go back by themselves.
- An orderly group consumes each queue in its order, by one listener at a time; a message that fails holds it.
- A message comes again only when there was a reason: each failure, each disturbance of its group, each reset is one.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LASTS_S = 100.0  # a disturbance: a lock that has to run out, and the rebalances after it
KNOWN_AFTER_S = 0.3  # progress is at the broker within 100 ms, and on its disk a moment later


class Place(NamedTuple):
    """Of a message in the topic."""

    queue_id: int
    offset: int


class InvariantError(AssertionError):
    """Something that must be true is not."""


@dataclass
class _Queue:
    """What one group did with one queue. Offsets; `set_to` and `version` belong to the newest reset."""

    answered: set[int] = field(default_factory=set)  # a listener has said what became of it
    consumed: set[int] = field(default_factory=set)  # since the newest reset
    skipped: set[int] = field(default_factory=set)  # an operator has set the offset past it
    set_to: int = 0
    version: int = 0
    stored: set[int] = field(default_factory=set)  # what the broker had at the last look
    known: set[int] = field(default_factory=set)  # what it has had for long enough to have it on its disk
    resets: int = 0
    running: dict[int, str] = field(default_factory=dict)  # listener number -> member
    began_in: dict[int, tuple[int, int]] = field(default_factory=dict)  # listener -> offset, resets when it began


class GroupModel:
    """The state of all groups, as far as the invariants need it."""

    def __init__(self, groups: Sequence[str], orderly: str = "orderly") -> None:
        self._orderly = orderly
        self._queues: dict[str, defaultdict[int, _Queue]] = {group: defaultdict(_Queue) for group in groups}
        self._failures: dict[str, dict[bytes, int]] = {group: {} for group in groups}
        self._failures_of: dict[bytes, int] = {}
        self._places: dict[bytes, Place] = {}
        self._consumed: dict[str, Counter[bytes]] = {group: Counter() for group in groups}
        self._begun: dict[str, Counter[bytes]] = {group: Counter() for group in groups}
        self._disturbances: dict[str, list[tuple[float, int]]] = {group: [] for group in groups}  # when, and how many
        self._sent_at: dict[bytes, float] = {}
        self._listeners = itertools.count()
        self.duplicates = 0

    # ------------------------------------------------------------------------------------------------ messages

    def to_send(self, body: bytes, failures: int, now: float) -> None:
        """It may be stored from now on."""
        self._sent_at[body] = now
        self._failures_of[body] = failures
        for left in self._failures.values():
            left[body] = failures

    def sent(self, body: bytes, place: Place) -> None:
        """It is stored."""
        self._note(body, place)

    def begun(self, group: str, member: str, body: bytes, place: Place | None) -> int:
        """A listener has got it; `place` is None for one that comes from the retry topic. Returns its number."""
        number = next(self._listeners)
        if place is not None:
            self._note(body, place)
            queue = self._queues[group][place.queue_id]
            queue.began_in[number] = place.offset, queue.resets
            if group == self._orderly:
                _begin_in_order(queue, number, member, place)
        self._begun[group][body] += 1
        since = self._sent_at[body] - LASTS_S
        reasons = 1 + self._failures_of[body] + sum(count for at, count in self._disturbances[group] if at >= since)
        if self._begun[group][body] > reasons:
            raise InvariantError(f"{group} got {body!r} {self._begun[group][body]} times for {reasons} reasons")
        return number

    def broken_off(self, group: str, number: int) -> None:
        """The listener's client has died."""
        for queue in self._queues[group].values():
            queue.running.pop(number, None)

    def ended(self, group: str, number: int, body: bytes, place: Place | None) -> bool:
        """Whether this try consumes it, as the message's number of failures wants it."""
        self.broken_off(group, number)
        fails = self._failures[group][body] > 0
        self._failures[group][body] -= fails
        if place is not None:
            queue = self._queues[group][place.queue_id]
            counts = queue.began_in.pop(number, None) == (place.offset, queue.resets)
            if counts and not fails:
                queue.consumed.add(place.offset)
            if counts and (not fails or group != self._orderly):
                queue.answered.add(place.offset)
        if not fails:
            self.duplicates += self._consumed[group][body] > 0
            self._consumed[group][body] += 1
        return not fails

    # -------------------------------------------------------------------------------------------------- events

    def disturbed(self, group: str, members: int, now: float) -> None:
        """Members, connections or the broker: what was under way may come once more to each of the members."""
        self._disturbances[group].append((now, 1 + members))

    def reset(self, group: str, queue_id: int, offset: int) -> None:
        """An operator has set the offset, and members hear of it."""
        queue = self._queues[group][queue_id]
        queue.skipped |= set(range(offset))
        queue.answered = {one for one in queue.answered if one < offset}
        queue.consumed.clear()
        queue.set_to = offset
        queue.resets += 1
        queue.version += 1
        queue.stored, queue.known = set(), set()

    def broker_died(self) -> None:
        """What it learnt in the last moment may be gone."""
        for queues in self._queues.values():
            for queue in queues.values():
                queue.stored = set(queue.known)

    def stored(
        self, group: str, queue_id: int, version: int, offset: int, ranges: Iterable[tuple[int, int]], seconds: float
    ) -> None:
        """What the broker has of the group now, after `seconds` in which nothing happened to it."""
        queue = self._queues[group][queue_id]
        now = {*range(offset), *(one for begin, end in ranges for one in range(begin, end))}
        too_far = {one for one in now if one >= queue.set_to} - queue.answered - queue.skipped
        if too_far:
            raise InvariantError(f"{group} has passed {sorted(too_far)} of queue {queue_id}, which were not consumed")
        if version < queue.version:
            raise InvariantError(f"{group}, queue {queue_id}: version {version} came after {queue.version}")
        gone = queue.stored - now
        if gone and version == queue.version:
            raise InvariantError(f"{group} has gone back in queue {queue_id}: {sorted(gone)} were finished")
        queue.version = version
        queue.stored = now
        if seconds >= KNOWN_AFTER_S:
            queue.known = now

    # ----------------------------------------------------------------------------------------------------- end

    def unconsumed(self) -> list[str]:
        """What some group has still to consume."""
        return [
            f"{group} has not consumed {body!r} at {place}"
            for group, queues in self._queues.items()
            for body, place in self._places.items()
            if not self._consumed[group][body] and place.offset not in queues[place.queue_id].skipped
        ]

    @property
    def consumptions(self) -> int:
        """By all groups together."""
        return sum(consumed.total() for consumed in self._consumed.values())

    def check_end(self) -> None:
        """When nothing happens any more."""
        if missing := self.unconsumed():
            raise InvariantError("; ".join(missing))

    def _note(self, body: bytes, place: Place) -> None:
        known = self._places.setdefault(body, place)
        if known != place:
            raise InvariantError(f"{body!r} stands at {known} and at {place}")


def _begin_in_order(queue: _Queue, number: int, member: str, place: Place) -> None:
    if queue.running:
        raise InvariantError(f"{member} and {sorted(queue.running.values())} consume {place} at the same time")
    queue.running[number] = member
    missing = [offset for offset in range(queue.set_to, place.offset) if offset not in queue.consumed]
    if missing:
        raise InvariantError(f"{member} got {place} before {missing}")
