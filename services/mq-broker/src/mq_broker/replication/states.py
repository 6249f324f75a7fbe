"""The small states of one link: documents down, what groups have finished both ways (mechanisms H2, H4)."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mq_broker.core.consumer_offsets import QUEUE_ID_MAX, ConsumerOffsets, Progress
from mq_broker.core.documents import PRODUCER_SEQUENCES, SUBSCRIPTION_GROUPS, TOPICS
from mq_broker.core.producer_sequences import ProducerSequences
from mq_broker.core.subscription_groups import BEGUN_AT, FIRST_RESETS, SubscriptionGroups, groups_of, reset_numbers_of
from mq_broker.core.topics import QUEUE_COUNT_MAX, TopicTable, deletions_of, topics_of
from mq_broker.replication.frames import ProgressEntries, StateDocument
from mq_broker.store.changes import Changes, forget_offsets
from mq_broker.store.consume_queue import ConsumeQueue, Given, QueueKey, encode_numbers, numbers_of
from mq_broker.store.message_store import MessageStore
from mq_broker.store.progress_journal import Entry, encode_entry, scan
from mq_broker.store.state_files import FORMAT_VERSION, LOG_OFFSET, State, decode_document, encode_document
from mqproto.names import CHANGES_TOPIC
from mqproto.record import Record

log = logging.getLogger(__name__)

QUEUE_NUMBERS = "queueNumbers.json"
QUEUE_OFFSET_MAX = (1 << 62) - 1
# A replica remembers the numbers of so much of the log beyond what its master does; some 16,000 records of 1 KiB.
SEQUENCES_EVERY_BYTES = 16 * 1024 * 1024
SEQUENCES_SHARE = 8  # and the document is at most one part of so many of what a link carries
# What a document of each name has to hold, before it waits for the log.
_CHECKS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    TOPICS: lambda content: (topics_of(content), deletions_of(content), content["dataVersion"]),
    SUBSCRIPTION_GROUPS: lambda content: (
        groups_of(content),
        reset_numbers_of(content, FIRST_RESETS),
        reset_numbers_of(content, BEGUN_AT),
    ),
}


class StatesOut:
    """The master's side of one link. A replica of an earlier version, which knows no changes in the log,
    `needs_changes`: it is sent each document again when it has changed.
    """

    def __init__(
        self, store: MessageStore, topics: TopicTable, groups: SubscriptionGroups, sequences: ProducerSequences
    ) -> None:
        self.needs_changes = False
        self.follows_from = 0  # the replica has what stands before, or it stands in no log any more
        self._sequences = sequences
        self._sequences_due_at = 0  # the log's end then
        self._states: Mapping[str, State] = {TOPICS: topics, SUBSCRIPTION_GROUPS: groups}
        self._store = store
        self._taken: dict[str, int] = {}  # data version by name

    @property
    def is_waiting(self) -> bool:
        """Whether there is a document that the replica has not been sent yet."""
        if self._has_sequences:
            return True
        if self._taken and not self.needs_changes:
            return False
        return any(state.data_version != self._taken.get(name) for name, state in self._states.items())

    async def take(self) -> list[StateDocument]:
        """Every document at first, and numbers of queues that the replica's log does not tell; then those that have
        changed, if need be.
        """
        if not self.is_waiting:
            return []
        sequences = await self._take_sequences() if self._has_sequences else []
        if self._taken and not self.needs_changes:
            return sequences
        numbers = {} if self._taken else await self._numbers_not_in_log()
        changed = {name: state for name, state in self._states.items() if state.data_version != self._taken.get(name)}
        self._taken |= {name: state.data_version for name, state in changed.items()}
        log_end = self._store.log_end
        first = [StateDocument(QUEUE_NUMBERS, encode_numbers(numbers))] if numbers else []
        documents = [StateDocument(name, encode_document(state.to_json(), log_end)) for name, state in changed.items()]
        return first + documents + sequences

    @property
    def _has_sequences(self) -> bool:
        """Whether it is time to say again what producers have numbered; a replica of an earlier version rejects
        that.
        """
        return not self.needs_changes and self._store.log_end >= self._sequences_due_at

    async def _take_sequences(self) -> list[StateDocument]:
        """Encoded off the event loop. A large document is due again after eight times its own length of the log."""
        log_end, document = self._store.log_end, self._sequences.frozen()
        self._sequences_due_at = log_end + SEQUENCES_EVERY_BYTES
        content = await self._store.disk.offload(lambda: encode_document(document(), log_end))
        self._sequences_due_at = log_end + max(SEQUENCES_EVERY_BYTES, SEQUENCES_SHARE * len(content))
        return [StateDocument(PRODUCER_SEQUENCES, content)]

    async def _numbers_not_in_log(self) -> dict[QueueKey, Given]:
        """Of queues that have lost every message before `follows_from`: the number of the next one."""
        trimmed = [queue for queue in self._store.queues if queue.first_offset > 0]
        return await self._store.disk.offload(lambda: dict(_next_numbers(trimmed, self.follows_from)))


def _next_numbers(queues: Iterable[ConsumeQueue], log_offset: int) -> Iterator[tuple[QueueKey, Given]]:
    """May block. A queue that loses its first message meanwhile has one that the replica was sent."""
    for queue in queues:
        first, end = queue.first_offset, queue.max_offset
        with contextlib.suppress(ValueError):
            if first == end or queue.entry(first)[0] >= log_offset:
                yield (queue.topic, queue.queue_id), (first, -1)


class StatesIn:
    """The replica's side, for the life of its broker.

    What changes after that is in the log: an operator's change is a record (store/changes.py), and a topic that is made
    by itself follows from its first message. So topics and groups travel once, as the documents that they are on disk,
    each with the log offset that it covers; the replica takes them over when its log is there. What the others say, it
    finds out:
    - what groups have finished has a way of its own, in both directions (progress.py);
    - which waiting messages are done stands in the log, behind each of them: a log that begins where the master's does
      has, of every record that it holds, also what became of it, because that was written later. What was done and has
      left the master's log waits nowhere any more; its queues begin behind it;
    - which transactions are open is read from the log when the replica becomes a master;
    - what producers have numbered is read from the records as they come; which numbers are asked for no more, and what
      stood in files that are gone, the master says when a link begins and every `SEQUENCES_EVERY_BYTES` of the log:
      from then on the replica knows what the master knew there, and nothing else (ADR 114);
    - the next numbers of queues that have no message where the replica's log begins are the one thing that neither log
      nor documents tell: they are said once, when a link begins, and count for a queue of which the replica has never
      had a message;
    - locks of queues change hands only with the role of the master (ADR 111). A replica grants none, and its own table
      says that it may lack some (`QueueLocking.begin(lost=True)`).

    Invariants: a document is taken over before the first record behind what it covers; the replica vouches for nothing
    behind that before it has the document on disk.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        changes: Changes,
        *,
        sequences: ProducerSequences,
    ) -> None:
        self._store, self._topics, self._groups, self._offsets = store, topics, groups, offsets
        self._changes, self._sequences = changes, sequences
        self._coming_sequences: tuple[int, ProducerSequences] | None = None  # what they cover, and the master's
        self._coming: dict[str, tuple[int, dict[str, Any]]] = {}  # what it covers, and the document
        self._unsaved: dict[str, int] = {}  # what a document covers that was taken over, and is not on disk yet

    def begin(self) -> None:
        """A link begins: what an earlier one has brought and the log has not reached does not count."""
        self._coming.clear()
        self._coming_sequences = None

    async def take(self, document: StateDocument) -> None:
        """Take over what the master says, as soon as the log is there. Raises ValueError with what is wrong; then
        nothing has changed.
        """
        if document.name not in (QUEUE_NUMBERS, PRODUCER_SEQUENCES, *_CHECKS):
            raise ValueError(f"{document.name!r} is no state that a replica takes over")
        try:
            content = await self._store.disk.offload(_content, document)
            if document.name == QUEUE_NUMBERS:
                await self._take_over_numbers(content)
            elif document.name == PRODUCER_SEQUENCES:
                sequences = ProducerSequences()
                await self._store.disk.offload(sequences.load_json, content)
                self._coming_sequences = int(content[LOG_OFFSET]), sequences
            else:
                _CHECKS[document.name](content)
                self._coming[document.name] = int(content[LOG_OFFSET]), content
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{document.name} as the master has it: {error!r}") from error
        self.reach(self._store.log_end)

    def copied(self, record: Record) -> None:
        """The log has this record: what was to be taken over before it is, and if it is a change, it is made."""
        if self._coming or self._coming_sequences is not None:
            self.reach(record.log_offset)
        if record.topic == CHANGES_TOPIC:
            self._changes.copied(record)

    def reach(self, log_end: int) -> None:
        """The log ends there: take over the documents that cover no more."""
        if self._coming_sequences is not None and self._coming_sequences[0] <= log_end:
            self._sequences.take_over(self._coming_sequences[1])
            self._coming_sequences = None
        for name, (covered, content) in list(self._coming.items()):
            if covered <= log_end:
                del self._coming[name]
                take_over = self._take_over_topics if name == TOPICS else self._take_over_groups
                if take_over(content):
                    log.info("%s is the master's now", name)
                    self._unsaved[name] = covered
                    self._changes.on_change()

    async def save(self) -> None:
        """Have what was taken over on disk, on return. Raises OSError."""
        for name in list(self._unsaved):
            await self._store.persist(name)
            del self._unsaved[name]

    def vouched(self, log_end: int) -> int:
        """Of a log that ends there, what may be acknowledged: documents are on disk before anything behind them."""
        waiting = [*self._unsaved.values(), *(covered for covered, _ in self._coming.values())]
        return min([log_end, *(max(0, covered - 1) for covered in waiting)])

    def _take_over_topics(self, content: dict[str, Any]) -> bool:
        has_changed = self._topics.take_over(content)
        self._follow_deletions()  # also when nothing has changed: a crash may have come before it
        return has_changed

    def _follow_deletions(self) -> None:
        """A master that has lost what it deleted gives the numbers again: then less is hidden than before."""
        for queue in self._store.queues:
            queue.deleted_below = self._topics.deleted_below(queue.topic, queue.queue_id)
        for topic in self._topics.deleted():
            forget_offsets(topic, self._topics, self._offsets)

    def _take_over_groups(self, content: dict[str, Any]) -> bool:
        has_changed = self._groups.take_over(content)
        for group in self._groups.begun_anew():
            self._offsets.forget_before(group)
        return has_changed

    async def _take_over_numbers(self, content: dict[str, Any]) -> None:
        """Of queues that the replica has never had a message of: on disk before any record that comes later."""
        numbers = numbers_of(content)
        for (topic, queue_id), (given, _) in numbers.items():
            if not 0 < given <= QUEUE_OFFSET_MAX or not 0 <= queue_id < QUEUE_COUNT_MAX or not topic:
                raise ValueError(f"queue {queue_id} of {topic!r} cannot have number {given} next")
        has_begun = False
        for (topic, queue_id), (given, _) in numbers.items():
            queue = self._store.queues.get_or_open(topic, queue_id)
            if queue.max_offset == 0:
                queue.begin_at(given)
                queue.distrust()
                has_begun = True
        if has_begun:
            await self._store.checkpoint()


