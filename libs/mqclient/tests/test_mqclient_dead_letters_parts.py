"""Marks and pages of dead letters, with brokers that forget and brokers that differ (mechanism R2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mqclient import Admin, MessageExt, MessageQueue
from mqclient.admin import DeadLetterState, PullResult
from mqclient.admin.dead_letter import MARK_TAG, MarkedLetters, is_mark, mark_of, mark_value
from mqclient.admin.messages import PAGE_MESSAGES
from mqclient.sync import SyncAdmin
from mqclient.testing import FakeBroker, FakeCluster
from mqclient.testing.loopback import loopback_server
from mqclient.testing.recording import letters_of, states_of
from mqproto.names import dlq_topic, retry_topic
from mqproto.properties import DEAD_LETTER_MARK, RETRY_TOPIC, TAGS, encode_properties
from mqproto.record import decode_record, encode_record, pack_ip

GROUP = "billing"
DLQ = dlq_topic(GROUP)
OPEN, REPLAYED, SUPERSEDED = DeadLetterState.OPEN, DeadLetterState.REPLAYED, DeadLetterState.SUPERSEDED


def message_of(properties: dict[str, str]) -> MessageExt:
    record = encode_record(
        topic=DLQ.encode(),
        body=b"a sentence",
        properties=encode_properties(properties),
        queue_id=0,
        born_timestamp_ms=1,
        born_ip=pack_ip("127.0.0.1"),
    )
    return MessageExt(decode_record(record), "broker-a")


def put_mark(broker: FakeBroker, state: DeadLetterState, queue_offset: int) -> None:
    broker.put(DLQ, 0, b"done", {TAGS: MARK_TAG, DEAD_LETTER_MARK: mark_value(state, queue_offset)})


class TestMarks:
    @pytest.mark.parametrize("state", [REPLAYED, SUPERSEDED])
    def test_one_that_was_written_is_read(self, state: DeadLetterState) -> None:
        message = message_of({DEAD_LETTER_MARK: mark_value(state, 1 << 40)})
        assert mark_of(message) == (1 << 40, state, 0, "a sentence")

    @pytest.mark.parametrize("value", ["open:1", "archived:0", "replayed:", "replayed:-1", "replayed:1,2", ""])
    def test_one_of_another_kind_is_no_letter_and_says_nothing(self, value: str) -> None:
        message = message_of({DEAD_LETTER_MARK: value})
        assert is_mark(message)
        assert mark_of(message) is None

    async def test_one_that_died_itself_is_a_letter_like_any_other(self) -> None:
        """Of a group that reads another one's dead letters, and could not consume a mark among them."""
        cluster, (broker,) = FakeCluster.of("broker-a")
        broker.put(DLQ, 0, b"x")
        died = {TAGS: MARK_TAG, DEAD_LETTER_MARK: mark_value(REPLAYED, 0), RETRY_TOPIC: dlq_topic("others")}
        broker.put(DLQ, 0, b"done", died)
        async with Admin(cluster.url) as admin:
            assert await states_of(admin, GROUP) == {b"x": OPEN, b"done": OPEN}

    async def test_the_newest_mark_counts(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        for number in range(3):
            broker.put(DLQ, 0, b"%d" % number)
        put_mark(broker, REPLAYED, 0)
        put_mark(broker, SUPERSEDED, 0)
        put_mark(broker, REPLAYED, 2)
        async with Admin(cluster.url) as admin:
            states = [letter.state for letter in await letters_of(admin, GROUP)]
        assert states == [SUPERSEDED, OPEN, REPLAYED]

    async def test_what_a_broker_has_lost_is_read_again(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        for number in range(3):
            broker.put(DLQ, 0, b"%d" % number)
        put_mark(broker, REPLAYED, 0)
        put_mark(broker, REPLAYED, 1)
        async with Admin(cluster.url) as admin:
            assert [letter.state for letter in await letters_of(admin, GROUP)] == [REPLAYED, REPLAYED, OPEN]
            broker.restart(lost_records=1)
            assert [letter.state for letter in await letters_of(admin, GROUP)] == [REPLAYED, OPEN, OPEN]

    async def test_marks_of_letters_that_retention_took_are_forgotten(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        marked = MarkedLetters(MessageQueue(DLQ, "broker-a", 0))
        for _ in range(3):
            broker.put(DLQ, 0, b"x")
        for queue_offset in range(3):
            put_mark(broker, REPLAYED, queue_offset)
        async with Admin(cluster.url) as admin:
            await marked.catch_up(admin)
            broker.min_offsets[DLQ, 0] = 2
            broker.put(DLQ, 0, b"y")
            await marked.catch_up(admin)
        assert [marked.state_at(offset) for offset in (1, 2, 6)] == [OPEN, REPLAYED, OPEN]


class TestSeveralBrokers:
    async def test_letters_of_all_come_by_time(self) -> None:
        cluster, brokers = FakeCluster.of("broker-a", "broker-b", "broker-c")
        for number in (0, 1, 1, 0, 1):
            brokers[number].put(DLQ, 0, b"%s at %d" % (brokers[number].name.encode(), cluster.clock.wall_ms() % 100))
            await cluster.clock.advance(0.001)
        async with Admin(cluster.url) as admin:
            letters = await letters_of(admin, GROUP)
        assert [letter.message.body for letter in letters] == [
            *(b"broker-a at 0", b"broker-b at 1", b"broker-b at 2", b"broker-a at 3", b"broker-b at 4"),
        ]

    async def test_a_letter_goes_to_the_retry_topic_of_its_own_broker(self) -> None:
        cluster, brokers = FakeCluster.of("broker-a", "broker-b")
        brokers[0].create_topic(retry_topic(GROUP), 1)
        for broker in brokers:
            broker.put(DLQ, 0, broker.name.encode())
        async with Admin(cluster.url) as admin:
            for letter in await letters_of(admin, GROUP):
                await admin.replay_dead_letter(letter)
            assert [letter.state for letter in await letters_of(admin, GROUP)] == [REPLAYED, REPLAYED]
        for broker in brokers:
            (record,) = broker.queues[retry_topic(GROUP), 0]
            assert decode_record(record).body == broker.name.encode()


async def test_no_more_than_a_page_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    for number in range(4 * PAGE_MESSAGES):
        broker.put(DLQ, 0, b"%d" % number)
    kept: list[int] = []
    pull = Admin.pull

    async def counted(admin: Admin, *arguments: Any, **options: Any) -> PullResult:
        result = await pull(admin, *arguments, **options)
        kept.append(len(result.messages))
        return result

    monkeypatch.setattr(Admin, "pull", counted)
    async with Admin(cluster.url) as admin:
        letters = admin.dead_letters(GROUP)
        assert (await anext(letters)).message.body == b"0"
        assert sum(kept) == PAGE_MESSAGES
        assert len([letter async for letter in letters]) == 4 * PAGE_MESSAGES - 1
    assert max(kept) == PAGE_MESSAGES


async def test_the_synchronous_face_lists_and_replays() -> None:
    def script(url: str) -> list[str]:
        with SyncAdmin(url) as admin:
            letters = list(admin.dead_letters(GROUP))
            admin.replay_dead_letter(letters[0])
            return [letter.message.body.decode() for letter in admin.dead_letters(GROUP)]

    async with loopback_server() as loopback:
        for body in (b"one", b"two"):
            loopback.broker.put(DLQ, 0, body)
        assert await asyncio.to_thread(script, loopback.url) == ["two"]
