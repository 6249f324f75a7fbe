"""The store: what is put is there, what was acknowledged survives, what was not is whole or absent."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.pulling import parse_tag_expression
from mq_broker.processor.broker import Broker
from mq_broker.store.durability import encode_slot
from mq_broker.store.errors import StoreLockedError
from mq_broker.store.layout import Checkpoint, StoreLayout
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import (
    LOG_FILE_BYTES,
    QUEUE_FILE_ENTRIES,
    STORE_ROOT,
    broker_options,
    incoming,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mqproto.codes import ResponseCode
from mqproto.record import iter_records
from osenv import RealDisk, SeededRng, SimClock, SimDisk
from osenv.disk import read_file

LAYOUT = StoreLayout(STORE_ROOT)


def bodies(count: int, size: int = 100, first: int = 0) -> list[bytes]:
    return [b"%06d" % number + bytes(size - 6) for number in range(first, first + count)]


async def stored_bodies(broker: Broker, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in await read_all(broker, topic, queue_id)]


async def test_a_batch_gets_consecutive_offsets_and_comes_back_byte_for_byte() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        first, second = await produce(broker, incoming("t", bodies(3)), incoming("t", bodies(2, first=3)))
        assert (first.base_queue_offset, second.base_queue_offset) == (0, 3)
        assert second.base_log_offset > first.base_log_offset
        records = await read_all(broker, "t")
        assert [record.body for record in records] == bodies(5)
        assert [record.queue_offset for record in records] == list(range(5))
        assert records[3].log_offset == second.base_log_offset


@pytest.mark.mechanism("S2")
async def test_the_log_rolls_over_to_the_next_file_with_a_blank_and_queues_to_theirs() -> None:
    disk = SimDisk()
    wanted = bodies(250, size=1_000)
    async with running_broker(disk, SimClock()) as broker:
        for at in range(0, len(wanted), 10):
            await produce(broker, incoming("t", wanted[at : at + 10]))
        assert await stored_bodies(broker) == wanted
    names = disk.list_dir(LAYOUT.commit_log)
    assert names[:2] == ["0" * 20, f"{LOG_FILE_BYTES:020d}"]
    assert len(names) >= 5
    queue_files = disk.list_dir(LAYOUT.consume_queue("t", 0))
    assert queue_files == [f"{k * QUEUE_FILE_ENTRIES * 20:020d}" for k in range(3)]
    async with running_broker(disk, SimClock()) as broker:
        assert await stored_bodies(broker) == wanted


async def test_a_batch_longer_than_a_file_is_rejected_and_the_next_one_is_stored() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        (outcome,) = await produce(broker, incoming("t", [bytes(LOG_FILE_BYTES)]))
        assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
        (outcome,) = await produce(broker, incoming("t", [b"fits"]))
        assert outcome.code is ResponseCode.SUCCESS
        assert await stored_bodies(broker) == [b"fits"]


async def test_batches_that_together_are_longer_than_a_file_are_all_stored() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        halves = [incoming("t", [b"%d" % k + bytes(40_000)], queue_id=k) for k in range(3)]
        assert [outcome.code for outcome in await produce(broker, *halves)] == [ResponseCode.SUCCESS] * 3


@pytest.mark.mechanism("S10")
async def test_under_sync_flush_what_is_not_on_disk_cannot_be_read() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        outcomes = broker.producing.put([incoming("t", bodies(3))])
        assert await stored_bodies(broker) == []
        await broker.producing.acknowledge(outcomes, broker.store.log_end)
        assert await stored_bodies(broker) == bodies(3)


@pytest.mark.mechanism("S11")
async def test_one_sync_covers_everything_appended_while_the_one_before_ran() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        before = broker.store.flusher.syncs
        await asyncio.gather(*(produce(broker, incoming("t", bodies(1, first=k))) for k in range(50)))
        assert broker.store.flusher.syncs - before == 1
        assert await stored_bodies(broker) == bodies(50)


@pytest.mark.mechanism("S11")
async def test_under_async_flush_the_sync_comes_after_200_ms() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock, store=store_options(flush=FlushDiskType.ASYNC_FLUSH)) as broker:
        await produce(broker, incoming("t", bodies(3)))
        assert await stored_bodies(broker) == bodies(3)
        await clock.advance(0.199)
        assert broker.store.flusher.durable_end == 0
        await clock.advance(0.001)
        assert broker.store.flusher.durable_end == broker.store.log_end


@pytest.mark.mechanism("S9")
async def test_cold_reads_come_from_disk() -> None:
    disk = SimDisk()
    async with running_broker(disk, SimClock()) as broker:
        await produce(broker, incoming("t", bodies(5)))
    async with running_broker(disk, SimClock()) as broker:
        queue = broker.store.queue("t", 0)
        assert queue is not None
        everything = parse_tag_expression("*")
        assert broker.store.reader.select_hot(queue, 0, everything, max_messages=5, max_bytes=1_000) is None
        assert await stored_bodies(broker) == bodies(5)


@pytest.mark.mechanism("S9")
async def test_what_several_frames_have_brought_is_read_from_memory_in_one() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        for number in range(5):
            await produce(broker, incoming("t", bodies(3, first=3 * number)))
        queue = broker.store.queue("t", 0)
        assert queue is not None
        found = broker.store.reader.select_hot(queue, 1, parse_tag_expression("*"), max_messages=9, max_bytes=1 << 20)
        assert found is not None
        assert [record.body for record in iter_records(found[1])] == bodies(9, first=1)


async def test_the_real_disk_keeps_the_same_store(tmp_path: Path) -> None:
    disk = RealDisk()
    options = store_options(root=tmp_path / "store")
    try:
        for round_number in range(3):
            async with running_broker(disk, SimClock(), store=options) as broker:
                await produce(broker, incoming("t", bodies(10, first=10 * round_number)))
                assert await stored_bodies(broker) == bodies(10 * (round_number + 1))
        assert (tmp_path / "store/commitlog" / ("0" * 20)).stat().st_size == LOG_FILE_BYTES
        queue_file = tmp_path / "store/consumequeue/t/0" / ("0" * 20)
        assert queue_file.stat().st_size == QUEUE_FILE_ENTRIES * 20
        assert not (tmp_path / "store/abort").exists()
    finally:
        disk.close()


async def test_a_second_broker_on_the_same_store_is_rejected(tmp_path: Path) -> None:
    disk = RealDisk()
    options = store_options(root=tmp_path)
    try:
        async with running_broker(disk, SimClock(), store=options):
            with pytest.raises(StoreLockedError, match="another process"):
                Broker(disk, SimClock(), broker_options(), options)
    finally:
        disk.close()


class TestRecovery:
    @pytest.mark.mechanism("S6")
    async def test_a_clean_stop_reads_nothing_again(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, incoming("t", bodies(10)))
        assert not disk.exists(LAYOUT.abort)
        broker = Broker(disk, SimClock(), broker_options(), store_options())
        report = broker.store.open(lambda record: None)
        assert (report.records, report.rebuilt) == (0, False)
        assert await stored_bodies_of(broker) == bodies(10)

    @pytest.mark.mechanism("S6")
    async def test_a_kill_loses_nothing_that_was_written(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False) as broker:
            await produce(broker, incoming("t", bodies(10)))
        disk.kill()
        assert disk.exists(LAYOUT.abort)
        async with running_broker(disk, SimClock()) as broker:
            assert await stored_bodies(broker) == bodies(10)
            (outcome,) = await produce(broker, incoming("t", bodies(1, first=10)))
            assert outcome.base_queue_offset == 10

    @pytest.mark.parametrize("stored", [0, QUEUE_FILE_ENTRIES])
    async def test_a_queue_file_without_entries_goes_at_a_clean_start_and_a_second_start_changes_nothing(
        self, stored: int
    ) -> None:
        disk, starts = SimDisk(), list[list[Path]]()
        async with running_broker(disk, SimClock()) as broker:
            for at in range(0, stored, 20):
                await produce(broker, incoming("t", bodies(20, first=at)))
            disk.before = fail_on("pwrite", errno.ENOSPC)  # the queue has got its next file, and the log takes nothing
            (outcome,) = await produce(broker, incoming("t", bodies(1, first=stored)))
            assert outcome.code is ResponseCode.SYSTEM_ERROR
            disk.before = lambda call, path: None
        for _ in range(2):
            async with running_broker(disk, SimClock(), clean_stop=False) as broker:
                assert await stored_bodies(broker) == bodies(stored)
            disk.kill()
            starts.append([path for path in disk.contents() if LAYOUT.consume_queues in path.parents])
        assert starts[0] == starts[1]

    async def test_a_torn_last_record_is_cut_off(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False) as broker:
            await produce(broker, incoming("t", bodies(9)))
            broker.producing.put([incoming("t", bodies(1, first=9))])  # never acknowledged
            end = broker.store.log_end
        disk.kill()
        disk.open(LAYOUT.commit_log / ("0" * 20)).pwrite(b"\xff", end - 30)
        async with running_broker(disk, SimClock()) as broker:
            assert await stored_bodies(broker) == bodies(9)
            (outcome,) = await produce(broker, incoming("t", bodies(1, first=9)))
            assert outcome.base_queue_offset == 9
            assert await stored_bodies(broker) == bodies(10)

    @pytest.mark.mechanism("S8")
    @pytest.mark.parametrize("lost", ["checkpoint", "consumequeue", "consumequeue/t/1", "config/topics.json", "config"])
    async def test_the_log_alone_tells_everything_again(self, lost: str) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            for queue_id in (0, 1):
                await produce(broker, incoming("t", bodies(10, first=queue_id), queue_id=queue_id))
        disk.remove_tree(STORE_ROOT / lost)
        disk.remove_tree(STORE_ROOT / f"{lost}.bak")
        async with running_broker(disk, SimClock()) as broker:
            for queue_id in (0, 1):
                assert await stored_bodies(broker, queue_id=queue_id) == bodies(10, first=queue_id)
                (outcome,) = await produce(broker, incoming("t", bodies(1), queue_id=queue_id))
                assert outcome.base_queue_offset == 10

    async def test_a_damaged_state_file_is_replaced_by_its_previous_version_and_the_journal(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock) as broker:
            await produce(broker, incoming("t", bodies(10)))
            broker.offsets.commit("g", [("t", 0, Progress(3))])
            await clock.advance(5)
            broker.offsets.commit("g", [("t", 0, Progress(7))])
        path = LAYOUT.config / "consumerOffset.json"
        assert json.loads(read_file(disk, path))["offsetTable"] == {"t@g": {"0": 7}}
        disk.open(path).pwrite(b"\x00\x00", 5)
        async with running_broker(disk, SimClock()) as broker:
            assert broker.consumer_offsets.query("g", "t", 0) == 7

    @pytest.mark.parametrize(
        ("reported", "left"),
        [(Progress(10), Progress(5)), (Progress(2, ((4, 6), (8, 10))), Progress(2, ((4, 5),)))],
        ids=["offset", "range"],
    )
    async def test_progress_in_messages_that_were_lost_comes_back_to_the_end_of_the_log(
        self, reported: Progress, left: Progress
    ) -> None:
        disk, clock = SimDisk(), SimClock()
        store = store_options(flush=FlushDiskType.ASYNC_FLUSH)
        async with running_broker(disk, clock, store=store) as broker:
            await produce(broker, incoming("t", bodies(10)))
            broker.offsets.commit("g", [("t", 0, reported)])
        log_end_of_five = checkpoint_after_five(disk)
        disk.open(LAYOUT.commit_log / ("0" * 20)).pwrite(bytes(100), log_end_of_five)
        disk.unlink(LAYOUT.checkpoint)
        disk.open(LAYOUT.watermark).pwrite(encode_slot(log_end_of_five) + bytes(500) + bytes(512), 0)
        async with running_broker(disk, SimClock()) as broker:
            assert await stored_bodies(broker) == bodies(5)
            assert broker.offsets.query("g", "t", 0) == left

    @pytest.mark.parametrize("seed", range(60))
    async def test_a_power_cut_under_sync_flush_keeps_every_acknowledged_record(self, seed: int) -> None:
        rng, disk = SeededRng(seed), SimDisk()
        acknowledged: dict[int, list[bytes]] = {0: [], 1: []}
        number = 0
        for _ in range(3):  # crash, recover, go on: what was cut must not come back either
            clean = rng.random() < 0.2
            async with running_broker(disk, SimClock(), clean_stop=clean) as broker:
                for queue_id, bodies_before in acknowledged.items():
                    found = await stored_bodies(broker, queue_id=queue_id)
                    assert found[: len(bodies_before)] == bodies_before
                    acknowledged[queue_id] = found
                for _ in range(rng.randrange(1, 12)):
                    queue_id, count = rng.randrange(0, 2), rng.randrange(1, 8)
                    fresh = bodies(count, size=rng.randrange(10, 3_000), first=number)
                    number += count
                    outcomes = broker.producing.put([incoming("t", fresh, queue_id=queue_id)])
                    if rng.random() < 0.7:
                        await broker.producing.acknowledge(outcomes, broker.store.log_end)
                        acknowledged[queue_id] = await stored_bodies(broker, queue_id=queue_id)
            disk.crash(rng)

    @pytest.mark.mechanism("S11")
    @pytest.mark.parametrize("seed", range(30))
    async def test_a_power_cut_under_async_flush_loses_only_a_suffix(self, seed: int) -> None:
        rng, disk, clock = SeededRng(seed), SimDisk(), SimClock()
        store = store_options(flush=FlushDiskType.ASYNC_FLUSH)
        sent = bodies(40, size=700)
        async with running_broker(disk, clock, store=store, clean_stop=False) as broker:
            for at in range(0, 40, 4):
                await produce(broker, incoming("t", sent[at : at + 4]))
                await clock.advance(0.05)
            synced = broker.store.flusher.durable_end
        disk.crash(rng)
        async with running_broker(disk, clock, store=store) as broker:
            found = await stored_bodies(broker)
            assert found == sent[: len(found)]
            assert broker.store.log_end >= synced


class TestFailingDisk:
    async def test_a_full_disk_rejects_the_write_and_reads_go_on(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, incoming("t", bodies(3)))
            disk.before = fail_on("pwrite", errno.ENOSPC)
            (outcome,) = await produce(broker, incoming("t", bodies(1, first=3)))
            assert outcome.code is ResponseCode.SYSTEM_ERROR
            assert "rejected" in outcome.remark
            assert await stored_bodies(broker) == bodies(3)
            disk.before = lambda call, path: None
            (outcome,) = await produce(broker, incoming("t", bodies(1, first=3)))
            assert (outcome.code, outcome.base_queue_offset) == (ResponseCode.SUCCESS, 3)
            assert await stored_bodies(broker) == bodies(4)

    async def test_a_write_that_failed_half_way_leaves_nothing_that_could_be_taken_for_a_record(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False) as broker:
            await produce(broker, incoming("t", bodies(1)))
            disk.after = fail_on("pwrite", errno.EIO)  # the bytes arrive, and the call says that they did not
            (outcome,) = await produce(broker, incoming("t", bodies(3, first=1)))
            assert outcome.code is ResponseCode.SYSTEM_ERROR
            disk.after = lambda call, path: None
            same_length = bodies(1, first=9)  # so that the leftovers behind it would begin where a record may begin
            await produce(broker, incoming("t", same_length))
        disk.kill()
        async with running_broker(disk, SimClock()) as broker:
            assert await stored_bodies(broker) == [*bodies(1), *same_length]

    async def test_no_room_for_the_consume_queue_rejects_before_the_log_is_touched(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            end = broker.store.log_end
            disk.before = fail_on("allocate", errno.ENOSPC)
            (outcome,) = await produce(broker, incoming("t", bodies(1)))
            assert outcome.code is ResponseCode.SYSTEM_ERROR
            assert broker.store.log_end == end
            disk.before = lambda call, path: None
            assert (await produce(broker, incoming("t", bodies(1))))[0].code is ResponseCode.SUCCESS

    async def test_no_room_for_all_batches_of_one_queue_rejects_each_of_them(self) -> None:
        """Each batch alone would fit into what the consume queue has on disk; both do not."""
        disk, count = SimDisk(), QUEUE_FILE_ENTRIES * 3 // 10
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, incoming("t", bodies(2 * count)))
            end = broker.store.log_end
            disk.before = fail_on("allocate", errno.ENOSPC)
            frame = [incoming("t", bodies(count, first=first)) for first in (2 * count, 3 * count)]
            outcomes = await produce(broker, *frame)
            assert [outcome.code for outcome in outcomes] == [ResponseCode.SYSTEM_ERROR] * 2
            assert all("no room for the consume queue of t" in outcome.remark for outcome in outcomes)
            assert (broker.store.failure, broker.store.log_end) == (None, end)
            assert await stored_bodies(broker) == bodies(2 * count)
            disk.before = lambda call, path: None
            outcomes = await produce(broker, *frame)
            assert [outcome.base_queue_offset for outcome in outcomes] == [2 * count, 3 * count]
            assert await stored_bodies(broker) == bodies(4 * count)

    async def test_a_name_that_cannot_be_made_durable_before_the_next_file_fences_for_good(self) -> None:
        disk = SimDisk()

        def fail(call: str, path: Path) -> None:
            if call == "sync_dir" and path.is_relative_to(LAYOUT.consume_queue("t", 0)):
                raise OSError(errno.EIO, "the platter is scratched")

        broker = Broker(disk, SimClock(), broker_options(), store_options())
        await broker.open()
        running = asyncio.create_task(broker.run())
        await produce(broker, incoming("t", bodies(1)))
        end = broker.store.log_end
        disk.before = fail
        (outcome,) = await produce(broker, incoming("t", bodies(QUEUE_FILE_ENTRIES)))
        assert outcome.code is ResponseCode.SERVICE_NOT_AVAILABLE
        disk.before = lambda call, path: None
        (outcome,) = await produce(broker, incoming("t", bodies(1)))
        assert outcome.code is ResponseCode.SERVICE_NOT_AVAILABLE
        assert broker.store.log_end == end
        await running  # the broker ends by itself
        await broker.close()

    async def test_the_first_failed_sync_fences_for_good(self) -> None:
        disk = SimDisk()
        calls: list[str] = []

        def fail(call: str, path: Path) -> None:
            if call == "sync_data":
                calls.append(call)
                raise OSError(errno.EIO, "the platter is scratched")

        broker = Broker(disk, SimClock(), broker_options(), store_options())
        await broker.open()
        running = asyncio.create_task(broker.run())
        await produce(broker, incoming("t", bodies(1)))
        disk.before = fail
        (outcome,) = await produce(broker, incoming("t", bodies(1, first=1)))
        assert outcome.code is ResponseCode.SERVICE_NOT_AVAILABLE
        disk.before = lambda call, path: None
        (outcome,) = await produce(broker, incoming("t", bodies(1, first=2)))
        assert outcome.code is ResponseCode.SERVICE_NOT_AVAILABLE
        assert await stored_bodies(broker) == bodies(1)
        await running  # the broker ends by itself
        await broker.close()
        assert calls == ["sync_data"]
        assert disk.exists(LAYOUT.abort)


def test_a_checkpoint_survives_its_own_bytes_and_no_others() -> None:
    checkpoint = Checkpoint(log_offset=1 << 40, entry_count=12, newest_store_ms=1_700_000_000_000)
    data = checkpoint.encode()
    assert len(data) == 4096
    assert Checkpoint.decode(data) == checkpoint
    for at in range(100):
        assert Checkpoint.decode(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]) is None
    assert Checkpoint.decode(data[:-1]) is None


async def stored_bodies_of(broker: Broker) -> list[bytes]:
    queue = broker.store.queue("t", 0)
    assert queue is not None
    broker.store.flusher.durable_end = broker.store.log_end
    _, records = await broker.store.reader.select_cold(
        queue, 0, parse_tag_expression("*"), max_messages=100, max_bytes=1 << 20
    )
    return [record.body for record in iter_records(records)]


def checkpoint_after_five(disk: SimDisk) -> int:
    """Where the sixth record begins: all records of `bodies` have one length."""
    data = read_file(disk, LAYOUT.commit_log / ("0" * 20))
    return 5 * int.from_bytes(data[:4], "big")


def fail_on(wanted: str, number: int) -> Callable[[str, Path], None]:
    def fail(call: str, path: Path) -> None:
        if call == wanted:
            raise OSError(number, "simulated")

    return fail
