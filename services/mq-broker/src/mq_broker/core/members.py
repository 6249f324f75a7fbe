"""Members of groups: the clients, the description of each consumer, and the locks of orderly queues."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from mq_broker.core import documents
from mqproto.codes import ExpressionType
from mqproto.names import retry_topic

S = TypeVar("S")  # a session: whatever leads to the client

HEARTBEAT_EXPIRY_MS = 120_000  # RocketMQ's channel expiry; its clients beat every 30 s (mechanism L8)


@dataclass(frozen=True, slots=True)
class ClientGroups:
    """The content of one heartbeat: producer groups by name, one consumer for each of their groups; and its
    connection."""

    client_id: str
    producer_groups: frozenset[str] = frozenset()
    consumers: tuple[Consumer, ...] = ()
    connection: str = ""
    incarnation: str = ""  # names the client's process; empty when the client does not say


@dataclass(frozen=True, slots=True)
class Connection:
    """A member of a consumer group: its client id, its newest description, and when that came (ms since 1970)."""

    client_id: str
    consumer: Consumer
    last_heartbeat_ms: int


@dataclass(slots=True)
class _Client(Generic[S]):
    session: S
    producer_groups: frozenset[str]
    consumers: dict[str, Consumer]  # by group
    seen_ms: int
    connection: str
    incarnation: str


@dataclass
class GroupMembers(Generic[S]):
    """All clients by id, and their ids by group.

    Invariants: one active process has a client id; a client is a member of exactly the groups that its newest heartbeat
    named and that it was let into; a group without members is not in the table; the functions return the consumer
    groups whose membership they changed.
    """

    _clients: dict[str, _Client[S]] = field(default_factory=dict)
    _consumers: dict[str, set[str]] = field(default_factory=dict)
    _producers: dict[str, set[str]] = field(default_factory=dict)

    @property
    def client_count(self) -> int:
        """How many clients there are."""
        return len(self._clients)

    def heartbeat(self, groups: ClientGroups, session: S, now_ms: int) -> set[str]:
        """A heartbeat of a client, through `session`; the newest session of a client id is the one that counts."""
        known = self._clients.get(groups.client_id)
        consumers = {consumer.group: consumer for consumer in groups.consumers}
        producers_before = known.producer_groups if known else frozenset[str]()
        consumers_before = frozenset(known.consumers) if known else frozenset[str]()
        self._clients[groups.client_id] = _Client(
            session, groups.producer_groups, consumers, now_ms, groups.connection, groups.incarnation
        )
        _move(self._producers, groups.client_id, producers_before, groups.producer_groups)
        _move(self._consumers, groups.client_id, consumers_before, frozenset(consumers))
        return set(consumers_before ^ consumers.keys())

    def rival(self, groups: ClientGroups, now_ms: int) -> str | None:
        """The active process that has the client id, in words; None when this client may have it.

        A process that begins another session replaces its own one, which may be half-open. A client that does not name
        its process replaces any other, and is replaced by any.
        """
        known = self._clients.get(groups.client_id)
        if known is None or not known.incarnation or not groups.incarnation:
            return None
        silent_ms = now_ms - known.seen_ms
        if known.incarnation == groups.incarnation or silent_ms > HEARTBEAT_EXPIRY_MS:
            return None
        return (
            f"process {known.incarnation} at {known.connection or 'an unknown address'}, "
            f"which sent its last heartbeat {silent_ms // 1_000} s ago"
        )

    def incarnation(self, client_id: str) -> str:
        """The process of the client; empty when there is none, or it does not say."""
        client = self._clients.get(client_id)
        return client.incarnation if client else ""

    def consumer(self, client_id: str, group: str) -> Consumer | None:
        """What the client last said of the consumer group; None when it is no member of it."""
        client = self._clients.get(client_id)
        return client.consumers.get(group) if client else None

    def difference(self, client_id: str, consumer: Consumer) -> str | None:
        """How the client would differ from the other members of its group, in words; None when it would not."""
        for other_id in self.consumer_ids(consumer.group):
            if other_id != client_id:
                found = difference(other_id, self._clients[other_id].consumers[consumer.group], consumer)
                if found is not None:
                    return found
        return None

    def is_broadcasting(self, group: str) -> bool:
        """Whether a member of the consumer group consumes by broadcasting."""
        return any(self._clients[id_].consumers[group].broadcasting for id_ in self._consumers.get(group, ()))

    def leave(self, client_id: str, session: S) -> set[str]:
        """This session has ended; a newer session of the same client is not touched by it."""
        client = self._clients.get(client_id)
        if client is None or client.session is not session:
            return set()
        del self._clients[client_id]
        _move(self._producers, client_id, client.producer_groups, frozenset())
        _move(self._consumers, client_id, frozenset(client.consumers), frozenset())
        return set(client.consumers)

    def expire(self, now_ms: int) -> set[str]:
        """Drop the clients that have been silent for too long."""
        silent = [id_ for id_, client in self._clients.items() if now_ms - client.seen_ms > HEARTBEAT_EXPIRY_MS]
        changed: set[str] = set()
        for client_id in silent:
            changed |= self.leave(client_id, self._clients[client_id].session)
        return changed

    def consumer_ids(self, group: str) -> list[str]:
        """Members of the consumer group, sorted: every member has to see the same order."""
        return sorted(self._consumers.get(group, ()))

    def connections(self, group: str) -> list[Connection]:
        """The consumer group's members, sorted."""
        return [
            Connection(id_, self._clients[id_].consumers[group], self._clients[id_].seen_ms)
            for id_ in self.consumer_ids(group)
        ]

    def session_of(self, client_id: str, group: str) -> S | None:
        """The session of this member of the consumer group; None when it is none."""
        client = self._clients.get(client_id)
        return client.session if client and group in client.consumers else None

    def sessions_of(self, groups: Iterable[str]) -> dict[str, list[S]]:
        """The sessions of each group's members."""
        return {group: [self._clients[id_].session for id_ in self.consumer_ids(group)] for group in groups}

    def subscribers(self, topics: Collection[str]) -> list[tuple[S, list[str]]]:
        """The sessions of the clients that subscribe to any of the topics, each with those topics, sorted."""
        found = []
        for client in self._clients.values():
            wanted = {topic for consumer in client.consumers.values() for topic in consumer.topics() if topic in topics}
            if wanted:
                found.append((client.session, sorted(wanted)))
        return found

    def has_producers(self, group: str) -> bool:
        """Whether the producer group has any member."""
        return group in self._producers

    def producer_sessions(self, group: str) -> list[S]:
        """The sessions of the producer group's members."""
        return [self._clients[id_].session for id_ in sorted(self._producers.get(group, ()))]


