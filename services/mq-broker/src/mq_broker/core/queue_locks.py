"""Who may consume a queue in order: at most one member of a group at a time (MISSION O2).

A member that has a lock may consume its queue until 30 s after it last asked; the broker gives the queue to somebody
else 60 s after it was last asked at the earliest. Both count by their own monotonic clocks, so that no wall clock
matters, and the 30 s between cover whatever the answer takes on its way. Only its holder gives a lock back earlier:
that a session has ended does not say that the listener behind it has.

The table outlives the broker, because members go on consuming while it restarts. Nobody knows how long it was down, so
each lock counts as asked for when the broker starts. When the table is lost, any queue may have a holder who still
consumes it: then nobody gets a lock for 60 s, after which all the holders have stopped. Until then the new table says
of itself that it is incomplete, because a broker that stops within the 60 s has still lost the old one.

A master that steps down lends nothing more, so its table is the whole table of its term, and its successor goes on with
it. The table says in which term it is complete: in any other one somebody else may have lent queues meanwhile.

Invariants: a queue of a group has one holder at most; a lock goes to another holder only after it was given back, or
60 s after its holder last asked; an incomplete table grants nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from mq_broker.core import documents

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
    """All locks by group and queue. Times are milliseconds of the broker's monotonic clock."""

    def __init__(self) -> None:
        self._locks: dict[_Key, _Lock] = {}
        self._is_incomplete = False
        self._complete_from_ms = 0
        self._term: int | None = None  # of masters, in which it is complete; None in a file of an earlier version
        self.data_version = 0

    def begin(self, now_ms: int, *, lost: bool, term: int = 1) -> None:
        """The broker has started in this term: the kept locks last from now on; `lost`: perhaps there were others.

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
