"""Arbitrary bytes into what the client decodes: an answer or a documented error (figure G9)."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import example, given

from mqclient.consumer.pulling import parse_subscription
from mqclient.errors import IllegalArgumentError
from mqclient.message import MessageExt, offset_message_id, parse_offset_message_id
from mqproto.properties import PropertiesError
from mqproto.record import decode_record, encode_record

SUBSCRIPTION = parse_subscription("topic", "paid || closed")


def message(properties: bytes, topic: str = "topic", flag: int = 0) -> MessageExt:
    """A message as it would be read: the queue took any properties."""
    data = encode_record(
        topic=topic.encode(), body=b"x", properties=properties, queue_id=0, born_timestamp_ms=0, born_ip=-1, flag=flag
    )
    return MessageExt(decode_record(data), "broker-a")


@given(st.binary(max_size=200), st.sampled_from(["topic", "%RETRY%group"]))
@example(b"", "%RETRY%group")
@example(b"\xff", "%RETRY%group")
@example(b"TAGS\x01paid\x02", "topic")
@example(b"KEYS\x01\x02UNIQ_KEY\x01\x02", "topic")
@example(b"RETRY_TOPIC\x01\x02", "%RETRY%group")
def test_every_part_of_a_message_can_be_asked_for_whatever_its_properties_are(properties: bytes, topic: str) -> None:
    one = message(properties, topic)
    assert one.body == b"x"
    assert one.offset_message_id
    assert SUBSCRIPTION.matches(one) in (True, False)
    for part in ("properties", "tag", "keys", "message_id", "transaction_id", "topic"):
        try:
            getattr(one, part)
        except PropertiesError:
            continue
    assert one.message_queue.topic == topic


@given(st.text(max_size=60))
@example("*")
@example("a || ")
@example("a\x01b")
def test_any_text_is_a_subscription_or_rejected(expression: str) -> None:
    try:
        subscription = parse_subscription("topic", expression)
    except IllegalArgumentError:
        return
    assert parse_subscription("topic", subscription.expression) == subscription


@given(st.text(max_size=40) | st.text("0123456789abcdefABCDEF", min_size=32, max_size=32))
@example("7F00000100002A9F00000000000493E0")
@example("7F00000100002A9F80000000000493E0")
@example("７F00000100002A9F00000000000493E0")
def test_any_text_is_an_id_by_position_or_rejected(text: str) -> None:
    try:
        host, port, log_offset = parse_offset_message_id(text)
    except IllegalArgumentError:
        return
    assert offset_message_id(host, port, log_offset) == text.upper()
