"""The timer's files lost or damaged, its queue damaged, restarts of every kind: nothing comes twice, late or never."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mq_broker.core.batches import CQ_ENTRY, Batch
from mq_broker.core.rewrite import rewrite, single_record_batch
from mq_broker.core.topics import CARRIED, TIMER
from mq_broker.processor.broker import Broker
from mq_broker.schedule import timer_index
from mq_broker.schedule.timer_index import TimerIndex
from mq_broker.store.layout import StoreLayout
from mq_broker.store.state_files import encode_document
from mq_broker.testing import (
    STORE_ROOT,
    bodies,
    delivering_broker,
    flush_and_index,
    incoming,
    produce,
    read_all,
    running_broker,
    timed,
)
from mqproto.names import CARRIED_TOPIC, TIMER_TOPIC
from mqproto.properties import DUE_TIMESTAMP, REAL_QID, REAL_TOPIC, SCHEDULE_POSITION, decode_properties
from mqproto.record import Record
from osenv import SeededRng, SimClock, SimDisk
from osenv.disk import read_file, replace_file
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
LAYOUT = StoreLayout(STORE_ROOT)
TIMER_QUEUE_FILE = LAYOUT.consume_queue(TIMER_TOPIC, 0) / ("0" * 20)
COUNT = 700  # keys fill more than one block of a run
BLOCK = 4_096


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index writes nearly everything into runs."""
    monkeypatch.setattr(timer_index, "CHANGES_MAX", 100)
    assert TimerIndex.__init__.__kwdefaults__
    monkeypatch.setitem(TimerIndex.__init__.__kwdefaults__, "keys_in_memory", 16)


async def send_many(broker: Broker, count: int = COUNT) -> list[bytes]:
    """One each 10 ms from 10 s on, sent in another order; returns them in the order of their due times."""
    order = list(range(count))
    SeededRng(1).shuffle(order)
    for number in order:
        await produce(broker, timed("t", b"%d" % number, deliver_ms=START_MS + 10_000 + 10 * number))
    await settle()
    return [b"%d" % number for number in range(count)]


def runs_of(disk: SimDisk) -> list[Path]:
    return sorted(path for path in disk.contents() if path.parent == LAYOUT.timer and path.name.isdigit())


def damage_blocks(disk: SimDisk, path: Path) -> None:
    for at in range(100, len(disk.contents()[path]), BLOCK):
        disk.open(path).pwrite(b"\xff\x00\xff", at)


class TestDamagedRuns:
    @pytest.mark.usefixtures("small_memory")
    async def test_runs_damaged_while_running_are_built_anew_and_every_message_comes_in_time(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock) as broker:
            wanted = await send_many(broker)
            before = runs_of(disk)
            assert before
            for path in before:
                damage_blocks(disk, path)
            await clock.advance(20)
            assert broker.delay.delivery.lateness(TIMER).max_ms == 0
            assert await bodies(broker) == wanted
            assert not {*before} & {*runs_of(disk)}

    @pytest.mark.usefixtures("small_memory")
    @pytest.mark.parametrize("clean_stop", [True, False])
    @pytest.mark.parametrize("loss", ["folder", "manifest", "run", "damaged manifest", "damaged runs", "foreign"])
    async def test_files_lost_or_damaged_before_a_start_are_built_anew(self, loss: str, clean_stop: bool) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock, clean_stop=clean_stop) as broker:
            wanted = await send_many(broker)
            await clock.advance(12)
            assert len(await bodies(broker)) == 201
        disk.kill()
        if loss == "folder":
            disk.remove_tree(LAYOUT.timer)
        elif loss == "manifest":
            disk.remove_tree(LAYOUT.timer / "runs.json")
        elif loss == "run":
            disk.remove_tree(runs_of(disk)[-1])
        elif loss == "damaged manifest":
            disk.open(LAYOUT.timer / "runs.json").pwrite(b"7", 30)
        elif loss == "damaged runs":
            for path in runs_of(disk):
                damage_blocks(disk, path)
        else:
            disk.open(LAYOUT.timer / "0000009999", create=True).pwrite(bytes(BLOCK), 0)
        async with delivering_broker(disk, clock) as broker:
            await clock.advance(8)
            assert await bodies(broker) == wanted
            assert broker.delay.delivery.lateness(TIMER).max_ms == 0


