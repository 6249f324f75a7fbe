"""The progress of each group in each queue (mechanisms C20-C22)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any

from mq_broker.core import documents as tables
from mq_broker.core.limits import RANGES_PER_QUEUE_MAX

VERSION_MAX = (1 << 62) - 1
RESETS_BITS = 40  # of a version, the lower ones: a thousand resets a second for 30 years
RESETS_MAX = (1 << RESETS_BITS) - 1

Range = tuple[int, int]  # first offset, and the one behind the last


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a group in one queue: a set of finished offsets that only grows (mechanisms C20, C21).

    `offset` is the next message to be consumed, were there no ranges. Everything below `offset` is in it, and the
    ranges beyond. What is reported is added as a union: a report that is late or comes twice changes nothing, because
    what a member says is finished is finished. Only an offset reset takes something out; then `version` grows, and a
    report with another version is of a set that is no more.

    A version is two counts in one number. `resets` is how often the offset was set anew: of two brokers' sets of one
    queue the one with more resets holds, and between equal ones what either has finished is finished. `renewals` is how
    often a broker began whose log may lack what members have got: it takes nothing out, it only has the members ask
    anew what is finished, because the numbers of what is lost are given again. Members report with both; brokers
    compare the resets.

    Invariants: offset and version are not negative; no range is empty; the ranges ascend, are apart from each other,
    and begin behind `offset`.
    """

    offset: int
    ranges: tuple[Range, ...] = ()
    version: int = 0

    def __contains__(self, offset: int) -> bool:
        """Whether the message with this offset is finished."""
        if offset < self.offset:
            return True
        at = bisect_right(self.ranges, offset, key=itemgetter(0)) - 1
        return at >= 0 and offset < self.ranges[at][1]

    @property
    def end(self) -> int:
        """The offset behind everything that is finished."""
        return self.ranges[-1][1] if self.ranges else self.offset

    @property
    def finished_beyond(self) -> int:
        """How many messages beyond `offset` are finished."""
        return sum(end - begin for begin, end in self.ranges)

    @property
    def resets(self) -> int:
        """How often the offset was set anew."""
        return self.version & RESETS_MAX

    @property
    def renewals(self) -> int:
        """How often members had to ask anew what is finished."""
        return self.version >> RESETS_BITS

    def has_renewals_of(self, version: int) -> bool:
        """Whether a member with this version has got its messages from the log that the broker has now."""
        return self.renewals == version >> RESETS_BITS

    def check(self) -> None:
        """Raise ValueError with what is allowed when an invariant does not hold, or there are too many ranges."""
        if self.offset < 0:
            raise ValueError(f"offset {self.offset}; allowed are 0 and more")
        if not 0 <= self.version <= VERSION_MAX:
            raise ValueError(f"version {self.version}; allowed are 0 to {VERSION_MAX}")
        if len(self.ranges) > RANGES_PER_QUEUE_MAX:
            raise ValueError(f"{len(self.ranges)} finished ranges; allowed are at most {RANGES_PER_QUEUE_MAX}")
        for begin, end in self.ranges:
            if not self.offset < begin < end:
                raise ValueError(f"the finished range {begin} to {end} is empty, or not beyond offset {self.offset}")
        for before, after in pairwise(self.ranges):
            if after[0] <= before[1]:
                raise ValueError(f"the finished range from {after[0]} on is not apart from the one before it")

    def merged(self, reported: Progress) -> Progress:
        """What is finished in either; of more ranges than are kept the last ones are forgotten.

        Raises ValueError when the versions differ.
        """
        if reported.version != self.version:
            raise ValueError(f"version {reported.version} has nothing to do with version {self.version}")
        offset = max(self.offset, reported.offset)
        if not self.ranges and not reported.ranges:
            return self if offset == self.offset else Progress(offset, (), self.version)
        offset, ranges = _union(offset, (*self.ranges, *reported.ranges))
        return Progress(offset, ranges[:RANGES_PER_QUEUE_MAX], self.version)

    def set_to(self, offset: int, resets_min: int = 0) -> Progress:
        """Exactly here, and nothing beyond, with so many resets at least; reports from before do not count any more."""
        return Progress(offset, (), version_of(self.renewals, max(self.resets + 1, resets_min)))

    def renewed(self, renewals: int) -> Progress:
        """The same, with at least so many renewals: reports from before do not count any more."""
        return Progress(self.offset, self.ranges, version_of(max(self.renewals, renewals), self.resets))

    def with_resets(self, resets: int) -> Progress:
        """The same, with at least so many resets: of another broker's set, one with fewer does not count."""
        return Progress(self.offset, self.ranges, version_of(self.renewals, max(self.resets, resets)))

    def reconciled(self, other: Progress) -> Progress:
        """The progress after a merge with `other`, another broker's of the same queue.

        Whatever the order in which brokers hear of each other, and however often, they come to the same; of more ranges
        than are allowed the last ones are forgotten.
        """
        renewals = max(self.renewals, other.renewals)
        if self.resets != other.resets:
            return max(self, other, key=lambda one: one.resets).renewed(renewals)
        offset, ranges = _union(max(self.offset, other.offset), (*self.ranges, *other.ranges))
        return Progress(offset, ranges[:RANGES_PER_QUEUE_MAX], version_of(renewals, self.resets))

    def cut(self, end: int) -> Progress:
        """Without what is not below `end`."""
        if self.end <= end:
            return self
        ranges = tuple((begin, min(stop, end)) for begin, stop in self.ranges if begin < end)
        return Progress(min(self.offset, end), ranges, self.version)


