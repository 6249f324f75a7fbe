"""Messages found again by key, by place and by time: exactly those that are there, and a sentence for anything else."""

from __future__ import annotations

import asyncio

import pytest

from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core.pulling import PULL_BYTES_MAX
from mq_broker.embedded.embedded_broker import CallContext
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import STORE_ROOT, incoming, produce, producer_record, read_all, running_broker, store_options
from mqproto.codes import ResponseCode
from mqproto.record import BODY_AT, OFFSETS, OFFSETS_AT, decode_record, iter_sealed_records, seal
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
LARGE_FILE_BYTES = 4 * 1024 * 1024
LAYOUT = StoreLayout(STORE_ROOT)


def keyed(bodies: list[bytes], key: str = "k", topic: str = "t") -> IncomingBatch:
    records = [producer_record(topic, body, key=key) for body in bodies]
    return IncomingBatch(topic, 0, len(records), b"".join(records))


def service(broker: Broker) -> BrokerService:
    return BrokerService(broker, asyncio.Event())


async def query(
    broker: Broker, key: str = "k", *, topic: str = "t", max_messages: int = 0, begin_ms: int = 0, end_ms: int = 0
) -> pb.QueryMessageResponse:
    request = pb.QueryMessageRequest(
        topic=topic, key=key, max_messages=max_messages, begin_timestamp_ms=begin_ms, end_timestamp_ms=end_ms
    )
    context = CallContext()
    try:
        return await service(broker).QueryMessage(request, context)
    finally:
        context.end()


async def view(broker: Broker, log_offset: int) -> pb.ViewMessageResponse:
    context = CallContext()
    try:
        return await service(broker).ViewMessage(pb.ViewMessageRequest(log_offset=log_offset), context)
    finally:
        context.end()


async def search(broker: Broker, timestamp_ms: int, *, topic: str = "t", queue_id: int = 0) -> pb.SearchOffsetResponse:
    queue = common_pb2.QueueRef(topic=topic, queue_id=queue_id)
    return await service(broker).SearchOffset(pb.SearchOffsetRequest(queue=queue, timestamp_ms=timestamp_ms), None)


async def offset_at(broker: Broker, seconds: float) -> int:
    answer = await search(broker, START_MS + round(1_000 * seconds))
    assert (answer.code, answer.remark) == (0, "")
    return answer.offset


def damage(disk: SimDisk, log_offset: int, data: bytes = b"\xff\xff", at: int = 90) -> None:
    disk.open(LAYOUT.commit_log / ("0" * 20)).pwrite(data, log_offset + at)