def _move(table: dict[str, set[str]], client_id: str, before: frozenset[str], now: frozenset[str]) -> None:
    """Take the client out of the groups that it has left, and into those that it has joined."""
    for group in before - now:
        members = table[group]
        members.discard(client_id)
        if not members:
            del table[group]
    for group in now - before:
        table.setdefault(group, set()).add(client_id)


EVERYTHING = frozenset({"", "*"})
OR = "||"
_QUOTED = re.compile(r"('(?:[^']|'')*')")  # a string of SQL92: white space counts in it, and nowhere else


@dataclass(frozen=True, slots=True)
class Subscription:
    """The messages of one topic that a consumer wants. `expression_type` is TAG (or empty) or SQL92."""

    topic: str
    expression: str = "*"
    expression_type: str = ExpressionType.TAG.value


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer's description when it joins a group, and how two of them differ (mechanism C4).

    One consumer of a client, as its heartbeat describes it.

    Members of a group share its queues: a member that wants other messages than the rest would pass over, in its
    queues, what only the others want, and the group's offset with it. So members have to be alike in subscriptions,
    message model and order.

    Invariant: two consumers that would get the same messages in the same way do not differ, however they wrote it down.
    """

    group: str
    subscriptions: tuple[Subscription, ...] = ()
    broadcasting: bool = False
    orderly: bool = False
    consume_from_where: int = 0  # the wire's number: the broker only passes it on

    def topics(self) -> frozenset[str]:
        """The topics that it subscribes to."""
        return frozenset(one.topic for one in self.subscriptions)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A subscription, normalised: `tags` is empty for everything, and for SQL92, which has its text in `condition`."""

    tags: frozenset[str] = frozenset()
    condition: str = ""

    def __str__(self) -> str:
        if self.condition:
            return f"messages with {self.condition}"
        if not self.tags:
            return "everything"
        word = "tag" if len(self.tags) == 1 else "tags"
        return f"{word} {f' {OR} '.join(sorted(self.tags))!r}"


