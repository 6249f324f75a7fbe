"""What users of mqclient may rely on, the same on `memory://` and on real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from contract_world import QUEUES, TIMEOUT_S, Visit, topic_queues

from mqclient import (
    Admin,
    BrokerRejectedError,
    ConsumeFromWhere,
    ConsumeStatus,
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    Message,
    MessageRejectedError,
    MQClientError,
    NoRouteError,
    Producer,
    SendStatus,
)

# Level 1 is one second. Broker and test count in whole milliseconds that do not begin at the same moment.
DELAY_MS = 1_000

pytestmark = pytest.mark.asyncio(loop_scope="module")


def to_queue(number: int) -> dict[str, Any]:
    """Options of `send`: this queue and no other."""
    return {"selector": lambda queues, _, chosen: queues[chosen], "selector_argument": number}


def numbered(numbers: Sequence[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


# ------------------------------------------------------------------------------------------------- sending, receiving


@pytest.mark.mechanism("M1")
async def test_message_arrives_as_it_was_sent(visit: Visit) -> None:
    producer, inbox = await visit.producer(), visit.inbox()
    properties = {"currency": "EUR", "note": "zwölf € \n\t ✓", "empty": ""}
    body = bytes(range(256)) * 17
    sent = await producer.send(
        Message(visit.topic, body, tag="created", keys=["order-1", "buyer-2"], properties=properties, flag=-7)
    )
    assert sent.send_status is SendStatus.SEND_OK
    await visit.consumer(inbox)
    await visit.world.until(lambda: inbox.messages, "the message")
    (message,) = inbox.messages
    assert (message.topic, message.body, message.tag, message.flag) == (visit.topic, body, "created", -7)
    assert message.keys == ("order-1", "buyer-2")
    assert properties.items() <= message.properties.items()
    assert (message.message_id, message.offset_message_id) == (sent.message_id, sent.offset_message_id)
    assert (message.message_queue, message.queue_offset) == (sent.message_queue, sent.queue_offset)
    assert message.reconsume_times == 0


async def test_messages_of_one_queue_keep_their_order(visit: Visit) -> None:
    await visit.add_topic()
    producer, inbox = await visit.producer(), visit.inbox()
    await visit.consumer(inbox)
    sent = await asyncio.gather(
        *(producer.send(Message(visit.topic, b"%d" % number), **to_queue(number % 2)) for number in range(200))
    )
    await visit.world.until(lambda: len(inbox.messages) >= 200, "200 messages")
    for parity in (0, 1):
        bodies = [message.body for message in inbox.messages if message.queue_id == parity]
        assert bodies == numbered(range(parity, 200, 2))
        assert [result.queue_offset for result in sent[parity::2]] == list(range(100))


@pytest.mark.mechanism("M3")
async def test_tag_filter_lets_only_the_wanted_through(visit: Visit) -> None:
    await visit.add_topic(1)
    producer, inbox = await visit.producer(), visit.inbox()
    await visit.consumer(inbox, "paid || closed")
    tags = ["created", "paid", None, "closed", "BB", "Aa", "paid"]  # BB and Aa have the same Java hash
    for number, tag in enumerate(tags):
        await producer.send(Message(visit.topic, b"%d" % number, tag=tag))
    await visit.world.until(lambda: b"6" in inbox.bodies, "the last message")
    assert inbox.bodies == [b"1", b"3", b"6"]
    same_hash = visit.inbox()
    await visit.consumer(same_hash, "Aa", group=f"{visit.group}-hash")
    await visit.world.until(lambda: same_hash.messages, "the message with the tag Aa")
    assert same_hash.bodies == [b"5"]


async def test_delayed_message_comes_after_its_delay_and_not_before(visit: Visit) -> None:
    producer, inbox = await visit.producer(), visit.inbox()
    await producer.send(Message(visit.topic, b"makes the topic"))
    await visit.consumer(inbox)
    sent_ms = visit.world.clock.wall_ms()
    await producer.send(Message(visit.topic, b"later", tag="due", keys="k", properties={"a": "b"}, delay_level=1))
    await producer.send(Message(visit.topic, b"now"))
    await visit.world.until(lambda: len(inbox.messages) == 3, "all messages")
    assert set(inbox.bodies[:2]) == {b"makes the topic", b"now"}
    later = inbox.messages[2]
    assert (later.topic, later.body, later.tag, later.keys) == (visit.topic, b"later", "due", ("k",))
    assert later.properties["a"] == "b"
    assert DELAY_MS <= inbox.arrivals_ms[2] - sent_ms < 4 * DELAY_MS


# ------------------------------------------------------------------------------------------------------- consuming


async def test_message_that_keeps_failing_comes_back_and_ends_as_dead_letter(visit: Visit) -> None:
    producer, failing, dead = await visit.producer(), visit.inbox(ConsumeStatus.RECONSUME_LATER), visit.inbox()
    sent = await producer.send(Message(visit.topic, b"poison", tag="bad", keys="k"))
    await visit.consumer(failing, max_reconsume_times=2)
    await visit.world.until(lambda: len(failing.messages) == 3, "three tries")
    await visit.consumer(dead, topic=f"%DLQ%{visit.group}", group=f"{visit.group}-undertakers")
    await visit.world.until(lambda: dead.messages, "the dead letter")
    assert [message.reconsume_times for message in failing.messages] == [0, 1, 2]
    assert {(message.topic, message.body, message.tag) for message in failing.messages} == {
        (visit.topic, b"poison", "bad")
    }
    assert min(after - before for before, after in pairwise(failing.arrivals_ms)) >= DELAY_MS
    (letter,) = dead.messages
    assert (letter.body, letter.tag, letter.keys, letter.message_id) == (b"poison", "bad", ("k",), sent.message_id)


async def test_two_members_share_the_queues_and_one_takes_over(visit: Visit) -> None:
    await visit.add_topic()
    producer, first, second = await visit.producer(), visit.inbox(), visit.inbox()
    stays, leaves = await visit.consumer(first), await visit.consumer(second)

    def shares() -> tuple[int, int]:
        return len(topic_queues(stays, visit.topic)), len(topic_queues(leaves, visit.topic))

    await visit.world.until(lambda: shares() == (2, 2), "two queues each")
    assert not topic_queues(stays, visit.topic) & topic_queues(leaves, visit.topic)
    for number in range(40):
        await producer.send(Message(visit.topic, b"%d" % number))
    await visit.world.until(lambda: len(first.messages) + len(second.messages) >= 40, "40 messages")
    assert (len(first.messages), len(second.messages)) == (20, 20)

    await visit.finish(leaves.shutdown())
    await visit.world.until(lambda: shares() == (QUEUES, 0), "all queues")
    for number in range(40, 80):
        await producer.send(Message(visit.topic, b"%d" % number))
    await visit.world.until(lambda: len(first.messages) >= 60, "40 more messages")
    assert sorted(first.bodies + second.bodies) == sorted(numbered(range(80)))  # nothing twice


async def test_restarted_consumer_goes_on_where_it_stopped(visit: Visit) -> None:
    """Where a new group would begin plays no part once there is an offset."""
    await visit.add_topic(1)
    producer, before, after = await visit.producer(), visit.inbox(), visit.inbox()
    first = await visit.consumer(before)
    for number in range(10):
        await producer.send(Message(visit.topic, b"%d" % number))
    await visit.world.until(lambda: len(before.messages) == 10, "10 messages")
    await visit.finish(first.shutdown())
    await producer.send(Message(visit.topic, b"10"))
    await visit.consumer(after, begin=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    await visit.world.until(lambda: after.messages, "the eleventh message")
    assert before.bodies + after.bodies == numbered(range(11))


async def test_new_group_begins_with_the_first_or_after_the_last_message(visit: Visit) -> None:
    await visit.add_topic(1)
    producer, all_of_them, new_ones = await visit.producer(), visit.inbox(), visit.inbox()
    for number in range(3):
        await producer.send(Message(visit.topic, b"%d" % number))
    await visit.consumer(all_of_them, group=f"{visit.group}-first")
    await visit.consumer(new_ones, group=f"{visit.group}-last", begin=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    await producer.send(Message(visit.topic, b"3"))
    await visit.world.until(lambda: len(all_of_them.messages) >= 4 and new_ones.messages, "the fourth message")
    assert (all_of_them.bodies, new_ones.bodies) == (numbered(range(4)), [b"3"])


# ------------------------------------------------------------------------------------------------------- failing


async def test_broker_that_was_killed_has_everything_that_it_acknowledged(visit: Visit) -> None:
    await visit.add_topic(1)
    producer, before, after = await visit.producer(), visit.inbox(), visit.inbox()
    await visit.consumer(before, group=f"{visit.group}-there-before")
    for number in range(20):
        await producer.send(Message(visit.topic, b"%d" % number))
    await producer.send(Message(visit.topic, b"delayed", delay_level=1))
    await visit.world.kill()
    with pytest.raises(MQClientError):
        await visit.finish(producer.send(Message(visit.topic, b"unconsumed"), timeout=0.5))
    await visit.world.start()
    sent = await visit.finish(producer.send(Message(visit.topic, b"20"), timeout=TIMEOUT_S))
    assert sent.send_status is SendStatus.SEND_OK
    await visit.consumer(after, group=f"{visit.group}-came-later")
    wanted = {*numbered(range(21)), b"delayed"}
    for inbox in (before, after):
        await visit.world.until(lambda inbox=inbox: wanted <= set(inbox.bodies), "everything acknowledged", 40)  # type: ignore[misc]
    assert sorted(after.bodies) == sorted(wanted)


def message(**changes: Any) -> Callable[[Visit], Awaitable[object]]:
    async def act(visit: Visit) -> object:
        producer = await visit.producer()
        return await producer.send(Message(**({"topic": visit.topic, "body": b"x"} | changes)))

    return act


async def send_to_a_topic_that_may_not_be_written(visit: Visit) -> None:
    async with Admin(visit.world.url) as admin:
        await admin.update_topic(visit.topic, perm=4)
    await (await visit.producer()).send(Message(visit.topic, b"x"))


async def send_before_the_start(visit: Visit) -> None:
    await Producer("early", visit.world.url).send(Message(visit.topic, b"x"))


async def make_a_topic_without_queues(visit: Visit) -> None:
    await visit.add_topic(0)


async def make_a_consumer_of_a_bad_group(visit: Visit) -> None:
    await visit.consumer(visit.inbox(), group="order closers")


async def make_a_consumer_with_a_bad_tag_expression(visit: Visit) -> None:
    await visit.consumer(visit.inbox(), "paid || *")


REJECTIONS: list[tuple[Callable[[Visit], Awaitable[object]], type[MQClientError], str]] = [
    (message(body=b""), MessageRejectedError, "the body is empty; it takes 1 to 4,194,304 bytes"),
    (message(topic="a b"), MessageRejectedError, "the topic name 'a b' has a character that is not allowed"),
    (message(topic="SCHEDULE_TOPIC_XXXX"), MessageRejectedError, "belongs to the queue itself"),
    (message(delay_level=19), MessageRejectedError, "the delay level is 19; allowed are 0 (at once) to 18"),
    (message(tag="a||b"), MessageRejectedError, "the tag 'a||b' cannot be subscribed to"),
    (message(properties={"UNIQ_KEY": "1"}), MessageRejectedError, "the property 'UNIQ_KEY' belongs to the queue"),
    (message(properties={"a": "b\x01"}), MessageRejectedError, "are not allowed in names and values"),
    (send_before_the_start, IllegalStateError, "producer early"),
    (
        send_to_a_topic_that_may_not_be_written,
        NoRouteError,
        "has no writable queue: permission denied, or no master available",
    ),
    (make_a_topic_without_queues, BrokerRejectedError, "broker broker-a answered MESSAGE_ILLEGAL: "),
    (make_a_consumer_of_a_bad_group, IllegalGroupError, "the group name 'order closers' has a character"),
    (make_a_consumer_with_a_bad_tag_expression, IllegalArgumentError, "the tag expression 'paid || *' is not '*'"),
]


@pytest.mark.parametrize(("act", "kind", "sentence"), REJECTIONS, ids=[sentence[:30] for _, _, sentence in REJECTIONS])
async def test_what_makes_no_sense_is_rejected_with_the_same_error(
    visit: Visit, act: Callable[[Visit], Awaitable[object]], kind: type[MQClientError], sentence: str
) -> None:
    with pytest.raises(MQClientError) as rejected:
        await act(visit)
    assert type(rejected.value) is kind
    assert sentence in str(rejected.value)
