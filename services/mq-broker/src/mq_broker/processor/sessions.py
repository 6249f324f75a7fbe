"""Sessions: heartbeats of clients, membership in groups, and locks of queues.

Mechanisms C4, O1, O2.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.documents import QUEUE_LOCKS
from mq_broker.core.limits import QUEUE_LOCKS_BYTES_MAX, RejectedError, TooManyError, first_few
from mq_broker.core.members import HEARTBEAT_EXPIRY_MS, ClientGroups, Consumer, GroupMembers, LockedQueue, QueueLocks
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicTable, is_group_topic
from mq_broker.processor.topic_administration import require_master
from mq_broker.store.message_store import MessageStore
from mq_broker.store.state_files import encode_document
from mqproto.codes import ResponseCode
from mqproto.names import IllegalNameError, check_group, retry_topic
from osenv import Clock

log = logging.getLogger(__name__)

EXPIRY_SCAN_S = 10  # RocketMQ's scan of idle channels


class Session(Protocol):
    """The stream of commands to one client."""

    def consumer_ids_changed(self, group: str) -> None:
        """Tell the client that members of the group came or went."""

    def topic_route_changed(self, topics: Sequence[str]) -> None:
        """Tell the client that these topics have other queues than before, or exist since now, or no more."""

    def check_transaction(self, producer_group: str, transaction_id: str, record: bytes) -> None:
        """Ask the client for the outcome of the transaction; it answers by ending it."""

    def reset_consumer_offset(self, group: str, queues: Sequence[tuple[str, int, Progress]]) -> None:
        """Tell the client the group's new offsets by (topic, queue id), whatever it has pulled already."""

    def get_running_info(self, command_id: int, group: str) -> None:
        """Ask the client for the state of its consumer; it answers with the command's id."""

    def consume_directly(self, command_id: int, group: str, record: bytes) -> None:
        """Have the client's listener consume the record now; it answers with the command's id."""


@dataclass
class Sessions:
    """The processor of heartbeats.

    Invariant: every member of a group hears of every change of its membership, its own joining included.
    """

    topics: TopicTable
    groups: SubscriptionGroups
    time: BrokerTime
    clock: Clock
    members: GroupMembers[Session]
    rules: MembershipRules[Session]

    def heartbeat(self, session: Session, said: ClientGroups) -> tuple[ResponseCode, str]:
        """A heartbeat of a client. Its consumer groups get their retry topics.

        Anything but SUCCESS is the code of the first rejection. The sentence has the first ones, and with them groups
        that do not take the client; it leaves all of those, and is a member of the others. CLIENT_ID_IN_USE: another
        active process has the client id, and this session changes nothing.
        """
        rival = self.members.rival(said, self.time.now_ms())
        if rival is not None:
            log.warning("client id %s is in use: %s rejected for %s", said.client_id, said.connection, rival)
            return ResponseCode.CLIENT_ID_IN_USE, _in_use(said.client_id, rival)
        groups, rejections = self.rules.apply(said)
        for consumer in groups.consumers:
            if (known := self.groups.get(consumer.group)) is not None:
                self.ensure_retry_topic(known)
        self._tell(self.members.heartbeat(groups, session, self.time.now_ms()))
        if not rejections:
            return ResponseCode.SUCCESS, ""
        return rejections[0].code, first_few(rejections)

    def ensure_retry_topic(self, group: SubscriptionGroup) -> None:
        """The group's retry topic has the queues that it should; its members read it, though nothing be retried.

        On a replica it has what it has on the master: there the members send heartbeats, too.
        """
        if self.topics.follows():
            return
        self.topics.ensure_group_topic(retry_topic(group.group), max(1, group.retry_queue_count))

    def tell_reset(self, group: str, queues: Sequence[tuple[str, int, Progress]]) -> list[str]:
        """Tell every active member where to go on in (topic, queue id), if in any; returns their client ids.

        A member that is away is not told when it comes back: it learns of the new version from the answer to its next
        commit.
        """
        if not queues:
            return []
        for session in self.members.sessions_of([group])[group]:
            session.reset_consumer_offset(group, queues)
        return self.members.consumer_ids(group)

    def tell_members(self, group: str, *, but: str) -> None:
        """Have the members of the group, but for this client, balance its queues anew."""
        for client_id in self.members.consumer_ids(group):
            session = self.members.session_of(client_id, group)
            if session is not None and client_id != but:
                session.consumer_ids_changed(group)

    def tell_route_changed(self, topics: Collection[str]) -> None:
        """Tell each client which of these topics it subscribes to, if it does to any."""
        for session, wanted in self.members.subscribers(topics):
            session.topic_route_changed(wanted)

    def ended(self, session: Session, client_id: str) -> None:
        """The stream of this session has ended."""
        self._tell(self.members.leave(client_id, session))

    async def expire_forever(self) -> None:
        """Drop the clients that have been silent for 120 s."""
        while True:
            await self.clock.sleep(EXPIRY_SCAN_S)
            self._tell(self.members.expire(self.time.now_ms()))

    def _tell(self, changed: Iterable[str]) -> None:
        for group, sessions in self.members.sessions_of(changed).items():
            count = len(sessions)
            log.info("group %s now has %d members", group, count, extra={"group": group, "members": count})
            for session in sessions:
                session.consumer_ids_changed(group)


def _in_use(client_id: str, rival: str) -> str:
    return (
        f"client id {client_id!r} is in use by {rival}; give each process an instance_name of its own, or none (it is "
        f"unique then), or wait until that process has left or has been silent for {HEARTBEAT_EXPIRY_MS // 1_000} s"
    )


S = TypeVar("S")

