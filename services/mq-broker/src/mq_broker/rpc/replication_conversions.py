"""Between replication_service.proto and the plain values of replication/frames.py.

Invariant: whatever a peer sends becomes a frame or a ValueError that says what is wrong with it, and never another
error. The core decides whether a frame makes sense at its place in the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from hourglass.mq.v1 import replication_service_pb2 as pb
from mq_broker.core.replica_state import REPLICA_ID, Epoch, EpochBegin, EpochHistory
from mq_broker.replication.frames import (
    Follow,
    LeaveNotice,
    LogBytes,
    MasterFrame,
    MasterHeartbeat,
    MasterHello,
    Probe,
    ProbeAnswer,
    ProgressEntries,
    Refusal,
    ReplicaFrame,
    ReplicaHello,
    Report,
    StateDocument,
)

DATA_BYTES_MAX = 8 * 1024 * 1024  # of log bytes or progress in one frame
STATE_BYTES_MAX = 64 * 1024 * 1024  # of a state document from a master: 100,000 topics take 40 MB at most
EPOCHS_MAX = 4_096  # of a history on the wire
TEXT_MAX = 4_096  # characters of a name, an address or a remark

EventT = TypeVar("EventT")


# -------------------------------------------------------------------------------------------------------- to the wire


def epoch_message(epoch: Epoch) -> pb.Epoch:
    return pb.Epoch(term=epoch.term, start=epoch.start)


def replica_frame_message(frame: ReplicaFrame) -> pb.ReplicaFrame:
    """The frame for the wire."""
    name, encode = _REPLICA_EVENTS[type(frame.event)]
    return pb.ReplicaFrame(epoch=epoch_message(frame.epoch), **{name: encode(frame.event)})


def master_frame_message(frame: MasterFrame) -> pb.MasterFrame:
    """The frame for the wire."""
    name, encode = _MASTER_EVENTS[type(frame.event)]
    return pb.MasterFrame(epoch=epoch_message(frame.epoch), **{name: encode(frame.event)})


def _history_messages(history: EpochHistory) -> list[pb.EpochBegin]:
    """The newest 4,096; where older ones begin, only the bytes themselves tell, by probes."""
    newest = history.begins[-EPOCHS_MAX:]
    return [pb.EpochBegin(epoch=epoch_message(one.epoch), log_offset=one.log_offset) for one in newest]


def _replica_hello_message(hello: ReplicaHello) -> pb.ReplicaHello:
    return pb.ReplicaHello(
        protocol_version=hello.protocol_version,
        cluster_name=hello.cluster_name,
        broker_name=hello.broker_name,
        replica_id=hello.replica_id,
        broker_id=hello.broker_id,
        address=hello.address,
        log_begin=hello.log_begin,
        log_end=hello.log_end,
        history=_history_messages(hello.history),
        applies_changes=hello.applies_changes,
    )


def _master_hello_message(hello: MasterHello) -> pb.MasterHello:
    return pb.MasterHello(
        protocol_version=hello.protocol_version,
        replica_id=hello.replica_id,
        log_begin=hello.log_begin,
        log_end=hello.log_end,
        history=_history_messages(hello.history),
        synchronous=hello.synchronous,
        renewal_origin=hello.renewal_origin,
        first_master_id=hello.first_master_id,
    )


def _beat_message(beat: MasterHeartbeat) -> pb.MasterHeartbeat:
    return pb.MasterHeartbeat(
        log_begin=beat.log_begin,
        log_end=beat.log_end,
        confirm_offset=beat.confirm_offset,
        broker_time_ms=beat.broker_time_ms,
        in_sync=beat.in_sync,
        in_sync_version=beat.in_sync_version,
        wall_ms=beat.wall_ms,
    )


_Encodings = Mapping[type, tuple[str, Callable[[Any], Any]]]

_REPLICA_EVENTS: _Encodings = {
    ReplicaHello: ("hello", _replica_hello_message),
    Probe: ("probe", lambda one: pb.Probe(begin=one.begin, end=one.end, crc32=one.crc32)),
    Follow: ("follow", lambda one: pb.Follow(log_offset=one.log_offset)),
    Report: (
        "report",
        lambda one: pb.Report(
            written_offset=one.written,
            durable_offset=one.durable,
            acknowledged_offset=one.acknowledged,
            wall_ms=one.wall_ms,
        ),
    ),
    ProgressEntries: ("progress", lambda one: pb.Progress(entries=one.entries, log_end=one.log_end)),
    LeaveNotice: ("leave_notice", lambda _: pb.LeaveNotice()),
}
_MASTER_EVENTS: _Encodings = {
    MasterHello: ("hello", _master_hello_message),
    ProbeAnswer: ("probe_answer", lambda one: pb.ProbeAnswer(end=one.end, matches=one.matches)),
    LogBytes: (
        "log",
        lambda one: pb.LogBytes(log_offset=one.log_offset, data=one.data, confirm_offset=one.confirm_offset),
    ),
    StateDocument: ("state", lambda one: pb.StateDocument(name=one.name, content=one.content)),
    ProgressEntries: ("progress", lambda one: pb.Progress(entries=one.entries, log_end=one.log_end)),
    MasterHeartbeat: ("beat", _beat_message),
    Refusal: ("refusal", lambda one: pb.Refusal(remark=one.remark[:TEXT_MAX])),
}


# ------------------------------------------------------------------------------------------------------ from the wire


def epoch_of(message: pb.Epoch) -> Epoch:
    """The epoch; one that is missing is 0.0. Raises ValueError."""
    return Epoch(_number("epoch.term", message.term), _number("epoch.start", message.start))


def replica_frame(message: pb.ReplicaFrame) -> ReplicaFrame:
    """What a slave has sent. Raises ValueError."""
    return ReplicaFrame(epoch_of(message.epoch), _event(message, _REPLICA_DECODERS))


def master_frame(message: pb.MasterFrame) -> MasterFrame:
    """What a master has sent. Raises ValueError."""
    return MasterFrame(epoch_of(message.epoch), _event(message, _MASTER_DECODERS))


def _event(message: Any, decoders: Mapping[str, Callable[[Any], EventT]]) -> EventT:
    name = message.WhichOneof("event")
    if name is None:
        raise ValueError(f"the frame has no event; one of {', '.join(decoders)} is needed")
    return decoders[name](getattr(message, name))


def _replica_hello(message: pb.ReplicaHello) -> ReplicaHello:
    return ReplicaHello(
        _text("cluster_name", message.cluster_name),
        _text("broker_name", message.broker_name),
        _replica_id(message.replica_id),
        _number("broker_id", message.broker_id),
        _text("address", message.address),
        _number("log_begin", message.log_begin),
        _number("log_end", message.log_end),
        _history(message.history),
        _number("protocol_version", message.protocol_version),
        message.applies_changes,
    )


def _master_hello(message: pb.MasterHello) -> MasterHello:
    return MasterHello(
        _replica_id(message.replica_id),
        _number("log_begin", message.log_begin),
        _number("log_end", message.log_end),
        _history(message.history),
        message.synchronous,
        _number("protocol_version", message.protocol_version),
        _number("renewal_origin", message.renewal_origin),
        _text("first_master_id", message.first_master_id),
    )


def _probe(message: pb.Probe) -> Probe:
    return Probe(_number("begin", message.begin), _number("end", message.end), message.crc32)


def _report(message: pb.Report) -> Report:
    return Report(
        _number("written_offset", message.written_offset),
        _number("durable_offset", message.durable_offset),
        _number("acknowledged_offset", message.acknowledged_offset),
        _number("wall_ms", message.wall_ms),
    )


def _log_bytes(message: pb.LogBytes) -> LogBytes:
    return LogBytes(
        _number("log_offset", message.log_offset),
        _data("data", message.data),
        _number("confirm_offset", message.confirm_offset),
    )


def _beat(message: pb.MasterHeartbeat) -> MasterHeartbeat:
    return MasterHeartbeat(
        _number("log_begin", message.log_begin),
        _number("log_end", message.log_end),
        _number("confirm_offset", message.confirm_offset),
        _number("broker_time_ms", message.broker_time_ms),
        message.in_sync,
        _number("in_sync_version", message.in_sync_version),
        _number("wall_ms", message.wall_ms),
    )


def _progress(message: pb.Progress) -> ProgressEntries:
    return ProgressEntries(_data("entries", message.entries), _number("log_end", message.log_end))


_REPLICA_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "hello": _replica_hello,
    "probe": _probe,
    "follow": lambda message: Follow(_number("log_offset", message.log_offset)),
    "report": _report,
    "progress": _progress,
    "leave_notice": lambda _: LeaveNotice(),
}
_MASTER_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "hello": _master_hello,
    "probe_answer": lambda message: ProbeAnswer(_number("end", message.end), message.matches),
    "log": _log_bytes,
    "state": lambda message: StateDocument(
        _text("name", message.name), _data("content", message.content, STATE_BYTES_MAX)
    ),
    "progress": _progress,
    "beat": _beat,
    "refusal": lambda message: Refusal(_text("remark", message.remark)),
}


# ------------------------------------------------------------------------------------------------------------ fields


def _number(name: str, value: int) -> int:
    if value < 0:
        raise ValueError(f"{name} is {value}; it cannot be negative")
    return value


def _text(name: str, value: str) -> str:
    if len(value) > TEXT_MAX:
        raise ValueError(f"{name} has {len(value)} characters; at most {TEXT_MAX} are allowed")
    return value


def _data(name: str, value: bytes, most: int = DATA_BYTES_MAX) -> bytes:
    if len(value) > most:
        raise ValueError(f"{name} has {len(value)} bytes; at most {most} are allowed")
    return value


def _replica_id(value: str) -> str:
    if not REPLICA_ID.fullmatch(value):
        raise ValueError(f"replica_id {value[:64]!r} is not 32 hexadecimal digits in lower case")
    return value


def _history(messages: Iterable[pb.EpochBegin]) -> EpochHistory:
    begins = tuple(messages)
    if len(begins) > EPOCHS_MAX:
        raise ValueError(f"the history has {len(begins)} epochs; at most {EPOCHS_MAX} are allowed")
    return EpochHistory(tuple(EpochBegin(epoch_of(one.epoch), one.log_offset) for one in begins))
