"""What a producer rejects before it sends; docs/reference/producer-errors.md says the same (mechanisms M2-M4, M7).

Each case is an input, the error and a part of its sentence; the document has a row for each of them, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mqclient import (
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    Message,
    MessageQueue,
    MessageRejectedError,
    MQClientError,
    Producer,
    RejectedError,
    TransactionProducer,
)
from mqclient.testing import FakeCluster, RecordingTransactionListener
from mqproto.record import BODY_BYTES_MAX

DOCUMENT = Path(__file__).parents[3] / "docs/reference/producer-errors.md"
THIS = "libs/mqclient/tests/test_mqclient_producer_errors.py"
MIB = 1024 * 1024
DAY_MS = 86_400_000
START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)  # where the fake cluster's clock stands
HALF_A_SECOND: Any = 0.5
NO_SEQUENCE: Any = (Message("orders", b"x") for _ in range(2))
OTHER_TOPIC = MessageQueue("bills", "broker-a", 0)

# The fields of a message that is good but for them, and a part of the sentence.
BAD_MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "empty topic": ({"topic": ""}, "the topic name is empty"),
    "illegal topic": ({"topic": "a b"}, "a character that is not allowed; allowed are letters, digits and % | _ -"),
    "over-long topic": ({"topic": "a" * 128}, "the topic name has 128 characters; at most 127 are allowed"),
    "topic that is no text": ({"topic": 7}, "the topic has to be text, not int"),
    "system topic": ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the queue itself; send to a topic of your own"),
    "half topic": ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "belongs to the queue itself"),
    "empty body": ({"body": b""}, "the body is empty; it takes 1 to 4,194,304 bytes"),
    "over-long body": ({"body": bytes(BODY_BYTES_MAX + 1)}, "the body has 4,194,305 bytes; it takes 1 to 4,194,304"),
    "body that is text": ({"body": "text"}, "the body has to be bytes, not str"),
    "body that is None": ({"body": None}, "the body has to be bytes, not NoneType"),
    "delay level below 0": ({"delay_level": -1}, "the delay level is -1; allowed are 0 (at once) to 18"),
    "delay level above 18": ({"delay_level": 19}, "the delay level is 19"),
    "delay level that is no integer": ({"delay_level": 1.5}, "the delay level is 1.5"),
    "delay level that is a boolean": ({"delay_level": True}, "the delay level is True"),
    "delay_ms below 0": ({"delay_ms": -1}, "delay_ms is -1; allowed are 1 to 3,456,000,000 milliseconds (40 days)"),
    "delay_ms above 40 days": ({"delay_ms": 40 * DAY_MS + 1}, "delay_ms is 3456000001; allowed are 1 to"),
    "delay_ms that is no integer": ({"delay_ms": 1.5}, "delay_ms is 1.5"),
    "delay_ms that is a boolean": ({"delay_ms": False}, "delay_ms is False"),
    "deliver_at without a time zone": (
        {"deliver_at": START.replace(tzinfo=None)},
        "without a time zone; give it a tzinfo",
    ),
    "deliver_at in more than 40 days": (
        {"deliver_at": START + timedelta(days=40, milliseconds=1)},
        "deliver_at is 2023-12-24T22:13:20.001000+00:00, more than 40 days from now",
    ),
    "deliver_at that is no datetime": ({"deliver_at": 1_700_000_000}, "deliver_at has to be a datetime, not int"),
    "delay level and delay_ms": (
        {"delay_level": 3, "delay_ms": 7},
        "the message has delay_level and delay_ms; it waits by one of delay_level, delay_ms, deliver_at",
    ),
    "three delays": (
        {"delay_level": 3, "delay_ms": 7, "deliver_at": START},
        "the message has delay_level and delay_ms and deliver_at; it waits by one of",
    ),
    "flag of 33 bits": ({"flag": 2**31}, "it has to be an integer of 32 bits"),
    "wait_store_msg_ok that is no boolean": ({"wait_store_msg_ok": "no"}, "it has to be True or False"),
    "empty tag": ({"tag": ""}, "the tag '' cannot be subscribed to"),
    "tag that means everything": ({"tag": "*"}, "the tag '*' cannot be subscribed to"),
    "tag that is two": ({"tag": "a || b"}, "cannot be subscribed to"),
    "over-long tag": ({"tag": "ü" * 128}, "the tag takes 256 bytes; at most 255 are allowed"),
    "tag that is no text": ({"tag": 7}, "the tag 7 cannot be subscribed to"),
    "key with a space": ({"keys": "a b"}, "the key 'a b' has to be text, not empty and without a space"),
    "empty key": ({"keys": ("a", "")}, "the key '' has to be text"),
    "too many keys": ({"keys": ["k"] * 129}, "the message has 129 keys; at most 128 are allowed"),
    "keys that are no text": ({"keys": 7}, "keys have to be one text or a sequence of texts, not int"),
    "reserved property of the timer": (
        {"properties": {"TIMER_DELIVER_MS": "3"}},
        "the property 'TIMER_DELIVER_MS' belongs to the queue",
    ),
    "reserved property": ({"properties": {"DELAY": "3"}}, "the property 'DELAY' belongs to the queue"),
    "unique id as a property": ({"properties": {"UNIQ_KEY": "x"}}, "the property 'UNIQ_KEY' belongs to the queue"),
    "property without a name": ({"properties": {"": "x"}}, "has to have a name and be text"),
    "property that is no text": ({"properties": {"a": 1}}, "the property 'a': 1 has to have a name and be text"),
    "separator in a property's name": ({"properties": {"a\x01": "x"}}, "they separate them on the wire: property"),
    "separator in a property's value": ({"properties": {"a": "x\x02"}}, "on the wire: property 'a'"),
    "separator in the tag": ({"tag": "a\x01b"}, "they separate them on the wire: tag"),
    "separator in a key": ({"keys": ("a\x02b",)}, "they separate them on the wire: keys"),
    "over-long properties": (
        {"properties": {"a": "x" * 32_767}},
        "at most 32,008 are allowed; move large values into the body",
    ),
    "property that UTF-8 cannot hold": ({"properties": {"a": "\ud800"}}, "have to be text that UTF-8 can hold"),
}

BAD_BATCHES: dict[str, tuple[list[Any], str]] = {
    "empty batch": ([], "the batch is empty; it takes at least one message"),
    "batch with two topics": (
        [Message("orders", b"x"), Message("bills", b"x")],
        "message 1 of the batch is for the topic 'bills', the first one for 'orders'",
    ),
    "batch with a delay": (
        [Message("orders", b"x"), Message("orders", b"x", delay_level=3)],
        "message 1 of the batch is to be delivered later; send it alone",
    ),
    "batch with a due time": (
        [Message("orders", b"x", deliver_at=START), Message("orders", b"x")],
        "message 0 of the batch is to be delivered later; send it alone",
    ),
    "batch with two kinds of waiting": (
        [Message("orders", b"x"), Message("orders", b"x", wait_store_msg_ok=False)],
        "message 1 of the batch has wait_store_msg_ok False, the first one True",
    ),
    "batch to a retry topic": ([Message("%RETRY%shop", b"x")], "cannot be sent in a batch"),
    "batch with an illegal message": ([Message("orders", b"x"), Message("orders", b"")], "the body is empty"),
    "batch with something else": (["x"], "send takes a Message, not str"),
    "batch that is no sequence": (NO_SEQUENCE, "a batch is a sequence of messages, not generator"),
    "over-long batch": ([Message("orders", bytes(MIB))] * 4, "at most 4,194,304 are allowed, and MessageBatchSplitter"),
}

Call = Callable[[TransactionProducer], Awaitable[object]]
GOOD = Message("orders", b"body")
TEXT: Any = "a message"

# Calls that are wrong in other ways, with their errors.
BAD_CALLS: dict[str, tuple[Call, type[MQClientError], str]] = {
    "something that is no message": (lambda p: p.send(TEXT), MessageRejectedError, "send takes a Message, not str"),
    "timeout of 0": (lambda p: p.send(GOOD, timeout=0), IllegalArgumentError, "has to be above 0 seconds"),
    "queue of another topic": (
        lambda p: p.send(GOOD, queue=OTHER_TOPIC),
        MessageRejectedError,
        "the message is for the topic 'orders' and the queue is bills@broker-a:0",
    ),
    "selector and queue": (
        lambda p: p.send(GOOD, queue=OTHER_TOPIC, selector=lambda queues, *_: queues[0]),
        IllegalArgumentError,
        "a selector and a queue are two choices; give one of them",
    ),
    "selector that fails": (
        lambda p: p.send(GOOD, selector=lambda queues, *_: queues[99]),
        MessageRejectedError,
        "the selector failed: IndexError",
    ),
    "selector that returns another queue": (
        lambda p: p.send(GOOD, selector=lambda *_: OTHER_TOPIC),
        MessageRejectedError,
        "which is not one of the queues it was given",
    ),
    "check immunity below 0": (
        lambda p: p.send_message_in_transaction(GOOD, check_immunity_s=-1),
        IllegalArgumentError,
        "check_immunity_s is -1; allowed are 0 to 3,456,000 whole seconds",
    ),
    "check immunity above 40 days": (
        lambda p: p.send_message_in_transaction(GOOD, check_immunity_s=3_456_001),
        IllegalArgumentError,
        "check_immunity_s is 3456001; allowed are 0 to",
    ),
    "check immunity that is no integer": (
        lambda p: p.send_message_in_transaction(GOOD, check_immunity_s=HALF_A_SECOND),
        IllegalArgumentError,
        "check_immunity_s is 0.5",
    ),
}


def sending(**fields: Any) -> Call:
    return lambda producer: producer.send(Message(**{"topic": "orders", "body": b"x", **fields}))


def sending_batch(messages: list[Any]) -> Call:
    return lambda producer: producer.send_batch(messages)


CASES: dict[str, tuple[Call, type[MQClientError], str]] = {
    **{name: (sending(**fields), MessageRejectedError, sentence) for name, (fields, sentence) in BAD_MESSAGES.items()},
    **{name: (sending_batch(batch), MessageRejectedError, sentence) for name, (batch, sentence) in BAD_BATCHES.items()},
    **BAD_CALLS,
}

BAD_GROUPS: dict[str, tuple[str, str]] = {
    "empty group": ("", "the group name is empty"),
    "illegal group": ("a b", "a character that is not allowed"),
    "over-long group": ("a" * 121, "its retry topic %RETRY%<group> has room for 120"),
}


@pytest.mark.mechanism("M7", "P15")
@pytest.mark.parametrize("case", CASES)
async def test_bad_input_is_rejected_before_anything_leaves(case: str) -> None:
    call, kind, sentence = CASES[case]
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = RecordingTransactionListener()
    async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
        with pytest.raises(kind) as caught:
            await call(producer)
    assert type(caught.value) is kind
    assert isinstance(caught.value, RejectedError)
    assert sentence in str(caught.value)
    assert broker.frames == []
    assert listener.executed == []


@pytest.mark.mechanism("P17")
@pytest.mark.parametrize("case", BAD_GROUPS)
def test_bad_group_is_rejected(case: str) -> None:
    group, sentence = BAD_GROUPS[case]
    with pytest.raises(IllegalGroupError) as caught:
        Producer(group, "mq://127.0.0.1:9876")
    assert sentence in str(caught.value)


async def test_producer_that_does_not_run_rejects() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    producer = Producer("shop", cluster.url)
    with pytest.raises(IllegalStateError, match="is not running: it is in state CREATE_JUST"):
        await producer.send(GOOD)


@pytest.mark.parametrize("case", BAD_MESSAGES)
async def test_every_way_to_send_rejects_a_bad_message(case: str) -> None:
    fields, sentence = BAD_MESSAGES[case]
    message = Message(**{"topic": "orders", "body": b"x", **fields})
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = RecordingTransactionListener()
    async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
        for rejected in (
            lambda: producer.send_oneway(message),
            lambda: producer.send_batch([message]),
            lambda: producer.send_message_in_transaction(message),
        ):
            with pytest.raises(MessageRejectedError, match=re.escape(sentence)):
                await rejected()
        callback: Any = None
        with pytest.raises(MessageRejectedError, match=re.escape(sentence)):
            producer.send_async(message, callback)
    assert broker.frames == []


# ------------------------------------------------------------------------------------------------------- the document


def document_rows() -> list[tuple[str, ...]]:
    rows = []
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| input"):
            cells = line.strip("|").split(" | ")
            rows.append(tuple(cell.strip().strip("`").replace("&#124;", "|") for cell in cells))
    return rows


def expected_rows() -> list[tuple[str, ...]]:
    rejected = f"{THIS}::test_bad_input_is_rejected_before_anything_leaves"
    rows: list[tuple[str, ...]] = [
        (name, kind.__name__, sentence, f"{rejected}[{name}]") for name, (_, kind, sentence) in CASES.items()
    ]
    rows += [
        (name, "IllegalGroupError", sentence, f"{THIS}::test_bad_group_is_rejected[{name}]")
        for name, (_, sentence) in BAD_GROUPS.items()
    ]
    sentence = "is not running: it is in state CREATE_JUST"
    rows.append(
        (
            "producer that does not run",
            "IllegalStateError",
            sentence,
            f"{THIS}::test_producer_that_does_not_run_rejects",
        )
    )
    return rows


@pytest.mark.mechanism("M7")
def test_the_document_and_the_tests_agree() -> None:
    assert document_rows() == expected_rows()
