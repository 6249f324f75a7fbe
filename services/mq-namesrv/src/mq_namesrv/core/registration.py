"""Registrations of brokers and their checks: identities, topics, and the epochs of masters."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mqproto.names import check_topic, parse_address


class Epoch(NamedTuple):
    """In which a master writes; compared by term, then by start."""

    term: int
    start: int

    def __str__(self) -> str:
        return f"{self.term}.{self.start}"


NO_EPOCH = Epoch(0, 0)  # of a broker of an older version


class NotLeaderError(Exception):
    """The master that asks has been replaced. `epoch` is the highest that is known, `ha_address` the present master's,
    "" when there is none.
    """

    def __init__(self, sentence: str, epoch: Epoch, ha_address: str) -> None:
        super().__init__(sentence)
        self.epoch = epoch
        self.ha_address = ha_address


@dataclass(frozen=True, slots=True)
class Fence:
    """`holder` is the address of the master that had this epoch last. `vacant_since`: when a scan first found no broker
    of the name (monotonic seconds); None while one is registered.
    """

    epoch: Epoch
    holder: str
    vacant_since: float | None = None


class Fences(dict[str, Fence]):
    """Which master of a broker name is the present one: epochs, and the memory that keeps older masters out.

    A fence is the highest epoch with which a master of its broker name has registered. It stands as long as a broker of
    that name is registered, and then for another expiry time (120 s), so that a master that was replaced and comes back
    to an empty table is still told so. After that it is forgotten, and memory stays bounded. It keeps out no process at
    the address of the one that set it, unless others of the name are registered: that process has begun with another
    store, an empty one or one that was put back from a backup. A fence spares clients the wrong master; that nothing
    acknowledged is lost does not rest on it, for name servers forget whatever they knew when they restart.
    """

    def epoch(self, broker_name: str) -> Epoch:
        """The highest that a master of this name has registered with, as far as it is remembered."""
        fence = self.get(broker_name)
        return NO_EPOCH if fence is None else fence.epoch

    def raise_for(self, broker_name: str, master_epoch: Epoch, holder: str) -> None:
        """A master has registered, from this address; one that knows of no epochs needs no fence."""
        if master_epoch == NO_EPOCH:
            self.pop(broker_name, None)
        else:
            self[broker_name] = Fence(master_epoch, holder)

    def keep(self, broker_name: str) -> None:
        """A replica has registered."""
        if (fence := self.get(broker_name)) is not None:
            self[broker_name] = replace(fence, vacant_since=None)

    def expire(self, occupied: Collection[str], now: float, timeout: float) -> None:
        """Forget what has been vacant for more than `timeout` seconds; `occupied` has the names that are not."""
        for name, fence in list(self.items()):
            if name in occupied:
                continue
            if fence.vacant_since is None:
                self[name] = replace(fence, vacant_since=now)
            elif now - fence.vacant_since > timeout:
                del self[name]


MASTER_ID = 0
NAME_LENGTH_MAX = 255
QUEUE_COUNT_MAX = 65_535
PERM_MAX = 7  # RocketMQ's bits: 4 read, 2 write, 1 inherit

_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_.-]+")


class RegistrationError(ValueError):
    """A registration that makes no sense; the message says why. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """One broker process. Several of the same broker name are a master (id 0) and its replicas."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as one broker has it."""

    topic: str
    read_queue_count: int
    write_queue_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class Registration:
    """A whole registration, which is a heartbeat too. `topics` is keyed by topic name and never changed in place.

    `identity.address` is for gRPC, `frames_address` for frames, "" for a broker without them.
    `epoch`: of a master, in which it writes; of a replica, the newest that it has accepted. A master that `is_restored`
    has a store that was put back from a backup, and takes nothing yet.
    """

    identity: BrokerIdentity
    ha_address: str
    topics: Mapping[str, TopicConfig]
    data_version: int
    epoch: Epoch = NO_EPOCH
    is_restored: bool = False
    frames_address: str = ""

    @property
    def is_master(self) -> bool:
        return self.identity.broker_id == MASTER_ID


def check_identity(identity: BrokerIdentity) -> None:
    """Raise RegistrationError unless clients can make use of this identity."""
    _check_name("cluster name", identity.cluster_name)
    _check_name("broker name", identity.broker_name)
    if identity.broker_id < 0:
        raise RegistrationError(f"the broker id is {identity.broker_id}; 0 is the master, replicas count from 1")
    _check_address("broker address", identity.address)


def check_registration(registration: Registration) -> None:
    """Raise RegistrationError unless each part but the topics is legal, and there are not too many of those."""
    check_identity(registration.identity)
    if registration.ha_address:
        _check_address("HA address", registration.ha_address)
    if registration.frames_address:
        _check_address("frames address", registration.frames_address)
    if registration.data_version < 0:
        raise RegistrationError(f"the data version is {registration.data_version}; it counts up from 0")
    if min(registration.epoch) < 0:
        raise RegistrationError(f"the epoch is {registration.epoch}; term and start count up from 0")
    if len(registration.topics) > TOPIC_COUNT_MAX:
        raise RegistrationError(
            f"{len(registration.topics):,} topics; one broker registers {TOPIC_COUNT_MAX:,} at most"
        )