def version_of(renewals: int, resets: int) -> int:
    """The version with these two counts."""
    return renewals << RESETS_BITS | resets


def _union(offset: int, ranges: Iterable[Range]) -> tuple[int, tuple[Range, ...]]:
    """Offset and ranges that say the same in the normal form."""
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if begin <= offset:
            offset = max(offset, end)
        elif joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return offset, tuple(joined)


GROUP_SEPARATOR = "@"  # the key in consumerOffset.json is topic@group, as in RocketMQ
QUEUE_ID_MAX = (1 << 31) - 1
COUNTER_MAX = (1 << 62) - 1
RENEWALS_MAX = VERSION_MAX >> RESETS_BITS
# A term's masters count from its number times these: no two of them give the same versions.
RESETS_PER_TERM, RENEWALS_PER_TERM = 1 << 20, 1 << 8
# A restored store goes on at most so many renewals further: there is room for some 30 restores of restored stores.
RESTORED_RENEWALS_MAX = 1 << 18

Listener = Callable[[str, str, int], None]  # of group, topic, queue id
_Table = dict[tuple[str, str], dict[int, Progress]]


class ConsumerOffsets:
    """Progress by topic, group and queue id.

    Invariants: nothing that is finished lies beyond the end of its queue; what was never committed is absent, not zero;
    every change makes `data_version` grow and is told to the listeners, but for those that are read from a file; no
    progress has fewer renewals than `renewals`, or fewer resets than the group's first ones.
    """

    def __init__(self) -> None:
        self._progress: _Table = {}
        self._topics_of: Counter[str] = Counter()  # how many topics each group has an offset in
        self.count = 0  # of queues in which a group has an offset
        self._own: set[tuple[str, str]] = set()  # keys of the inner tables that no frozen document shares
        self._listeners: list[Listener] = []
        self.data_version = 0
        self._resets_before = 0  # masters of earlier terms have counted no further
        self.renewals = 0  # how often members had to ask this broker anew, whatever they consume
        self.first_resets: Callable[[str], int] = lambda _group: 0  # of a group whose offsets were forgotten; see there

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` called after every change, with the queue that has changed.

        That ends when what is returned is called.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def progress(self, group: str, topic: str, queue_id: int) -> Progress | None:
        """The group's progress in the queue; None when it has no offset there."""
        return self._progress.get((topic, group), {}).get(queue_id)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None when there is none."""
        progress = self.progress(group, topic, queue_id)
        return None if progress is None else progress.offset

    def has_begun(self, group: str, topic: str) -> bool:
        """Whether the group has an offset in any queue of the topic."""
        return (topic, group) in self._progress

    def joined(self, group: str, topic: str, queue_id: int, reported: Progress) -> Progress:
        """What is finished with what was reported, or, when that is of another version, without it.

        A group that has no offset for the queue has no version either, and takes over what is reported.
        """
        known = self.progress(group, topic, queue_id)
        if known is None:
            return self._begun(group, reported)
        return known.merged(reported) if known.version == reported.version else known

    def put(self, group: str, topic: str, queue_id: int, progress: Progress) -> None:
        """Set the group's progress in the queue."""
        if self.progress(group, topic, queue_id) != progress:
            queues = self._queues(topic, group)
            self.count += queue_id not in queues
            queues[queue_id] = progress
            self._changed(group, topic, queue_id)

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> Progress:
        """Reset the group's offset to exactly `offset`. Returns the new progress, with its new version."""
        now = self.after_reset(group, topic, queue_id, offset)
        self.put(group, topic, queue_id, now)
        return now

    def after_reset(self, group: str, topic: str, queue_id: int, offset: int) -> Progress:
        """The progress that a reset would set; nothing changes yet."""
        known = self.progress(group, topic, queue_id) or self._begun(group, Progress(0))
        return known.set_to(offset, self._resets_before + 1)

    def begin(self, group: str, topic: str, queue_id: int, offset: int) -> Progress:
        """Let the group begin at `offset`, unless it has begun. Returns its progress."""
        known = self.progress(group, topic, queue_id)
        if known is None:
            known = self._begun(group, Progress(offset))
            self.put(group, topic, queue_id, known)
        return known

    def reconcile(self, group: str, topic: str, queue_id: int, reported: Progress, end: int) -> Progress | None:
        """Another broker of this name says what the group has finished of the queue, which ends at `end` here.

        Returns what is the case now: None when nothing is known and what is reported was forgotten since.
        """
        known = self.progress(group, topic, queue_id)
        if reported.resets < self.first_resets(group):
            return known
        now = reported if known is None else known.reconciled(reported)
        now = now.renewed(self.renewals).cut(end)
        self.put(group, topic, queue_id, now)
        return now

    def restore(self, group: str, topic: str, queue_id: int, progress: Progress | None) -> None:
        """Take over what a file says of one queue; None when the group has no offset there."""
        queues = self._queues(topic, group)
        self.count -= queue_id in queues
        if progress is None:
            queues.pop(queue_id, None)
        else:
            queues[queue_id] = progress
            self.count += 1
        if not queues:
            del self._progress[topic, group]
            self._topics_of[group] -= 1
            if not self._topics_of[group]:
                del self._topics_of[group]

    def places(self) -> list[tuple[str, str, int]]:
        """Every queue in which a group has an offset: (group, topic, queue id)."""
        return [(group, topic, queue_id) for (topic, group), queues in self._progress.items() for queue_id in queues]

    def _places_of(self, group: str) -> list[tuple[str, str, int]]:
        return [place for place in self.places() if place[0] == group]

    @property
    def group_count(self) -> int:
        """How many groups have an offset anywhere."""
        return len(self._topics_of)

    def has_group(self, group: str) -> bool:
        """Whether the group has an offset anywhere."""
        return group in self._topics_of

    def topics_of(self, group: str) -> list[str]:
        """The topics for which the group has an offset, sorted."""
        return sorted(topic for topic, one in self._progress if one == group)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have an offset in the topic, sorted."""
        return sorted(group for one, group in self._progress if one == topic)

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, and with it all progress of its queues."""
        self._forget([place for place in self.places() if place[1] == topic])

    def forget_below(self, topic: str, first_offset: Callable[[int], int]) -> None:
        """Of each queue of the topic, forget what lies below its first offset: no group can go on there."""
        stale = [
            (group, topic, queue_id)
            for group, one, queue_id, offset in self.all()
            if one == topic and offset < first_offset(queue_id)
        ]
        self._forget(stale)

    def forget_group(self, group: str) -> None:
        """Forget all offsets of the group."""
        self._forget(self._places_of(group))

    def resets_after(self, group: str) -> int:
        """More resets than any offset of the group has had: with so many it may begin anew."""
        counts = [self._progress[topic, group][queue_id].resets + 1 for _, topic, queue_id in self._places_of(group)]
        return max([self.first_resets(group), self._resets_before + 1, *counts])

    def forget_before(self, group: str) -> None:
        """Forget what the group had finished before its offsets were forgotten for good, elsewhere."""
        first, places = self.first_resets(group), self._places_of(group)
        self._forget([place for place in places if self._progress[place[1], group][place[2]].resets < first])

    def all(self) -> Iterator[tuple[str, str, int, int]]:
        """Every committed offset: (group, topic, queue id, offset)."""
        for (topic, group), queues in self._progress.items():
            for queue_id, progress in queues.items():
                yield group, topic, queue_id, progress.offset

    def begun(self) -> Iterator[tuple[str, str]]:
        """Every (group, topic) such that the group has begun with the topic; offsets may change in between."""
        yield from ((group, topic) for topic, group in list(self._progress) if self.has_begun(group, topic))

    def snapshot(self) -> list[tuple[str, str, int, Progress]]:
        """All progress, (group, topic, queue id, progress); also for another thread than the one that changes it."""
        return [
            (group, topic, queue_id, progress)
            for (topic, group), queues in list(self._progress.items())
            for queue_id, progress in list(queues.items())
        ]

    def clamp(self, max_offset: Callable[[str, int], int]) -> list[tuple[str, str, int, Progress, Progress]]:
        """Cut off what lies beyond its queue's end, as after a lost tail.

        Returns what was changed: (group, topic, queue id, progress before, progress now).
        """
        changed = []
        for group, topic, queue_id in self.places():
            before, end = self._progress[topic, group][queue_id], max_offset(topic, queue_id)
            if before.end > end:
                now = before.cut(end)
                self.put(group, topic, queue_id, now)
                changed.append((group, topic, queue_id, before, now))
        return changed

    def renew_versions(self) -> None:
        """Messages may have been lost, and their numbers given again: what members say of the old ones must not count.

        They hear of it with the answer to their next report, and go on from what is known here.
        """
        self._renew(self._renewals_now + 1)

    @property
    def _renewals_now(self) -> int:
        renewals = [self._progress[topic, group][queue_id].renewals for group, topic, queue_id in self.places()]
        return max([self.renewals, *renewals])

    def renew_restored(self, drawn: int) -> int:
        """Renew all versions by `drawn`, a random number from 1 to `RESTORED_RENEWALS_MAX`; returns the renewals now.

        No other store that was restored from the same copy has them, but for one in 262,144.
        """
        self._renew(self._renewals_now + drawn)
        return self.renewals

    def begin_term(self, term: int, renewal_term: int, renewal_origin: int = 0) -> None:
        """This broker is the master of this term; the first one is 1. Renewals are counted from `renewal_origin`.

        In `renewal_term` a master began last that may give numbers which an earlier one had given to other messages: a
        later one continues a log of which nothing is missing, and what members report of it counts. What this master
        resets is newer than whatever an earlier one has reset, also than what is not known here.

        What an earlier one counts as finished, and this one does not know, may be finished by a retry that is lost.
        With the renewal all progress has more resets than any of an earlier term, and takes over nothing from there.
        """
        self._resets_before = min(max(0, term - 1) * RESETS_PER_TERM, RESETS_MAX - 1)
        renewals = renewal_origin + max(0, renewal_term - 1) * RENEWALS_PER_TERM
        if self.renewals < renewals:
            self._renew(renewals, min((renewal_term - 1) * RESETS_PER_TERM, RESETS_MAX - 1))

    def _renew(self, renewals: int, resets_min: int = 0) -> None:
        self.renewals = min(renewals, RENEWALS_MAX)
        self.data_version += 1
        for group, topic, queue_id in self.places():
            progress = self._progress[topic, group][queue_id].renewed(self.renewals)
            self.put(group, topic, queue_id, progress.with_resets(resets_min))

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's consumerOffset.json, and two tables of our own."""
        return self.frozen()()

    def frozen(self) -> Callable[[], dict[str, Any]]:
        """What makes the document of this moment, also in another thread: from here on changes go to copies."""
        progress, counter, renewals = dict(self._progress), self.data_version, self.renewals
        self._own.clear()
        return lambda: _document(progress, counter, renewals)

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what consumerOffset.json says. Raises KeyError, TypeError or ValueError if not of that form."""
        progress = progress_of(document)
        counter = int(tables.table(document, "dataVersion")["counter"])
        if not 0 <= counter <= COUNTER_MAX:
            raise ValueError(f"dataVersion {counter}; allowed are 0 to {COUNTER_MAX}")
        renewals = int(document.get("renewals", 0))  # not in older ones, nor in RocketMQ's
        if not 0 <= renewals <= RENEWALS_MAX:
            raise ValueError(f"{renewals} renewals; allowed are 0 to {RENEWALS_MAX}")
        self._progress, self.data_version, self.renewals = progress, counter, renewals
        self._own.clear()
        self._topics_of = Counter(group for _, group in progress)
        self.count = sum(map(len, progress.values()))

    def _queues(self, topic: str, group: str) -> dict[int, Progress]:
        """The inner table of the group and the topic, to be changed."""
        key = topic, group
        if key not in self._own or key not in self._progress:
            self._topics_of[group] += key not in self._progress
            self._progress[key] = dict(self._progress.get(key, ()))
            self._own.add(key)
        return self._progress[key]

    def _begun(self, group: str, progress: Progress) -> Progress:
        """As the first that is known of a queue."""
        renewals, resets = max(progress.renewals, self.renewals), max(progress.resets, self.first_resets(group))
        return Progress(progress.offset, progress.ranges, version_of(renewals, resets))

    def _forget(self, places: list[tuple[str, str, int]]) -> None:
        for place in places:
            self.restore(*place, None)
            self._changed(*place)

    def _changed(self, group: str, topic: str, queue_id: int) -> None:
        self.data_version += 1
        for listener in self._listeners:
            listener(group, topic, queue_id)


def _document(progress: _Table, counter: int, renewals: int) -> dict[str, Any]:
    offsets: dict[str, dict[str, int]] = {}
    finished: dict[str, dict[str, str]] = {}
    versions: dict[str, dict[str, int]] = {}
    for (topic, group), queues in sorted(progress.items()):
        name = f"{topic}{GROUP_SEPARATOR}{group}"
        ordered = sorted(queues.items())
        offsets[name] = {str(queue_id): one.offset for queue_id, one in ordered}
        if ranges := {str(queue_id): _text(one.ranges) for queue_id, one in ordered if one.ranges}:
            finished[name] = ranges
        if changed := {str(queue_id): one.version for queue_id, one in ordered if one.version}:
            versions[name] = changed
    return {
        "dataVersion": {"counter": counter},
        "offsetTable": offsets,
        "finishedTable": finished,
        "versionTable": versions,
        "renewals": renewals,
    }


def progress_of(document: dict[str, Any]) -> _Table:
    """What consumerOffset.json says: (topic, group) -> queue id -> progress.

    Raises KeyError, TypeError or ValueError when it is not of that form.
    """
    offsets = tables.table(document, "offsetTable")
    # RocketMQ's document, and one from before there were ranges, has these two not.
    finished = tables.table(document, "finishedTable") if "finishedTable" in document else {}
    versions = tables.table(document, "versionTable") if "versionTable" in document else {}
    found: _Table = {}
    for name in offsets:
        topic, separator, group = name.partition(GROUP_SEPARATOR)
        if not separator or not name.isprintable():
            raise ValueError(f"{name!r} is not topic@group")
        ranges = tables.table(finished, name) if name in finished else {}
        changed = tables.table(versions, name) if name in versions else {}
        queues = found[topic, group] = {}
        for queue_id, offset in tables.table(offsets, name).items():
            progress = Progress(int(offset), _ranges(ranges.get(queue_id, "")), int(changed.get(queue_id, 0)))
            progress.check()
            if not 0 <= int(queue_id) <= QUEUE_ID_MAX:
                raise ValueError(f"{name!r} has no queue {queue_id}")
            queues[int(queue_id)] = progress
    return found


def _text(ranges: tuple[Range, ...]) -> str:
    return " ".join(f"{begin}+{end - begin}" for begin, end in ranges)


def _ranges(text: str) -> tuple[Range, ...]:
    entries = (entry.partition("+") for entry in text.split())
    return tuple((int(begin), int(begin) + int(count)) for begin, _, count in entries)
