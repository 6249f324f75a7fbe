"""What a master may confirm: the ledger of its replicas, as a step function."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mq_broker.core.replica_state import InSyncSet

# A replica that is nearer than this, and had everything so short a while ago, is waited for, so that it joins under
# load.
JOIN_GAP_BYTES, JOIN_FRESH_S = 4 * 1024 * 1024, 2.0
JOIN_WAIT_S, JOIN_AGAIN_S = 1.0, 5.0
STRANGERS_MAX = 16  # replicas that are neither connected nor in the set, and are remembered all the same


@dataclass(frozen=True, slots=True)
class Connected:
    """A replica follows from here: everything below is the same in both logs."""

    replica_id: str
    log_offset: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The replica's link is gone."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class Left:
    """The replica has stopped on purpose: the master need not wait for it."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The replica vouches for everything below."""

    replica_id: str
    log_offset: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The master itself vouches for everything below."""

    log_offset: int


@dataclass(frozen=True, slots=True)
class Passed:
    """Some time has passed."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision that was on its way is on disk; or it is not, and will not be."""

    in_sync: InSyncSet
    durable: bool = True


Event = Connected | Disconnected | Left | Acknowledged | Stored | Passed | Decided


@dataclass(frozen=True, slots=True)
class Decide:
    """Have this on disk, then say so with `Decided`."""

    in_sync: InSyncSet


@dataclass(frozen=True, slots=True)
class Confirm:
    """Everything below may be shown; `alone` when the set is the master alone, so that no replica has it."""

    log_offset: int
    alone: bool


@dataclass(frozen=True, slots=True)
class Reject:
    """End the link of this replica: its claim is impossible."""

    replica_id: str
    remark: str


Action = Decide | Confirm | Reject


@dataclass(slots=True)
class ReplicaView:
    """A replica as its master knows it; times are monotonic seconds.

    `caught_up_at` is the latest moment of which it is known that the replica has everything that was stored then.
    """

    acknowledged: int = 0
    connected: bool = False
    caught_up_at: float = 0.0
    marked_end: int = 0
    marked_at: float = 0.0


