"""Options of every gRPC server and channel of the queue (RELIABILITY.md, "gRPC server options to start from")."""

from __future__ import annotations

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


def connection_limits(connections_max: int) -> tuple[tuple[str, int], ...]:
    """Options of a server that serves so many connections at once; one more is closed as soon as it is accepted.

    A connection counts from the moment it is accepted, also when nothing is ever sent on it; one on which no HTTP/2
    session has begun after `HANDSHAKE_TIMEOUT_MS` is closed.
    """
    return (
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
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
