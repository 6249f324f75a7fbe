"""What becomes of a message's fields, and how ids look (mechanisms M2, M3, M4, M7, M8, M9)."""

from __future__ import annotations

import pytest

from mqclient import Message, MessageRejectedError
from mqclient.connection.frames import SEQUENCE_PROPERTY_BYTES_MAX
from mqclient.message import UniqueIdMaker, offset_message_id
from mqclient.producer.prepared import check_message, message_properties
from mqproto.properties import decode_properties
from mqproto.record import BODY_BYTES_MAX
from osenv import SeededRng


def encode(message: Message) -> str:
    """What a send does before it chooses a queue."""
    check_message(message)
    return message_properties(message, "ID")


@pytest.mark.mechanism("M7")
def test_largest_message_is_taken() -> None:
    message = Message("t" * 127, bytes(BODY_BYTES_MAX), delay_level=18, flag=-(2**31))
    check_message(message)
    assert decode_properties(message_properties(message, "ID").encode()) == {"UNIQ_KEY": "ID", "DELAY": "18"}


@pytest.mark.mechanism("M4")
def test_properties_carry_tag_keys_level_and_what_the_user_gave() -> None:
    message = Message("orders", b"x", tag="paid", keys=("a", "b"), properties={"shop": "7"}, delay_level=16)
    assert decode_properties(message_properties(message, "ID").encode()) == {
        "UNIQ_KEY": "ID",
        "TAGS": "paid",
        "KEYS": "a b",
        "DELAY": "16",
        "shop": "7",
    }


def test_a_message_that_need_not_wait_for_the_disk_says_so() -> None:
    message = Message("orders", b"x", wait_store_msg_ok=False)
    assert decode_properties(message_properties(message, "ID").encode()) == {"UNIQ_KEY": "ID", "WAIT": "false"}


@pytest.mark.mechanism("M4")
def test_putting_a_user_property_again_overwrites_it() -> None:
    given = {"shop": "7"}
    message = Message("orders", b"x", properties=given)
    message.put_user_property("shop", "8")
    message.put_user_property("till", "1")
    assert message.properties == {"shop": "8", "till": "1"}
    assert given == {"shop": "7"}
    bare = Message("orders", b"x")
    bare.put_user_property("shop", "7")
    assert decode_properties(message_properties(bare, "ID").encode())["shop"] == "7"


def test_the_properties_leave_room_for_the_number_of_the_record_and_for_what_the_broker_adds() -> None:
    longest = 32_079 - 20 - len("UNIQ_KEY\x01ID\x02") - len("a\x01\x02") - SEQUENCE_PROPERTY_BYTES_MAX
    encode(Message("orders", b"x", properties={"a": "x" * longest}))
    with pytest.raises(MessageRejectedError, match="at most"):
        encode(Message("orders", b"x", properties={"a": "x" * (longest + 1)}))
    with pytest.raises(MessageRejectedError, match="at most"):  # bytes count, not characters
        encode(Message("orders", b"x", properties={"a": "x" * (longest - 1) + "\u00fc"}))


@pytest.mark.mechanism("M9")
def test_unique_ids_are_made_as_rocketmq_makes_them() -> None:
    maker = UniqueIdMaker(SeededRng(1), "10.0.0.1")
    now_ms = 1_700_000_000_000  # 2023-11-14T22:13:20Z: 13 days, 22 h, 13 min and 20 s into its month
    ids = [maker.next(now_ms) for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(len(unique_id) == 32 and unique_id == unique_id.upper() for unique_id in ids)
    assert ids[0].startswith("0A000001")
    since_month_ms = (((13 * 24 + 22) * 60 + 13) * 60 + 20) * 1000
    assert int(ids[0][20:28], 16) == since_month_ms
    assert int(ids[1][28:], 16) == (int(ids[0][28:], 16) + 1) % 0x1_0000


def test_unique_ids_begin_a_new_month_at_zero() -> None:
    maker = UniqueIdMaker(SeededRng(1), "10.0.0.1")
    new_year_ms = 1_704_067_200_000
    assert int(maker.next(new_year_ms - 1)[20:28], 16) == 31 * 86_400_000 - 1
    assert int(maker.next(new_year_ms)[20:28], 16) == 0


def test_offset_message_id_has_host_port_and_offset() -> None:
    assert offset_message_id("127.0.0.1", 10911, 4096) == "7F00000100002A9F0000000000001000"
    assert offset_message_id("localhost", 10911, 4096) == ""
