"""The route table and the steps that change it. Time is passed in; a step that raises has changed nothing.

Invariants, checked by `check_invariants`:
1. A broker stands under its own name and id, and a name without brokers does not stand in the table.
2. The brokers of one name are in one cluster, and no two of them have the same address.
3. `offers` holds exactly the topics of each name's leading broker: the master, or the replica with the lowest id while
   there is none. Nothing is missing and nothing is left over.
4. The master of a name has the highest epoch that a master of this name has registered with, as far as `fences`
   remembers; of two processes the one with the higher epoch stands in the table, whichever registered last.
5. A name that is away has no brokers.
A broker belongs to the newest session that registered it; older sessions can neither change nor remove it.

Name servers do not talk to each other, and one that is cut off from brokers cannot know what has become of them. It
says that it is uncertain for one expiry time after its start and after a broker has left without unregistering, and
while a broker is silent; clients ask another name server then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from mq_namesrv.core.registration import (
    AWAY_BROKERS_MAX,
    AWAY_S_MAX,
    AWAY_TOPICS_MAX,
    LOST_BROKERS_MAX,
    MASTER_ID,
    NO_EPOCH,
    BrokerIdentity,
    CheckedTopics,
    Epoch,
    Fences,
    NotLeaderError,
    Registration,
    RegistrationError,
    TopicConfig,
    check_identity,
    check_registration,
    check_topic_config,
)

SILENT_SHARE = 0.5  # of the expiry time, two of a broker's periods by default; a silent broker may be gone

_NO_TOPICS: Mapping[str, TopicConfig] = {}
_NO_OFFERS: Mapping[str, TopicConfig] = {}


class SupersededError(Exception):
    """A newer session has registered this broker; the session that asks is out of date."""


class InvariantError(Exception):
    """The table contradicts itself: a bug of this module."""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker that is registered, by which session, and when it was last heard of (monotonic seconds)."""

    registration: Registration
    session: int
    last_seen: float


@dataclass(frozen=True, slots=True)
class AwayName:
    """A broker name of which no process is left: the topics that it had, and when the last one left (monotonic s)."""

    topics: Mapping[str, TopicConfig]
    left: float


