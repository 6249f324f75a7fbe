"""Dead letters from their first try to their replay, and found among others, on a broker with a real store in memory.

Mechanisms R1, R2.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    BrokerRejectedError,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    Producer,
    PushConsumer,
)
from mqclient.admin import DeadLetterFilter, DeadLetterState
from mqclient.testing import RecordingListener
from mqclient.testing.recording import letters_of, open_bodies, send_dead_letters, states_of, stored_bodies
from mqproto.codes import Permission
from mqproto.names import dlq_topic, retry_topic
from mqproto.properties import DEAD_LETTER_MARK
from osenv import SimClock

START_MS = 1_700_000_000_000
ADDRESS = "127.0.0.1:10911"
GROUP = "billing"
DLQ, RETRY = dlq_topic(GROUP), retry_topic(GROUP)
OPEN_ONLY = DeadLetterFilter()
OPEN, REPLAYED = DeadLetterState.OPEN, DeadLetterState.REPLAYED
HOUR_S = 3_600
TRIES = 17  # the first one and 16 more (mechanism R1)


@pytest_asyncio.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(request.node.name, clock=SimClock(START_MS)) as running:
        yield running


@pytest_asyncio.fixture
async def admin(broker: EmbeddedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.url) as running:
        for topic in ("orders", "refunds"):
            await running.update_topic(topic, read_queue_count=1, write_queue_count=1)
        yield running


async def die(broker: EmbeddedBroker, *bodies: str, topic: str = "orders", group: str = GROUP) -> None:
    await send_dead_letters(broker.url, group, [Message(topic, body.encode()) for body in bodies])


async def bodies_of(admin: Admin, wanted: DeadLetterFilter) -> list[bytes]:
    return [letter.message.body for letter in await letters_of(admin, GROUP, wanted)]


def consumer_of(
    broker: EmbeddedBroker, listener: RecordingListener, *, group: str = GROUP, topic: str = "orders"
) -> PushConsumer:
    consumer = PushConsumer(group, broker.url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(topic)
    consumer.register_message_listener(listener)
    return consumer


async def start_again(broker: EmbeddedBroker, *, after_h: int) -> None:
    """Stop the broker, let hours pass, and give it time to look for old files."""
    await broker.stop()
    broker.clock.set_wall_ms(broker.clock.wall_ms() + after_h * HOUR_S * 1_000)
    await broker.start()
    await broker.clock.advance(60)


@pytest.mark.mechanism("R1")
async def test_the_whole_story(broker: EmbeddedBroker, admin: Admin) -> None:
    """It fails 17 times, is dead, is edited and replayed, and its group consumes it under its own topic."""
    listener, bystander = RecordingListener(ConsumeStatus.RECONSUME_LATER), RecordingListener()
    async with (
        Producer("shop", broker.url) as producer,
        consumer_of(broker, listener),
        consumer_of(broker, bystander, group="bystanders"),
    ):
        assert DLQ not in await admin.topic_list()
        sent = await producer.send(Message("orders", b"bad", tag="created", keys="order-17", properties={"a": "1"}))
        await broker.clock.until(lambda: len(listener.bodies) == TRIES, within_s=24 * HOUR_S, step_s=60)
        await broker.clock.advance(1)
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        assert (letter.topic, letter.origin_message_id, letter.message.reconsume_times) == (
            *("orders", sent.message_id, TRIES),
        )
        assert letter.user_properties == {"a": "1"}
        await admin.edit_dead_letter(letter, body=b"good", properties={"b": "2"})
        (edited,) = await letters_of(admin, GROUP, OPEN_ONLY)
        listener.status = ConsumeStatus.CONSUME_SUCCESS
        await admin.replay_dead_letter(edited)
        await broker.clock.until(lambda: len(listener.bodies) == TRIES + 1)
        message = listener.batches[-1][0]
        assert (message.topic, message.body, message.tag, message.keys) == ("orders", b"good", "created", ("order-17",))
        assert (message.message_id, message.reconsume_times) == (sent.message_id, 0)
        assert (message.properties["a"], message.properties["b"]) == ("1", "2")
        assert message.born_timestamp_ms == START_MS
        await broker.clock.advance(60)
        assert bystander.bodies == [b"bad"]
        assert await letters_of(admin, GROUP, OPEN_ONLY) == []


@pytest.mark.mechanism("R1")
async def test_a_replayed_letter_that_fails_again_has_all_its_tries_and_dies_again(
    broker: EmbeddedBroker, admin: Admin
) -> None:
    await die(broker, "bad")
    (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
    listener = RecordingListener(ConsumeStatus.RECONSUME_LATER)
    async with consumer_of(broker, listener, topic="refunds"):  # it gets nothing but the replay
        await admin.replay_dead_letter(letter)
        await broker.clock.until(lambda: len(listener.bodies) == TRIES, within_s=24 * HOUR_S, step_s=60)
        await broker.clock.advance(1)
    again = await letters_of(admin, GROUP)
    assert [(one.state, one.message.reconsume_times) for one in again] == [(REPLAYED, 1), (OPEN, TRIES)]
    assert again[0].message.message_id == again[1].message.message_id


class TestFinding:
    @pytest.mark.parametrize(
        ("wanted", "bodies"),
        [
            (DeadLetterFilter(), ["one", "two", "three", "four"]),
            (DeadLetterFilter(topic="refunds"), ["three", "four"]),
            (DeadLetterFilter(expression="created"), ["one", "three"]),
            (DeadLetterFilter(expression="created || closed"), ["one", "two", "three"]),
            (DeadLetterFilter(key="k2"), ["two", "four"]),
            (DeadLetterFilter(begin_ms=START_MS + 2_000), ["three", "four"]),
            (DeadLetterFilter(end_ms=START_MS + 2_000), ["one", "two"]),
            (DeadLetterFilter(begin_ms=START_MS + 1_000, end_ms=START_MS + 2_001), ["two", "three"]),
            (DeadLetterFilter(contains=b"o"), ["one", "two", "four"]),
            (DeadLetterFilter(topic="refunds", contains=b"o"), ["four"]),
            (DeadLetterFilter(topic="orders", key="k9"), []),
        ],
    )
    async def test_a_filter_chooses(
        self, broker: EmbeddedBroker, admin: Admin, wanted: DeadLetterFilter, bodies: list[str]
    ) -> None:
        for message in (
            Message("orders", b"one", tag="created", keys=["k1", "k9-"]),
            Message("orders", b"two", tag="closed", keys=["k1", "k2"]),
            Message("refunds", b"three", tag="created", keys="k3"),
            Message("refunds", b"four", keys="k2"),
        ):
            await send_dead_letters(broker.url, GROUP, [message])
            await broker.clock.advance(1)
        assert await bodies_of(admin, wanted) == [body.encode() for body in bodies]

    async def test_by_unique_id_and_by_position(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await die(broker, "one", "two")
        one, two = await letters_of(admin, GROUP, OPEN_ONLY)
        ids = frozenset({one.message.message_id, two.message.offset_message_id, "unknown"})
        assert await bodies_of(admin, DeadLetterFilter(ids=ids)) == [b"one", b"two"]

    async def test_a_group_without_dead_letters_has_none_and_no_topic_is_made(self, admin: Admin) -> None:
        assert await letters_of(admin, GROUP, OPEN_ONLY) == []
        assert DLQ not in await admin.topic_list()

    async def test_more_than_a_page_comes_in_order(self, broker: EmbeddedBroker, admin: Admin) -> None:
        bodies = [f"{number}" for number in range(600)]
        await die(broker, *bodies)
        assert await open_bodies(admin, GROUP) == [body.encode() for body in bodies]

    async def test_what_dies_meanwhile_is_not_among_them(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await die(broker, "one", "two")
        found = []
        async for letter in admin.dead_letters(GROUP):
            found.append(letter.message.body)
            await die(broker, "later")
        assert found == [b"one", b"two"]

    async def test_a_compressed_body_is_looked_into(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await die(broker, "x" * 10_000 + "needle")
        (letter,) = await letters_of(admin, GROUP, DeadLetterFilter(contains=b"needle"))
        assert letter.message.size < 1_000
        await admin.replay_dead_letter(letter)
        assert await stored_bodies(admin, RETRY) != []


class TestTheTopic:
    """Mechanism R2: made only when needed, readable from the start, one for all topics of the group."""

    @pytest.mark.mechanism("R2")
    async def test_it_is_made_by_the_first_dead_letter_and_may_be_read_and_written(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        assert DLQ not in await admin.topic_list()
        await die(broker, "one")
        (config,) = [one for one in await admin.topic_configs(ADDRESS) if one.topic == DLQ]
        assert (config.perm, config.read_queue_count) == (Permission.READ_WRITE, 1)

    async def test_letters_of_several_topics_share_it_and_groups_do_not(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        await die(broker, "one")
        await die(broker, "two", topic="refunds")
        await die(broker, "three", group="others")
        assert [(letter.topic, letter.message.body) for letter in await letters_of(admin, GROUP, OPEN_ONLY)] == [
            ("orders", b"one"),
            ("refunds", b"two"),
        ]

    @pytest.mark.mechanism("R2")
    async def test_letters_are_kept_for_three_days(self) -> None:
        """fileReservedTime is 72 hours; then the next deleteWhen, an hour of the day, takes the file of the log."""
        small = EmbeddedBroker("three-days", clock=SimClock(START_MS), commit_log_file_bytes=64 * 1024)
        async with small:
            await die(small, "old", *["x" * 1_000] * 60, "new")  # in two files
            await start_again(small, after_h=71)
            async with Admin(small.url) as admin:
                assert (await open_bodies(admin, GROUP))[0] == b"old"
            for _ in range(25):
                await start_again(small, after_h=1)
            async with Admin(small.url) as admin:
                left = await open_bodies(admin, GROUP)
        assert b"old" not in left
        assert left[-1] == b"new"

    async def test_one_that_may_not_be_read_is_rejected_until_it_may(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        await die(broker, "one")
        await admin.update_topic_perm(DLQ, Permission.WRITE)
        with pytest.raises(BrokerRejectedError, match="NO_PERMISSION"):
            await letters_of(admin, GROUP, OPEN_ONLY)
        await admin.update_topic_perm(DLQ, Permission.READ_WRITE)
        assert await open_bodies(admin, GROUP) == [b"one"]


async def test_the_tag_alone_makes_no_mark(broker: EmbeddedBroker, admin: Admin) -> None:
    await die(broker, "one")
    await send_dead_letters(broker.url, GROUP, [Message("orders", b"replayed:0", tag=DEAD_LETTER_MARK)])
    assert await states_of(admin, GROUP) == {b"one": OPEN, b"replayed:0": OPEN}
