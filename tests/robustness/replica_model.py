"""What must stay true of brokers that replicate, whatever happens to them (docs/reference/faults.md#replication).

A promise is an answer to a client, with the end of the log that it stands for: a message that was acknowledged, that a
consumer has seen, the end of a transaction. Two logs with the same last bytes before an end are the same up to there,
so a log keeps a promise when it has these bytes.

What may be lost is said by the fault model alone: whatever the new master does not have, when an operator has forced a
promotion of a replica that was not in the in-sync set; what was never confirmed, in any forced promotion; what a power
cut has taken under asynchronous flush. Then, and only then, promises are let go.

Invariants: a promise that is let go never counts again; everything else is held to the end of the history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.replica_state import Epoch
from mqproto.record import Record

BODY = b"<%06d>"
EVIDENCE_BYTES = 64  # the last ones before the end: they hold offsets and CRCs of the last record

QueueKey = tuple[str, int]  # group, queue id


class InvariantError(AssertionError):
    """Something that must be true is not."""


@dataclass(slots=True)
class Promise:
    """`confirmed`: every replica of the in-sync set had it. `node` and `epoch` are of who made it."""

    what: str
    end: int
    evidence: bytes
    confirmed: bool
    node: str
    epoch: Epoch
    numbers: tuple[int, ...] = ()
    begin: int = 0  # where the first record stands that it is about, if that is known
    holds: bool = True


@dataclass(slots=True)
class Message:
    """One message as its producer knows it; `level` 0 has no delay."""

    number: int
    producer: int
    queue_id: int
    level: int = 0
    transaction: str = ""
    promise: Promise | None = None


@dataclass(slots=True)
class Transaction:
    """A half message, and what its producer has decided; `told` when that was acknowledged."""

    id: str
    number: int
    commits: bool
    is_tried: bool = False
    begin: int = 0  # where the log ended at the most when this was tried first
    told: Promise | None = None


@dataclass(slots=True)
class Log:
    """A node's log: `data` begins at offset `begin` and holds everything up to `end`."""

    begin: int
    end: int
    data: bytes

    def keeps(self, promise: Promise, *, gone: bool = True) -> bool:
        """Whether everything up to there is the same; `gone` is the answer for what retention has taken."""
        if promise.end > self.end:
            return False
        first = promise.end - len(promise.evidence) - self.begin
        return gone if first < 0 else self.data[first : promise.end - self.begin] == promise.evidence


@dataclass(slots=True)
class Commit:
    """What a group has finished of a queue, durably on this node; `is_reset` when it was set."""

    node: str
    progress: Progress
    is_reset: bool = False


