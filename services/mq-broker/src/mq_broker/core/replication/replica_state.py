"""What a broker has to remember of replication, whatever happens to it: config/replica.json.

It decides in which role a broker starts and which master it believes. Each change is on disk before anything follows
from it: before a frame of a new epoch is taken over, before a message is acknowledged without a slave, before a broker
that has stepped down says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from mq_broker.core.broker_time import MasterTime
from mq_broker.core.identity import MASTER_ID
from mq_broker.core.replication.epochs import (
    NO_EPOCH,
    Epoch,
    EpochHistory,
    history_from_json,
    history_to_json,
)
from mq_broker.core.replication.roles import BrokerRole

FORMER_MASTER_ID = (1 << 31) - 1  # of a broker that has lost its place and was not given another one
REPLICA_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Cut:
    """The log has to end at `end`, where a record ends; or it is dropped, and begins anew, empty, at `begin`, where a
    file of the master's log begins. With `begin`, `end` says nothing more.
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
    """`configured_role` is what broker.conf said at the last start: who changes it there has decided anew.

    `epoch` is the newest that was accepted, `master_id` the replica that writes in it. `cut` waits for the next start.
    In `renewal_term` a master began last that may have lacked what an earlier one had given a number to; versions of
    progress are counted from `renewal_origin`, which each store that was restored draws anew. `first_master_id` is the
    replica that began the log, which a slave takes over from its master; "" while it is not known. `master_time` are
    the clocks of the newest other master, where they are not this machine's. A master that `is_restored` has a store
    that was put back from a backup, and has not been taken as the master yet.
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

        What an operator has switched stays switched, until broker.conf says something else than before: then a slave
        that becomes a master begins a new term.
        """
        if configured_role is self.configured_role:
            return self
        changed = replace(self, configured_role=configured_role, broker_id=configured_id)
        if configured_role.is_master and not self.role.is_master:
            return changed.promoted(self.epoch.term + 1, configured_role)
        return replace(changed, role=configured_role)

    def begun(self, log_end: int, log_begin: int = 0) -> ReplicaState:
        """As a master of this log, in an epoch of its own; epochs of which the log has nothing left are forgotten."""
        if self.master_id == self.replica_id and self.epoch > self.history.newest:
            epoch = self.epoch  # promoted, and not at work since
        else:
            epoch = Epoch(max(self.epoch.term, 1), self.epoch.start + 1)
        return replace(
            self,
            epoch=epoch,
            master_id=self.replica_id,
            history=self.history.without(log_begin).begun(epoch, log_end),
            in_sync=self.in_sync
            if self.replica_id in self.in_sync.replicas
            else InSyncSet(self.in_sync.version + 1, frozenset({self.replica_id})),
            confirmed=min(self.confirmed, log_end),
            first_master_id=self.first_master_id or self.replica_id,
        )

    def promoted(self, term: int, role: BrokerRole, *, has_all: bool = False) -> ReplicaState:
        """The master from now on, in a new term, alone until a slave has joined.

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
        """The slave of this master, whose log it is going to have.

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
        history = EpochHistory() if self.cut.begin is not None else self.history.cut(self.cut.end)
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
