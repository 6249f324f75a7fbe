"""What a producer refuses, and how ids look (MISSION M2, M3, M4, M7, M8, M9)."""

from __future__ import annotations

from typing import Any

import pytest

from mqclient import Message, MessageRejectedError
from mqclient.message_id import UniqueIdMaker, offset_message_id
from mqclient.producer.message_encoder import check_message, message_properties
from mqproto.properties import decode_properties
from mqproto.record import BODY_BYTES_MAX
from osenv import SeededRng

BAD_MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "empty body": ({"body": b""}, "the body is empty"),
    "over-long body": ({"body": bytes(BODY_BYTES_MAX + 1)}, "4,194,305 bytes; it takes 1 to 4,194,304"),
    "body that is text": ({"body": "text"}, "has to be bytes, not str"),
    "empty topic": ({"topic": ""}, "topic name is empty"),
    "illegal topic": ({"topic": "a b"}, "not allowed"),
    "over-long topic": ({"topic": "a" * 128}, "at most 127"),
    "topic that is no text": ({"topic": 7}, "has to be text, not int"),
    "system topic": ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the queue itself"),
    "half topic": ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "belongs to the queue itself"),
    "delay level below 0": ({"delay_level": -1}, "allowed are 0"),
    "delay level above 18": ({"delay_level": 19}, "to 18"),
    "delay level that is no integer": ({"delay_level": 1.5}, "delay level is 1.5"),
    "delay level that is a boolean": ({"delay_level": True}, "delay level is True"),
    "flag of 33 bits": ({"flag": 2**31}, "32 bits"),
    "reserved property": ({"properties": {"DELAY": "3"}}, "belongs to the queue"),
    "property without a name": ({"properties": {"": "x"}}, "has to have a name"),
    "property that is no text": ({"properties": {"a": 1}}, "be text"),
    "separator in a property's name": ({"properties": {"a\x01": "x"}}, "property 'a"),
    "separator in a property's value": ({"properties": {"a": "x\x02"}}, "property 'a'"),
    "separator in the tag": ({"tag": "a\x01b"}, "tag"),
    "separator in a key": ({"keys": ("a\x02b",)}, "keys"),
    "over-long properties": ({"properties": {"a": "x" * 32_767}}, "at most 32,747"),
    "property that UTF-8 cannot hold": ({"properties": {"a": "\ud800"}}, "UTF-8"),
    "empty tag": ({"tag": ""}, "cannot be subscribed to"),
    "tag that means everything": ({"tag": "*"}, "cannot be subscribed to"),
    "tag that is two": ({"tag": "a || b"}, "cannot be subscribed to"),
    "key with a space": ({"keys": "a b"}, "without a space"),
    "empty key": ({"keys": ("a", "")}, "not empty"),
    "keys that are no text": ({"keys": 7}, "sequence of texts, not int"),
}


def encode(message: Message) -> bytes:
    """What a send does before it chooses a queue."""
    check_message(message)
    return message_properties(message, "ID")


@pytest.mark.parametrize("case", BAD_MESSAGES)
def test_bad_message_is_refused_with_its_reason(case: str) -> None:
    fields, reason = BAD_MESSAGES[case]
    message = Message(**{"topic": "orders", "body": b"body", **fields})
    with pytest.raises(MessageRejectedError) as caught:
        encode(message)
    assert reason in str(caught.value)


def test_something_that_is_no_message_is_refused() -> None:
    text: Any = "a message"
    with pytest.raises(MessageRejectedError, match="takes a Message, not str"):
        check_message(text)


def test_largest_message_is_taken() -> None:
    message = Message("t" * 127, bytes(BODY_BYTES_MAX), delay_level=18, flag=-(2**31))
    check_message(message)
    assert decode_properties(message_properties(message, "ID")) == {"UNIQ_KEY": "ID", "DELAY": "18"}


def test_properties_carry_tag_keys_level_and_what_the_user_gave() -> None:
    message = Message("orders", b"x", tag="paid", keys=("a", "b"), properties={"shop": "7"}, delay_level=16)
    assert decode_properties(message_properties(message, "ID")) == {
        "UNIQ_KEY": "ID",
        "TAGS": "paid",
        "KEYS": "a b",
        "DELAY": "16",
        "shop": "7",
    }


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