class TestOffsetByTime:
    async def produced_each_second(self, broker: Broker, clock: SimClock, count: int) -> None:
        for number in range(count):
            await produce(broker, incoming("t", [b"%d" % number]))
            await clock.advance(1)

    @pytest.mark.mechanism("Q1")
    async def test_it_is_the_first_message_stored_at_or_after_the_time(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await self.produced_each_second(broker, clock, 10)
            for number in range(10):
                assert await offset_at(broker, number) == number
                assert await offset_at(broker, number - 0.001) == number
                assert await offset_at(broker, number - 0.999) == number

    async def test_before_the_first_it_is_the_first_and_after_the_last_the_end(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await self.produced_each_second(broker, clock, 10)
            assert await offset_at(broker, -1_000) == 0
            assert await offset_at(broker, 9.001) == 10
            assert (await search(broker, 0)).offset == (await search(broker, -5)).offset == 0
            assert (await search(broker, (1 << 63) - 1)).offset == 10

    @pytest.mark.parametrize("count", [1, 2, 3, 8, 33])
    async def test_of_equal_times_it_is_the_first(self, count: int) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            for number in range(4):
                await produce(broker, incoming("t", [b"x%d" % number] * count))
                await clock.advance(1)
            assert [await offset_at(broker, second) for second in range(5)] == [n * count for n in range(5)]

    async def test_an_empty_queue_begins_at_0(self) -> None:
        async with running_broker(SimDisk(), SimClock(START_MS)) as broker:
            await produce(broker, incoming("t", [b"x"], queue_id=1))
            assert await offset_at(broker, 0) == 0

    async def test_a_topic_that_does_not_exist_is_said_so(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            answer = await search(broker, 0, topic="nowhere")
            assert (answer.code, answer.remark) == (common_pb2.TOPIC_NOT_EXIST, "topic 'nowhere' does not exist")

    async def test_a_queue_that_does_not_exist_is_rejected(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            for queue_id in (-1, 4, 1 << 30):
                answer = await search(broker, 0, queue_id=queue_id)
                assert answer.code != common_pb2.SUCCESS
                assert str(queue_id) in answer.remark

    @pytest.mark.parametrize("cold", [True, False], ids=["from disk", "from memory"])
    @pytest.mark.parametrize("lost", [{5}, {0}, {9}, {4, 5, 6}, {5, 6, 7, 8, 9}, {0, 1, 2, 3, 4}, set(range(10))])
    async def test_lost_messages_are_passed_over(self, lost: set[int], cold: bool) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with running_broker(disk, clock) as broker:
            await self.produced_each_second(broker, clock, 10)
            places = [record.log_offset for record in await read_all(broker, "t")]
            if not cold:
                for number in lost:
                    damage(disk, places[number])
                await self.assert_passed_over(broker, lost)
        if cold:
            async with running_broker(disk, SimClock(clock.wall_ms())) as broker:
                for number in lost:
                    damage(disk, places[number])
                await self.assert_passed_over(broker, lost)

    async def assert_passed_over(self, broker: Broker, lost: set[int]) -> None:
        """A reader that goes on at the answer gets all that was stored from then on, and at most lost ones before."""
        for number in range(11):
            offset = await offset_at(broker, number)
            assert set(range(offset, number)) <= lost
            assert set(range(number, offset)) <= lost


class TestView:
    @pytest.mark.mechanism("M8")
    async def test_a_message_is_seen_by_its_place(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            outcomes = await produce(broker, incoming("t", [b"a"]), incoming("u", [b"b"]))
            for outcome, body in zip(outcomes, (b"a", b"b"), strict=True):  # from memory
                record = decode_record((await view(broker, outcome.base_log_offset)).record)
                assert (record.body, record.log_offset) == (body, outcome.base_log_offset)
        async with running_broker(disk, SimClock()) as broker:  # from disk
            (sealed,) = iter_sealed_records((await view(broker, outcomes[1].base_log_offset)).record)
            record = sealed.decode()
            assert (record.topic, record.body) == ("u", b"b")

    @pytest.mark.mechanism("M8")
    @pytest.mark.parametrize("cold", [True, False], ids=["from disk", "from memory"])
    async def test_any_other_place_has_none_and_a_sentence_says_so(self, cold: bool) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            outcomes = await produce(broker, incoming("t", [b"a"]), incoming("u", [b"b" * 200]))
            if not cold:
                await self.assert_none_elsewhere(broker, {one.base_log_offset for one in outcomes})
        if cold:
            async with running_broker(disk, SimClock()) as broker:
                await self.assert_none_elsewhere(broker, {one.base_log_offset for one in outcomes})

    async def assert_none_elsewhere(self, broker: Broker, places: set[int]) -> None:
        end = broker.store.log_end
        for at in [-1, -(1 << 63), *(at for at in range(end) if at not in places), end, end + 1, (1 << 63) - 1]:
            answer = await view(broker, at)
            assert (answer.code, answer.record) == (common_pb2.QUERY_NOT_FOUND, b"")
            assert str(at) in answer.remark

    async def test_a_damaged_message_is_not_shown_and_the_sentence_says_why(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            (outcome, *_) = await produce(broker, incoming("t", [b"a", b"b"]))
        async with running_broker(disk, SimClock()) as broker:
            damage(disk, outcome.base_log_offset)
            answer = await view(broker, outcome.base_log_offset)
            assert (answer.code, answer.record) == (common_pb2.QUERY_NOT_FOUND, b"")
            assert answer.remark == "the record at offset 0 is damaged: CRC mismatch"

    async def test_a_record_inside_a_body_is_no_message(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            inner = bytearray(producer_record("payments", b"forged"))
            OFFSETS.pack_into(inner, OFFSETS_AT, 0, broker.store.log_end + BODY_AT)
            seal(inner, 0, len(inner))
            (outcome,) = await produce(broker, incoming("t", [bytes(inner)]))
            answer = await view(broker, outcome.base_log_offset + BODY_AT)
            assert (answer.code, answer.record) == (common_pb2.QUERY_NOT_FOUND, b"")


class TestByKey:
    async def with_messages(self, broker: Broker, count: int, size: int = 10) -> None:
        for first in range(0, count, 100):
            await produce(broker, keyed([b"%06d" % n + bytes(size - 6) for n in range(first, min(first + 100, count))]))
        await settle()

    def numbers(self, answer: pb.QueryMessageResponse) -> list[int]:
        records = list(iter_sealed_records(answer.records))
        assert (answer.code, answer.remark, answer.count) == (0, "", len(records))
        return [int(record.body[:6]) for record in records]

    @pytest.mark.parametrize(
        ("asked", "stored", "wanted"),
        [
            (0, 40, 32),
            (1, 40, 1),
            (39, 40, 39),
            (40, 40, 40),
            (41, 40, 40),
            (2_000, 2_001, 2_000),
            (2_000, 2_000, 2_000),
        ],
    )
    async def test_the_newest_come_up_to_the_number_that_was_asked_for(
        self, asked: int, stored: int, wanted: int
    ) -> None:
        async with running_broker(
            SimDisk(), SimClock(), store=store_options(log_file_bytes=LARGE_FILE_BYTES)
        ) as broker:
            await self.with_messages(broker, stored)
            answer = await query(broker, max_messages=asked)
            assert self.numbers(answer) == list(range(stored - 1, stored - wanted - 1, -1))
            assert answer.truncated is (stored > wanted)
            assert answer.indexed_log_offset == broker.store.log_end

    async def test_an_answer_takes_no_more_bytes_than_a_pull(self) -> None:
        async with running_broker(
            SimDisk(), SimClock(), store=store_options(log_file_bytes=LARGE_FILE_BYTES)
        ) as broker:
            await self.with_messages(broker, 30, size=60_000)
            answer = await query(broker)
            assert PULL_BYTES_MAX - 61_000 < len(answer.records) <= PULL_BYTES_MAX
            assert self.numbers(answer) == list(range(29, 29 - answer.count, -1))
            assert answer.truncated

    async def test_a_message_larger_than_that_comes_alone(self) -> None:
        async with running_broker(
            SimDisk(), SimClock(), store=store_options(log_file_bytes=LARGE_FILE_BYTES)
        ) as broker:
            await produce(broker, keyed([b"000000"]))
            await produce(broker, keyed([b"000001" + bytes(PULL_BYTES_MAX)]))
            await settle()
            answer = await query(broker)
            assert (self.numbers(answer), answer.truncated) == ([1], True)

    async def test_asking_on_for_what_was_stored_earlier_finds_all(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            for number in range(20):
                await produce(broker, keyed([b"%06d" % number]))
                await clock.advance(0.001)
            found: list[int] = []
            end_ms, truncated = 0, True
            while truncated:
                answer = await query(broker, max_messages=6, end_ms=end_ms)
                found += self.numbers(answer)
                truncated = answer.truncated
                end_ms = min(one.decode().store_timestamp_ms for one in iter_sealed_records(answer.records)) - 1
            assert found == list(range(19, -1, -1))

    @pytest.mark.mechanism("Q1")
    @pytest.mark.parametrize(
        ("request_", "sentence"),
        [
            ({"key": ""}, "a query names a topic and a key"),
            ({"topic": ""}, "a query names a topic and a key"),
            ({"max_messages": -1}, "-1 messages; allowed are 1 to 2000, and 0 for the default"),
            ({"max_messages": 2_001}, "2001 messages; allowed are 1 to 2000, and 0 for the default"),
        ],
    )
    async def test_a_query_that_makes_no_sense_is_rejected_with_a_sentence(
        self, request_: dict[str, str | int], sentence: str
    ) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await self.with_messages(broker, 1)
            answer = await query(broker, **request_)  # type: ignore[arg-type]
            assert (answer.code, answer.remark, answer.records) == (common_pb2.MESSAGE_ILLEGAL, sentence, b"")

    @pytest.mark.parametrize(("begin", "end"), [(5, 4), (-(1 << 63), -1), (1 << 62, 0), ((1 << 63) - 1, 1)])
    async def test_an_empty_time_range_finds_nothing(self, begin: int, end: int) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await self.with_messages(broker, 3)
            assert self.numbers(await query(broker, begin_ms=begin, end_ms=end)) == []

    async def test_damaged_messages_are_left_out(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await self.with_messages(broker, 5)
            place = (await read_all(broker, "t"))[2].log_offset
        async with running_broker(disk, SimClock()) as broker:
            damage(disk, place)
            assert self.numbers(await query(broker)) == [4, 3, 1, 0]


async def test_what_is_not_on_disk_yet_is_not_shown_under_sync_flush() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await produce(broker, keyed([b"durable"]))
        (outcome,) = broker.producing.put([keyed([b"not yet"])])
        assert outcome.code is ResponseCode.SUCCESS
        broker.store.index.appended()
        while broker.store.index.indexed_end < broker.store.log_end:
            await broker.store.index._step()
        found = await query(broker)
        assert [record.body for record in iter_sealed_records(found.records)] == [b"durable"]
        assert not found.truncated
        answer = await view(broker, outcome.base_log_offset)
        assert answer.code == common_pb2.QUERY_NOT_FOUND
        assert answer.remark == f"the message at offset {outcome.base_log_offset} is not on disk yet"
        await broker.producing.acknowledge([outcome], broker.store.log_end)
        assert (await query(broker)).count == 2
        assert decode_record((await view(broker, outcome.base_log_offset)).record).body == b"not yet"
