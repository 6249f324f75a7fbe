"""What must be true of consumer groups whose topic, clock and disk change, beside what `group_model.py` says.

- A message with a due time is not delivered before it, and not at all after a recall has answered REMOVED.
- Only a power cut under ASYNC_FLUSH loses what was acknowledged, a suffix of the log; only a deleted topic, the rest.
- A group that begins at the end of a topic gets all that comes after that, and of a later queue everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from group_model import GroupModel, InvariantError, Place

EARLY_MS_MAX = 1_000  # docs/guides/guarantees.md: deliver_at, on a clock that is stepped


@dataclass(frozen=True, slots=True)
class Timed:
    """An acknowledged message that waits: until when, in ms of the wall clock, and its place in the log in bytes."""

    due_ms: int
    log_offset: int


class ElasticModel(GroupModel):
    """The state of all groups of one topic, of which groups in `late` begin at its end."""

    late: frozenset[str] = frozenset()

    def __init__(self, groups: tuple[str, ...]) -> None:
        super().__init__(groups)
        self._timed: dict[bytes, Timed] = {}
        self._due: dict[bytes, int] = {}  # also of what was perhaps not stored
        self._latest_wall_ms: dict[bytes, int] = {}  # the latest that the clock has shown since it was sent
        self._removed: dict[bytes, int] = {}  # by a recall, with the log's end at its answer
        self._begun_with_topic: set[str] = set()

    # ------------------------------------------------------------------------------------------ waiting messages

    def to_wait(self, body: bytes, due_ms: int, now: float) -> None:
        """It may be stored from now on, to be delivered at `due_ms` of the wall clock."""
        self.to_send(body, 0, now)
        self._due[body] = due_ms
        self._latest_wall_ms[body] = 0

    def waits(self, body: bytes, log_offset: int) -> None:
        """It is stored."""
        self._timed[body] = Timed(self._due[body], log_offset)

    def wall_shows(self, wall_ms: int) -> None:
        """To be told before each step of the wall clock, and when a message comes."""
        for body, latest_ms in self._latest_wall_ms.items():
            self._latest_wall_ms[body] = max(latest_ms, wall_ms)

    def removed(self, body: bytes, log_end: int) -> None:
        """A recall says so."""
        if any(consumed[body] for consumed in self._consumed.values()):
            raise InvariantError(f"{body!r} was consumed, and a recall answered REMOVED")
        self._removed[body] = log_end

    def begun(self, group: str, member: str, body: bytes, place: Place | None) -> int:
        if body in self._removed:
            raise InvariantError(f"{group} got {body!r}, which a recall had removed")
        if body in self._due and self._latest_wall_ms[body] < self._due[body] - EARLY_MS_MAX:
            early_ms = self._due[body] - self._latest_wall_ms[body]
            raise InvariantError(f"{group} got {body!r} {early_ms} ms before it was due")
        return super().begun(group, member, body, place)

    # -------------------------------------------------------------------------------------------- topic and disk

    def deleted_below(self, group: str, queue_id: int, begin: int, *, has_begun: bool) -> None:
        """Retention has deleted this. It waits for groups that have begun with the topic, and for no others."""
        queue = self._queues[group][queue_id]
        queue.set_to = max(queue.set_to, begin)
        if not has_begun:
            queue.skipped |= set(range(begin))

    def progress(self, group: str, offsets: Mapping[int, int | None], ends: Mapping[int, int]) -> None:
        """Where the broker has the group in each queue. One that begins at the end gets nothing that is before it."""
        if group in self.late and group not in self._begun_with_topic:
            has_begun = any(offset is not None for offset in offsets.values())
            for queue_id, end in ends.items():
                offset = offsets.get(queue_id)
                self._queues[group][queue_id].skipped |= set(range(end if not has_begun else offset or 0))
            if has_begun:
                self._begun_with_topic.add(group)

    def topic_deleted(self, held: Mapping[bytes, Place], ends: Mapping[int, int]) -> None:
        """With all that its queues held. Offsets of groups are gone, and numbers go on at these ends."""
        for body, place in held.items():
            self._note(body, place)
        for group in self._queues:
            for queue_id, end in ends.items():
                self.reset(group, queue_id, end)
                self._queues[group][queue_id].version = 0
        self._begun_with_topic.clear()

    def power_cut(self, held: Mapping[bytes, Place], ends: Mapping[int, int], log_end: int) -> None:
        """Under ASYNC_FLUSH: what the queues still hold, the ends of all now, and the log's end in bytes."""
        for body, place in list(self._places.items()):
            if place.offset >= ends[place.queue_id] or held.get(body, place) != place:
                del self._places[body]  # lost; or, if it waited, delivered again
        self._timed = {body: one for body, one in self._timed.items() if one.log_offset < log_end}
        self._removed = {body: end for body, end in self._removed.items() if end <= log_end}
        for queues in self._queues.values():
            for queue_id, queue in queues.items():
                end = ends.get(queue_id, 0)
                for kept in (queue.answered, queue.consumed, queue.skipped, queue.stored, queue.known):
                    kept.intersection_update(range(end))
                queue.set_to = min(queue.set_to, end)
                for number, (offset, _) in list(queue.began_in.items()):
                    if offset >= end:
                        del queue.began_in[number]
                        queue.running.pop(number, None)

    # ------------------------------------------------------------------------------------------------------- end

    def unconsumed(self) -> list[str]:
        waiting = [
            f"{group} has not consumed {body!r}, which waited"
            for group, consumed in self._consumed.items()
            for body in self._timed.keys() - self._removed.keys() - self._places.keys()
            if not consumed[body]
        ]
        placed = [
            f"{group} has not consumed {body!r} at {place}"
            for group, queues in self._queues.items()
            for body, place in self._places.items()
            if not self._consumed[group][body] and place.offset not in queues[place.queue_id].skipped
        ]
        return placed + waiting