@dataclass
class InSyncLedger:
    """The master `me`; times that are passed in are monotonic seconds, offsets are of the log.

    A synchronous master confirms what every replica of the in-sync set has. A replica that has not had everything for
    too long leaves the set, one that has everything joins it; either is a decision that is on disk before anything
    follows from it, and until then a replica counts that is in the set before or after. So whatever was confirmed is in
    the log of every replica that the newest durable decision names.

    Invariants: the confirm offset never goes back; nothing is confirmed without a replica that the durable set names; a
    replica counts once, however many links it has; one decision is on its way at a time.
    """

    me: str
    synchronous: bool
    min_in_sync: int
    not_catchup_s: float
    in_sync: InSyncSet
    confirmed: int
    views: dict[str, ReplicaView] = field(default_factory=dict)
    stored: int = 0
    deciding: InSyncSet | None = None
    _joining: str = ""
    _joining_since: float = 0.0
    _join_again_at: float = 0.0

    def begin(self, in_sync: InSyncSet, confirmed: int, now: float) -> None:
        """The epoch begins with this; the replicas in the set have time from now on to come back."""
        self.in_sync, self.confirmed = in_sync, confirmed
        for replica_id in self.in_sync.replicas - {self.me}:
            self.views[replica_id] = ReplicaView(caught_up_at=now)

    @property
    def is_alone(self) -> bool:
        """Whether the durable set is the master alone, and stays so for the moment."""
        return len(self.in_sync.replicas) == 1 and self.deciding is None and not self._joining

    @property
    def is_sufficient(self) -> bool:
        """Whether the set is large enough to accept writes (minInSyncReplicas)."""
        return not self.synchronous or len(self.in_sync.replicas) >= self.min_in_sync

    def step(self, event: Event, now: float, log_end: int) -> list[Action]:
        """The actions that follow from this event."""
        actions: list[Action] = []
        match event:
            case Connected(replica_id, log_offset):
                self._forget_strangers()
                caught_up_at = now if log_offset >= log_end else self._caught_up_at(replica_id)
                self.views[replica_id] = ReplicaView(log_offset, True, caught_up_at, log_end, now)
            case Disconnected(replica_id) if replica_id in self.views:
                self.views[replica_id].connected = False
            case Left(replica_id) if replica_id in self.views:
                self.views[replica_id].connected = False
                self.views[replica_id].caught_up_at = -math.inf
            case Acknowledged(replica_id, log_offset):
                actions += self._acknowledge(replica_id, log_offset, now, log_end)
            case Stored(log_offset):
                self.stored = max(self.stored, log_offset)
            case Decided(in_sync, durable):
                self._decided(in_sync, durable=durable)
            case _:
                pass
        actions += self._confirm()
        self._join(now, log_end)
        actions += self._decide(now, log_end)
        actions += self._confirm()
        return actions

    @property
    def _fresh_s(self) -> float:
        return min(JOIN_FRESH_S, self.not_catchup_s)

    def _forget_strangers(self) -> None:
        """Never keep as many as a client names."""
        gone = [
            replica_id
            for replica_id, replica in self.views.items()
            if not replica.connected and replica_id not in self.in_sync.replicas | {self._joining}
        ]
        if len(gone) > STRANGERS_MAX and self.deciding is None:
            del self.views[gone[0]]

    def _caught_up_at(self, replica_id: str) -> float:
        known = self.views.get(replica_id)
        return known.caught_up_at if known else -self.not_catchup_s

    def _acknowledge(self, replica_id: str, log_offset: int, now: float, log_end: int) -> list[Action]:
        replica = self.views.get(replica_id)
        if replica is None or not replica.connected:
            return [Reject(replica_id, "acknowledges before it follows")]
        if log_offset > log_end:
            return [Reject(replica_id, f"acknowledges up to {log_offset}, and the log ends at {log_end}")]
        if log_offset < replica.acknowledged:
            return [Reject(replica_id, f"acknowledges up to {log_offset}, after {replica.acknowledged}")]
        replica.acknowledged = log_offset
        if log_offset >= replica.marked_end:
            replica.caught_up_at = now if log_offset == log_end else replica.marked_at
            replica.marked_end, replica.marked_at = log_end, now
        return []

    def _decided(self, in_sync: InSyncSet, *, durable: bool) -> None:
        self.deciding = None
        if durable:
            self.in_sync = in_sync
        if self._joining in self.in_sync.replicas:
            self._joining = ""

    def _join(self, now: float, log_end: int) -> None:
        """Wait for one replica that is near, for a while: then it has everything that is confirmed."""
        if self._joining:
            replica = self.views[self._joining]
            if self.deciding is None and (not replica.connected or now - self._joining_since > JOIN_WAIT_S):
                self._joining, self._join_again_at = "", now + JOIN_AGAIN_S
            return
        if self.deciding is not None or now < self._join_again_at:
            return
        for replica_id, replica in self.views.items():
            is_near = log_end - replica.acknowledged <= JOIN_GAP_BYTES and now - replica.caught_up_at <= self._fresh_s
            if replica.connected and is_near and replica_id not in self.in_sync.replicas:
                self._joining, self._joining_since = replica_id, now
                return

    def _decide(self, now: float, log_end: int) -> list[Action]:
        if self.deciding is not None:
            return []
        late = frozenset(
            replica_id
            for replica_id in self.in_sync.replicas - {self.me}
            if (self._is_behind(replica_id, log_end) and now - self.views[replica_id].caught_up_at > self.not_catchup_s)
            or self._has_lost(replica_id)
        )
        if late:
            self.deciding = self.in_sync.without(late)
        elif self._joining and (not self.synchronous or self._acknowledged(self._joining) >= self.confirmed):
            self.deciding = self.in_sync.with_one(self._joining)
        return [Decide(self.deciding)] if self.deciding else []

    def _is_behind(self, replica_id: str, log_end: int) -> bool:
        replica = self.views[replica_id]
        return not replica.connected or replica.acknowledged < log_end

    def _has_lost(self, replica_id: str) -> bool:
        """Whether it has come back without something that it had vouched for: its disk had not got it yet."""
        replica = self.views[replica_id]
        return self.synchronous and replica.connected and replica.acknowledged < self.confirmed

    def _confirm(self) -> list[Action]:
        replicas = self.in_sync.replicas | (self.deciding.replicas if self.deciding else frozenset())
        if self._joining:
            replicas |= {self._joining}
        if not self.is_sufficient:
            return []
        confirmed = self.stored
        if self.synchronous:
            confirmed = min([confirmed, *(self._acknowledged(one) for one in replicas - {self.me})])
        if confirmed <= self.confirmed:
            return []
        self.confirmed = confirmed
        return [Confirm(confirmed, alone=self.in_sync.replicas == {self.me})]

    def _acknowledged(self, replica_id: str) -> int:
        """What it vouches for; a replica that is not connected vouches for nothing more: what it still has is
        unknown."""
        replica = self.views[replica_id]
        return replica.acknowledged if replica.connected else min(replica.acknowledged, self.confirmed)