@dataclass
class ReplicaModel:
    """All that was promised in one history."""

    delays_ms: tuple[int, ...]
    messages: list[Message] = field(default_factory=list)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    masters: dict[Epoch, str] = field(default_factory=dict)
    commits: dict[QueueKey, list[Commit]] = field(default_factory=lambda: defaultdict(list))
    tried: dict[tuple[QueueKey, int], list[Progress]] = field(default_factory=lambda: defaultdict(list))
    resets_tried: Counter[QueueKey] = field(default_factory=Counter)
    seen: dict[tuple[int, int], tuple[int, Promise]] = field(default_factory=dict)  # by queue and offset
    _confirm: dict[tuple[str, Epoch], int] = field(default_factory=dict)
    _held: list[Promise] = field(default_factory=list)  # those of `promises` that hold

    # ------------------------------------------------------------------------------------------- what is said

    def message(self, producer: int, queue_id: int, *, level: int = 0, transaction: str = "") -> Message:
        """The next one."""
        message = Message(len(self.messages), producer, queue_id, level, transaction)
        self.messages.append(message)
        return message

    def promised(self, promise: Promise) -> None:
        """A client was told so."""
        if self.masters.setdefault(promise.epoch, promise.node) != promise.node:
            raise InvariantError(
                f"{promise.node} and {self.masters[promise.epoch]} both acknowledge in epoch {promise.epoch}"
            )
        self._keep(promise)
        self.counts[promise.what] += 1

    def saw(self, queue_id: int, queue_offset: int, number: int, promise: Promise, *, is_settled: bool) -> None:
        """A consumer got this message at this place.

        Not `is_settled`: a promotion that may lose something is under way, and has still to let go what it loses.
        """
        before = self.seen.get((queue_id, queue_offset))
        if is_settled and before is not None and before[1].holds and promise.holds and before[0] != number:
            raise InvariantError(
                f"queue {queue_id} has message {number} at {queue_offset} for a consumer of {promise.node}; message "
                f"{before[0]} was seen there before at {before[1].node}"
            )
        self.counts["messages seen"] += 1
        if promise.holds and (before is None or not before[1].holds):
            self.seen[queue_id, queue_offset] = number, promise
            self._keep(promise)

    def _keep(self, promise: Promise) -> None:
        self.promises.append(promise)
        if promise.holds:
            self._held.append(promise)

    def confirms(self, node: str, life: int, epoch: Epoch, confirmed: int) -> None:
        """A broker lets its consumers read up to here."""
        before = self._confirm.get((f"{node}#{life}", epoch), 0)
        if confirmed < before:
            raise InvariantError(f"{node} lets consumers read up to {confirmed} in epoch {epoch}, after {before}")
        self._confirm[f"{node}#{life}", epoch] = confirmed

    # --------------------------------------------------------------------------------------------- what is lost

    def kept_by(self, node: str, log: Log, why: str, *, may_lose: str = "", until: int | None = None) -> int:
        """Whether this log, of the master, keeps what was promised. Returns how many promises were let go.

        `may_lose` is "" for nothing, "unconfirmed", or "all"; promises from number `until` on may be lost in any case.
        """
        later = frozenset(map(id, self.promises[until:])) if until is not None else frozenset()
        kept, lost = [], 0
        for promise in self._held:
            if log.keeps(promise, gone=may_lose != "all"):
                kept.append(promise)
                continue
            if not (may_lose == "all" or (may_lose and not promise.confirmed) or id(promise) in later):
                raise InvariantError(
                    f"{why}: the log of {node}, which ends at {log.end}, has lost what {promise.node} had promised in "
                    f"epoch {promise.epoch}: {promise.what} {promise.numbers}, up to {promise.end}"
                )
            promise.holds = False
            lost += 1
        self._held = kept
        self.counts["promises let go"] += lost
        return lost

    def queues_end_at(self, ends: dict[int, int]) -> None:
        """The master's queues end there: nothing beyond can stay finished."""
        for (_, queue_id), commits in self.commits.items():
            for commit in commits:
                commit.progress = commit.progress.cut(ends.get(queue_id, 0))

    def disk_lost(self, node: str) -> None:
        """With it goes what was only there."""
        for commits in self.commits.values():
            commits[:] = [commit for commit in commits if commit.node != node]

    # ----------------------------------------------------------------------------------------------- the end

    def check_log(self, records: Iterable[Record], topic: str, log_begin: int) -> None:
        """The log that all have in the end."""
        stands: dict[int, list[Record]] = defaultdict(list)
        waits: dict[int, list[Record]] = defaultdict(list)
        halves: set[int] = set()
        for record in records:
            number = number_of(record.body)
            if number is None:
                continue
            if record.topic == topic:
                stands[number].append(record)
            elif record.topic.startswith("SCHEDULE"):
                waits[number].append(record)
            else:
                halves.add(number)
        for message in self.messages:
            there = stands.get(message.number, [])
            if len(there) > 1:
                raise InvariantError(f"{message} stands {len(there)} times in its queue: {places(there)}")
            if message.transaction:
                self._check_transaction(message, there, log_begin)
            elif message.level:
                self._check_delayed(message, waits.get(message.number, []), there)
            else:
                self._check_stored(message, there, log_begin)
        self._check_order(stands)
        self._check_seen(stands, log_begin)

    def _check_stored(self, message: Message, there: list[Record], log_begin: int) -> None:
        promise = message.promise
        if promise is not None and promise.holds and not there and promise.begin >= log_begin:
            raise InvariantError(f"{message} was acknowledged, and is in no queue")

    def _check_delayed(self, message: Message, waits: list[Record], there: list[Record]) -> None:
        if len(waits) > 1:
            raise InvariantError(f"{message} waits {len(waits)} times: {places(waits)}")
        if message.promise is not None and message.promise.holds:
            self.counts["delayed messages delivered"] += 1
        for waiting in waits:
            if not there:
                raise InvariantError(f"{message} waits at {waiting.log_offset} and was never delivered")
            due_ms = waiting.store_timestamp_ms + self.delays_ms[message.level - 1]
            if there[0].store_timestamp_ms < due_ms:
                raise InvariantError(f"{message} was delivered {due_ms - there[0].store_timestamp_ms} ms early")

    def _check_transaction(self, message: Message, there: list[Record], log_begin: int) -> None:
        transaction = self.transactions[message.transaction]
        told = transaction.told is not None and transaction.told.holds
        if there and not (transaction.commits and transaction.is_tried):
            raise InvariantError(f"{message} is visible, without a commit of {transaction}")
        if told and transaction.commits and not there and transaction.begin >= log_begin:
            raise InvariantError(f"{message} is not visible, and the commit was acknowledged: {transaction}")
        if told:
            self.counts["transactions committed" if transaction.commits else "transactions rolled back"] += 1

    def _check_order(self, stands: dict[int, list[Record]]) -> None:
        newest: dict[tuple[int, int], tuple[int, int]] = {}
        for number in sorted(stands):
            message, (record,) = self.messages[number], stands[number]
            if message.level or message.transaction:
                continue
            key = (message.producer, message.queue_id)
            if newest.get(key, (-1, -1))[1] > record.queue_offset:
                raise InvariantError(f"{message} stands at {record.queue_offset}, and {newest[key]} before it")
            newest[key] = number, record.queue_offset

    def _check_seen(self, stands: dict[int, list[Record]], log_begin: int) -> None:
        found = {(one.queue_id, one.queue_offset): number for number, (one,) in stands.items()}
        for place, (number, promise) in self.seen.items():
            if promise.holds and promise.end > log_begin and found.get(place) != number:
                raise InvariantError(
                    f"message {number} was seen at {place}; {found.get(place)} stands there in the end"
                )

    def check_progress(self, group: str, queue_id: int, final: Progress | None) -> None:
        """What the group has finished of this queue, by all nodes, in the end."""
        key = (group, queue_id)
        resets = Counter(commit.progress.version for commit in self.commits[key] if commit.is_reset)
        for commit in self.commits[key]:
            known = commit.progress
            if final is None or final.version < known.version:
                raise InvariantError(f"{group} had {commit} of queue {queue_id}, and has {final} in the end")
            if final.version > known.version or resets[known.version] > 1:
                continue
            if final.merged(known) != final:
                raise InvariantError(f"{group} had finished {commit} of queue {queue_id}, and has {final} in the end")
            self.counts["commits of progress that held"] += 1
        all_known = self.resets_tried[key] == resets.total()  # else one without an answer may have this version too
        if final is not None and resets[final.version] == 1 and all_known:
            self._check_reset(key, final)

    def _check_reset(self, key: QueueKey, final: Progress) -> None:
        """Nothing is finished that was not finished since."""
        allowed = next(c.progress for c in self.commits[key] if c.is_reset and c.progress.version == final.version)
        for tried in self.tried[key, final.version]:
            allowed = allowed.merged(tried)
        if allowed.merged(final) != allowed:
            raise InvariantError(f"{key} was set anew, and has {final} in the end; finished since then is {allowed}")
        self.counts["resets that held"] += 1


def number_of(body: bytes) -> int | None:
    """Which message has this body; None for what the broker writes for itself."""
    return int(body[1:7]) if body[:1] == b"<" and body[7:8] == b">" else None


def places(records: Iterable[Record]) -> str:
    """For people."""
    return ", ".join(f"{one.topic}:{one.queue_id}#{one.queue_offset} at {one.log_offset}" for one in records)