class TestDamagedQueue:
    """What the index has to be told by a consume queue that lies."""

    @pytest.mark.parametrize(
        "due_ms", [0, START_MS + 11_000, START_MS + 13_000, START_MS * 2, (1 << 63) - 1, -1], ids=lambda ms: f"due {ms}"
    )
    async def test_an_entry_with_another_due_time_makes_no_message_early_or_late(self, due_ms: int) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock) as broker:
            for number in range(3):
                await produce(broker, timed("t", b"%d" % number, delay_ms=12_000))
        disk.remove_tree(LAYOUT.timer)
        disk.open(TIMER_QUEUE_FILE).pwrite(due_ms.to_bytes(8, "big", signed=True), CQ_ENTRY.size + 12)
        async with delivering_broker(disk, clock) as broker:
            await clock.advance(11.999)
            assert await bodies(broker) == []
            await clock.advance(0.001)
            assert await bodies(broker) == [b"0", b"1", b"2"]

    @pytest.mark.parametrize("data", [bytes(12), b"\x7f" * 12], ids=["zeros", "too high"])
    @pytest.mark.parametrize("damaged", [0, 1, 2])
    @pytest.mark.parametrize("index_is_lost", [True, False])
    async def test_an_entry_that_points_elsewhere_keeps_no_message_back(
        self, index_is_lost: bool, damaged: int, data: bytes
    ) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock) as broker:
            for number in range(3):
                await produce(broker, timed("t", b"%d" % number, delay_ms=12_000))
        if index_is_lost:
            disk.remove_tree(LAYOUT.timer)
        disk.open(TIMER_QUEUE_FILE).pwrite(data, CQ_ENTRY.size * damaged)
        async with delivering_broker(disk, clock) as broker:
            await clock.advance(12)
            assert await bodies(broker) == [b"0", b"1", b"2"]

    async def test_a_record_lost_to_damage_keeps_no_other_back_and_counts_no_more(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock) as broker:
            for number in range(3):
                await produce(broker, timed("t", b"%d" % number, delay_ms=12_000))
            _, lost, _ = await read_all(broker, TIMER_TOPIC)
        disk.open(LAYOUT.commit_log / ("0" * 20)).pwrite(b"\xff" * 4, lost.log_offset + 90)
        async with delivering_broker(disk, clock) as broker:
            await clock.advance(12)
            assert await bodies(broker) == [b"0", b"2"]
            assert broker.delay.waiting(TIMER) == 0
            assert lost.log_offset in dict(broker.store.quarantine)


