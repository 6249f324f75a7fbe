"""Limits of the wire: options of every gRPC server and channel of the queue, and the limits of requests.

A server names a limit for each text, byte string and repeated field of its requests in one table, and a test of the
server holds the table against the descriptors, so that a new field without a limit is noticed. The check visits each
message of a request once and stops at the first field that is beyond its limit: it takes time in proportion to what is
allowed, not to what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor

from mqproto.record import RECORD_BYTES_MAX

FRAME_BYTES_TARGET = 1024 * 1024  # a frame that holds more than one message is filled up to this
FRAME_BYTES_MAX = RECORD_BYTES_MAX + 65_536
KEEPALIVE_MS = 20_000
PING_TIMEOUT_MS = 5_000
HANDSHAKE_TIMEOUT_MS = 10_000  # gRPC's own is 120 s
WINDOW_BYTES = 4 * 1024 * 1024  # what a stream may send before its client has read it: a message

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # the default lets two servers share a port in silence
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.max_send_message_length", 2 * FRAME_BYTES_MAX),
    ("grpc.max_metadata_size", 8_192),
    ("grpc.max_concurrent_streams", 4_096),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.keepalive_permit_without_calls", 1),
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 2 * FRAME_BYTES_MAX),
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),  # without it a silent peer is noticed a minute later
    ("grpc.keepalive_permit_without_calls", 1),
    # No probes for the bandwidth: their answers wait behind a large message, on a slow link for longer than a ping may
    # take. A keepalive ping is sent only when nothing has come for KEEPALIVE_MS. The window is fixed instead.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

_TEXTS = {FieldDescriptor.TYPE_STRING: "characters", FieldDescriptor.TYPE_BYTES: "bytes"}


def connection_limits(connections_max: int) -> tuple[tuple[str, int], ...]:
    """Options of a server that serves so many connections at once; one more is closed as soon as it is accepted.

    A connection counts from the moment it is accepted, also when nothing is ever sent on it; one on which no HTTP/2
    session has begun after `HANDSHAKE_TIMEOUT_MS` is closed.
    """
    return (
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    )


class FieldLimitError(ValueError):
    """A field of a request is beyond its limit; the message names both. Nothing has been done."""


@dataclass(frozen=True, slots=True)
class FieldLimit:
    """`most`: characters of a text, bytes of a byte string, or items of a repeated field in the whole request, wherever
    they stand in it. `total`: characters of all texts of this field in the request.
    """

    most: int
    total: int | None = None


class FieldLimits:
    """The limits of one server by `Message.field`. A field that has none is not checked."""

    def __init__(self, limits: Mapping[str, FieldLimit | int]) -> None:
        self._limits = {
            name: limit if isinstance(limit, FieldLimit) else FieldLimit(limit) for name, limit in limits.items()
        }
        self._plans: dict[str, list[_Field]] = {}
        self._texts: dict[type, tuple[Callable[[Any], tuple[str | bytes, ...]], int] | None] = {}

    def __getitem__(self, name: str) -> FieldLimit:
        return self._limits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._limits)

    def check(self, message: Any, fields: Collection[str] = ()) -> None:
        """Raise FieldLimitError for a field beyond its limit; of the message itself only look at `fields`, if any."""
        kind = type(message)
        if kind not in self._texts:
            self._texts[kind] = self._only_texts(self._plan(message.DESCRIPTOR))
        if (texts := self._texts[kind]) is not None:
            values_of, least = texts
            if max(map(len, values_of(message))) <= least:
                return
        self._check(message, {}, fields)

    def _only_texts(self, plan: list[_Field]) -> tuple[Callable[[Any], tuple[str | bytes, ...]], int] | None:
        """What gives all texts of a message that has several, and nothing else to be checked, as on the hot path; and
        the least of their limits: texts that are all shorter need no second look. None for other messages.
        """
        if len(plan) < 2 or any(one.is_repeated or not one.unit or one.limit.total is not None for one in plan):
            return None
        return attrgetter(*[one.name for one in plan]), min(one.limit.most for one in plan)

    def _check(self, message: Any, totals: dict[str, int], fields: Collection[str] = ()) -> None:
        for field in self._plan(message.DESCRIPTOR):
            if fields and field.name not in fields:
                continue
            if field.is_repeated:
                items = getattr(message, field.name)
                _add(totals, field, len(items), field.limit.most)
                if field.holds_limited:
                    for item in items:
                        self._check(item, totals)
            elif field.unit:
                length = len(getattr(message, field.name))
                if length > field.limit.most:
                    raise FieldLimitError(_sentence(field, length, field.limit.most))
                if field.limit.total is not None:
                    _add(totals, field, length, field.limit.total)
            elif message.HasField(field.name):
                self._check(getattr(message, field.name), totals)

    def _plan(self, descriptor: Descriptor) -> list[_Field]:
        plan = self._plans.get(descriptor.full_name)
        if plan is None:
            plan = self._plans[descriptor.full_name] = []  # before the fields: a message may hold its own kind
            plan += [field for one in descriptor.fields if (field := self._field(descriptor, one)) is not None]
        return plan

    def _field(self, message: Descriptor, descriptor: FieldDescriptor) -> _Field | None:
        path = f"{message.name}.{descriptor.name}"
        holds_limited = descriptor.message_type is not None and bool(self._plan(descriptor.message_type))
        limit = self._limits.get(path)
        if limit is None and not holds_limited:
            return None
        repeated = descriptor.is_repeated
        unit = "items" if repeated else _TEXTS.get(descriptor.type, "")
        return _Field(descriptor.name, path, repeated, unit, limit or FieldLimit(0), holds_limited)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    path: str
    is_repeated: bool
    unit: str  # what the limit counts; "" for a message, whose own fields have the limits
    limit: FieldLimit
    holds_limited: bool


def limited_fields(service: ServiceDescriptor) -> dict[str, FieldDescriptor]:
    """Every text, byte string and repeated field of the service's requests, by `Message.field`."""
    found: dict[str, FieldDescriptor] = {}
    waiting, seen = [method.input_type for method in service.methods], set[str]()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            if field.is_repeated or field.type in _TEXTS:
                found[f"{message.name}.{field.name}"] = field
            if field.message_type is not None:
                waiting.append(field.message_type)
    return found


def _add(totals: dict[str, int], field: _Field, count: int, most: int) -> None:
    totals[field.path] = total = totals.get(field.path, 0) + count
    if total > most:
        raise FieldLimitError(_sentence(field, total, most))


def _sentence(field: _Field, count: int, most: int) -> str:
    return f"{field.path} has {count} {field.unit} in this request; at most {most} are allowed"
