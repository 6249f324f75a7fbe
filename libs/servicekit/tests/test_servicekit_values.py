"""Bodies, cursors, subscriptions, health: what they take and what they reject."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.errors import InvalidCursorError, MalformedMessageError
from servicekit.identifiers import cursor_number, decode_cursor, encode_cursor
from servicekit.message import MessageBody, OutgoingMessage, Subscription, encode_body
from servicekit.testing import RecordingPublisher, deliver


@given(st.dictionaries(st.text(), st.one_of(st.text(min_size=1), st.integers(-(2**63), 2**63))))
def test_what_is_encoded_is_read_back(members: dict[str, str | int]) -> None:
    body = MessageBody(encode_body(members))
    for name, value in members.items():
        assert (body.text(name) if isinstance(value, str) else body.number(name)) == value


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"7", b"{"])
def test_a_body_that_is_no_json_object_is_rejected(body: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        MessageBody(body)


@pytest.mark.parametrize("value", [b"null", b'""', b"[]", b"{}", b"true", b"1.5"])
def test_a_member_of_another_type_is_rejected(value: bytes) -> None:
    body = MessageBody(b'{"a":' + value + b"}")
    for read in (body.text, body.number):
        with pytest.raises(MalformedMessageError, match="the body needs a"):
            read("a")
        with pytest.raises(MalformedMessageError, match="the body needs b"):
            read("b")


@given(st.lists(st.text(st.characters(categories=("L", "N", "P"))), min_size=1, max_size=3))
def test_a_cursor_gives_its_parts_back(parts: list[str]) -> None:
    cursor = encode_cursor(*parts)
    assert decode_cursor(cursor, len(parts)) == parts
    with pytest.raises(InvalidCursorError):
        decode_cursor(cursor, len(parts) + 1)


@pytest.mark.parametrize("part", ["", "-1", "1.0", "x", "²", "9223372036854775808", "9" * 5000])
def test_a_part_that_is_no_number_of_the_database_is_rejected(part: str) -> None:
    with pytest.raises(InvalidCursorError):
        cursor_number(part, "cursor")


def test_the_largest_number_of_the_database_is_taken() -> None:
    assert cursor_number("9223372036854775807", "cursor") == 2**63 - 1


@pytest.mark.parametrize(
    ("tags", "tag", "is_taken"),
    [("*", "a", True), ("a", "a", True), ("a", "b", False), ("a || b", "b", True), ("ab", "a", False)],
)
def test_a_subscription_takes_its_tags(tags: str, tag: str, is_taken: bool) -> None:
    async def handle(_body: bytes) -> None:
        raise AssertionError("nothing is delivered here")

    subscription = Subscription("group", "topic", tags, handle)
    assert subscription.takes("topic", tag) is is_taken
    assert not subscription.takes("other", tag)


async def test_delivery_hands_each_message_to_each_group_that_takes_it() -> None:
    queue, handled = RecordingPublisher(), list[bytes]()

    async def handle(body: bytes) -> None:
        handled.append(body)
        await queue.publish(OutgoingMessage("topic", "later", "k", b"2"))

    for tag, body in (("a", b"1"), ("b", b"x")):
        await queue.publish(OutgoingMessage("topic", tag, "k", body))
    groups = [Subscription(f"group-{n}", "topic", "a", handle) for n in range(2)]
    assert await deliver(queue.messages, groups) == 2
    assert handled == [b"1", b"1"]
    assert [message.tag for message in queue.messages] == ["later", "later"]