class TestRestarts:
    @pytest.mark.usefixtures("small_memory")
    @pytest.mark.parametrize("stop", ["clean", "kill", "power cut"])
    async def test_a_restart_at_any_time_delivers_everything_once_and_in_time(self, stop: str) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        wanted: list[bytes] = []
        for number in range(6):
            async with delivering_broker(disk, clock, clean_stop=stop == "clean") as broker:
                wanted = wanted or await send_many(broker)
                await clock.advance(3.005)
                assert broker.delay.delivery.lateness(TIMER).max_ms == 0
            if stop == "power cut":
                disk.crash(SeededRng(number))
            elif stop == "kill":
                disk.kill()
        async with delivering_broker(disk, clock) as broker:
            assert await bodies(broker) == wanted
            assert broker.delay.waiting(TIMER) == 0

    @pytest.mark.usefixtures("small_memory")
    async def test_after_a_clean_stop_nothing_of_the_queue_is_read_again(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock) as broker:
            await send_many(broker)
        async with running_broker(disk, clock, work=flush_and_index) as broker:
            assert broker.delay.timer_index.covered == COUNT
            assert broker.delay.timer.next_due_ms == START_MS + 10_000
            reads: list[Path] = []
            disk.before = lambda call, path: reads.append(path) if call == "pread" else None
            await broker.delay.timer.step()
            assert TIMER_QUEUE_FILE.parent not in {path.parent for path in reads}

    async def test_what_came_due_while_the_broker_was_away_comes_at_once_and_in_order(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock, clean_stop=False) as broker:
            for number in range(20):
                await produce(broker, timed("t", b"%d" % number, delay_ms=5_000 - 100 * number))
        disk.kill()
        await clock.advance(60)
        async with delivering_broker(disk, clock) as broker:
            await settle()
            assert await bodies(broker) == [b"%d" % number for number in reversed(range(20))]
            assert broker.delay.delivery.lateness(TIMER).max_ms == 60_000 - 3_100

    async def test_a_disk_that_rejects_the_delivery_is_asked_again_after_10_s(self) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock) as broker:
            await produce(broker, timed("t", b"x", delay_ms=1_000))

            def reject(call: str, path: Path) -> None:
                if call == "pwrite":
                    raise OSError(errno.ENOSPC, "no space left")

            disk.before = reject
            await clock.advance(1.5)
            disk.before = lambda call, path: None
            await clock.advance(9.499)
            assert await bodies(broker) == []
            await clock.advance(0.001)
            assert await bodies(broker) == [b"x"]


class TestEarlierVersions:
    """SCHEDULE_TOPIC_CARRIED is where earlier versions kept what was carried over."""

    async def old_store(self, disk: SimDisk, clock: SimClock, done: dict[str, object]) -> None:
        """Four carried messages, and what the old delayOffset.json said of them."""
        async with running_broker(disk, clock, work=flush_and_index) as broker:
            await produce(broker, incoming("other", [b"%d" % number for number in range(4)]))
            for number, record in enumerate(await read_all(broker, "other")):
                broker.store.put([_carried(record, number)], broker.time.stamp_ms())
        path = LAYOUT.config / "delayOffset.json"
        document = {"dataVersion": {"counter": 9}, "offsetTable": {"16": 4}, "carried": done}
        log_offset = broker.store.log_end
        replace_file(disk, path, encode_document(document, log_offset))

    @pytest.mark.parametrize(
        ("done", "wanted"),
        [
            ({"next": 0, "ahead": []}, [b"0", b"1", b"2", b"3"]),
            ({"next": 1, "ahead": []}, [b"1", b"2", b"3"]),
            ({"next": 1, "ahead": [2]}, [b"1", b"3"]),
            ({"next": 4, "ahead": []}, []),
        ],
    )
    async def test_what_an_earlier_version_has_carried_over_comes_at_its_time_and_once(
        self, done: dict[str, object], wanted: list[bytes]
    ) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        await self.old_store(disk, clock, done)
        for clean_stop in (False, True):
            async with delivering_broker(disk, clock, clean_stop=clean_stop) as broker:
                assert (broker.delay.waiting(CARRIED), broker.delay.waiting(TIMER)) == (0, len(wanted))
                assert broker.delay_progress.next_offset(16) == 4
            disk.kill()
        async with delivering_broker(disk, clock) as broker:
            await clock.advance(59.999)
            assert await bodies(broker) == []
            await clock.advance(0.001 + 0.003)
            assert await bodies(broker) == wanted
        assert b"carried" not in read_file(disk, LAYOUT.config / "delayOffset.json")


def _carried(record: Record, number: int) -> Batch:
    due_ms = START_MS + 60_000 + number
    own = {REAL_TOPIC: "t", REAL_QID: "0", DUE_TIMESTAMP: str(due_ms), SCHEDULE_POSITION: f"16:{number}"}
    data = rewrite(record, CARRIED_TOPIC, 0, decode_properties(record.properties) | own, 0)
    return single_record_batch(CARRIED_TOPIC, 0, data, due_ms)
