"""The persistent state of replication: role, epochs, and config/replica.json."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from mq_broker.core.broker_time import MasterTime

# Epochs: which master wrote which part of the log, and up to where two logs can be the same.
#
# A master begins a new epoch whenever it starts, because a crash may have taken from its log what a replica still has;
# a master that takes over from another one begins a new term. So no two masters ever write in the same epoch, and two
# logs that agree on where an epoch began agree on everything up to the end of that epoch in the shorter of them.


class Epoch(NamedTuple):
    """Compared by term, then by start."""

    term: int
    start: int

    def __str__(self) -> str:
        return f"{self.term}.{self.start}"


NO_EPOCH = Epoch(0, 0)  # of a store that no master has written since there are epochs


class EpochBegin(NamedTuple):
    """From this log offset on records were written in this epoch, until the next one begins."""

    epoch: Epoch
    log_offset: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The epochs of one log.

    Invariants: epochs ascend; offsets never descend; none is negative. Raises ValueError when they do not hold.
    """

    begins: tuple[EpochBegin, ...] = ()

    def __post_init__(self) -> None:
        for begin in self.begins:
            if min(begin.log_offset, *begin.epoch) < 0:
                raise ValueError(f"epoch {begin.epoch} from offset {begin.log_offset}: nothing may be negative")
        for before, after in pairwise(self.begins):
            if before.epoch >= after.epoch or before.log_offset > after.log_offset:
                raise ValueError(f"epoch {after.epoch} cannot follow {before.epoch} at offset {after.log_offset}")

    @property
    def newest(self) -> Epoch:
        """The epoch in which the log's end was written."""
        return self.begins[-1].epoch if self.begins else NO_EPOCH

    def begun(self, epoch: Epoch, log_offset: int) -> EpochHistory:
        """With a new epoch from this offset on; epochs in which nothing was written are forgotten."""
        kept = tuple(begin for begin in self.begins if begin.log_offset < log_offset)
        return EpochHistory((*kept, EpochBegin(epoch, log_offset)))

    def cut(self, end: int) -> EpochHistory:
        """Of a log that ends here now."""
        return EpochHistory(tuple(begin for begin in self.begins if begin.log_offset < end))

    def without(self, begin: int) -> EpochHistory:
        """Of a log whose first files are gone: epochs that ended below `begin` are forgotten."""
        ended = [one for one, after in pairwise(self.begins) if after.log_offset <= begin]
        return EpochHistory(self.begins[len(ended) :])

    def end_of(self, index: int, log_end: int) -> int:
        """Where the epoch at this place ends."""
        return self.begins[index + 1].log_offset if index + 1 < len(self.begins) else log_end


def common_end(mine: EpochHistory, my_end: int, theirs: EpochHistory, their_end: int) -> int:
    """Up to where two logs are the same, as far as their epochs can tell.

    The newest epoch that began at the same offset in both decides. Where one of them knows no epochs, as a store that
    was restored, only the bytes themselves can tell: then it is the end of the shorter log. Where they have none in
    common, they can only be the same where one of them knows no epochs, before its first: a master whose store was
    restored has begun one at the end of what it was given.
    """
    ends = {begin: theirs.end_of(index, their_end) for index, begin in enumerate(theirs.begins)}
    for index in reversed(range(len(mine.begins))):
        begin = mine.begins[index]
        if begin in ends:
            return min(mine.end_of(index, my_end), ends[begin])
    shorter = min(my_end, their_end)
    if not mine.begins or not theirs.begins:
        return shorter
    return min(shorter, max(mine.begins[0].log_offset, theirs.begins[0].log_offset))


def history_from_json(value: Any) -> EpochHistory:
    """The inverse of `history_to_json`. Raises ValueError, TypeError."""
    return EpochHistory(tuple(EpochBegin(Epoch(int(term), int(start)), int(at)) for term, start, at in value))


def history_to_json(history: EpochHistory) -> list[list[int]]:
    """[term, start, log offset] of each epoch."""
    return [[*begin.epoch, begin.log_offset] for begin in history.begins]


FORMER_MASTER_ID = (1 << 31) - 1  # of a broker that has lost its place and was not given another one
REPLICA_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Cut:
    """The log has to end at `end`, where a record ends; what stands from there on is kept in quarantine/. With `begin`
    the rest of it goes, too, and nothing of that is kept: it begins anew, empty, at `begin`, where a file of the
    master's log begins, and so do its queues.
    """

    end: int
    begin: int | None = None


