"""Dead letters edited and replayed: what is stored then, and what is rejected (mechanism R2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    IllegalArgumentError,
    IllegalStateError,
    Message,
    MessageQueue,
    MessageRejectedError,
    OutcomeUnknownError,
    Producer,
)
from mqclient.admin import DeadLetterFilter, DeadLetterState, ReplayTarget, SubscriptionGroupConfig
from mqclient.testing.recording import letters_of, open_bodies, send_dead_letters, states_of, stored_bodies
from mqproto.codes import Permission
from mqproto.names import dlq_topic, retry_topic
from mqproto.properties import DEAD_LETTER_EDIT, DEAD_LETTER_MARK, RETRY_TOPIC
from osenv import SimClock

START_MS = 1_700_000_000_000
ADDRESS = "127.0.0.1:10911"
GROUP = "billing"
DLQ, RETRY = dlq_topic(GROUP), retry_topic(GROUP)
OPEN_ONLY = DeadLetterFilter()
OPEN, REPLAYED, SUPERSEDED = DeadLetterState.OPEN, DeadLetterState.REPLAYED, DeadLetterState.SUPERSEDED


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


class TestReplay:
    async def test_it_goes_to_the_group_alone_and_is_marked(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await die(broker, "one", "two")
        one, _ = await letters_of(admin, GROUP, OPEN_ONLY)
        result = await admin.replay_dead_letter(one)
        assert (result.message_queue.topic, result.message_id) == (RETRY, one.message.message_id)
        assert await stored_bodies(admin, RETRY) == [b"one"]
        assert await stored_bodies(admin, "orders") == [b"one", b"two"]  # where they were sent first
        assert await states_of(admin, GROUP) == {b"one": REPLAYED, b"two": OPEN}
        assert await open_bodies(admin, GROUP) == [b"two"]
        (mark,) = await admin.dead_letter_marks(one)
        assert (mark.state, mark.timestamp_ms) == (REPLAYED, START_MS)
        assert mark.sentence == f"sent to {RETRY}@broker-a:0 offset 0"

    @pytest.mark.mechanism("R2")
    async def test_twice_is_rejected_unless_it_is_wanted(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await die(broker, "one")
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        await admin.replay_dead_letter(letter)
        async with Admin(broker.url) as somebody_else:
            for operator in (admin, somebody_else):
                with pytest.raises(IllegalStateError, match="is replayed already"):
                    await operator.replay_dead_letter(letter)
        assert await stored_bodies(admin, RETRY) == [b"one"]
        await admin.replay_dead_letter(letter, again=True)
        assert await stored_bodies(admin, RETRY) == [b"one", b"one"]

    async def test_to_the_topic_every_group_gets_it(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await send_dead_letters(broker.url, GROUP, [Message("orders", b"one", tag="t", keys="k", flag=7)])
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        result = await admin.replay_dead_letter(letter, target=ReplayTarget.TOPIC)
        assert result.message_queue.topic == "orders"
        first, again = [message async for message in admin.read_queue(result.message_queue)]
        assert (again.message_id, again.body, again.tag, again.keys, again.flag) == (
            *(first.message_id, b"one", "t", ("k",), 7),
        )
        assert RETRY_TOPIC not in again.properties
        assert await states_of(admin, GROUP) == {b"one": REPLAYED}

    async def test_a_letter_without_a_topic_goes_to_its_group_only(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await admin.update_topic(DLQ, read_queue_count=1, write_queue_count=1)
        async with Producer("shop", broker.url) as producer:
            await producer.send(Message(DLQ, b"by hand"))
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        with pytest.raises(MessageRejectedError, match="does not say its topic"):
            await admin.replay_dead_letter(letter, target=ReplayTarget.TOPIC)
        assert await states_of(admin, GROUP) == {b"by hand": OPEN}
        await admin.replay_dead_letter(letter)
        assert await stored_bodies(admin, RETRY) == [b"by hand"]

    async def test_the_retry_topic_is_made_with_the_group_s_queues(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await admin.update_subscription_group(SubscriptionGroupConfig(GROUP, retry_queue_count=3))
        await die(broker, "one")
        assert RETRY not in await admin.topic_list()
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        await admin.replay_dead_letter(letter)
        (config,) = [one for one in await admin.topic_configs(ADDRESS) if one.topic == RETRY]
        assert (config.read_queue_count, config.write_queue_count, config.perm) == (3, 3, Permission.READ_WRITE)

    async def test_what_was_sent_and_could_not_be_marked_is_told_and_stays_listed(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        await die(broker, "one")
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        await admin.update_topic_perm(DLQ, Permission.READ)
        with pytest.raises(OutcomeUnknownError, match="offset 0, and could not be marked as replayed"):
            await admin.replay_dead_letter(letter)
        assert await stored_bodies(admin, RETRY) == [b"one"]
        assert await states_of(admin, GROUP) == {b"one": OPEN}

    async def test_a_caller_who_is_cancelled_leaves_no_letter_half_replayed(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        await die(broker, "one")
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        for turns in range(200):
            replaying = asyncio.create_task(admin.replay_dead_letter(letter))
            for _ in range(turns):
                await asyncio.sleep(0)
            replaying.cancel()
            await asyncio.wait([replaying])
            sent = bool(await stored_bodies(admin, RETRY))
            assert (REPLAYED if sent else OPEN) is (await states_of(admin, GROUP))[b"one"]
            if sent:
                return
        raise AssertionError("the replay never came as far as being sent")

    @pytest.mark.mechanism("R2")
    @pytest.mark.parametrize("end", ["stop", "kill", "lose_power"])
    async def test_marks_survive_the_broker_and_the_operator(
        self, broker: EmbeddedBroker, admin: Admin, end: str
    ) -> None:
        await die(broker, "one", "two", "three")
        one, two, _ = await letters_of(admin, GROUP, OPEN_ONLY)
        await admin.replay_dead_letter(one)
        await admin.edit_dead_letter(two, body=b"two, better")
        await getattr(broker, end)()
        await broker.start()
        async with Admin(broker.url) as fresh:
            assert await open_bodies(fresh, GROUP) == [b"three", b"two, better"]
            assert (await states_of(fresh, GROUP))[b"one"] is REPLAYED

    async def test_a_topic_that_was_deleted_takes_its_marks_along(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await die(broker, "one")
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        await admin.replay_dead_letter(letter)
        await admin.delete_topic(DLQ)
        assert await letters_of(admin, GROUP) == []
        await die(broker, "two")
        assert await states_of(admin, GROUP) == {b"two": OPEN}


class TestEdit:
    async def test_the_new_letter_takes_the_place_of_the_old_one_which_stays(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        await send_dead_letters(
            broker.url, GROUP, [Message("orders", b"bad", tag="t", keys="k", properties={"a": "1", "b": "2"}, flag=7)]
        )
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        await broker.clock.advance(5)
        result = await admin.edit_dead_letter(
            letter, body=b"good", tag="u", keys=["k1", "k2"], properties={"a": "9"}, removed_properties=["b"]
        )
        (edited,) = await letters_of(admin, GROUP, OPEN_ONLY)
        assert (edited.message.body, edited.message.tag, edited.message.keys) == (b"good", "u", ("k1", "k2"))
        assert edited.user_properties == {"a": "9"}
        assert (edited.replaces, edited.message.queue_offset) == (0, result.queue_offset)
        assert result.offset_message_id == edited.message.offset_message_id
        assert (edited.topic, edited.message.message_id, edited.message.flag) == (
            *("orders", letter.message.message_id, 7),
        )
        assert edited.message.reconsume_times == letter.message.reconsume_times == 1
        assert edited.dead_since_ms == START_MS + 5_000
        assert await states_of(admin, GROUP) == {b"bad": SUPERSEDED, b"good": OPEN}
        (mark,) = await admin.dead_letter_marks(letter)
        assert mark.state is SUPERSEDED

    async def test_it_can_be_edited_and_replayed_again_and_again(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await die(broker, "1")
        for body in (b"2", b"3"):
            (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
            await admin.edit_dead_letter(letter, body=body)
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        assert (letter.message.body, letter.replaces) == (b"3", 1)
        await admin.replay_dead_letter(letter)
        (replayed,) = [message async for message in admin.read_queue(MessageQueue(RETRY, "broker-a", 0))]
        assert replayed.body == b"3"
        assert not {DEAD_LETTER_EDIT, DEAD_LETTER_MARK} & replayed.properties.keys()
        assert await states_of(admin, GROUP) == {b"1": SUPERSEDED, b"2": SUPERSEDED, b"3": REPLAYED}

    async def test_what_is_not_named_stays_and_empty_takes_away(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await send_dead_letters(broker.url, GROUP, [Message("orders", b"x", tag="t", keys="k")])
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        await admin.edit_dead_letter(letter, tag="", keys=[])
        (edited,) = await letters_of(admin, GROUP, OPEN_ONLY)
        assert (edited.message.body, edited.message.tag, edited.message.keys) == (b"x", None, ())

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({}, "nothing is to be changed"),
            ({"properties": {RETRY_TOPIC: "x"}}, "'RETRY_TOPIC' belongs to the queue and cannot be edited"),
            ({"properties": {DEAD_LETTER_MARK: "x"}}, "belongs to the queue"),
            ({"removed_properties": ["UNIQ_KEY"]}, "'UNIQ_KEY' belongs to the queue"),
            ({"removed_properties": ["z"]}, "no property 'z' to remove; it has: a"),
            ({"body": b""}, "the body is empty"),
            ({"tag": "a||b"}, "cannot be subscribed to"),
            ({"properties": {"p": "x" * 40_000}}, "take 40"),
        ],
    )
    async def test_a_change_that_cannot_be_changes_nothing(
        self, broker: EmbeddedBroker, admin: Admin, changes: dict[str, object], sentence: str
    ) -> None:
        await send_dead_letters(broker.url, GROUP, [Message("orders", b"x", properties={"a": "1"})])
        (letter,) = await letters_of(admin, GROUP, OPEN_ONLY)
        with pytest.raises((IllegalArgumentError, MessageRejectedError), match=sentence):
            await admin.edit_dead_letter(letter, **changes)  # type: ignore[arg-type]
        assert await admin.queue_offsets(MessageQueue(DLQ, "broker-a", 0)) == (0, 1)

    async def test_one_that_was_replayed_or_edited_is_rejected(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await die(broker, "one", "two")
        one, two = await letters_of(admin, GROUP, OPEN_ONLY)
        await admin.replay_dead_letter(one)
        await admin.edit_dead_letter(two, body=b"better")
        for letter, state in ((one, "replayed"), (two, "superseded")):
            with pytest.raises(IllegalStateError, match=f"is {state} already"):
                await admin.edit_dead_letter(letter, body=b"late")
