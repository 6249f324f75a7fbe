"""What deleted files leave behind: queues that begin later and keep their numbers, readers that finish, no orphans."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.testing import (
    ENTRIES,
    FILE_BYTES,
    FORCED,
    IN_FILE,
    LAYOUT,
    clean,
    fill,
    numbers,
    options,
    produce,
    producer_record,
    quiet_broker,
    read_all,
    running_broker,
)
from mqproto.codes import PullStatus
from osenv import SeededRng, SimClock, SimDisk, until
from osenv.sim_clock import settle


def log_files(disk: SimDisk) -> list[int]:
    return [int(name) // FILE_BYTES for name in disk.list_dir(LAYOUT.commit_log)]


def queue_files(disk: SimDisk, topic: str = "t") -> list[int]:
    return [int(name) // 20 // ENTRIES for name in disk.list_dir(LAYOUT.consume_queue(topic, 0))]


async def pull(broker: Broker, offset: int, topic: str = "t") -> PullResult:
    query = PullQuery("g", topic, 0, offset, 32, 1 << 20, "*")
    return broker.pulling.pull_hot(query) or await broker.pulling.pull(query)


class TestQueues:
    async def test_a_queue_begins_with_its_first_message_that_is_left(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for number in range(40):
                await fill(broker, 1, "even" if number % 2 == 0 else "odd", number // 2)
            await clean(broker, clock, disk)
            left = [record for topic in ("even", "odd") for record in await read_all(broker, topic)]
            assert min(record.log_offset for record in left) == broker.store.log_begin > 0
            for topic in ("even", "odd"):
                low, high = broker.store.queue_bounds(topic, 0)
                assert await numbers(broker, topic) == list(range(low, high))
                assert (high, 0 < low < high) == (20, True)

    @pytest.mark.parametrize("offset", [0, 1, 34])
    async def test_a_pull_below_the_new_beginning_hears_where_to_go_on(self, offset: int) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 40)
            await clean(broker, clock, disk)
            assert broker.store.queue_bounds("t", 0) == (35, 40)
            result = await pull(broker, offset)
            assert result.status is PullStatus.OFFSET_ILLEGAL
            assert (result.next_begin_offset, result.min_offset, result.max_offset) == (35, 35, 40)
            assert (await pull(broker, 35)).status is PullStatus.FOUND

    async def test_between_two_deletions_a_pull_of_what_is_gone_hears_where_to_go_on(self) -> None:
        """The round lasts up to a second; a slow reader meets it in the middle."""
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 40)
        async with quiet_broker(disk, clock) as broker:
            disk.used_share = FORCED
            cleaning = asyncio.create_task(broker.retention.round())
            await settle()
            assert broker.store.log_begin > 0
            assert not cleaning.done()
            for offset in (0, 3, IN_FILE - 1):
                result = await pull(broker, offset)
                assert result.status is PullStatus.OFFSET_ILLEGAL
                assert result.next_begin_offset == result.min_offset >= IN_FILE
            await clock.advance(2)
            await cleaning

    async def test_files_of_a_queue_go_but_for_the_last(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 40)
            await fill(broker, 30, "u")
            assert queue_files(disk) == [0, 1, 2, 3]
            for _ in range(2):
                await clean(broker, clock, disk)
            assert queue_files(disk) == [3]
            assert queue_files(disk, "u") == [2]
            assert broker.store.queue_bounds("t", 0) == (40, 40)

    async def test_an_index_file_goes_with_the_last_message_that_it_knows(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for number in range(600):  # 1,200 keys, 511 a file
                record = producer_record("t", b"x" * 100, key=f"k{number}")
                await produce(broker, IncomingBatch("t", 0, 1, record))
            await settle()
            assert len(disk.list_dir(LAYOUT.index)) == 3
            while broker.store.log_begin < broker.store.log_end - FILE_BYTES:
                await clean(broker, clock, disk)
            low, high = broker.store.queue_bounds("t", 0)
            assert len(disk.list_dir(LAYOUT.index)) == 1
            found = [await found_by(broker, f"k{number}") for number in range(600)]
            assert found == [0] * low + [1] * (high - low)


async def found_by(broker: Broker, key: str) -> int:
    found = await broker.querying.by_key("t", key, max_messages=10, begin_ms=0, end_ms=0)
    return len(found.records)


@pytest.mark.parametrize("data", [bytes(8), b"\x7f" * 8, bytes(20)], ids=["too low", "too high", "zeros"])
@pytest.mark.parametrize("damaged", [7, 8, 10, 20, 30, 39])
async def test_a_damaged_entry_of_the_queue_takes_no_message_with_it(damaged: int, data: bytes) -> None:
    """The search for the first message left looks at unproven entries."""
    disk, clock = SimDisk(), SimClock()

    def one_file(call: str, path: Path) -> None:
        if call == "unlink" and path.parent == LAYOUT.commit_log:
            disk.used_share = 0.0

    async with quiet_broker(disk, clock) as broker:
        await fill(broker, 40)
    async with quiet_broker(disk, clock) as broker:
        path = LAYOUT.consume_queue("t", 0) / f"{damaged // ENTRIES * ENTRIES * 20:020d}"
        disk.open(path).pwrite(data, damaged % ENTRIES * 20)
        disk.after = one_file
        await clean(broker, clock, disk)
        assert broker.store.log_begin == FILE_BYTES
        assert await numbers(broker) == list(range(IN_FILE, 40))


class ThreadedDisk(SimDisk):
    """Blocking calls really run in threads; the first `hold_call` on `hold_at` there waits until `go_on` is set."""

    def __init__(self, hold_call: str = "pread", hold_s: float = 10.0) -> None:
        super().__init__()
        self._hold_call, self._hold_s = hold_call, hold_s
        self.hold_at: Path | None = None
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.before = self._wait

    async def offload(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(call, *args, **kwargs)

    def _wait(self, call: str, path: Path) -> None:
        if (
            call == self._hold_call
            and path == self.hold_at
            and threading.current_thread() is not threading.main_thread()
        ):
            self.hold_at = None
            self.reached.set()
            self.go_on.wait(self._hold_s)


@pytest.mark.mechanism("E3")
@pytest.mark.parametrize("at", ["log file", "queue file"])
async def test_a_cold_read_of_a_file_that_goes_meanwhile_gets_its_messages_or_the_place_to_go_on(at: str) -> None:
    disk, clock = ThreadedDisk(), SimClock()
    async with quiet_broker(disk, clock) as broker:
        await fill(broker, 15)
    async with quiet_broker(disk, clock) as broker:
        disk.hold_at = (LAYOUT.commit_log if at == "log file" else LAYOUT.consume_queue("t", 0)) / ("0" * 20)
        reading = asyncio.create_task(pull(broker, 0))
        await until(disk.reached.is_set)
        disk.used_share = FORCED
        cleaning = asyncio.create_task(broker.retention.round())
        await until(lambda: log_files(disk)[0] > 0)
        disk.go_on.set()
        result = await reading
        if result.status is PullStatus.FOUND:
            assert result.count == result.next_begin_offset > 0
        else:
            assert result.status is PullStatus.OFFSET_ILLEGAL
            assert result.next_begin_offset == result.min_offset > 0
        while not cleaning.done():
            await (clock.advance(0.1) if clock.timers else asyncio.sleep(0))
        assert await numbers(broker) == [14]


async def test_a_query_by_key_in_an_index_file_that_goes_meanwhile_answers() -> None:
    disk, clock = ThreadedDisk(), SimClock()
    async with quiet_broker(disk, clock) as broker:
        for number in range(600):
            await produce(broker, IncomingBatch("t", 0, 1, producer_record("t", b"x" * 100, key=f"k{number}")))
        await until(lambda: broker.store.index.indexed_end == broker.store.log_end)
        disk.hold_at = LAYOUT.index / disk.list_dir(LAYOUT.index)[0]
        asking = asyncio.create_task(found_by(broker, "k1"))
        await until(disk.reached.is_set)
        while len(disk.list_dir(LAYOUT.index)) > 1:
            await clean(broker, clock, disk)
        disk.go_on.set()
        assert await asking in {0, 1}


@pytest.mark.mechanism("E3")
async def test_a_deleted_file_is_closed_when_its_last_reader_has_gone() -> None:
    disk, clock = SimDisk(), SimClock()
    async with quiet_broker(disk, clock) as broker:
        await fill(broker, 15)
        first = broker.store.log.files._files[0]
        broker.store.cold_reads.running += 1  # a reader that does not end
        await clean(broker, clock, disk)
        assert len(first.pread(4, 0)) == 4
        await clock.advance(119)
        await clean(broker, clock, disk, 0.0)
        assert len(first.pread(4, 0)) == 4
        await clock.advance(1)
        await clean(broker, clock, disk, 0.0)
        with pytest.raises(OSError, match="closed"):
            first.pread(4, 0)
        broker.store.cold_reads.running -= 1


@pytest.mark.parametrize("tenths", [0, 1, 3, 5, 6, 7])
async def test_a_clean_stop_in_the_middle_of_a_round_leaves_nothing_half_done(tenths: int) -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, store=options()) as broker:
        await fill(broker, 40)
        disk.used_share = FORCED
        await clock.advance(10 + tenths / 10)
        assert broker.store.log_begin >= FILE_BYTES
        low, high = broker.store.queue_bounds("t", 0)
    async with quiet_broker(disk, clock) as broker:
        assert broker.store.queue_bounds("t", 0) == (low, high)
        assert await numbers(broker) == list(range(low, 40))
        await clean(broker, clock, disk)
        assert log_files(disk)[0] == queue_files(disk)[0] + 2 == 5


async def test_a_crash_at_any_call_of_a_round_loses_nothing_that_should_be_left() -> None:
    disk, clock, forks = SimDisk(), SimClock(), list[SimDisk]()
    async with running_broker(disk, clock, store=options(), clean_stop=False) as broker:
        await fill(broker, 40)
        await clock.advance(12)
        disk.used_share = FORCED
        disk.before = disk.after = lambda call, path: forks.append(disk.fork())
        await clock.advance(12)
        disk.before = disk.after = lambda call, path: None
        assert broker.store.queue_bounds("t", 0) == (35, 40)
    assert len(forks) > 40
    for number, fork in enumerate(forks[::3]):
        fork.kill() if number % 3 == 0 else fork.crash(SeededRng(number))
        async with quiet_broker(fork, SimClock(clock.wall_ms())) as broker:
            low, high = broker.store.queue_bounds("t", 0)
            assert low <= 35
            assert (await numbers(broker), high) == (list(range(low, 40)), 40)
            assert await fill(broker, 1) == [40]


async def test_a_log_file_that_is_needed_while_it_is_prepared_is_there_once() -> None:
    """Files are made ahead in a thread, which may take long, and a message may need one in the meantime."""
    disk = ThreadedDisk("allocate", 0.2)  # not longer: the event loop may have to wait for the thread
    async with quiet_broker(disk, SimClock()) as broker:
        await fill(broker, IN_FILE)
        disk.hold_at = LAYOUT.commit_log / f"{FILE_BYTES:020d}"
        checkpoint = asyncio.create_task(broker.store.checkpoint())
        await until(disk.reached.is_set)
        await fill(broker, IN_FILE, first=IN_FILE)
        disk.go_on.set()
        await checkpoint
        assert broker.store.log.files.starts[:2] == [0, FILE_BYTES]
        assert len(broker.store.log.files.starts) == len(log_files(disk))
        await fill(broker, IN_FILE, first=2 * IN_FILE)
    async with quiet_broker(disk, SimClock()) as broker:
        assert await numbers(broker) == list(range(3 * IN_FILE))