def check_topic_config(config: TopicConfig) -> None:
    """Raise RegistrationError unless a broker may have the topic like this."""
    try:
        check_topic(config.topic)
    except ValueError as error:
        raise RegistrationError(str(error)) from None
    for kind, count in (("read", config.read_queue_count), ("write", config.write_queue_count)):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            raise RegistrationError(
                f"the topic {config.topic!r} has {count} {kind} queues; allowed are 0 to {QUEUE_COUNT_MAX:,}"
            )
    if not 0 <= config.perm <= PERM_MAX:
        raise RegistrationError(
            f"the topic {config.topic!r} has permission {config.perm}; allowed are 0 to {PERM_MAX} (6: read and write)"
        )


def _check_name(kind: str, name: str) -> None:
    if not name:
        raise RegistrationError(f"the {kind} is missing")
    if len(name) > NAME_LENGTH_MAX:
        raise RegistrationError(f"the {kind} has {len(name)} characters; at most {NAME_LENGTH_MAX} are allowed")
    if not _LEGAL_NAME.fullmatch(name):
        raise RegistrationError(f"the {kind} {name!r} is illegal; allowed are letters, digits and % | _ . -")


def _check_address(kind: str, text: str) -> None:
    try:
        parse_address(text)
    except ValueError as error:
        raise RegistrationError(f"the {kind}: {error}") from None


class CheckedTopics(dict[str, TopicConfig]):
    """Topics by name, each of which was checked when it was put in."""


class AnnouncedTopics:
    """The topics that one registration stream has told of, whole or as changes of what it told before.

    Of one stream. Call `begin` for each request, then `add` and `remove`, then `topics`.

    Invariants: each topic is legal and stands under its own name; the mapping that was given out is never changed
    again.
    """

    def __init__(self) -> None:
        self._topics = CheckedTopics()
        self._is_given_out = False
        self._names: set[str] = set()  # of the topics of the request that is being read
        self.left_out = 0  # topics for which there was no room, since all topics were told anew

    def begin(self, *, adds: bool) -> None:
        """A request begins, which changes what was told before, or tells all topics anew."""
        self._names = set()
        if not adds:
            self._topics, self._is_given_out, self.left_out = CheckedTopics(), False, 0

    def add(self, configs: Iterable[TopicConfig], room: int) -> None:
        """These are new or have changed; new ones beyond `room` topics are left out. Raises RegistrationError."""
        for config in configs:
            if config.topic in self._names:
                raise RegistrationError(f"the topic {config.topic!r} comes more than once in one registration")
            self._names.add(config.topic)
            check_topic_config(config)
            if config.topic in self._topics or len(self._topics) < room:
                self._own()[config.topic] = config
            else:
                self.left_out += 1

    def remove(self, names: Iterable[str]) -> None:
        """These are gone."""
        for name in names:
            self._own().pop(name, None)

    def topics(self) -> CheckedTopics:
        """All topics as of now."""
        self._is_given_out = True
        return self._topics

    def _own(self) -> CheckedTopics:
        if self._is_given_out:
            self._topics, self._is_given_out = CheckedTopics(self._topics), False
        return self._topics


# How much one request, one broker and all brokers together may ask of a name server.
#
# Every number that bounds what a peer can make the name server do, hold or remember stands here, with the reason for
# its value behind it.

TOPIC_COUNT_MAX = 100_000  # that one broker has routes for; a broker makes at most 40,000 unless configured otherwise
TOPICS_TOTAL_MAX = 250_000  # of all brokers, each topic counted for each broker; about 100 MB
TOPICS_PER_STEP = 4_096  # of one registration between two turns of the event loop; takes about 10 ms
BROKER_STREAMS_MAX = 1_024  # registrations that are open at the same time
LOST_BROKERS_MAX = 1_024  # remembered after they have left without unregistering, one for each stream
AWAY_BROKERS_MAX = 1_024  # names of which no process is left, one for each stream
AWAY_TOPICS_MAX = 100_000  # of all of these together; about 40 MB
AWAY_S_MAX = 600.0  # for which such a name is remembered; a start that has to recover a large store takes minutes
FIRST_REQUEST_S_MAX = 10.0  # for which a registration may be open without a request
TOPICS_PER_PAGE_MAX = 10_000  # of a list of topics, for clients that take pages; 1.3 MB
CALLS_MAX = 8_192  # of all connections at the same time, registrations included
CONNECTIONS_MAX = 10_000  # at the same time, and fewer when the process may not open as many
KEPT_DESCRIPTORS = 64  # for what is no connection
IDLE_CONNECTION_MS_MAX = 300_000  # without a call; clients ask every 30 s
NAME_CHARACTERS_MAX = 255  # of a topic, before its name is looked at
TEXT_CHARACTERS_MAX = 16_384  # of a name or an address, before it is looked at