def _content(document: StateDocument) -> dict[str, Any]:
    """Raises ValueError when it is damaged, of a newer format, or of none."""
    content = decode_document(document.content)
    if FORMAT_VERSION not in content:
        raise ValueError("it has no format version")
    return content


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
    """Progress that the other side of one link does not have yet."""

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
    """What groups have finished, on its way between a master and a replica (mechanism H4; bug zoo 24).

    What the other side of the same link says.

    Members report to any broker that they can reach, so each side knows something that the other one lacks. Each tells
    everything when a link begins, and then what changes; two sets of one queue are reconciled as `Progress` says, so
    that it does not matter in which order, how late or how often they are heard of.

    A forgotten offset is not told: it was forgotten with its topic or with its group, and the documents of those say so
    (states.py). An offset from before that is not taken over. That of a topic that is not known here, and was not
    deleted, is: a replica may be promoted before it is told of its master's topics (ADR 140), and without an offset a
    group begins at the end, and passes over messages.

    A message that its group has sent back is finished because its retry stands further on in the log. So progress
    travels with the end of the log that it depends on, and the receiver keeps it aside until its own log reaches as
    far: what is finished at a replica that becomes the master is finished by what that replica has.

    Renewals do not wait. A master may have lost messages, and say with a renewed version that what members know of
    their numbers does not count for the new ones: everything that it says at the beginning of a link is looked at
    before the first bytes of its log, which bring the new ones, and a renewal is on the replica's disk before them. Nor
    does the offset wait of a queue in which the group has none.

    Invariants: nothing that is finished is lost, and no reset is undone; nothing is finished beyond the end of its
    queue, nor, where the group has an offset, ahead of the log that it depends on; of each queue two reports wait at
    most; bytes of which anything is wrong change nothing.
    """

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
                    is_renewed |= self._reconcile(place, entry.progress, said.log_end)
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
            return self._reconcile(place, Progress(one.progress.offset, (), one.progress.version), one.log_end)
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
            self._reconcile(one.place, one.progress, one.log_end)

    def catch_up(self) -> None:
        """The log has grown: what was reported ahead of it is taken over, as far as it is there now."""
        self._take_aside()
        for place, (progress, looked_at) in list(self._ahead.items()):
            if self._store.queue_end(*place[1:]) != looked_at:
                del self._ahead[place]
                self._reconcile(place, progress, self._store.log_end)

    def _reconcile(self, place: Place, progress: Progress, log_end: int) -> bool:
        """Whether the version was renewed. The other side's log ended at `log_end` when it said so.

        A replica that is behind may come to a deletion and forget what it has told: its master tells it again (ADR
        143).
        """
        group, topic, queue_id = place
        if progress.offset < self._topics.deleted_below(topic, queue_id) or self._has_deleted(topic):
            return False  # of a topic that has been deleted since
        end = self._store.queue_end(topic, queue_id)
        if progress.end > end:
            ahead = self._ahead.get(place)
            whole = progress if ahead is None else ahead[0].reconciled(progress)
            self._ahead[place] = whole, end
        if queue_id >= self._queue_count_max(topic) and self._store.queue(topic, queue_id) is None:
            return False
        before = self._offsets.progress(*place)
        is_behind = log_end < self._store.log_end and not self._topics.follows()
        if self._offsets.reconcile(group, topic, queue_id, progress, end) == progress.cut(end) and not is_behind:
            self._out.agrees(place)
        return before is not None and progress.renewals > before.renewals

    def _has_deleted(self, topic: str) -> bool:
        """Whether a master has no such topic any more. A replica may hear of one that waits for its first message."""
        is_gone = self._topics.get(topic) is None and topic in self._topics.deleted()
        return is_gone and not self._topics.follows()

    def _queue_count_max(self, topic: str) -> int:
        """How many queues of the topic progress is taken over for, beside those that are there."""
        config = self._topics.get(topic)
        if config is not None:
            return config.queue_count
        return 0 if topic in self._topics.deleted() else QUEUE_COUNT_MAX
