"""What groups have finished, on its way between a master and a slave (MISSION H4; RELIABILITY.md, bug zoo 24).

Members report to whichever broker they can reach, so both sides know something that the other one lacks. Each tells
everything when a link begins, and then what changes; two sets of one queue are reconciled as core/progress.py says, so
that it does not matter in which order, how late or how often they are heard of.

A forgotten offset is not told: it was forgotten with its topic or with its group, and the documents of those say so
(states.py). An offset from before that is not taken over.

A message that its group has sent back is finished because its retry stands further on in the log. So progress travels
with the end of the log that it depends on, and the receiver keeps it aside until its own log reaches as far: what is
finished at a slave that becomes the master is finished by what that slave has.

Renewals do not wait. A master may have lost messages, and say with a renewed version that what members know of their
numbers does not count for the new ones: everything that it says at the beginning of a link is looked at before the
first bytes of its log, which bring the new ones, and a renewal is on the slave's disk before them. Nor does the offset
wait of a queue in which the group has none here: without one a group begins at the end, and passes over messages.

Invariants: nothing that is finished is lost, and no reset is undone; nothing is finished beyond the end of its queue,
nor, where the group has an offset, ahead of the log that it depends on; of each queue two reports wait at most; bytes
of which anything is wrong change nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Protocol

from mq_broker.core.consumer_offsets import QUEUE_ID_MAX, ConsumerOffsets
from mq_broker.core.progress import Progress
from mq_broker.core.replication.frames import ProgressEntries
from mq_broker.core.topics import TopicTable
from mq_broker.store.progress_journal import Entry, encode_entry, scan

ENTRIES_BYTES_MAX = 1024 * 1024  # of one frame

Place = tuple[str, str, int]  # group, topic, queue id


class Queues(Protocol):
    """What a store says of its log and its queues."""

    @property
    def log_end(self) -> int:
        """Offset behind the log's last record."""

    def queue(self, topic: str, queue_id: int) -> object | None:
        """The queue, when anything was ever stored in it."""

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The offset that the queue's next message will have."""


class ProgressOut:
    """What the other side of one link has to hear."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets = offsets
        self._pending: dict[Place, None] = dict.fromkeys(offsets.places())
        self._unlisten = offsets.on_change(self._on_change)

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._pending)

    def take(self) -> bytes:
        """What has changed since it was taken last, as entries, at most 1 MiB; empty when there is nothing."""
        taken, size = list[bytes](), 0
        while self._pending:
            place = next(iter(self._pending))
            progress = self._offsets.progress(*place)
            if progress is not None:
                entry = encode_entry(Entry(self._offsets.data_version, *place, progress))
                if taken and size + len(entry) > ENTRIES_BYTES_MAX:
                    break
                taken.append(entry)
                size += len(entry)
            del self._pending[place]
        return b"".join(taken)

    def agrees(self, place: Place) -> None:
        """The other side knows of this queue what is known here: it need not hear of it."""
        self._pending.pop(place, None)

    def close(self) -> None:
        """The link has ended."""
        self._unlisten()

    def _on_change(self, group: str, topic: str, queue_id: int) -> None:
        self._pending[group, topic, queue_id] = None


@dataclass(slots=True)
class _Aside:
    """What waits until the log reaches `log_end`."""

    log_end: int
    place: Place
    progress: Progress


class ProgressIn:
    """What the other side of the same link says."""

    def __init__(self, store: Queues, topics: TopicTable, offsets: ConsumerOffsets, out: ProgressOut) -> None:
        self._store, self._topics, self._offsets, self._out = store, topics, offsets, out
        self._ahead: dict[Place, tuple[Progress, int]] = {}  # and where the queue ended when it was looked at
        self._aside: deque[_Aside] = deque()  # the log ends ascend, but for reports that have replaced earlier ones
        self._newest: dict[Place, _Aside] = {}  # of each queue, what waits and came last
        self._waiting: Counter[Place] = Counter()

    def merge(self, said: ProgressEntries) -> bool:
        """Reconcile what is known here with these entries. Raises ValueError; then nothing has changed.

        Returns whether versions were renewed: that has to be on disk before the log gets anything more.
        """
        found = scan(said.entries)
        if found.damages or found.torn:
            raise ValueError("bytes that are no entry")
        for entry in found.entries:
            if entry.progress is None or not 0 <= entry.queue_id <= QUEUE_ID_MAX:
                raise ValueError(f"an entry of queue {entry.queue_id} of {entry.topic!r} that tells no offset")
            if not entry.group or not entry.group.isprintable():
                raise ValueError(f"{entry.group!r} is no group")
        is_renewed = False
        for entry in found.entries:
            if entry.progress is not None:
                place = entry.group, entry.topic, entry.queue_id
                if said.log_end > self._store.log_end:
                    is_renewed |= self._put_aside(_Aside(said.log_end, place, entry.progress))
                else:
                    is_renewed |= self._reconcile(place, entry.progress)
        return is_renewed

    def _put_aside(self, one: _Aside) -> bool:
        """Whether the version was renewed, which does not wait."""
        place = one.place
        if self._waiting[place] == 2:
            newest = self._newest[place]
            newest.log_end, newest.progress = one.log_end, one.progress
        else:
            self._aside.append(one)
            self._newest[place] = one
            self._waiting[place] += 1
        known = self._offsets.progress(*place)
        if known is None:
            return self._reconcile(place, Progress(one.progress.offset, (), one.progress.version))
        if one.progress.renewals <= known.renewals:
            return False
        self._offsets.put(*place, known.renewed(one.progress.renewals))
        return True

    def _take_aside(self) -> None:
        """Take over what the log has reached."""
        while self._aside and self._aside[0].log_end <= self._store.log_end:
            one = self._aside.popleft()
            self._waiting[one.place] -= 1
            if not self._waiting[one.place]:
                del self._waiting[one.place], self._newest[one.place]
            self._reconcile(one.place, one.progress)

    def catch_up(self) -> None:
        """The log has grown: what was reported ahead of it is taken over, as far as it is there now."""
        self._take_aside()
        for place, (progress, looked_at) in list(self._ahead.items()):
            if self._store.queue_end(*place[1:]) != looked_at:
                del self._ahead[place]
                self._reconcile(place, progress)

    def _reconcile(self, place: Place, progress: Progress) -> bool:
        """Whether the version was renewed."""
        group, topic, queue_id = place
        if progress.offset < self._topics.deleted_below(topic, queue_id):
            return False  # of a topic that has been deleted since
        end = self._store.queue_end(topic, queue_id)
        if progress.end > end:
            ahead = self._ahead.get(place)
            whole = progress if ahead is None else ahead[0].reconciled(progress)
            self._ahead[place] = whole, end
        config = self._topics.get(topic)
        if config is None or (queue_id >= config.queue_count and self._store.queue(topic, queue_id) is None):
            return False
        before = self._offsets.progress(*place)
        if self._offsets.reconcile(group, topic, queue_id, progress, end) == progress.cut(end):
            self._out.agrees(place)
        return before is not None and progress.renewals > before.renewals