def difference(member_id: str, member: Consumer, newcomer: Consumer) -> str | None:
    """How the newcomer differs from a member of its group, in words; None when it does not."""
    if member == newcomer:
        return None
    if member.broadcasting != newcomer.broadcasting:
        return f"member {member_id} consumes by {_model(member)}, this client by {_model(newcomer)}"
    if member.orderly != newcomer.orderly:
        return f"member {member_id} consumes {_order(member)}, this client {_order(newcomer)}"
    theirs, ours = _wanted(member.group, member.subscriptions), _wanted(newcomer.group, newcomer.subscriptions)
    for topic in sorted(theirs.keys() | ours.keys()):
        if topic not in ours:
            return f"member {member_id} subscribes to topic {topic!r}, this client does not"
        if topic not in theirs:
            return f"this client subscribes to topic {topic!r}, member {member_id} does not"
        if theirs[topic] != ours[topic]:
            return f"member {member_id} wants {theirs[topic]} of topic {topic!r}, this client wants {ours[topic]}"
    return None


@lru_cache(maxsize=4_096)
def _wanted(group: str, subscriptions: tuple[Subscription, ...]) -> dict[str, _Wanted]:
    """By topic, without the group's retry topic: that is the client's doing, not the application's."""
    return {one.topic: _normalised(one) for one in subscriptions if one.topic != retry_topic(group)}


def _normalised(subscription: Subscription) -> _Wanted:
    text = subscription.expression.strip()
    if subscription.expression_type not in ("", ExpressionType.TAG):
        parts = _QUOTED.split(text)
        words = "".join(part if index % 2 else re.sub(r"\s+", " ", part) for index, part in enumerate(parts))
        return _Wanted(condition=f"{subscription.expression_type} {words!r}")
    if text in EVERYTHING:
        return _Wanted()
    return _Wanted(frozenset(tag.strip() for tag in text.split(OR)))


def _model(consumer: Consumer) -> str:
    return "broadcasting" if consumer.broadcasting else "clustering"


def _order(consumer: Consumer) -> str:
    return "in order" if consumer.orderly else "concurrently"


LOCK_EXPIRY_MS = 60_000  # RocketMQ's rebalanceLockMaxLiveTime; members ask every 20 s, and stop after 30 s


class LockedQueue(NamedTuple):
    """One queue, of which each group has a lock of its own."""

    topic: str
    queue_id: int


@dataclass(slots=True)
class _Lock:
    holder: str
    asked_ms: int
    granted_version: int  # the data version from which on the table names this holder


_Key = tuple[str, LockedQueue]