@dataclass(frozen=True, slots=True)
class InSyncSet:
    """The replicas that have everything that is confirmed, the master among them; each decision has a version."""

    version: int = 0
    replicas: frozenset[str] = frozenset()

    def with_one(self, replica_id: str) -> InSyncSet:
        """The next decision: it belongs to the set."""
        return InSyncSet(self.version + 1, self.replicas | {replica_id})

    def without(self, replica_ids: frozenset[str]) -> InSyncSet:
        """The next decision: these belong to it no more."""
        return InSyncSet(self.version + 1, self.replicas - replica_ids)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """`configured_role` is what broker.conf said at the last start: a change there overrides a switch.

    `epoch` is the newest that was accepted, `master_id` the replica that writes in it. `cut` waits for the next start.
    In `renewal_term` a master began last that may have lacked what an earlier one had given a number to; versions of
    progress are counted from `renewal_origin`, which each store that was restored draws anew. `first_master_id` is the
    broker that began the log, which a replica takes over from its master; "" while it is not known. `master_time` are
    the clocks of the newest other master, where they are not this machine's. A master that `is_restored` has a store
    that was put back from a backup, and has not been taken as the master yet.

    It decides in which role a broker starts and which master it believes. Each change is on disk before anything
    follows from it: before a frame of a new epoch is taken over, before a message is acknowledged without a replica,
    before a broker that has stepped down says so.
    """

    replica_id: str
    configured_role: BrokerRole
    role: BrokerRole
    broker_id: int
    epoch: Epoch = NO_EPOCH
    master_id: str = ""
    master_ha_address: str = ""
    history: EpochHistory = field(default_factory=EpochHistory)
    in_sync: InSyncSet = field(default_factory=InSyncSet)
    confirmed: int = 0
    cut: Cut | None = None
    renewal_term: int = 0
    renewal_origin: int = 0
    first_master_id: str = ""
    master_time: MasterTime | None = None
    is_restored: bool = False

    # ------------------------------------------------------------------------------------------- decisions

    def started(self, configured_role: BrokerRole, configured_id: int) -> ReplicaState:
        """At a start with this configuration.

        What an operator has switched stays switched, until broker.conf says something else than before: then a replica
        that becomes a master begins a new term.
        """
        if configured_role is self.configured_role:
            return self
        changed = replace(self, configured_role=configured_role, broker_id=configured_id)
        if configured_role.is_master and not self.role.is_master:
            return changed.promoted(self.epoch.term + 1, configured_role)
        return replace(changed, role=configured_role)

    def begun(self, log_end: int, log_begin: int = 0) -> ReplicaState:
        """As a master of this log, in an epoch of its own; epochs of which the log has nothing left are forgotten.

        That goes for all of them where the log has no record: what its replicas have of them is not known here.
        """
        if self.master_id == self.replica_id and self.epoch > self.history.newest:
            epoch = self.epoch  # promoted, and not at work since
        else:
            epoch = Epoch(max(self.epoch.term, 1), self.epoch.start + 1)
        return replace(
            self,
            epoch=epoch,
            master_id=self.replica_id,
            history=(self.history.without(log_begin) if log_begin < log_end else EpochHistory()).begun(epoch, log_end),
            in_sync=self.in_sync
            if self.replica_id in self.in_sync.replicas
            else InSyncSet(self.in_sync.version + 1, frozenset({self.replica_id})),
            confirmed=min(self.confirmed, log_end),
            first_master_id=self.first_master_id or self.replica_id,
        )

    def promoted(self, term: int, role: BrokerRole, *, has_all: bool = False) -> ReplicaState:
        """The master from now on, in a new term, alone until a replica has joined.

        `has_all`: everything that the master before it has given a number to is in this log.
        """
        return replace(
            self,
            role=role,
            broker_id=MASTER_ID,
            epoch=Epoch(term, 0),
            master_id=self.replica_id,
            master_ha_address="",
            in_sync=InSyncSet(self.in_sync.version + 1, frozenset({self.replica_id})),
            renewal_term=self.renewal_term if has_all else term,
            is_restored=False,
        )

    def stepped_down(self) -> ReplicaState:
        """A master no more."""
        broker_id = FORMER_MASTER_ID if self.broker_id == MASTER_ID else self.broker_id
        return replace(self, role=BrokerRole.SLAVE, broker_id=broker_id)

    def following(
        self,
        epoch: Epoch,
        master_id: str,
        history: EpochHistory,
        renewal_origin: int = 0,
        first_master_id: str = "",
    ) -> ReplicaState:
        """The replica of this master, whose log it is going to have.

        The higher origin of the two counts on: versions of either are known to members, and have to be passed.
        """
        return replace(
            self,
            epoch=epoch,
            master_id=master_id,
            history=history,
            renewal_origin=max(self.renewal_origin, renewal_origin),
            first_master_id=first_master_id or self.first_master_id,  # earlier versions do not tell
            is_restored=False,
        )

    def with_own_wall(self) -> ReplicaState:
        """This machine's wall clock is right after all; broker time is the former master's still."""
        own = self.master_time and replace(self.master_time, wall=self.master_time.own_wall)
        return replace(self, master_time=own)

    def after_cut(self) -> ReplicaState:
        """The cut has been made."""
        if self.cut is None:
            return self
        history = self.history  # a master has begun an epoch where the cut has left the log's end
        if not self.role.is_master:
            history = EpochHistory() if self.cut.begin is not None else history.cut(self.cut.end)
        end = self.cut.end if self.cut.begin is None else self.cut.begin
        return replace(self, cut=None, history=history, confirmed=min(self.confirmed, end))

    # ---------------------------------------------------------------------------------------------- json

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "replicaId": self.replica_id,
            "configuredRole": self.configured_role.name,
            "role": self.role.name,
            "brokerId": self.broker_id,
            "epoch": list(self.epoch),
            "masterId": self.master_id,
            "masterHaAddress": self.master_ha_address,
            "history": history_to_json(self.history),
            "inSyncVersion": self.in_sync.version,
            "inSyncReplicas": sorted(self.in_sync.replicas),
            "confirmed": self.confirmed,
            "cut": [self.cut.end, self.cut.begin] if self.cut else None,
            "renewalTerm": self.renewal_term,
            "renewalOrigin": self.renewal_origin,
            "firstMasterId": self.first_master_id,
            "masterTime": self.master_time.to_json() if self.master_time else None,
            "isRestored": self.is_restored,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ReplicaState:
        """The inverse. Raises KeyError, TypeError, ValueError when it is not of this form."""
        replica_id = str(document["replicaId"])
        if not REPLICA_ID.fullmatch(replica_id):
            raise ValueError(f"replicaId {replica_id!r} is not 32 hexadecimal digits")
        term, start = document["epoch"]
        end, begin = document["cut"] or (None, None)
        return cls(
            replica_id,
            BrokerRole[document["configuredRole"]],
            BrokerRole[document["role"]],
            int(document["brokerId"]),
            Epoch(int(term), int(start)),
            str(document["masterId"]),
            str(document["masterHaAddress"]),
            history_from_json(document["history"]),
            InSyncSet(int(document["inSyncVersion"]), frozenset(map(str, document["inSyncReplicas"]))),
            int(document["confirmed"]),
            None if end is None else Cut(int(end), None if begin is None else int(begin)),
            int(document.get("renewalTerm", term)),  # earlier versions renewed in each term
            int(document.get("renewalOrigin", 0)),
            str(document.get("firstMasterId", "")),
            MasterTime.from_json(master_time) if (master_time := document.get("masterTime")) else None,
            bool(document.get("isRestored", False)),
        )


