"""Who is there: the living members of each consumer and producer group.

Invariants: one living process has a client id; a client is a member of exactly the groups that its newest heartbeat
named and that it was let into; a group without members is not in the table; the functions return the consumer groups
whose membership they changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mq_broker.core.subscriptions import Consumer, difference

S = TypeVar("S")  # a session: whatever leads to the client

HEARTBEAT_EXPIRY_MS = 120_000  # RocketMQ's channel expiry; its clients beat every 30 s (MISSION L8)


@dataclass(frozen=True, slots=True)
class ClientGroups:
    """What one heartbeat says: producer groups by name, consumers one for each of their groups; and its connection."""

    client_id: str
    producer_groups: frozenset[str] = frozenset()
    consumers: tuple[Consumer, ...] = ()
    connection: str = ""
    incarnation: str = ""  # names the client's process; empty when the client does not say


@dataclass(frozen=True, slots=True)
class Connection:
    """A member of a consumer group: who it is, what it last said of the group, and when (milliseconds since 1970)."""

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
    """All clients by id, and their ids by group."""

    _clients: dict[str, _Client[S]] = field(default_factory=dict)
    _consumers: dict[str, set[str]] = field(default_factory=dict)
    _producers: dict[str, set[str]] = field(default_factory=dict)

    @property
    def client_count(self) -> int:
        """How many clients there are."""
        return len(self._clients)

    def heartbeat(self, groups: ClientGroups, session: S, now_ms: int) -> set[str]:
        """A client says that it lives, through `session`; the newest session of a client id is the one that counts."""
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
        """The process that has the client id while it lives, in words; None when this client may have it.

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
