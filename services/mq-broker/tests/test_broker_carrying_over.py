"""What still waits in a file that has to go is written again first, and comes in time, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mq_broker.core.limits import RetentionOptions
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.store.layout import StoreLayout
from mq_broker.store.retention import ROUND_INTERVAL_S
from mq_broker.testing import (
    BORN_IP,
    FORCED,
    STORE_ROOT,
    RecordingSession,
    clean,
    client,
    fill,
    flush_and_deliver,
    half,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mqproto.names import SCHEDULE_TOPIC, TIMER_TOPIC
from mqproto.properties import DELAY, KEYS, TAGS, UNIQ_KEY, decode_properties, encode_properties
from mqproto.record import Record, encode_record
from osenv import SeededRng, SimClock, SimDisk
from osenv.sim_clock import settle

FILE_BYTES = 4_096
MINUTE_S = 60
LEVEL_S = {5: 60, 9: 300, 14: 600, 16: 1_800, 18: 7_200}
LAYOUT = StoreLayout(STORE_ROOT)


def delayed(body: bytes, level: int, *, topic: str = "t", queue_id: int = 0) -> IncomingBatch:
    """A message with everything that a user can give it."""
    properties = {UNIQ_KEY: f"id-{body.decode()}", KEYS: "a b", TAGS: "late", "own": "ключ", DELAY: str(level)}
    record = encode_record(
        topic=topic.encode(),
        body=body,
        properties=encode_properties(properties),
        queue_id=queue_id,
        born_timestamp_ms=77,
        born_ip=BORN_IP,
        born_port=1_234,
        flag=5,
        reconsume_times=2,
    )
    return IncomingBatch(topic, queue_id, 1, record)


@asynccontextmanager
async def quiet_broker(
    disk: SimDisk, clock: SimClock, *, clean_stop: bool = True, log_file_bytes: int = FILE_BYTES
) -> AsyncIterator[Broker]:
    """A broker that flushes and delivers, and cleans only when the test says so."""
    store = store_options(log_file_bytes=log_file_bytes)
    async with running_broker(disk, clock, store=store, clean_stop=clean_stop, work=flush_and_deliver) as broker:
        await settle()
        yield broker


async def clean_below(broker: Broker, clock: SimClock, disk: SimDisk, log_offset: int) -> None:
    """Rounds until everything that was written below this place is gone."""
    while broker.store.log_begin < log_offset:
        await fill(broker, 1, "other")
        await clean(broker, clock, disk)


async def bodies(broker: Broker, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in await read_all(broker, topic, queue_id)]


def essence(record: Record) -> tuple[object, ...]:
    """What two messages of `delayed` have in common."""
    properties = decode_properties(record.properties)
    own = {name: properties.get(name) for name in (KEYS, TAGS, "own", DELAY)}
    return record.flag, record.born_timestamp_ms, record.born_host, record.reconsume_times, own


EXPIRED_AT_ONCE = RetentionOptions(reserved_hours=0, delete_hours=frozenset(range(24)))


class TestDelayed:
    async def test_a_carried_message_arrives_at_its_due_time_as_it_was_sent(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await produce(broker, delayed(b"direct", 16, topic="d"), delayed(b"carried", 16, queue_id=2))
            await produce(broker, delayed(b"soon", 1, topic="d"))
            await clock.advance(1)
            sent_ms = broker.time.now_ms() - 1_000
            (soon,) = await read_all(broker, "d")
            await fill(broker, 8, "other")
            await clean_below(broker, clock, disk, FILE_BYTES)
            assert broker.retention.carried == 2
            await clock.advance((sent_ms + 1_800_000 - broker.time.now_ms()) / 1_000 - 0.001)
            assert await bodies(broker, queue_id=2) == []
            await clock.advance(0.001)
            (record,) = await read_all(broker, "t", 2, "late")
            assert essence(record) == essence(soon)
            assert (record.body, decode_properties(record.properties)[UNIQ_KEY]) == (b"carried", "id-carried")
            await clock.advance(7_200)
            assert len(await read_all(broker, "t", 2)) == 1

    async def test_levels_come_in_the_order_of_their_due_times_each_once(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            began = clock.monotonic()
            for level in (18, 16, 5, 14, 9):
                await produce(broker, delayed(b"first %d" % level, level))
                await produce(broker, delayed(b"second %d" % level, level))
            await fill(broker, 8, "other")
            await clean_below(broker, clock, disk, FILE_BYTES)
            wanted: list[bytes] = []
            for level, delay_s in LEVEL_S.items():
                await clock.advance(began + delay_s - clock.monotonic() - 0.001)
                assert await bodies(broker) == wanted
                wanted += [b"first %d" % level, b"second %d" % level]
                await clock.advance(0.001)
                assert await bodies(broker) == wanted

    async def test_what_stays_in_its_file_and_what_was_carried_come_in_turn(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await produce(broker, delayed(b"carried", 16))
            await fill(broker, 8, "other")
            await clock.advance(MINUTE_S)
            await produce(broker, delayed(b"stays", 16))
            await clean_below(broker, clock, disk, FILE_BYTES)
            assert (broker.retention.carried, broker.delay.waiting(16)) == (1, 1)
            await clock.advance(1_800 - MINUTE_S)
            assert await bodies(broker) == [b"carried"]
            await clock.advance(MINUTE_S)
            assert await bodies(broker) == [b"carried", b"stays"]

    @pytest.mark.parametrize("times", [2, 5])
    async def test_a_message_can_be_carried_again_and_again(self, times: int) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await produce(broker, delayed(b"later", 18), delayed(b"sooner", 16))
            for _ in range(times):
                await fill(broker, 8, "other")
                await clean_below(broker, clock, disk, broker.store.log_end // FILE_BYTES * FILE_BYTES)
            assert broker.retention.carried >= 2 * times
            await clock.advance(1_800)
            assert await bodies(broker) == [b"sooner"]
            await clock.advance(7_200)
            assert await bodies(broker) == [b"sooner", b"later"]

    async def test_what_is_due_already_but_could_not_be_delivered_is_carried_and_comes(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await produce(broker, delayed(b"it", 1))
            await fill(broker, 8, "other")
            broker.store.gate.measured(0.95)  # deliveries are rejected from now on
            await clock.advance(5)
            assert await bodies(broker) == []
            await clean(broker, clock, disk, 0.95)
            assert broker.store.log_begin > 0
            broker.store.gate.measured(0.5)
            await clock.advance(10)
            assert await bodies(broker) == [b"it"]

    async def test_more_than_a_log_file_takes_is_carried_all_the_same(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for number in range(200):
                await produce(broker, delayed(b"%d" % number, 14 + 2 * (number % 2)))
                await clock.advance(0.001)
            end = broker.store.log_end
            broker.store.gate.options = EXPIRED_AT_ONCE
            for _ in range(100):
                if broker.store.log_begin < end:
                    await clean(broker, clock, disk, 0.0)
            assert broker.store.log_begin >= end
            await clock.advance(1_800)
            found = await bodies(broker)
            assert found[:100] == [b"%d" % number for number in range(0, 200, 2)]
            assert found[100:] == [b"%d" % number for number in range(1, 200, 2)]

    async def test_on_a_full_disk_nothing_is_carried_when_that_frees_nothing(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for number in range(60):
                await produce(broker, delayed(b"%d" % number, 16))
            end = broker.store.log_end
            assert end > 3 * FILE_BYTES
            for _ in range(12):
                await clean(broker, clock, disk)
                await clock.advance(ROUND_INTERVAL_S)
            assert (broker.retention.carried, broker.store.log_begin, broker.store.log_end) == (0, 0, end)
            await clock.advance(1_800)
            assert await bodies(broker) == [b"%d" % number for number in range(60)]
            await clean(broker, clock, disk)
            assert broker.store.log_begin > 2 * FILE_BYTES  # they have left it

    async def test_on_a_full_disk_a_file_that_waits_goes_when_enough_others_go_with_it(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            number = 0
            while broker.store.log_end < FILE_BYTES:
                await produce(broker, delayed(b"%d" % number, 16), half("t", b"order", f"tx-{number}"))
                number += 1
            await fill(broker, 40, "other")
            written = 0
            for _ in range(5):
                end = broker.store.log_end
                await clean(broker, clock, disk)
                written += broker.store.log_end - end
                await clock.advance(ROUND_INTERVAL_S)
            assert 0 < written < broker.store.log_begin  # bytes: less than was deleted
            assert broker.retention.carried == 2 * number  # each of them once
            await clock.advance(1_800)
            assert await bodies(broker) == [b"%d" % one for one in range(number)]

    async def test_rounds_that_are_called_at_once_lose_nothing(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for number in range(4):
                await produce(broker, delayed(b"%d" % number, 16))
                await fill(broker, 8, "other")
            disk.used_share = FORCED
            rounds = [asyncio.create_task(broker.retention.round()) for _ in range(3)]
            await clock.advance(5)
            await asyncio.gather(*rounds)
            assert broker.store.log_begin >= 3 * FILE_BYTES
            await clock.advance(1_800)
            assert await bodies(broker) == [b"%d" % number for number in range(4)]

    async def test_more_than_a_log_file_takes_is_delivered_all_the_same(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for number in range(40):
                await produce(broker, delayed(b"%d" % number, 1))
            await clock.advance(60)
            assert await bodies(broker) == [b"%d" % number for number in range(40)]

    @pytest.mark.parametrize("data", [bytes(8), b"\x7f" * 8, bytes(20)], ids=["too low", "too high", "zeros"])
    @pytest.mark.parametrize("damaged", [0, 1, 2])
    async def test_a_damaged_entry_keeps_no_message_from_being_carried(self, damaged: int, data: bytes) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for number in range(3):
                await produce(broker, delayed(b"%d" % number, 16))
            await fill(broker, 8, "other")
        async with quiet_broker(disk, clock) as broker:
            disk.open(LAYOUT.consume_queue(SCHEDULE_TOPIC, 15) / ("0" * 20)).pwrite(data, damaged * 20)
            await clean_below(broker, clock, disk, FILE_BYTES)
            await clock.advance(1_800)
            assert await bodies(broker) == [b"0", b"1", b"2"]

    @pytest.mark.parametrize("data", [bytes(8), b"\x7f" * 8, bytes(20)], ids=["too low", "too high", "zeros"])
    @pytest.mark.parametrize("damaged", [0, 1, 2])
    async def test_a_damaged_entry_keeps_no_message_from_being_carried_again(self, damaged: int, data: bytes) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for number in range(3):
                await produce(broker, delayed(b"%d" % number, 16))
            await fill(broker, 8, "other")
            await clean_below(broker, clock, disk, FILE_BYTES)
        async with quiet_broker(disk, clock) as broker:
            disk.open(LAYOUT.consume_queue(TIMER_TOPIC, 0) / ("0" * 20)).pwrite(data, damaged * 20)
            await clean_below(broker, clock, disk, broker.store.log_end // FILE_BYTES * FILE_BYTES + FILE_BYTES)
            await clock.advance(1_800)
            assert await bodies(broker) == [b"0", b"1", b"2"]

    async def test_damaged_messages_keep_no_other_from_being_carried_again(self) -> None:
        disk, clock, lost = SimDisk(), SimClock(), 70  # more than are carried with one write
        large = 65_536
        async with quiet_broker(disk, clock, log_file_bytes=large) as broker:
            for number in range(lost + 5):
                await produce(broker, delayed(b"%d" % number, 16))
            await fill(broker, 80, "other")
            await clean_below(broker, clock, disk, large)
            waiting = {record.body: record for record in await read_all(broker, TIMER_TOPIC)}
        async with quiet_broker(disk, clock, log_file_bytes=large) as broker:
            for number in range(lost):
                at = waiting[b"%d" % number].log_offset
                disk.open(LAYOUT.commit_log / f"{large:020d}").pwrite(b"\xff" * 8, at % large + 60)
            await fill(broker, 80, "other")
            await clean_below(broker, clock, disk, 2 * large)
            await clock.advance(1_800)
            assert await bodies(broker) == [b"%d" % number for number in range(lost, lost + 5)]


class TestHalves:
    COMMIT, ROLL_BACK = TransactionState.COMMIT_MESSAGE, TransactionState.ROLLBACK_MESSAGE

    async def end(self, broker: Broker, id_: str, state: TransactionState) -> TransactionState:
        return (await broker.transactions.end("shop", id_, state, from_check=False)).outcome

    @pytest.mark.parametrize("restart", ["none", "clean", "kill", "power cut"])
    async def test_open_halves_can_be_ended_after_their_file_has_gone(self, restart: str) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock, clean_stop=restart in {"none", "clean"}) as broker:
            for number in range(4):
                await produce(broker, half("t", b"order %d" % number, f"tx-{number}"))
            await self.end(broker, "tx-0", self.COMMIT)
            await fill(broker, 8, "other")
            await clean_below(broker, clock, disk, FILE_BYTES)
            assert broker.retention.carried == 3
        if restart == "kill":
            disk.kill()
        elif restart == "power cut":
            disk.crash(SeededRng(1))
        async with quiet_broker(disk, clock) as broker:
            assert [one.transaction_id for one in broker.transaction_table.all_open()] == ["tx-1", "tx-2", "tx-3"]
            assert await self.end(broker, "tx-1", self.COMMIT) is self.COMMIT
            assert await self.end(broker, "tx-2", self.ROLL_BACK) is self.ROLL_BACK
            assert await self.end(broker, "tx-1", self.ROLL_BACK) is self.COMMIT
            assert (await bodies(broker))[-1] == b"order 1"
            await fill(broker, 8, "other")
            await clean_below(broker, clock, disk, 2 * FILE_BYTES)
            assert await self.end(broker, "tx-3", self.COMMIT) is self.COMMIT
            assert (await bodies(broker))[-1] == b"order 3"

    async def test_a_half_that_is_committed_after_a_crash_is_readable_although_its_topic_was_new(self) -> None:
        """A kill before topics.json was written: the log names the topic only in the half's properties."""
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock, clean_stop=False) as broker:
            await produce(broker, half("new", b"order", "tx"))
        disk.kill()
        for _ in range(2):
            async with quiet_broker(disk, clock) as broker:
                assert await self.end(broker, "tx", self.COMMIT) is self.COMMIT
                assert await bodies(broker, "new") == [b"order"]

    async def test_a_carried_half_is_checked_and_keeps_its_age_and_its_count(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await produce(broker, half("t", b"order", "tx"))
            before = broker.transaction_table.all_open()[0]
            broker.transaction_table.counted("tx")
            await fill(broker, 8, "other")
            await clean_below(broker, clock, disk, FILE_BYTES)
            (after,) = broker.transaction_table.all_open()
            assert (after.first_store_ms, after.check_times) == (before.first_store_ms, 1)
            assert after.log_offset > before.log_offset
            session = RecordingSession()
            broker.sessions.heartbeat(session, client("a", producer="shop"))
            checking = asyncio.create_task(broker.transactions.checks.run())
            await clock.advance(61)
            checking.cancel()
            ((group, id_, record),) = session.checks
            assert (group, id_, record.body) == ("shop", "tx", b"order")

    async def test_a_damaged_half_stops_neither_the_cleaner_nor_the_others(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for number in range(3):
                await produce(broker, half("t", b"order %d" % number, f"tx-{number}"))
            await fill(broker, 8, "other")
        async with quiet_broker(disk, clock) as broker:
            lost = broker.transaction_table.all_open()[1]
            disk.open(LAYOUT.commit_log / ("0" * 20)).pwrite(b"\xff\xff", lost.log_offset + 90)
            await clean_below(broker, clock, disk, FILE_BYTES)
            for id_ in ("tx-0", "tx-2"):
                assert await self.end(broker, id_, self.COMMIT) is self.COMMIT
            assert await bodies(broker) == [b"order 0", b"order 2"]
            assert lost.log_offset in dict(broker.store.quarantine)