class BrokerRole(enum.Enum):
    """Which broker writes, and when a message is acknowledged."""

    ASYNC_MASTER = "ASYNC_MASTER"  # acknowledges by itself
    SYNC_MASTER = "SYNC_MASTER"  # acknowledges what its in-sync replicas have
    SLAVE = "SLAVE"  # never written by clients

    @property
    def is_master(self) -> bool:
        """Whether clients may write."""
        return self is not BrokerRole.SLAVE


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """Addresses are host:port; an empty `master_ha_address` has a replica ask the name servers."""

    role: BrokerRole = BrokerRole.ASYNC_MASTER
    ha_address: str = ""  # where replicas find this broker
    master_ha_address: str = ""  # haMasterAddress
    min_in_sync_replicas: int = 1  # minInSyncReplicas, with the master
    replica_timeout_ms: int = 3_000  # slaveTimeout: how long a send waits for its replicas
    replica_not_catchup_ms: int = 15_000  # haMaxTimeSlaveNotCatchup: how long a replica may be behind and in sync
    beat_interval_ms: int = 1_000  # haSendHeartbeatInterval
    slave_read_enable: bool = True  # slaveReadEnable
    is_registered: bool = False  # with name servers, which know of other brokers of its name
    access_message_in_memory_max_ratio: int = 40  # percent of the machine's memory (mechanism H3)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica as its master sees it. Offsets and lags are bytes of the log; `lag_seconds` is how long ago the replica
    had everything, 0.0 while it has; `clock_ahead_ms` is how far its wall clock is ahead of the master's, 0 while
    unknown.
    """

    replica_id: str
    broker_id: int
    address: str
    connected: bool
    in_sync: bool
    written_offset: int
    durable_offset: int
    acknowledged_offset: int
    lag_bytes: int
    lag_seconds: float
    clock_ahead_ms: int = 0


@dataclass(frozen=True, slots=True)
class HaStatus:
    """One broker. Of a master, `replicas` are those that copy its log, and `master_ha_address` its own; of a replica,
    `connected` says whether it hears from its master, `lag_bytes` and `lag_seconds` how far it is behind, as far as it
    has heard.

    `writable` is False for a replica, and for a master that has stepped down or was superseded; `reason` says why.
    """

    role: BrokerRole
    writable: bool
    reason: str
    epoch: Epoch
    broker_id: int
    replica_id: str
    log_begin: int
    log_end: int
    durable_end: int
    confirm_offset: int
    min_in_sync_replicas: int
    in_sync_version: int
    in_sync_replicas: int  # with the master
    in_sync: bool
    connected: bool
    master_ha_address: str
    lag_bytes: int
    lag_seconds: float
    replicas: tuple[ReplicaStatus, ...] = ()
    clock_ahead_ms: int = 0  # of a replica


MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """What it registers as. Several brokers of one name are a master (id 0) and its replicas."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str  # host:port that clients can reach
