"""Names of topics and groups, each rule and its sentence; addresses: host:port, and lists of them."""

from __future__ import annotations

import pytest

from mqproto.names import (
    HALF_TOPIC,
    SYSTEM_TOPICS,
    Address,
    IllegalNameError,
    check_group,
    check_topic,
    check_user_topic,
    dlq_topic,
    parse_address,
    parse_address_list,
    retry_topic,
)


@pytest.mark.parametrize(
    "topic", ["a", "order-events", "Topic_Order", "%RETRY%group", "x|y", "0", "t" * 127, HALF_TOPIC]
)
def test_legal_topics_pass(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [
        ("", "the topic name is empty"),
        ("t" * 128, "the topic name has 128 characters; at most 127 are allowed"),
        ("a b", "allowed are letters, digits and % | _ -"),
        ("a/b", "the topic name 'a/b' has a character that is not allowed"),
        ("a.b", "not allowed"),
        ("a\n", "not allowed"),
        ("größe", "not allowed"),
        ("٣", "not allowed"),
        ("../../etc", "not allowed"),
    ],
)
def test_illegal_topics_are_rejected(topic: str, sentence: str) -> None:
    for check in (check_topic, check_user_topic):
        with pytest.raises(IllegalNameError) as caught:
            check(topic)
        assert sentence in str(caught.value)


@pytest.mark.parametrize("topic", sorted(SYSTEM_TOPICS))
def test_topics_of_the_queue_itself_are_not_for_users(topic: str) -> None:
    check_topic(topic)
    with pytest.raises(IllegalNameError, match="belongs to the queue itself"):
        check_user_topic(topic)


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        ("", "the group name is empty"),
        ("a b", "the group name 'a b' has a character"),
        ("g" * 256, "the group name has 256 characters; at most 255"),
        ("g" * 121, "its retry topic %RETRY%<group> has room for 120"),
        ("DEFAULT_CONSUMER", "the group name 'DEFAULT_CONSUMER' stands for a group without a name"),
        ("DEFAULT_PRODUCER", "the group name 'DEFAULT_PRODUCER' stands for a group without a name"),
    ],
)
def test_illegal_groups_are_rejected(group: str, sentence: str) -> None:
    with pytest.raises(IllegalNameError) as caught:
        check_group(group)
    assert sentence in str(caught.value)


def test_longest_group_has_legal_retry_and_dead_letter_topics() -> None:
    group = "g" * 120
    check_group(group)
    check_topic(retry_topic(group))
    check_topic(dlq_topic(group))
    assert (retry_topic("g"), dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")


def test_address_is_taken_apart_and_put_together() -> None:
    assert parse_address(" broker-a.local:10911 ") == Address("broker-a.local", 10911)
    assert str(Address("127.0.0.1", 9876)) == "127.0.0.1:9876"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":",
            "host",
            "host:",
            ":80",
            "host:0",
            "host:65536",
            "host:-1",
            "host:8x",
            "host:８０",
            "host:" + "9" * 5000,
        ),
        *("a b:80", "a:1 b:2", "a:1,b:2", "a:1;b:2", "http://host:80", "host: 80", "ho\nst:80"),
    ],
)
def test_what_is_no_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address; write host:port with a port from 1 to 65535"):
        parse_address(text)


def test_list_is_separated_by_semicolons() -> None:
    assert parse_address_list("a:1;b:2; c:3 ;") == (Address("a", 1), Address("b", 2), Address("c", 3))


@pytest.mark.parametrize("text", ["", " ", ";", " ; "])
def test_empty_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="the list of addresses is empty"):
        parse_address_list(text)


@pytest.mark.parametrize("text", ["a:1,b:2", "a:1 b:2", "a:1;b"])
def test_list_with_a_wrong_separator_or_a_bad_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_address_list(text)
