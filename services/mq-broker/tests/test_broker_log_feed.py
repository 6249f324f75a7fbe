"""What a master hands to its replicas: whole records from anywhere in the log, and CRCs to compare logs by."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest

from mq_broker.core.batches import Batch, check_batch
from mq_broker.store.log_feed import CRC_BYTES_MAX, WINDOW_BYTES, CopiedRun, take_apart
from mq_broker.store.log_scan import Blank
from mq_broker.store.message_store import MessageStore
from mq_broker.testing import LOG_FILE_BYTES, producer_record, store_options
from mq_broker.testing_replication import START_MS, copy_all, log_bytes, running_store, write_some
from mqproto.record import BODY_BYTES_MAX, SEGMENT_HEAD, iter_records
from osenv import SeededRng, SimDisk

P = ParamSpec("P")
T = TypeVar("T")


def plain(*bodies: bytes, topic: str = "t") -> Batch:
    return check_batch(topic, 0, len(bodies), b"".join(producer_record(topic, one) for one in bodies), BODY_BYTES_MAX)


def boundaries(store: MessageStore) -> list[int]:
    """Where a record or blank begins, and where the log ends."""
    places, at, data = [], store.log_begin, log_bytes(store)
    while at < store.log_end:
        places.append(at)
        at += SEGMENT_HEAD.unpack_from(data, at - store.log_begin)[0]
    return [*places, at]


async def read_everything(store: MessageStore, bytes_max: int) -> list[tuple[int, bytes]]:
    chunks, at = [], store.log_begin
    while at < store.log_end:
        data, end = await store.log_feed.read(at, bytes_max)
        assert data
        chunks.append((at, data))
        at = end
    assert at == store.log_end
    return chunks


class TestReading:
    @pytest.mark.parametrize("bytes_max", [1, 1_000, 60_000, 1 << 20])
    @pytest.mark.parametrize("cold", [False, True])
    async def test_chunks_hold_whole_records_and_as_many_as_may_be(self, bytes_max: int, cold: bool) -> None:
        disk = SimDisk()
        async with running_store(disk) as store:
            write_some(store, SeededRng(2), 40)
            if not cold:
                await self.check(store, bytes_max)
        if cold:
            async with running_store(disk) as store:
                await self.check(store, bytes_max)

    async def check(self, store: MessageStore, bytes_max: int) -> None:
        found: list[int] = []
        for at, data in await read_everything(store, bytes_max):
            pieces = take_apart(data, at, LOG_FILE_BYTES)
            assert len(data) <= bytes_max or sum(len(getattr(piece, "records", "1")) for piece in pieces) == 1
            for piece in pieces:
                assert isinstance(piece, (CopiedRun, Blank))
                found += (
                    [one.log_offset for one in piece.records] if isinstance(piece, CopiedRun) else [piece.log_offset]
                )
        assert [*found, store.log_end] == boundaries(store)

    async def test_nothing_follows_at_the_end(self) -> None:
        async with running_store(SimDisk()) as store:
            assert await store.log_feed.read(0, 1_000) == (b"", 0)
            store.put([plain(b"a")], START_MS)
            end = store.log_end
            assert await store.log_feed.read(end, 1_000) == (b"", end)

    async def test_a_blank_travels_as_its_head(self) -> None:
        async with running_store(SimDisk()) as store:
            store.put([plain(bytes(1_000))], START_MS)
            end = store.log_end
            store.put([plain(bytes(LOG_FILE_BYTES - 1_000))], START_MS)
            data, behind = await store.log_feed.read(end, 1)
            assert (len(data), behind) == (SEGMENT_HEAD.size, LOG_FILE_BYTES)

    @pytest.mark.parametrize("cold", [False, True])
    async def test_offsets_that_are_not_in_the_log_are_rejected(self, cold: bool) -> None:
        disk = SimDisk()
        async with running_store(disk) as store:
            store.put([plain(b"a", b"b")], START_MS)
            for offset in (-1, store.log_end + 1):
                with pytest.raises(ValueError, match="not in the log"):
                    await store.log_feed.read(offset, 1_000)
            with pytest.raises(ValueError, match="no record begins at log offset 1"):
                await store.log_feed.read(1, 1_000)

    async def test_a_file_that_goes_while_it_is_read_is_rejected_and_gives_no_garbage(self) -> None:
        disk = ThreadedDisk()
        async with running_store(disk) as store:
            while len(store.log.files.starts) < 4:
                store.put([plain(bytes(5_000))], START_MS)
        disk.kill()
        async with running_store(disk) as store:
            disk.holds = True
            reading = asyncio.create_task(store.log_feed.read(0, 1_000))
            await disk.held.wait()
            disk.holds = False
            await store.follow_begin(store.log.files.starts[1])
            disk.go_on.set()
            with pytest.raises(ValueError, match="no file holds offset 0"):
                await reading
            with pytest.raises(ValueError, match="not in the log"):
                await store.log_feed.read(0, 1_000)

    async def test_a_failed_sync_of_what_is_quarantined_ends_the_broker(self) -> None:
        disk = SimDisk()
        async with running_store(disk) as store:
            store.put([plain(b"a", b"b")], START_MS)
        disk.kill()
        async with running_store(disk) as store:
            flip(store, 100)

            def failing(call: str, path: object) -> None:
                if call == "sync_data":
                    raise OSError(5, "broken")

            disk.before = failing
            with pytest.raises(OSError, match="broken"):
                await store.log_feed.read(0, 1_000)
            disk.before = lambda call, path: None
            assert store.failure is not None


class ThreadedDisk(SimDisk):
    """Work in a thread waits, if it is told to, until the event loop has done something else."""

    def __init__(self) -> None:
        super().__init__()
        self.holds, self.held, self.go_on = False, asyncio.Event(), asyncio.Event()

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.holds:
            self.held.set()
            await self.go_on.wait()
        return call(*args, **kwargs)


def flip(store: MessageStore, at: int) -> None:
    file = store.disk.open(store.layout.commit_log / ("0" * 20))
    file.pwrite(bytes([file.pread(1, at)[0] ^ 0xFF]), at)
    file.sync_data()
    file.close()


class TestWindows:
    async def test_both_sides_of_a_copy_have_the_same_ones(self) -> None:
        rng = SeededRng(4)
        async with running_store(SimDisk()) as master, running_store(SimDisk()) as replica:
            write_some(master, rng, 30)
            await copy_all(master, replica, rng)
            write_some(master, rng, 10)
            for at_most in [*boundaries(replica), *(rng.randrange(0, replica.log_end) for _ in range(30))]:
                window = await replica.log_feed.window(at_most)
                assert window.end == max(place for place in boundaries(replica) if place <= at_most)
                assert window.begin in boundaries(replica)
                assert await master.log_feed.crc32(window.begin, window.end) == window.crc32
                assert (window.begin < window.end) == (window.end > 0)

    async def test_a_window_holds_a_record_and_not_much_more_than_64_kib(self) -> None:
        options = store_options(log_file_bytes=1 << 20)
        async with running_store(SimDisk(), options=options) as store:
            for _ in range(30):
                store.put([plain(bytes(10_000))], START_MS)
            store.put([plain(bytes(200_000))], START_MS)
            large = await store.log_feed.window(store.log_end)
            assert large.end - large.begin > 200_000
            small = await store.log_feed.window(large.begin)
            assert WINDOW_BYTES - 20_000 < small.end - small.begin <= WINDOW_BYTES
            store.put([plain(bytes(1_000_000))], START_MS)  # behind a blank
            behind_blank = await store.log_feed.window(1 << 20)
            assert behind_blank.end == 1 << 20
            assert behind_blank.begin < large.end

    async def test_a_log_without_records_has_an_empty_one(self) -> None:
        async with running_store(SimDisk()) as store:
            assert await store.log_feed.window(0) == (0, 0, 0)
            assert await store.log_feed.window(1_000) == (0, 0, 0)
            with pytest.raises(ValueError, match="not in the log"):
                await store.log_feed.window(-1)

    async def test_other_bytes_have_another_crc(self) -> None:
        async with running_store(SimDisk()) as one, running_store(SimDisk()) as other:
            for store, bodies in ((one, (b"a", b"b")), (other, (b"a", b"c"))):
                for body in bodies:
                    store.put([plain(body)], START_MS)
            first, second, end = boundaries(one)
            assert await one.log_feed.crc32(first, second) == await other.log_feed.crc32(first, second)
            assert await one.log_feed.crc32(second, end) != await other.log_feed.crc32(second, end)

    async def test_what_the_log_does_not_have_has_no_crc(self) -> None:
        async with running_store(SimDisk()) as store:
            store.put([plain(b"a", b"b")], START_MS)
            first, second, end = boundaries(store)
            assert await store.log_feed.crc32(first, end + 1) is None
            assert await store.log_feed.crc32(-1, end) is None
            assert await store.log_feed.crc32(first, second + 1) is None
            assert await store.log_feed.crc32(end, second) is None
            assert await store.log_feed.crc32(first, end) == zlib.crc32(log_bytes(store))

    async def test_too_much_at_a_time_is_rejected(self) -> None:
        options = store_options(log_file_bytes=8 << 20)
        async with running_store(SimDisk(), options=options) as store:
            while store.log_end <= CRC_BYTES_MAX:
                store.put([plain(bytes(4_000_000))], START_MS)
            with pytest.raises(ValueError, match="too much"):
                await store.log_feed.crc32(0, store.log_end)

    async def test_a_damaged_stretch_is_no_end(self) -> None:
        disk = SimDisk()
        async with running_store(disk) as store:
            store.put([plain(b"a")], START_MS)
            end = store.log_end
            store.put([plain(b"b")], START_MS)
            flip(store, end + 90)
            assert (await store.log_feed.window(store.log_end)).end == end


async def test_a_body_that_looks_like_records_misleads_no_reader() -> None:
    async with running_store(SimDisk()) as store:
        store.put([plain(b"first")], START_MS)
        inner = log_bytes(store)
        store.put([plain(inner * 3), plain(b"last")], START_MS)
        for at_most in range(0, store.log_end + 1, 7):
            assert (await store.log_feed.window(at_most)).end in boundaries(store)
        (_, data), *_ = await read_everything(store, 1 << 20)
        assert [record.body for record in iter_records(data)] == [b"first", inner * 3, b"last"]
