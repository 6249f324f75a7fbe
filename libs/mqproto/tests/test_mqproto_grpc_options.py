"""gRPC limits that have to fit each other."""

from __future__ import annotations

from mqproto.grpc_options import CHANNEL_OPTIONS, FRAME_BYTES_MAX, KEEPALIVE_MS, SERVER_OPTIONS
from mqproto.record import RECORD_BYTES_MAX

SERVER, CHANNEL = dict(SERVER_OPTIONS), dict(CHANNEL_OPTIONS)


def test_frame_has_room_for_the_largest_record() -> None:
    assert FRAME_BYTES_MAX > RECORD_BYTES_MAX
    assert SERVER["grpc.max_receive_message_length"] >= FRAME_BYTES_MAX


def test_each_side_receives_what_the_other_may_send() -> None:
    assert CHANNEL["grpc.max_send_message_length"] <= SERVER["grpc.max_receive_message_length"]
    assert SERVER["grpc.max_send_message_length"] <= CHANNEL["grpc.max_receive_message_length"]


def test_clients_do_not_ping_more_often_than_the_server_allows() -> None:
    assert CHANNEL["grpc.keepalive_time_ms"] == KEEPALIVE_MS
    assert SERVER["grpc.http2.min_ping_interval_without_data_ms"] < KEEPALIVE_MS


def test_two_servers_cannot_share_a_port_in_silence() -> None:
    assert SERVER["grpc.so_reuseport"] == 0
