"""The frames of master and replica, and the link between them; replication_service.proto has them for the wire."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from mq_broker.core.replica_state import Epoch, EpochHistory

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReplicaHello:
    """A replica's first frame."""

    cluster_name: str
    broker_name: str
    replica_id: str
    broker_id: int
    address: str
    log_begin: int
    log_end: int
    history: EpochHistory
    protocol_version: int = PROTOCOL_VERSION
    applies_changes: bool = False  # as its log gets them: documents are for the beginning of the link only


@dataclass(frozen=True, slots=True)
class Probe:
    """Do your bytes from `begin` to `end` have this CRC-32?"""

    begin: int
    end: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Both logs are the same up to here; stream from here."""

    log_offset: int


@dataclass(frozen=True, slots=True)
class Report:
    """What the replica has written, has on disk, and vouches for; and its wall clock, 0 when it does not tell."""

    written_offset: int
    durable_offset: int
    acknowledged_offset: int
    wall_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ProgressEntries:
    """What groups have finished, as journal entries (store/progress_journal.py); both ways.

    It depends on the sender's log below `log_end`.
    """

    entries: bytes
    log_end: int = 0


@dataclass(frozen=True, slots=True)
class LeaveNotice:
    """The replica stops on purpose."""


@dataclass(frozen=True, slots=True)
class MasterHello:
    """The master's answer to a hello."""

    replica_id: str
    log_begin: int
    log_end: int
    history: EpochHistory
    synchronous: bool
    protocol_version: int = PROTOCOL_VERSION
    renewal_origin: int = 0
    first_master_id: str = ""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Whether the bytes before `end` are the same."""

    end: int
    matches: bool


@dataclass(frozen=True, slots=True)
class LogBytes:
    """Whole records, or blanks, that follow what was sent before."""

    log_offset: int
    data: bytes
    confirm_offset: int


@dataclass(frozen=True, slots=True)
class StateDocument:
    """One of the small states, with the log offset that it covers."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class MasterHeartbeat:
    """The master's heartbeat, with its offsets. `wall_ms` is its wall clock, 0 when it does not tell."""

    log_begin: int
    log_end: int
    confirm_offset: int
    broker_time_ms: int
    in_sync: bool
    in_sync_version: int
    wall_ms: int = 0


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why the master ends the stream."""

    remark: str


ReplicaEvent = ReplicaHello | Probe | Follow | Report | ProgressEntries | LeaveNotice
MasterEvent = MasterHello | ProbeAnswer | LogBytes | StateDocument | ProgressEntries | MasterHeartbeat | Rejection


@dataclass(frozen=True, slots=True)
class ReplicaFrame:
    """From a replica, with the newest epoch that it has accepted."""

    epoch: Epoch
    event: ReplicaEvent


@dataclass(frozen=True, slots=True)
class MasterFrame:
    """From a master, with its epoch."""

    epoch: Epoch
    event: MasterEvent


class LinkError(Exception):
    """The link is gone; the message says what is known of the reason."""


class ReplicaLink(Protocol):
    """The replica's end. Frames arrive in the order in which they were sent, or the link breaks."""

    async def send(self, frame: ReplicaFrame) -> None:
        """Send; waits while the other side does not keep up. Raises LinkError."""

    async def receive(self) -> MasterFrame | None:
        """The next frame; None when the master has ended the stream. Raises LinkError."""


class MasterLink(Protocol):
    """The way between a master and one replica, whatever carries it: gRPC, or a simulated network.

    The master's end; `peer` is the replica's address, for people.
    """

    peer: str

    async def send(self, frame: MasterFrame) -> None:
        """Send; waits while the other side does not keep up. Raises LinkError."""

    async def receive(self) -> ReplicaFrame | None:
        """The next frame; None when the replica has ended the stream. Raises LinkError."""


# A link to the master that listens for replication at `host:port`, closed when the context ends. Raises LinkError.
Connect = Callable[[str], AbstractAsyncContextManager[ReplicaLink]]
