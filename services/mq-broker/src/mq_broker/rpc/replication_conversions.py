"""Between replication_service.proto and the plain values of replication/frames.py.

Invariant: whatever a peer sends becomes a frame or a ValueError that says what is wrong with it, and never another
error. The core decides whether a frame makes sense at its place in the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from hourglass.mq.v1 import replication_service_pb2 as pb
from mq_broker.core.replica_state import REPLICA_ID, Epoch, EpochBegin, EpochHistory
from mq_broker.replication.frames import (
    Follow,
    LeaveNotice,
    LogBytes,
    MasterEvent,
    MasterFrame,
    MasterHeartbeat,
    MasterHello,
    Probe,
    ProbeAnswer,
    ProgressEntries,
    Rejection,
    ReplicaEvent,
    ReplicaFrame,
    ReplicaHello,
    Report,
    StateDocument,
)
from mqproto.values import to_message

DATA_BYTES_MAX = 8 * 1024 * 1024  # of log bytes or progress in one frame
STATE_BYTES_MAX = 64 * 1024 * 1024  # of a state document from a master: 100,000 topics take 40 MB at most
EPOCHS_MAX = 4_096  # of a history on the wire
TEXT_MAX = 4_096  # characters of a name, an address or a remark


# -------------------------------------------------------------------------------------------------------- to the wire


def epoch_message(epoch: Epoch) -> pb.Epoch:
    return pb.Epoch(term=epoch.term, start=epoch.start)


def replica_frame_message(frame: ReplicaFrame) -> pb.ReplicaFrame:
    """The frame for the wire."""
    return pb.ReplicaFrame(epoch=epoch_message(frame.epoch), **_event_message(frame.event, _REPLICA_EVENTS))


def master_frame_message(frame: MasterFrame) -> pb.MasterFrame:
    """The frame for the wire."""
    return pb.MasterFrame(epoch=epoch_message(frame.epoch), **_event_message(frame.event, _MASTER_EVENTS))


_Events = Mapping[str, tuple[type[Message], Any]]

_REPLICA_EVENTS: _Events = {
    "hello": (pb.ReplicaHello, ReplicaHello),
    "probe": (pb.Probe, Probe),
    "follow": (pb.Follow, Follow),
    "report": (pb.Report, Report),
    "progress": (pb.Progress, ProgressEntries),
    "leave_notice": (pb.LeaveNotice, LeaveNotice),
}
_MASTER_EVENTS: _Events = {
    "hello": (pb.MasterHello, MasterHello),
    "probe_answer": (pb.ProbeAnswer, ProbeAnswer),
    "log": (pb.LogBytes, LogBytes),
    "state": (pb.StateDocument, StateDocument),
    "progress": (pb.Progress, ProgressEntries),
    "beat": (pb.MasterHeartbeat, MasterHeartbeat),
    "rejection": (pb.Rejection, Rejection),
}


def _event_message(event: ReplicaEvent | MasterEvent, events: _Events) -> dict[str, Any]:
    name, message_type = next((name, one[0]) for name, one in events.items() if one[1] is type(event))
    match event:
        case ReplicaHello() | MasterHello():
            # The newest 4,096; where older ones begin, only the bytes themselves tell, by probes.
            newest = event.history.begins[-EPOCHS_MAX:]
            history = [pb.EpochBegin(epoch=epoch_message(one.epoch), log_offset=one.log_offset) for one in newest]
            return {name: to_message(message_type, event, history=history)}
        case Rejection(remark):
            return {name: pb.Rejection(remark=remark[:TEXT_MAX])}
    return {name: to_message(message_type, event)}


# ------------------------------------------------------------------------------------------------------ from the wire


def epoch_of(message: pb.Epoch) -> Epoch:
    """The epoch; one that is missing is 0.0. Raises ValueError."""
    return Epoch(_checked("epoch.term", message.term), _checked("epoch.start", message.start))


def replica_frame(message: pb.ReplicaFrame) -> ReplicaFrame:
    """What a replica has sent. Raises ValueError."""
    return ReplicaFrame(epoch_of(message.epoch), _event(message, _REPLICA_EVENTS))


def master_frame(message: pb.MasterFrame) -> MasterFrame:
    """What a master has sent. Raises ValueError."""
    return MasterFrame(epoch_of(message.epoch), _event(message, _MASTER_EVENTS))


def _event(message: pb.ReplicaFrame | pb.MasterFrame, events: _Events) -> Any:
    name = message.WhichOneof("event")
    if name is None:
        raise ValueError(f"the frame has no event; one of {', '.join(events)} is needed")
    event, event_type = getattr(message, name), events[name][1]
    checks = {field.name: _checked(field.name, getattr(event, field.name)) for field in event.DESCRIPTOR.fields}
    return event_type(**checks)


def _checked(name: str, value: Any) -> Any:
    """The value of the field, as the dataclass has it. Raises ValueError for what no peer may send."""
    match value:
        case int() if value < 0:
            raise ValueError(f"{name} is {value}; it cannot be negative")
        case str() if name == "replica_id" and not REPLICA_ID.fullmatch(value):
            raise ValueError(f"replica_id {value[:64]!r} is not 32 hexadecimal digits in lower case")
        case str() if len(value) > TEXT_MAX:
            raise ValueError(f"{name} has {len(value)} characters; at most {TEXT_MAX} are allowed")
        case bytes() if len(value) > (most := STATE_BYTES_MAX if name == "content" else DATA_BYTES_MAX):
            raise ValueError(f"{name} has {len(value)} bytes; at most {most} are allowed")
        case int() | str() | bytes():
            return value
    if len(value) > EPOCHS_MAX:  # the history is the only repeated field
        raise ValueError(f"the history has {len(value)} epochs; at most {EPOCHS_MAX} are allowed")
    return EpochHistory(tuple(EpochBegin(epoch_of(one.epoch), one.log_offset) for one in value))
