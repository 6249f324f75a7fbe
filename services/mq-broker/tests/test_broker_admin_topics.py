"""A topic is deleted: what it held is gone, nothing of what comes later is lost, and no number is given twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import GuardMode, RejectedError, RetentionOptions
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.topics import TopicConfig
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.processor.topic_administration import QueueStats
from mq_broker.store.state_files import encode_document, write_document
from mq_broker.testing import (
    STORE_ROOT,
    half,
    incoming,
    produce,
    producer_record,
    read_all,
    running_broker,
    store_options,
)
from mq_broker.tools.dump_log import DumpOptions, dump
from mqproto.codes import PullStatus, ResponseCode
from mqproto.names import SYSTEM_TOPICS, dlq_topic, retry_topic
from osenv import SimClock, SimDisk

START_MS = 1_700_000_000_000
FILE_BYTES = 4_096
FORCED, FULL = 0.85, 0.92
CLEANING_S = 15


def keyed(bodies: list[bytes], topic: str = "t", queue_id: int = 0) -> IncomingBatch:
    records = [producer_record(topic, body, queue_id=queue_id, key="k") for body in bodies]
    return IncomingBatch(topic, queue_id, len(records), b"".join(records))


async def bodies(broker: Broker, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in await read_all(broker, topic, queue_id)]


async def pull(broker: Broker, offset: int, topic: str = "t") -> PullResult:
    query = PullQuery("g", topic, 0, offset, 32, 1 << 20, "*")
    return broker.pulling.pull_hot(query) or await broker.pulling.pull(query)


def assert_verified(disk: SimDisk) -> None:
    """dump_log --verify finds nothing that it does not understand."""
    lines: list[str] = []
    assert dump(disk, DumpOptions(STORE_ROOT, verify=True, index_slots=64), lines.append) == 0, "\n".join(lines)


Stop = Callable[[Broker, SimDisk], Awaitable[None]]


async def stop_cleanly(broker: Broker, disk: SimDisk) -> None:
    await broker.close()


async def killed(broker: Broker, disk: SimDisk) -> None:
    disk.kill()


async def killed_without_checkpoint(broker: Broker, disk: SimDisk) -> None:
    """Consume queues and checkpoint are gone: everything is told by the log again."""
    disk.kill()
    disk.unlink(STORE_ROOT / "checkpoint")


async def deleted(broker: Broker) -> None:
    """Three messages in queue 0 and one in queue 1, consumed by a group, and then the topic is deleted."""
    await produce(broker, keyed([b"0", b"1", b"2"]), keyed([b"other queue"], queue_id=1))
    broker.offsets.commit("g", [("t", 0, Progress(2)), ("t", 1, Progress(1))])
    await broker.topic_administration.delete("t")


class TestDeleted:
    async def test_the_topic_and_what_it_holds_are_gone_for_all_clients(self) -> None:
        async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
            await deleted(broker)
            assert broker.topics.get("t") is None
            assert (await pull(broker, 0)).code is ResponseCode.TOPIC_NOT_EXIST
            assert broker.store.queue_bounds("t", 0) == (3, 3)
            assert broker.store.queue_bounds("t", 1) == (1, 1)
            assert await broker.querying.offset_by_time("t", 0, 0) == 3
            found = await broker.querying.by_key("t", "k", max_messages=0, begin_ms=0, end_ms=0)
            assert found.records == []
            with pytest.raises(ValueError, match="no message begins"):
                await broker.querying.by_log_offset(0)
            with pytest.raises(RejectedError, match="'t' does not exist"):
                await broker.topic_administration.stats("t")

    async def test_the_groups_offsets_go_with_it_and_none_can_be_committed(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            broker.offsets.commit("g", [])
            await produce(broker, incoming("u", [b"x"]))
            broker.offsets.commit("g", [("u", 0, Progress(1))])
            await deleted(broker)
            assert list(broker.consumer_offsets.all()) == [("g", "u", 0, 1)]
            with pytest.raises(RejectedError, match="topic 't' does not exist") as rejected:
                broker.offsets.commit("g", [("t", 0, Progress(3))])
            assert rejected.value.code is ResponseCode.TOPIC_NOT_EXIST

    async def test_a_held_poll_is_answered_at_once(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]), incoming("u", [b"x"]))
            answers: dict[str, PullResult] = {}
            for topic in ("t", "u"):
                query = PullQuery("g", topic, 0, 1, 32, 1 << 20, "*")
                broker.long_polling.poll(query, 15_000, partial(answers.__setitem__, topic))
            await broker.topic_administration.delete("t")
            assert {topic: answer.code for topic, answer in answers.items()} == {"t": ResponseCode.TOPIC_NOT_EXIST}
            assert broker.long_polling.held == 1

    async def test_a_message_of_it_cannot_be_given_back(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await deleted(broker)
            code, *_ = await broker.send_back.send_back("g", 0, delay_level=0, max_reconsume_times=0)
            assert code is ResponseCode.QUERY_NOT_FOUND

    @pytest.mark.parametrize("topic", [retry_topic("g"), dlq_topic("g")])
    async def test_retry_and_dead_letter_topics_can_be_deleted(self, topic: str) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            broker.topics.ensure_group_topic(topic)
            await broker.topic_administration.delete(topic)
            assert broker.topics.get(topic) is None

    @pytest.mark.parametrize("topic", sorted(SYSTEM_TOPICS))
    async def test_system_topics_cannot(self, topic: str) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            with pytest.raises(RejectedError, match="belongs to the queue itself") as rejected:
                await broker.topic_administration.delete(topic)
            assert rejected.value.code is ResponseCode.MESSAGE_ILLEGAL
            assert broker.topics.get(topic) is not None

    async def test_what_is_not_there_cannot_be_deleted(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await deleted(broker)
            with pytest.raises(RejectedError, match="topic 't' does not exist") as rejected:
                await broker.topic_administration.delete("t")
            assert rejected.value.code is ResponseCode.TOPIC_NOT_EXIST


class TestMadeAgain:
    @pytest.mark.parametrize("explicit", [True, False], ids=["by an operator", "by itself"])
    async def test_it_goes_on_counting_where_it_was(self, *, explicit: bool) -> None:
        async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
            await deleted(broker)
            if explicit:
                await broker.topic_administration.update(TopicConfig("t", 2, 2))
                assert (await pull(broker, 3)).status is PullStatus.NO_NEW_MSG
            (outcome,) = await produce(broker, keyed([b"new"]))
            assert (outcome.code, outcome.base_queue_offset) == (ResponseCode.SUCCESS, 3)
            assert (await bodies(broker), await bodies(broker, queue_id=1)) == ([b"new"], [])
            answer = await pull(broker, 1)
            assert (answer.status, answer.next_begin_offset, answer.min_offset) == (PullStatus.OFFSET_ILLEGAL, 3, 3)
            assert len((await broker.querying.by_key("t", "k", max_messages=0, begin_ms=0, end_ms=0)).records) == 1
            assert broker.consumer_offsets.query("g", "t", 0) is None

    async def test_its_statistics_begin_anew(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await deleted(broker)
            await clock.advance(5)
            await broker.topic_administration.update(TopicConfig("t", 1, 2))
            assert await broker.topic_administration.stats("t") == [
                QueueStats(0, 3, 3, 0, 0),
                QueueStats(1, 1, 1, 0, 0),
            ]
            begin = broker.store.log_end
            await produce(broker, incoming("t", [b"new"]))
            (stats, _) = await broker.topic_administration.stats("t")
            assert stats == QueueStats(0, 3, 4, START_MS + 5_000, broker.store.log_end - begin)

    async def test_they_say_about_how_much_of_the_log_a_long_queue_takes(self) -> None:
        async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
            for number in range(100):  # the later, the longer
                await produce(broker, incoming("t", [bytes(1 + 3 * number)] * 100))
            (stats, *_) = await broker.topic_administration.stats("t")
            assert stats.max_offset == 10_000
            queue = broker.store.queue("t", 0)
            assert queue is not None
            exactly = sum(queue.entry(offset)[1] for offset in range(10_000))
            assert stats.about_bytes == pytest.approx(exactly, rel=0.01)


class TestArrivals:
    async def test_a_delayed_message_brings_the_topic_back_when_it_is_due(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await produce(broker, incoming("t", [b"now"]), incoming("t", [b"later"], delay_level=3))
            await broker.topic_administration.delete("t")
            await clock.advance(9.9)
            assert broker.topics.get("t") is None
            await killed_without_checkpoint(broker, disk)
        async with running_broker(disk, clock) as broker:
            assert broker.topics.get("t") is None, "reading the log again does not bring it back"
            await clock.advance(0.2)
            assert broker.topics.get("t") == TopicConfig("t", 4, 4)
            assert await bodies(broker) == [b"later"]

    async def test_a_transaction_brings_it_back_when_it_is_committed(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await produce(broker, half("t", b"order", "tx-1", queue_id=2), half("t", b"order", "tx-2"))
            await broker.topic_administration.delete("t")
            await killed_without_checkpoint(broker, disk)
        async with running_broker(disk, clock) as broker:
            for id_, state in (("tx-2", TransactionState.ROLLBACK_MESSAGE), ("tx-1", TransactionState.COMMIT_MESSAGE)):
                assert broker.topics.get("t") is None
                await broker.transactions.end("shop", id_, state, from_check=False)
            assert broker.topics.get("t") == TopicConfig("t", 4, 4)
            assert await bodies(broker, queue_id=2) == [b"order"]

    async def test_a_retry_comes_back_into_a_deleted_retry_topic(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock) as broker:
            (outcome,) = await produce(broker, incoming("t", [b"bad"]))
            await broker.send_back.send_back("g", outcome.base_log_offset, delay_level=0, max_reconsume_times=0)
            await broker.topic_administration.delete(retry_topic("g"))
            await clock.advance(11)
            assert await bodies(broker, retry_topic("g")) == [b"bad"]

    async def test_a_delayed_message_rejected_by_a_full_disk_comes_to_its_queue_when_that_is_back(self) -> None:
        """The rejected delivery was to another queue, and leaves nothing of that in the record."""
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await broker.topic_administration.update(TopicConfig("t", 2, 2))
            await produce(broker, incoming("t", [b"later"], queue_id=1, delay_level=5))
            await broker.topic_administration.update(TopicConfig("t", 1, 1))
            disk.used_share = FULL
            await clock.advance(60)
            await broker.topic_administration.update(TopicConfig("t", 2, 2))
            assert [await bodies(broker, queue_id=queue_id) for queue_id in range(2)] == [[], []]
            disk.used_share = 0
            await clock.advance(2 * CLEANING_S)
            (record,) = await read_all(broker, "t", 1)
            assert (record.body, record.queue_id, record.queue_offset) == (b"later", 1, 0)
            await killed_without_checkpoint(broker, disk)
        assert_verified(disk)
        async with running_broker(disk, clock) as broker:
            assert [await bodies(broker, queue_id=queue_id) for queue_id in range(2)] == [[], [b"later"]]


@pytest.mark.parametrize("stop", [stop_cleanly, killed, killed_without_checkpoint])
class TestRestart:
    async def test_a_deleted_topic_stays_deleted(self, stop: Stop) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await deleted(broker)
            await stop(broker, disk)
        assert_verified(disk)
        async with running_broker(disk, clock) as broker:
            assert broker.topics.get("t") is None
            assert list(broker.consumer_offsets.all()) == []
            (outcome,) = await produce(broker, incoming("t", [b"new"]))
            assert outcome.base_queue_offset == 3
            assert await bodies(broker) == [b"new"]
        assert_verified(disk)

    async def test_one_that_was_made_again_keeps_what_came_later(self, stop: Stop) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await deleted(broker)
            await produce(broker, incoming("t", [b"new"]))
            broker.offsets.commit("h", [("t", 0, Progress(4))])
            await broker.store.persist("consumerOffset.json")
            await stop(broker, disk)
        async with running_broker(disk, clock) as broker:
            assert await bodies(broker) == [b"new"]
            assert list(broker.consumer_offsets.all()) == [("h", "t", 0, 4)]
            assert (await produce(broker, incoming("t", [b"newer"])))[0].base_queue_offset == 4
        assert_verified(disk)


class TestRetention:
    async def test_its_bytes_leave_with_the_log_files_without_objection(self) -> None:
        disk, clock = SimDisk(), SimClock()
        guarded = RetentionOptions(guard=GuardMode.REFUSE)
        store = replace(store_options(log_file_bytes=FILE_BYTES), retention=guarded)
        async with running_broker(disk, clock, store=store) as broker:
            broker.offsets.commit("g", [])
            for number in range(20):
                await produce(broker, incoming("t", [b"%06d" % number + bytes(400)]))
            broker.offsets.commit("g", [("t", 0, Progress(2))])
            assert await broker.consume_progress.unconsumed_below(FILE_BYTES) == ["g (queue 0 of t)"]
            await broker.topic_administration.delete("t")
            assert await broker.consume_progress.unconsumed_below(FILE_BYTES) == []
            disk.used_share = FORCED
            await clock.advance(CLEANING_S)
            assert broker.retention.files_deleted > 0
            (outcome,) = await produce(broker, incoming("t", [b"new"]))
            assert outcome.base_queue_offset == 20
            disk.used_share = 0
        assert_verified(disk)
        async with running_broker(disk, clock, store=store) as broker:
            assert await bodies(broker) == [b"new"]
            assert broker.store.queue_bounds("t", 0) == (20, 21)

    async def test_a_delayed_message_to_a_deleted_topic_is_carried_over_and_comes(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, store=store_options(log_file_bytes=FILE_BYTES)) as broker:
            await produce(broker, incoming("t", [b"later"], delay_level=5))
            await broker.topic_administration.delete("t")
            for number in range(20):
                await produce(broker, incoming("u", [b"%06d" % number + bytes(400)]))
            disk.used_share = FORCED
            await clock.advance(CLEANING_S)
            assert broker.retention.carried == 1
            assert broker.topics.get("t") is None
            await clock.advance(60)
            assert await bodies(broker) == [b"later"]


class TestVerification:
    async def verified(self, deletions: object) -> list[str]:
        """What dump_log says to a store whose topics.json speaks of these deletions."""
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock) as broker:
            await deleted(broker)
            document = broker.topics.to_json() | {"deletedBelow": deletions}
            end = broker.store.log_end
        write_document(disk, STORE_ROOT / "config/topics.json", encode_document(document, end))
        lines: list[str] = []
        dump(disk, DumpOptions(STORE_ROOT, verify=True, index_slots=64), lines.append)
        return lines

    async def test_a_deletion_beyond_the_queue_s_end_is_a_difference(self) -> None:
        lines = await self.verified({"t": {"0": 3, "1": 2}})
        assert lines[-1].endswith(": 1 differences")
        assert "topics.json: its deletion is at 2 of t/1, which ends at 1" in lines[-2]

    async def test_a_deletion_of_another_form_is_a_difference(self) -> None:
        lines = await self.verified({"t": 3})
        assert lines[-1].endswith(": 1 differences")
        assert "topics.json is not of its form" in lines[-2]