@dataclass(slots=True)
class RouteTable:
    """`brokers`: name -> id -> broker. `offers`: topic -> broker name -> what its leading broker has of the topic.

    `sorted_topics`: those of `offers` in order, made when they are asked for; None after a change. `sorted_with_away`:
    the same with those of `away`.
    `lost`: the brokers that have left without unregistering and have not come back, and when (monotonic seconds),
    oldest first. `away`: the broker names of which the last process left within AWAY_S_MAX, oldest first.
    `started`: when the table was empty, as if a broker had been lost then.
    """

    brokers: dict[str, dict[int, LiveBroker]] = field(default_factory=dict)
    offers: dict[str, dict[str, TopicConfig]] = field(default_factory=dict)
    fences: Fences = field(default_factory=Fences)
    sorted_topics: list[str] | None = None
    sorted_with_away: list[str] | None = None
    lost: dict[BrokerIdentity, float] = field(default_factory=dict)
    away: dict[str, AwayName] = field(default_factory=dict)
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class RegisterOutcome:
    """Where the master of this name replicates ("" when unknown), the highest epoch of its masters, and what is new."""

    ha_address: str
    master_epoch: Epoch
    is_new: bool
    topics_changed: bool


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The registered brokers of one name, id -> address by gRPC and by frames, and its masters' highest epoch."""

    cluster_name: str
    broker_name: str
    addresses: Mapping[int, str]
    frames_addresses: Mapping[int, str]
    master_epoch: Epoch


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers that have the topic, each with its queues; sorted by broker name."""

    queues: tuple[tuple[str, TopicConfig], ...]
    brokers: tuple[BrokerData, ...]


def register(table: RouteTable, registration: Registration, session: int, now: float) -> RegisterOutcome:
    """Enter the broker, or hear from it again. Raises RegistrationError, NotLeaderError and SupersededError.

    An older data version of the same session counts as a heartbeat only: its topics are of the past. Another id of the
    name at the same address is the same process in an earlier role, and gives way. A master with a higher epoch takes
    the place of the one that is there, also when its session is older.
    """
    check_registration(registration)
    if not isinstance(registration.topics, CheckedTopics):
        for config in registration.topics.values():
            check_topic_config(config)
    identity = registration.identity
    siblings = table.brokers.get(identity.broker_name, {})
    current = siblings.get(identity.broker_id)
    _check_cluster(siblings, identity)
    _check_restored(table, registration)
    if registration.is_master and not _begins_anew(table, registration, session):
        _check_leads(table, registration, current)
    _check_session(siblings, registration, session)
    if current is not None and current.session == session:
        known = current.registration
        if registration.data_version < known.data_version:
            registration = replace(registration, topics=known.topics, data_version=known.data_version)

    before = _leading_topics(siblings)
    after = {
        broker_id: sibling
        for broker_id, sibling in siblings.items()
        if sibling.registration.identity.address != identity.address
    }
    after[identity.broker_id] = LiveBroker(registration, session, now)
    table.brokers[identity.broker_name] = after
    _forget_away(table, [identity.broker_name] if identity.broker_name in table.away else [])
    for one in [one for one in table.lost if _is_back(one, identity)]:
        del table.lost[one]
    if registration.is_master:
        table.fences.raise_for(identity.broker_name, registration.epoch, identity.address)
    else:
        table.fences.keep(identity.broker_name)
    return RegisterOutcome(
        _master_ha_address(after),
        table.fences.epoch(identity.broker_name),
        is_new=current is None or current.session != session,
        topics_changed=_reindex(table, identity.broker_name, before),
    )


def _is_back(lost: BrokerIdentity, identity: BrokerIdentity) -> bool:
    """Whether the broker that was lost is this one, at another address or in another role."""
    return lost.address == identity.address or (
        (lost.broker_name, lost.broker_id) == (identity.broker_name, identity.broker_id)
    )


def _check_cluster(siblings: Mapping[int, LiveBroker], identity: BrokerIdentity) -> None:
    for broker_id, sibling in siblings.items():
        other = sibling.registration.identity
        if broker_id != identity.broker_id and other.cluster_name != identity.cluster_name:
            raise RegistrationError(
                f"{identity.broker_name} is in cluster {other.cluster_name!r} with id {broker_id} at {other.address}; "
                f"it cannot be in cluster {identity.cluster_name!r} too"
            )


def _begins_anew(table: RouteTable, registration: Registration, session: int) -> bool:
    """Whether this is the last master, with another store, and no other process of its name is registered."""
    identity = registration.identity
    fence = table.fences.get(identity.broker_name)
    return (
        fence is not None
        and fence.holder == identity.address
        and all(
            sibling.registration.identity.address == identity.address and sibling.session < session
            for sibling in table.brokers.get(identity.broker_name, {}).values()
        )
    )


def _check_restored(table: RouteTable, registration: Registration) -> None:
    """Raise NotLeaderError for a restored master while a replica lives that may know what came after the backup.

    Epochs do not tell: a restored store counts them from the beginning, and meets those of the one before it.
    """
    if not (registration.is_master and registration.is_restored):
        return
    identity = registration.identity
    for sibling in table.brokers.get(identity.broker_name, {}).values():
        other = sibling.registration
        if other.identity.address != identity.address and other.epoch != NO_EPOCH:
            raise NotLeaderError(
                f"the store of {identity.broker_name} at {identity.address} was put back from a backup, and replica "
                f"{other.identity.broker_id} at {other.identity.address} is active, which may have what came after it: "
                f"promote that one (mqadmin switchMaster -b {identity.broker_name} --oldMasterIsLost), or take the "
                f"restored one and lose what only the other has (mqadmin switchMaster -b {identity.broker_name} "
                f"--to {identity.address})",
                table.fences.epoch(identity.broker_name),
                _master_ha_address(table.brokers[identity.broker_name]),
            )


def _check_leads(table: RouteTable, registration: Registration, current: LiveBroker | None) -> None:
    """Raise NotLeaderError when another master of this name has a higher epoch, had one, or has the same one now.

    NO_EPOCH is no rival of itself: brokers of an older version replace each other as they did.
    """
    name, address = registration.identity.broker_name, registration.identity.address
    ha_address = current.registration.ha_address if current is not None else ""
    highest = table.fences.epoch(name)
    if registration.epoch < highest:
        where = f"at {current.registration.identity.address}" if current is not None else "not registered now"
        raise NotLeaderError(
            f"{name} at {address} is a master of epoch {registration.epoch}; its successor of {highest} is {where}",
            highest,
            ha_address,
        )
    if current is None or registration.epoch != current.registration.epoch or registration.epoch == NO_EPOCH:
        return
    if current.registration.identity.address != address:
        raise NotLeaderError(
            f"{name} at {address} says that it is the master of epoch {highest}; "
            f"so does {current.registration.identity.address}, which is registered",
            highest,
            ha_address,
        )


def _check_session(siblings: Mapping[int, LiveBroker], registration: Registration, session: int) -> None:
    """Raise SupersededError when a newer session has registered this broker, or this process with another id."""
    identity = registration.identity
    for broker_id, sibling in siblings.items():
        known = sibling.registration
        if sibling.session <= session:
            continue
        if registration.is_master and broker_id == MASTER_ID and registration.epoch > known.epoch:
            continue
        if broker_id == identity.broker_id or known.identity.address == identity.address:
            raise SupersededError(
                f"{identity.broker_name} with id {broker_id} was registered by a newer session, "
                f"from {known.identity.address}"
            )


def unregister(table: RouteTable, identity: BrokerIdentity, now: float) -> LiveBroker | None:
    """Remove exactly this process; None when it is not registered. Raises RegistrationError."""
    check_identity(identity)
    removed = _remove(table, lambda broker: broker.registration.identity == identity, now)
    return removed[0] if removed else None


def close_session(table: RouteTable, session: int, now: float) -> list[LiveBroker]:
    """Remove the brokers of the session that has ended, unless a newer session has them; returns them."""
    return _lose(table, lambda broker: broker.session == session, now)


def expire(table: RouteTable, now: float, timeout: float) -> list[LiveBroker]:
    """Remove what was not heard of for more than `timeout` seconds (120 s, mechanism N3); returns it.

    Fences of names without brokers are forgotten after the same time, names that are away after AWAY_S_MAX.
    """
    removed = _lose(table, lambda broker: now - broker.last_seen > timeout, now)
    table.fences.expire(table.brokers.keys(), now, timeout)
    for identity in [identity for identity, lost_at in table.lost.items() if now - lost_at > timeout]:
        del table.lost[identity]
    _forget_away(table, [name for name, one in table.away.items() if now - one.left > AWAY_S_MAX])
    return removed


def is_uncertain(table: RouteTable, names: Iterable[str], now: float, timeout: float) -> bool:
    """Whether others may know more: brokers were lost within `timeout` seconds, or one of these names is silent."""
    return (
        now - table.started <= timeout
        or any(now - lost_at <= timeout for lost_at in table.lost.values())
        or any(
            now - broker.last_seen > SILENT_SHARE * timeout
            for name in names
            for broker in table.brokers.get(name, {}).values()
        )
    )


def route(table: RouteTable, topic: str) -> TopicRoute | None:
    """The route of the topic, or None. Costs a look at each broker name that has the topic, and no other."""
    offers = table.offers.get(topic)
    if offers is None:
        return None
    names = sorted(offers)
    return TopicRoute(
        tuple((name, offers[name]) for name in names),
        tuple(_broker_data(table, name) for name in names),
    )


def away_brokers(table: RouteTable, topic: str) -> list[str]:
    """The broker names that are away and had the topic, sorted."""
    return sorted(name for name, one in table.away.items() if topic in one.topics)


def topics_of_others(table: RouteTable, identity: BrokerIdentity) -> int:
    """How many topics all brokers have registered but this one, each counted for each broker."""
    return sum(
        len(broker.registration.topics)
        for siblings in table.brokers.values()
        for broker in siblings.values()
        if broker.registration.identity != identity
    )


def topic_list(
    table: RouteTable, after: str = "", count_max: int | None = None, *, with_away: bool = False
) -> list[str]:
    """The topics behind `after` that have a route, sorted, at most `count_max`; those of names that are away, too."""
    if with_away and table.away:
        if table.sorted_with_away is None:
            of_away = (topic for one in table.away.values() for topic in one.topics)
            table.sorted_with_away = sorted({*table.offers, *of_away})
        topics = table.sorted_with_away
    else:
        if table.sorted_topics is None:
            table.sorted_topics = sorted(table.offers)
        topics = table.sorted_topics
    begin = bisect_right(topics, after)
    return topics[begin : None if count_max is None else begin + count_max]


def cluster_list(table: RouteTable) -> list[BrokerData]:
    """Every broker name, sorted by cluster and name."""
    brokers = (_broker_data(table, name) for name in table.brokers)
    return sorted(brokers, key=lambda data: (data.cluster_name, data.broker_name))


def check_invariants(table: RouteTable) -> None:
    """Raise InvariantError when the table contradicts itself. Costs a walk over the whole table."""
    for _ in invariant_checks(table):
        pass


def invariant_checks(table: RouteTable) -> Iterator[None]:
    """The same in steps, between which the table may change: one broker name each, and at last what is left over.

    Raises InvariantError.
    """
    for name in list(table.brokers):
        if name in table.brokers:
            _check_name(table, name)
        yield
    leading = sum(len(_leading_topics(siblings)) for siblings in table.brokers.values())
    if sum(map(len, table.offers.values())) != leading or not all(table.offers.values()):
        raise InvariantError(f"the offers of {len(table.offers)} topics have more than brokers have registered")
    if both := table.away.keys() & table.brokers.keys():
        raise InvariantError(f"{', '.join(sorted(both))} has brokers, and is remembered as away")


def _check_name(table: RouteTable, name: str) -> None:
    """Raise InvariantError unless the brokers of this name fit together, and their topics are offered."""
    siblings = table.brokers[name]
    identities = [broker.registration.identity for broker in siblings.values()]
    if [(name, broker_id) for broker_id in siblings] != [(one.broker_name, one.broker_id) for one in identities]:
        raise InvariantError(f"a broker does not stand under its own name and id: {name} has {identities}")
    if len({one.cluster_name for one in identities}) != 1:
        raise InvariantError(f"{name} has no brokers, or is in several clusters: {identities}")
    if len({one.address for one in identities}) != len(identities):
        raise InvariantError(f"an address stands twice under {name}: {identities}")
    _check_fence(table, name)
    odd = [
        topic
        for topic, config in _leading_topics(siblings).items()
        if table.offers.get(topic, _NO_OFFERS).get(name) != config
    ]
    if odd:
        raise InvariantError(f"{len(odd)} topics of {name} are not offered as registered, first {min(odd)!r}")


def _check_fence(table: RouteTable, name: str) -> None:
    """Raise InvariantError unless the master of this name, if there is one, has the epoch that is remembered."""
    master, fence = table.brokers[name].get(MASTER_ID), table.fences.get(name)
    if fence is not None and fence.vacant_since is not None:
        raise InvariantError(f"{name} has brokers, and its fence is to be forgotten: {fence}")
    highest = table.fences.epoch(name)
    if master is not None and master.registration.epoch != highest:
        raise InvariantError(f"the master of {name} has epoch {master.registration.epoch}; the highest is {highest}")


def _lose(table: RouteTable, is_gone: Callable[[LiveBroker], bool], now: float) -> list[LiveBroker]:
    """Remove brokers that have not unregistered, and remember them as lost."""
    removed = _remove(table, is_gone, now)
    for broker in removed:
        table.lost[broker.registration.identity] = now
    for identity in list(table.lost)[: max(0, len(table.lost) - LOST_BROKERS_MAX)]:
        del table.lost[identity]
    return removed


def _remove(table: RouteTable, is_gone: Callable[[LiveBroker], bool], now: float) -> list[LiveBroker]:
    removed = []
    for name, siblings in list(table.brokers.items()):
        gone = [broker for broker in siblings.values() if is_gone(broker)]
        if not gone:
            continue
        removed += gone
        before = _leading_topics(siblings)
        for broker in gone:
            del siblings[broker.registration.identity.broker_id]
        if not siblings:
            del table.brokers[name]
            table.away[name] = AwayName(before, now)
        _reindex(table, name, before)
    _bound_away(table)
    return removed


def _bound_away(table: RouteTable) -> None:
    """Forget the names that are away longest while there are too many, or they had too many topics."""
    topics = sum(len(one.topics) for one in table.away.values())
    while len(table.away) > AWAY_BROKERS_MAX or topics > AWAY_TOPICS_MAX:
        name, oldest = next(iter(table.away.items()))
        topics -= len(oldest.topics)
        _forget_away(table, [name])


def _forget_away(table: RouteTable, names: Iterable[str]) -> None:
    for name in names:
        del table.away[name]
        table.sorted_with_away = None


def _leading_topics(siblings: Mapping[int, LiveBroker]) -> Mapping[str, TopicConfig]:
    return siblings[min(siblings)].registration.topics if siblings else _NO_TOPICS


def _reindex(table: RouteTable, name: str, before: Mapping[str, TopicConfig]) -> bool:
    """Bring `offers` of one broker name from the topics before to those now; whether they differ."""
    after = _leading_topics(table.brokers.get(name, {}))
    if before is after or before == after:
        return False
    table.sorted_topics = table.sorted_with_away = None
    for topic in before.keys() - after.keys():
        offers = table.offers[topic]
        del offers[name]
        if not offers:
            del table.offers[topic]
    for topic, config in after.items():
        if before.get(topic) is not config:
            table.offers.setdefault(topic, {})[name] = config
    return True


def _master_ha_address(siblings: Mapping[int, LiveBroker]) -> str:
    master = siblings.get(MASTER_ID)
    return master.registration.ha_address if master is not None else ""


def _broker_data(table: RouteTable, name: str) -> BrokerData:
    siblings = {broker_id: live.registration for broker_id, live in sorted(table.brokers[name].items())}
    addresses = {broker_id: one.identity.address for broker_id, one in siblings.items()}
    frames = {broker_id: one.frames_address for broker_id, one in siblings.items() if one.frames_address}
    identity = next(iter(siblings.values())).identity
    return BrokerData(identity.cluster_name, name, addresses, frames, table.fences.epoch(name))
