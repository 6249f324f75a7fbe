"""Whatever is stored can be written again: carried over, checked, taken back, retried up to the dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mq_broker.core.batches import Batch, check_batch
from mq_broker.core.delays import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.halves import committed_batch, half_batch, parked_batch, recheck_batch
from mq_broker.core.rewrite import (
    Failure,
    deliver_record,
    recalled_batch,
    retry_batch,
    schedule_batch,
    single_record_batch,
    waiting_copy,
)
from mq_broker.processor.broker import Broker
from mq_broker.processor.recalling import NewTime
from mq_broker.testing import (
    BORN_IP,
    RecordingSession,
    client,
    half,
    incoming,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mqproto.codes import RecallOutcome, ResponseCode
from mqproto.names import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, dlq_topic, retry_topic
from mqproto.properties import (
    DELAY,
    DUE_TIMESTAMP,
    FAILED_MEMBER,
    FAILURE,
    HALF_TIMESTAMP,
    KEYS,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TRAN_MSG,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from mqproto.record import (
    CRC_BYTES,
    FLAG_TRANSACTION_PREPARED,
    Record,
    decode_record,
    encode_record,
    encoded_properties,
)
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

ALLOWED, READABLE_BY_ROCKETMQ, HELD = 32_079, 32_767, 65_535  # bytes of properties: of a producer, and of a record
LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
START_MS = 1_700_000_000_000
POSITION = (-1, (1 << 63) - 1)
OPTIONS = store_options(log_file_bytes=256 * 1024)
FORCED = 0.85


def filled(properties: dict[str, str], size: int) -> dict[str, str]:
    """The properties with one more, with which they take `size` bytes in a record."""
    return properties | {"a": "v" * (size - CRC_BYTES - len(encode_properties(properties | {"a": ""})))}


def record_of(
    topic: str, properties: dict[str, str], *, queue_id: int = 0, sys_flag: int = 0, reconsume_times: int = 0
) -> bytes:
    return encode_record(
        topic=topic.encode(), body=b"x", properties=encode_properties(properties), queue_id=queue_id,
        born_timestamp_ms=1, born_ip=BORN_IP, sys_flag=sys_flag, reconsume_times=reconsume_times,
    )  # fmt: skip


def accepted(properties: dict[str, str], *, size: int = ALLOWED, sys_flag: int = 0) -> Batch:
    """A batch of the longest record that is accepted, under the longest names."""
    topic, queue_id = "t" * 127, (1 << 31) - 1
    data = record_of(topic, filled(properties, size), queue_id=queue_id, sys_flag=sys_flag)
    return check_batch(topic, queue_id, 1, data, 1_024)


def only(batch: Batch) -> Record:
    return decode_record(bytes(batch.buffer))


def retried(record: Record, times: int = 4) -> Iterator[Batch]:
    """Every copy of a message that a group cannot consume, waits and carried copies included."""
    group = "g" * (127 - len(RETRY_PREFIX))
    for _ in range(times):
        again = retry_batch(record, group, delay_level=0, reconsume_times_max=1 << 31, retry_queue_id=(1 << 31) - 1)
        waiting = schedule_batch(again, LEVELS, START_MS)
        carried = waiting_copy(only(waiting), POSITION, START_MS)
        delivered = deliver_record(only(carried), POSITION)
        yield from (again, waiting, carried, delivered)
        record = only(delivered)
    failure = Failure("\u20ac" * 1_024, "c" * 1_024)
    yield retry_batch(record, "g" * (127 - len(DLQ_PREFIX)), delay_level=-1, reconsume_times_max=16, failure=failure)


def waited(batch: Batch) -> Iterator[Batch]:
    """Every copy of a message that waits, and is retried afterwards."""
    waiting = schedule_batch(batch, LEVELS, START_MS)
    carried = waiting_copy(only(waiting), POSITION, START_MS)
    delivered = deliver_record(only(carried), POSITION)
    yield from (waiting, carried, waiting_copy(only(carried), POSITION, START_MS), delivered)
    yield recalled_batch(only(carried), POSITION)
    yield from retried(only(delivered))


def every_copy() -> Iterator[Batch]:
    """Of each kind of longest record everything that the broker may ever write of it."""
    key = {UNIQ_KEY: "u" * 255}
    yield from retried(only(accepted(key)))
    for asked in ({DELAY: "3"}, {TIMER_DELAY_MS: "1000"}):
        yield from waited(accepted(key | asked))
    for asked in ({}, {TIMER_DELAY_MS: "1000"}):
        sent = accepted(key | {TRAN_MSG: "true", PGROUP: "p"} | asked, sys_flag=FLAG_TRANSACTION_PREPARED)
        prepared = half_batch(sent, START_MS)
        checked = recheck_batch(only(prepared), 1_000_000)
        committed = committed_batch(only(checked), (1 << 63) - 1)
        yield from (prepared, checked, parked_batch(only(checked), 1, 1_000_000), committed)
        yield from waited(committed) if committed.delayed else retried(only(committed))


def properties_bytes(batch: Batch) -> int:
    return len(encoded_properties(bytes(batch.buffer), 0, len(batch.buffer)))


def test_whatever_was_accepted_is_written_again_within_what_rocketmq_reads() -> None:
    sizes = [properties_bytes(batch) for batch in every_copy()]
    assert ALLOWED + 600 < max(sizes) <= READABLE_BY_ROCKETMQ  # and little of what is kept free is too much


@pytest.mark.parametrize("name", [UNIQ_KEY, KEYS, "own", "RETRY_TOPIC", "PGROUP"])
@pytest.mark.parametrize("size", [READABLE_BY_ROCKETMQ, 64_847, HELD])
def test_a_record_of_an_earlier_version_that_is_full_can_be_retried_and_loses_what_has_no_room_only(
    name: str, size: int
) -> None:
    properties = {"short": "kept"}
    properties |= {name: "v" * (size - CRC_BYTES - len(encode_properties(properties | {name: ""})))}
    copies = [only(batch) for batch in retried(decode_record(record_of("t", properties)))]
    for record in copies:
        left = decode_properties(record.properties)
        assert left["short"] == "kept"
        assert record.body == b"x"
        if size == READABLE_BY_ROCKETMQ:
            assert left[name] == properties[name]
    assert [one.reconsume_times for one in copies] == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5]


@pytest.mark.parametrize("times", [(1 << 31) - 1, (1 << 31) - 2, -1, -(1 << 31)])
def test_a_record_with_any_number_of_tries_reaches_the_dead_letters(times: int) -> None:
    record, tries = decode_record(record_of("t", {}, reconsume_times=times)), 0
    while (batch := retry_batch(record, "g", delay_level=0, reconsume_times_max=16)).topic != dlq_topic("g"):
        record, tries = only(batch), tries + 1
    assert tries <= 16
    assert 0 < only(batch).reconsume_times <= (1 << 31) - 1


# ------------------------------------------------------------------------------- stores of earlier versions at work


def full_waiting_record(due_ms: int) -> Batch:
    """A message that waits, as a version left it that kept no room for what its copy needs."""
    own = {UNIQ_KEY: "m", KEYS: "k", TIMER_DELAY_MS: "1", REAL_TOPIC: "t", REAL_QID: "0", DUE_TIMESTAMP: str(due_ms)}
    data = record_of("rmq_sys_wheel_timer", filled(own, READABLE_BY_ROCKETMQ))
    return single_record_batch("rmq_sys_wheel_timer", 0, data, due_ms)


def full_half(broker: Broker) -> Batch:
    own = {
        UNIQ_KEY: "tx", PGROUP: "shop", TRAN_MSG: "true", REAL_TOPIC: "t", REAL_QID: "0",
        HALF_TIMESTAMP: str(broker.time.now_ms()),
    }  # fmt: skip
    batch = single_record_batch(HALF_TOPIC, 0, record_of(HALF_TOPIC, filled(own, READABLE_BY_ROCKETMQ)), 0)
    batch.prepared = True
    return batch


async def clean(broker: Broker, clock: SimClock, disk: SimDisk) -> None:
    """Fill a file, and one round of the cleaner on a disk that is nearly full."""
    for _ in range(5):
        await produce(broker, incoming("other", [bytes(60_000)]))
    disk.used_share = FORCED
    cleaning = asyncio.create_task(broker.retention.round())
    await settle()
    while not cleaning.done():
        await clock.advance(0.1)
    disk.used_share = 0.0
    await settle()


async def test_files_go_although_messages_wait_whose_copies_have_no_room_to_spare() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, store=OPTIONS) as broker:
        broker.topics.ensure_for_arrival("t", 0)
        due_ms = broker.time.now_ms() + 3_600_000
        prepared = full_half(broker)
        broker.store.put([full_waiting_record(due_ms), prepared], broker.time.stamp_ms())
        broker.transactions.copies.prepared(prepared)
        await clean(broker, clock, disk)
        assert broker.store.log_begin > 0
        assert broker.store.gate.blocked_by == ""
        await clock.advance(3_600)
        (record,) = await read_all(broker, "t")
        assert len(decode_properties(record.properties)["a"]) > 32_000
        assert broker.transactions.table.open_half("tx") is not None


async def test_a_half_whose_copy_has_no_room_to_spare_is_checked() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock, store=OPTIONS) as broker:
        prepared, session = full_half(broker), RecordingSession()
        broker.store.put([prepared], broker.time.stamp_ms())
        broker.transactions.copies.prepared(prepared)
        broker.sessions.heartbeat(session, client("client", producer="shop"))
        await clock.advance(120)
        assert [(group, id_) for group, id_, _ in session.checks][:1] == [("shop", "tx")]


async def test_a_message_without_room_to_spare_can_wait_for_another_time() -> None:
    async with running_broker(SimDisk(), SimClock(), store=OPTIONS) as broker:
        broker.topics.ensure_for_arrival("t", 0)
        broker.store.put([full_waiting_record(broker.time.now_ms() + 3_600_000)], broker.time.stamp_ms())
        answer = await broker.recalling.recall("t", "k", NewTime(delay_ms=60_000))
        assert [one.outcome for one in answer.messages] == [RecallOutcome.RESCHEDULED]


async def test_a_full_message_that_is_never_consumed_becomes_a_dead_letter() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock, store=OPTIONS) as broker:
        broker.topics.ensure_for_arrival("t", 0)
        data = record_of("t", filled({UNIQ_KEY: "m"}, READABLE_BY_ROCKETMQ))
        broker.store.put([single_record_batch("t", 0, data, 0)], broker.time.stamp_ms())
        await broker.store.wait_stored(broker.store.log_end)
        (record,) = await read_all(broker, "t")
        for tries in range(3):
            code, remark, _ = await broker.send_back.send_back(
                "g", record.log_offset, delay_level=1, max_reconsume_times=2
            )
            assert code is ResponseCode.SUCCESS, remark
            await clock.advance(2)
            if tries < 2:
                *_, record = await read_all(broker, retry_topic("g"))
        (dead,) = await read_all(broker, dlq_topic("g"))
        assert decode_properties(dead.properties)["a"] == decode_properties(decode_record(data).properties)["a"]


async def test_what_one_carrier_cannot_keep_keeps_its_file_and_stops_nothing_else() -> None:
    disk, clock, carried = SimDisk(), SimClock(), list[int]()

    async def fails(log_offset: int) -> int:
        raise ValueError(f"what stands below {log_offset} cannot be written again")

    async def carries(log_offset: int) -> int:
        carried.append(log_offset)
        return 1

    async with running_broker(disk, clock, store=OPTIONS) as broker:
        broker.retention.carriers = (fails, carries)
        await clean(broker, clock, disk)
        assert carried
        assert broker.store.log_begin == 0
        assert "cannot be written again" in broker.store.gate.blocked_by
        broker.retention.carriers = (carries,)
        await clean(broker, clock, disk)
        assert broker.store.log_begin > 0
        await produce(broker, half("t", b"x", "tx"))


@pytest.mark.parametrize(("size", "kept"), [(200, 1_024), (ALLOWED, 110), (READABLE_BY_ROCKETMQ, 0)])
def test_a_dead_letter_keeps_as_much_of_its_failure_as_it_has_room_for(size: int, kept: int) -> None:
    record = decode_record(record_of("orders", filled({}, size)))
    failure = Failure("x" * 1_024, "10.0.0.1@7\x01\x02")
    letter = only(retry_batch(record, "g", delay_level=-1, reconsume_times_max=16, failure=failure))
    properties = decode_properties(letter.properties)
    assert len(properties.get(FAILURE, "")) == kept
    assert properties.get(FAILED_MEMBER, "10.0.0.1@7??") == "10.0.0.1@7??"
    again = only(retry_batch(record, "g", delay_level=0, reconsume_times_max=16, failure=failure))
    assert FAILURE not in decode_properties(again.properties)