# Takes expression type and expression; raises ValueError for what cannot be read, PermissionError for what is not on.
ParseFilter = Callable[[str, str], object]

HOW_TO_CHANGE = (
    "members of a group have to subscribe alike; for a rolling change, "
    "`mqadmin updateSubGroup --differentSubscriptions true` lets them differ"
)


@dataclass
class MembershipRules(Generic[S]):
    """The rules for joining a group: legal names, readable subscriptions, and members that are alike.

    Mechanism C4.

    Decides which of the groups that a heartbeat names the client may join.

    Invariants: a client that is a member already, and says the same again, is not checked twice; a client that is
    rejected by one group is a member of all others that it names.
    """

    groups: SubscriptionGroups
    members: GroupMembers[S]
    parse_filter: ParseFilter

    def apply(self, said: ClientGroups) -> tuple[ClientGroups, list[RejectedError]]:
        """The heartbeat without the groups that reject the client, and the rejections.

        A consumer group that is not there is made, when that is allowed.
        """
        rejections: list[RejectedError] = []
        producer_groups: list[str] = []
        consumers: list[Consumer] = []
        for group in sorted(said.producer_groups):
            try:
                _check_name(group)
                producer_groups.append(group)
            except RejectedError as rejection:
                rejections.append(rejection)
        for consumer in said.consumers:
            try:
                self._check(said, consumer)
                consumers.append(consumer)
            except RejectedError as rejection:
                rejections.append(rejection)
        return replace(said, producer_groups=frozenset(producer_groups), consumers=tuple(consumers)), rejections

    def _check(self, said: ClientGroups, consumer: Consumer) -> None:
        """Raise RejectedError unless the client may be a member as it says. Turning a switch off expels no member."""
        if self.members.consumer(said.client_id, consumer.group) == consumer:
            return
        _check_name(consumer.group)
        self._check_subscriptions(consumer)
        try:
            group = self.groups.get_or_create(consumer.group, said.connection)
        except TooManyError as error:
            sentence = f"group {consumer.group!r} does not exist: {error}"
            raise RejectedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, sentence) from error
        if group is None:
            sentence = f"group {consumer.group!r} does not exist and autoCreateSubscriptionGroup is false"
            raise RejectedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, sentence)
        if group.different_subscriptions_allowed:
            return
        difference = self.members.difference(said.client_id, consumer)
        if difference is not None:
            sentence = f"group {consumer.group!r}: {difference}; {HOW_TO_CHANGE}"
            raise RejectedError(ResponseCode.SUBSCRIPTION_NOT_CONSISTENT, sentence)

    def _check_subscriptions(self, consumer: Consumer) -> None:
        for one in consumer.subscriptions:
            try:
                self.parse_filter(one.expression_type, one.expression)
            except (ValueError, PermissionError) as error:
                sentence = f"group {consumer.group!r}, topic {one.topic!r}: {error}"
                raise RejectedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, sentence) from error


def _check_name(group: str) -> None:
    try:
        check_group(group)
    except IllegalNameError as error:
        raise RejectedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from error


async def _no_name_server() -> None:
    """There is nothing to register with."""


@dataclass
class RouteNotices:
    """Consumers hear at once that topics to which they subscribe have been created, changed or deleted.

    `announce` returns when the name servers know the topics as they are now.

    Invariant: a change is registered with every connected name server before any consumer hears of it, so that the
    route for which it asks then has the change; a name server that does not confirm in time is not waited for.
    """

    topics: TopicTable
    sessions: Sessions
    announce: Callable[[], Awaitable[None]] = _no_name_server

    async def run(self) -> None:
        """Pass on every change until cancelled; what changes while one is being registered goes out together."""
        changed = asyncio.Event()
        changed.set()  # by what came before this call
        forget = self.topics.on_change(changed.set)
        try:
            while True:
                await changed.wait()
                changed.clear()
                topics = {topic for topic in self.topics.take_changed() if not is_group_topic(topic)}
                if topics:
                    await self.announce()
                    self.sessions.tell_route_changed(topics)
        finally:
            forget()


@dataclass
class QueueLocking:
    """Members of a group lock the queues that they consume in order, and give them back (mechanisms O1, O2).

    The processor of lock requests.

    Invariants: a grant is on disk before its holder hears of it; a member that is told that it holds a queue holds it
    at that moment; the end of a session gives nothing back, because the listener behind a broken connection may still
    run; for the same reason a process does not take over the locks of another one that had its client id. A replica
    grants nothing, and its table says that it may lack holders: when the replica becomes a master, it grants no lock
    before every lock that the old master has granted is over, unless that one has stepped down and handed its table
    over (ADR 111).
    """

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
        """Those of the queues that the member holds now, for 60 s; the others belong to another member, or to no topic.

        A lock that the disk would not take stays reserved for the member until it expires: it may be on disk. Raises
        RejectedError for a client that is no member, and on a replica; OSError.
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
        """Give back what the client holds of the queues, member or not, and wake members that may wait for it.

        Raises RejectedError on a replica.
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
            raise RejectedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group!r} does not exist")
        sentence = f"{client_id!r} is no active member of group {group!r}; only members lock its queues"
        raise RejectedError(ResponseCode.CONSUMER_NOT_ONLINE, sentence)

    def _exists(self, queue: LockedQueue) -> bool:
        config = self.topics.get(queue.topic)
        return config is not None and 0 <= queue.queue_id < config.queue_count

    def _now_ms(self) -> int:
        return int(self.clock.monotonic() * 1_000)


def _holder(client_id: str, incarnation: str) -> str:
    """The process, as the table names it; by its client id alone when it does not say which one it is."""
    return f"{client_id}/{incarnation}" if incarnation else client_id