class QueueLocks:
    """Locks of orderly queues: at most one member of a group holds one at a time (mechanism O2).

    All locks by group and queue. Times are milliseconds of the broker's monotonic clock.

    A member that has a lock may consume its queue until 30 s after it last asked; the broker gives the queue to another
    member 60 s after it was last asked at the earliest. Both count by their own monotonic clocks, so that no wall clock
    matters, and the 30 s between cover whatever the answer takes on its way. Only its holder gives a lock back earlier:
    that a session has ended does not say that the listener behind it has.

    The table outlives the broker, because members go on consuming while it restarts. The downtime is unknown, so each
    lock counts as asked for when the broker starts. When the table is lost, any queue may have a holder that still
    consumes it: then no lock is granted for 60 s, after which all the holders have stopped. Until then the new table
    says of itself that it is incomplete, because a broker that stops within the 60 s has still lost the old one.

    A master that steps down lends nothing more, so its table is the whole table of its term, and its successor goes on
    with it. The table says in which term it is complete: in any other one another master may have lent queues
    meanwhile.

    Invariants: a queue of a group has one holder at most; a lock goes to another holder only after it was given back,
    or 60 s after its holder last asked; an incomplete table grants nothing.
    """

    def __init__(self) -> None:
        self._locks: dict[_Key, _Lock] = {}
        self._is_incomplete = False
        self._complete_from_ms = 0
        self._term: int | None = None  # of masters, in which it is complete; None in a file of an earlier version
        self.data_version = 0

    def begin(self, now_ms: int, *, lost: bool, term: int = 1) -> None:
        """The broker has started in this term: the kept locks last from now on; `lost`: there may have been others.

        The table has to be on disk before the first `lock`.
        """
        for lock in self._locks.values():
            lock.asked_ms = now_ms
        self._is_incomplete |= lost or self._term not in (None, term)
        self._term = term
        self._complete_from_ms = now_ms + LOCK_EXPIRY_MS
        self.data_version += 1

    def succeed(self, document: dict[str, Any] | None, before: int, term: int) -> None:
        """Have the table for the next term: the `document` of a master that has stepped down in the term `before`.

        Without it, and with one that lacks holders or is of another term, the table is incomplete. Raises KeyError,
        TypeError or ValueError for a document of another form; then nothing has changed.
        """
        version = self.data_version
        if document is not None:
            self.load_json(document)
        self._is_incomplete |= document is None or self._term != before
        self._term = term
        self.data_version = max(version, self.data_version) + 1

    def document(self, now_ms: int) -> dict[str, Any]:
        """The table without what is over, for `succeed`."""
        self._forget_what_is_over(now_ms)
        return self.to_json()

    def lock(self, group: str, client_id: str, queues: Iterable[LockedQueue], now_ms: int) -> list[LockedQueue]:
        """Lock what is free, and keep what is the client's own. Returns those of the queues that are the client's now.

        None of them may be told to the client before the table is on disk with `granted_version` of them or a later
        data version: a broker that forgets a grant would give the queue to two members.
        """
        if self._is_incomplete and now_ms < self._complete_from_ms:
            return []
        if self._is_incomplete:
            self._is_incomplete = False
            self.data_version += 1
        held: list[LockedQueue] = []
        granted: list[LockedQueue] = []
        for queue in dict.fromkeys(queues):
            lock = self._locks.get((group, queue))
            if lock is not None and lock.holder == client_id:
                lock.asked_ms = now_ms
            elif lock is None or _is_over(lock, now_ms):
                granted.append(queue)
            else:
                continue
            held.append(queue)
        if granted:
            self._grant(group, client_id, granted, now_ms)
        return held

    def _grant(self, group: str, client_id: str, queues: list[LockedQueue], now_ms: int) -> None:
        self._forget_what_is_over(now_ms)
        self.data_version += 1
        for queue in queues:
            self._locks[group, queue] = _Lock(client_id, now_ms, self.data_version)

    def _forget_what_is_over(self, now_ms: int) -> None:
        self._locks = {key: lock for key, lock in self._locks.items() if not _is_over(lock, now_ms)}

    def unlock(self, group: str, client_id: str, queues: Iterable[LockedQueue]) -> bool:
        """Give back those of the queues that are the client's; whether there was one. The table on disk may keep it."""
        mine = [(group, queue) for queue in queues if self._is_held((group, queue), client_id)]
        for key in dict.fromkeys(mine):
            del self._locks[key]
        self.data_version += bool(mine)
        return bool(mine)

    def still_held(self, group: str, client_id: str, queues: Iterable[LockedQueue], now_ms: int) -> list[LockedQueue]:
        """Those of the queues that the client holds, without asking for them."""
        return [
            queue
            for queue in queues
            if self._is_held((group, queue), client_id) and not _is_over(self._locks[group, queue], now_ms)
        ]

    def granted_version(self, group: str, queues: Iterable[LockedQueue]) -> int:
        """The data version that has to be on disk before the holders of these queues may hear of it."""
        return max((self._locks[group, queue].granted_version for queue in queues), default=0)

    def _is_held(self, key: _Key, client_id: str) -> bool:
        lock = self._locks.get(key)
        return lock is not None and lock.holder == client_id

    def to_json(self) -> dict[str, Any]:
        """queueLocks.json: the holder of each queue, by group, topic and queue id; and whether there may be others."""
        table: dict[str, dict[str, dict[str, str]]] = {}
        for (group, queue), lock in sorted(self._locks.items(), key=lambda item: item[0]):
            table.setdefault(group, {}).setdefault(queue.topic, {})[str(queue.queue_id)] = lock.holder
        return {
            "dataVersion": {"counter": self.data_version},
            "holderTable": table,
            "incomplete": self._is_incomplete,
            "term": self._term,
        }

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what queueLocks.json says. Raises KeyError, TypeError or ValueError if not of that form."""
        version = int(documents.table(document, "dataVersion")["counter"])
        groups = documents.table(document, "holderTable")
        locks: dict[_Key, _Lock] = {}
        for group in groups:
            topics = documents.table(groups, group)
            for topic in topics:
                for queue_id, holder in documents.table(topics, topic).items():
                    if not isinstance(holder, str):
                        raise TypeError(f"the holder of queue {queue_id} of {topic} is {holder!r}")
                    locks[group, LockedQueue(topic, int(queue_id))] = _Lock(holder, 0, version)
        term = document.get("term")
        self._is_incomplete, self._term = bool(document["incomplete"]), None if term is None else int(term)
        self._locks, self.data_version = locks, version


def _is_over(lock: _Lock, now_ms: int) -> bool:
    return now_ms - lock.asked_ms >= LOCK_EXPIRY_MS
