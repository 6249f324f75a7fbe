"""Where a slave has to begin: finding out up to where its log and its master's are the same, as a step function.

The epochs of both logs say up to where they can be the same; that they are is shown by the CRC of the last records
before that place. Where it does not match, the place is halved until it does. What the slave has beyond it is its own
alone, and has to be cut off; only then it follows. A log of which no record matches is cut off whole where both were
begun by the same master (docs/adr/0140), and kept otherwise: then it is another broker's.

Invariant: a slave follows from the end of its log, and from nowhere else, and only after the records before it have
been found to be the master's, unless there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mq_broker.core.replication.epochs import Epoch, EpochHistory, common_end
from mq_broker.core.replication.frames import PROTOCOL_VERSION, MasterHello
from mq_broker.core.replication.replica_state import Cut


@dataclass(frozen=True, slots=True)
class Greeted:
    """The master has answered the hello."""

    epoch: Epoch
    hello: MasterHello


@dataclass(frozen=True, slots=True)
class Compared:
    """The records before `end`, a boundary of records or the beginning of the log, are the same or are not."""

    end: int
    matches: bool


Event = Greeted | Compared


@dataclass(frozen=True, slots=True)
class Compare:
    """Have the last records compared that end at `at_most` or before it, and that begin at `at_least` or behind it."""

    at_most: int
    at_least: int


@dataclass(frozen=True, slots=True)
class CutLog:
    """Cut the log, durably, then say hello again."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class StartFollowing:
    """Take over the master's epoch and history, durably, then ask for everything from this offset on."""

    log_offset: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """This is no master to follow; the remark is a sentence for an operator."""

    remark: str


TWO_WAYS_OUT = (  # the other one is at work: a master that waits after a restore feeds nobody
    "to go on with what this broker has, stop the other one and promote this one (mqadmin switchMaster "
    "--oldMasterIsLost); to go on with the other one, start this one with an empty storePathRootDir, and keep the old "
    "folder: it has what the other one lacks"
)

Action = Compare | CutLog | StartFollowing | Refuse


@dataclass
class Reconciliation:
    """One slave's search, from one hello to the decision. Offsets are of the log; `end` is on disk."""

    epoch: Epoch
    master_id: str
    replica_id: str
    history: EpochHistory
    begin: int
    end: int
    first_master_id: str = ""
    _is_kin: bool = field(default=False, init=False)  # whether both logs were begun by the same master
    _floor: int = field(default=0, init=False)  # below it one of the logs has nothing
    _at: int = field(default=0, init=False)  # where the records are that are being compared
    _low: int = field(default=0, init=False)  # no boundary of records above the floor and up to here is known to differ
    _high: int = field(default=0, init=False)  # the records before this boundary, and before every later one, do
    _same: int = field(default=-1, init=False)  # the largest boundary that is known to match

    def step(self, event: Event) -> Action:
        """What has to be done next."""
        match event:
            case Greeted(epoch, hello):
                return self._refusal(epoch, hello) or self._first(hello)
            case Compared(end, matches):
                return self._next(end, matches=matches)

    def _refusal(self, epoch: Epoch, hello: MasterHello) -> Refuse | None:
        if hello.protocol_version > PROTOCOL_VERSION:
            return Refuse(f"the master speaks version {hello.protocol_version}; this broker knows {PROTOCOL_VERSION}")
        if hello.replica_id == self.replica_id:
            return Refuse("the master has this broker's own replica id: one store is a copy of the other")
        if epoch < self.epoch:
            return Refuse(f"the master is in epoch {epoch}, and epoch {self.epoch} has begun: it has been superseded")
        if epoch.term == self.epoch.term and self.master_id not in ("", hello.replica_id):  # a successor begins a term
            return Refuse(
                f"there are two masters in term {epoch.term}: {self.master_id}, which this broker has followed in "
                f"epoch {self.epoch}, and {hello.replica_id} in {epoch}, with another store, as after a restore; "
                f"{TWO_WAYS_OUT}"
            )
        return None

    def _first(self, hello: MasterHello) -> Action:
        self._is_kin = bool(self.first_master_id) and self.first_master_id == hello.first_master_id
        if self.end < hello.log_begin:
            return CutLog(Cut(self.end, begin=hello.log_begin))  # what comes next is not to be had any more
        candidate = common_end(self.history, self.end, hello.history, hello.log_end)
        if self.begin == self.end:
            if hello.log_begin == self.end == candidate:
                return StartFollowing(self.end)
            # Its queues may have other numbers than the master's, and it has nothing to show for any other place.
            return CutLog(Cut(self.end, begin=hello.log_begin))
        self._low = self._floor = max(self.begin, hello.log_begin)
        if candidate < self._floor:
            is_boundary = candidate > self.begin and not set(hello.history.begins).isdisjoint(self.history.begins)
            return CutLog(Cut(candidate)) if is_boundary else self._without_match()
        if candidate == self._floor == self.end:
            return StartFollowing(self.end)  # both had it, and the master has it no more: the epochs have to do
        self._at, self._high = candidate, candidate + 1
        return Compare(candidate, self._floor)

    def _next(self, end: int, *, matches: bool) -> Action:
        if end <= self._low:
            self._low = self._at  # no record ends in between
        elif matches:
            self._same, self._low = end, self._at
        else:
            self._high = end
        if self._high - self._low > 1:
            self._at = (self._low + self._high) // 2
            return Compare(self._at, self._floor)
        if self._same < 0:
            return self._without_match()
        return StartFollowing(self.end) if self._same == self.end else CutLog(Cut(self._same))

    def _without_match(self) -> CutLog | Refuse:
        if self._is_kin:
            return CutLog(Cut(self.begin))
        return Refuse(
            f"no record of this log, from {self.begin} to {self.end}, is in the master's: they are different brokers' "
            "stores, or this one is of another time; start the slave with an empty storePathRootDir"
        )
