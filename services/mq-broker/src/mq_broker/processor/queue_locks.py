"""Members of a group lock the queues that they consume in order, and give them back (MISSION O1, O2).

Invariants: a grant is on disk before its holder hears of it; who is told that it holds a queue holds it at that moment;
the end of a session gives nothing back, because the listener behind a broken connection may still run; for the same
reason a process does not take over the locks of another one that had its client id. A slave grants
nothing, and its table says that it may lack holders: when the slave becomes a master, nobody gets a lock before every
lock that the old master has granted is over, unless that one has stepped down and handed its table over (ADR 111).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from mq_broker.core.documents import QUEUE_LOCKS
from mq_broker.core.limits import QUEUE_LOCKS_BYTES_MAX, RefusedError
from mq_broker.core.members import LockedQueue, QueueLocks
from mq_broker.core.subscription_groups import SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mq_broker.processor.refusals import require_master
from mq_broker.processor.sessions import Sessions
from mq_broker.store.message_store import MessageStore
from mq_broker.store.state_files import encode_document
from mqproto.codes import ResponseCode
from osenv import Clock

log = logging.getLogger(__name__)


@dataclass
class QueueLocking:
    """The processor of lock requests."""

    store: MessageStore
    locks: QueueLocks
    topics: TopicTable
    groups: SubscriptionGroups
    sessions: Sessions
    clock: Clock
    _durable_version: int = field(default=0, init=False)

    def begin(self, *, lost: bool, term: int) -> None:
        """Before the first request; as `QueueLocks.begin`. The checkpoint that follows writes the table."""
        self._durable_version = self.locks.data_version
        self.locks.begin(self._now_ms(), lost=lost or self.store.follows, term=term)

    def handed_over(self) -> bytes:
        """The table of a master that has stepped down, for its successor; empty when it is too large for a request."""
        document = encode_document(self.locks.document(self._now_ms()), self.store.log_end)
        if len(document) <= QUEUE_LOCKS_BYTES_MAX:
            return document
        log.warning("the queue locks are not handed over: %d bytes; orderly groups pause for 60 s", len(document))
        return b""

    async def lock(
        self, group: str, client_id: str, queues: Iterable[LockedQueue], incarnation: str = ""
    ) -> list[LockedQueue]:
        """Those of the queues that the member holds now, for 60 s; the others belong to somebody else, or to no topic.

        A lock that the disk would not take stays reserved for the member until it expires: it may be on disk. Raises
        RefusedError for who is no member, and on a slave; OSError.
        """
        require_master(self.store)
        self._require_member(group, client_id, incarnation)
        holder = _holder(client_id, incarnation)
        held = self.locks.lock(group, holder, filter(self._exists, queues), self._now_ms())
        while self.locks.granted_version(group, held) > self._durable_version:
            version = self.locks.data_version
            await self.store.persist(QUEUE_LOCKS)
            self._durable_version = max(self._durable_version, version)
            held = self.locks.still_held(group, holder, held, self._now_ms())
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[LockedQueue], incarnation: str = "") -> None:
        """Give back what the client holds of the queues, member or not, and wake those who may be waiting for it.

        Raises RefusedError on a slave.
        """
        require_master(self.store)
        if self.locks.unlock(group, _holder(client_id, incarnation), queues):
            self.sessions.tell_members(group, but=client_id)

    def _require_member(self, group: str, client_id: str, incarnation: str) -> None:
        members = self.sessions.members
        has_id = not incarnation or incarnation == members.incarnation(client_id)
        if has_id and members.consumer(client_id, group) is not None:
            return
        if self.groups.get(group) is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group!r} does not exist")
        sentence = f"{client_id!r} is no living member of group {group!r}; only members lock its queues"
        raise RefusedError(ResponseCode.CONSUMER_NOT_ONLINE, sentence)

    def _exists(self, queue: LockedQueue) -> bool:
        config = self.topics.get(queue.topic)
        return config is not None and 0 <= queue.queue_id < config.queue_count

    def _now_ms(self) -> int:
        return int(self.clock.monotonic() * 1_000)


def _holder(client_id: str, incarnation: str) -> str:
    """The process, as the table names it; by its client id alone when it does not say which one it is."""
    return f"{client_id}/{incarnation}" if incarnation else client_id
