"""A replica's store is its master's, byte for byte; whatever cannot stand at the end of its log is rejected whole."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.core.batches import Batch, check_batch
from mq_broker.core.pulling import EVERYTHING
from mq_broker.core.replica_state import Cut
from mq_broker.store.errors import CopyError, NotMasterError, StoreFencedError, StoreWriteError
from mq_broker.store.log_feed import encode_damage
from mq_broker.store.log_scan import Damage
from mq_broker.store.message_store import MessageStore
from mq_broker.testing import producer_record, store_options
from mq_broker.testing_replication import (
    START_MS,
    TOPICS,
    copy_all,
    entries,
    fork_of,
    found_by_key,
    log_bytes,
    running_store,
    write_some,
)
from mqproto.record import (
    BODY_BYTES_MAX,
    OFFSETS,
    OFFSETS_AT,
    QUEUE_ID_AT,
    decode_record,
    encode_blank,
    iter_records,
    seal,
)
from osenv import SeededRng, SimDisk
from osenv.sim_disk import ShortWriteError


def plain(topic: str, *bodies: bytes, queue_id: int = 0) -> Batch:
    records = b"".join(producer_record(topic, body, queue_id=queue_id) for body in bodies)
    return check_batch(topic, queue_id, len(bodies), records, BODY_BYTES_MAX)


async def require_same(master: MessageStore, replica: MessageStore) -> None:
    assert (replica.log_begin, replica.log_end) == (master.log_begin, master.log_end)
    assert log_bytes(replica) == log_bytes(master)
    assert entries(replica) == entries(master)
    assert replica.newest_store_ms == master.newest_store_ms
    for topic in TOPICS:
        for key in [f"k{number}" for number in range(10)]:
            assert await found_by_key(replica, topic, key) == await found_by_key(master, topic, key)


@pytest.mark.mechanism("H2")
@pytest.mark.parametrize("seed", range(6))
async def test_log_queues_and_index_are_the_master_s_also_after_a_restart_of_either(seed: int) -> None:
    rng = SeededRng(seed)
    master_disk, replica_disk = SimDisk(), SimDisk()
    for round_ in range(3):
        clean_stop = round_ == 1
        async with (
            running_store(master_disk, clean_stop=clean_stop) as master,
            running_store(replica_disk, clean_stop=clean_stop) as replica,
        ):
            told: list[int] = []
            replica.on_copied = lambda record, told=told: told.append(record.log_offset)  # type: ignore[misc]
            before = replica.log_end
            write_some(master, rng, 12, first=100 * round_)
            assert await copy_all(master, replica, rng)
            write_some(master, rng, 3, first=100 * round_ + 50)
            assert await copy_all(master, replica, rng)
            assert told == sorted(offset for offset in log_offsets(master) if offset >= before)
            await require_same(master, replica)
            await replica.sync()
            await master.sync()
        master_disk.kill()
        replica_disk.kill()


def log_offsets(store: MessageStore) -> list[int]:
    return [queue.entry(at)[0] for queue in store.queues for at in range(queue.first_offset, queue.max_offset)]


async def pair(master_disk: SimDisk, replica_disk: SimDisk, *, count: int = 8) -> bytes:
    """A replica that has a part of its master's log; returns the chunk that follows."""
    async with running_store(master_disk) as master, running_store(replica_disk) as replica:
        rng = SeededRng(1)
        write_some(master, rng, count)
        master.put([plain("orders", b"known")], START_MS)
        await copy_all(master, replica, rng)
        master.put([plain("orders", *[b"%d" % number for number in range(5)])], START_MS)
        master.put([plain("fresh", b"first"), plain("orders", b"last", queue_id=1)], START_MS)
        return (await master.log_feed.read(replica.log_end, 1 << 20)).data


def state_of(store: MessageStore) -> tuple[object, ...]:
    queues = {key: (first, data) for key, (first, data) in entries(store).items()}
    names = sorted((queue.topic, queue.queue_id) for queue in store.queues)
    return store.log_end, log_bytes(store), queues, names, store.newest_store_ms, store.messages_put


async def require_rejected(disk: SimDisk, data: bytes, match: str = "log offset") -> None:
    async with running_store(fork_of(disk), clean_stop=False) as replica:
        replica.on_copied = lambda record: pytest.fail("told of a record that was rejected")
        before, files = state_of(replica), replica.disk.fingerprint()  # type: ignore[attr-defined]
        with pytest.raises(CopyError, match=match):
            replica.append_copy(replica.log_end, data)
        assert state_of(replica) == before
        assert replica.disk.fingerprint() == files  # type: ignore[attr-defined]


async def test_no_flipped_bit_is_taken() -> None:
    disk, rng = SimDisk(), SeededRng(3)
    data = await pair(SimDisk(), disk)
    async with running_store(fork_of(disk), clean_stop=False) as replica:
        before, files = state_of(replica), replica.disk.fingerprint()  # type: ignore[attr-defined]
        for at in [*range(8), *(rng.randrange(8, len(data)) for _ in range(150))]:
            flipped = bytearray(data)
            flipped[at] ^= 1 << rng.randrange(0, 8)
            with pytest.raises(CopyError):
                replica.append_copy(replica.log_end, bytes(flipped))
        assert state_of(replica) == before
        assert replica.disk.fingerprint() == files  # type: ignore[attr-defined]
        replica.append_copy(replica.log_end, data)


async def test_what_is_not_whole_is_rejected() -> None:
    disk = SimDisk()
    data = await pair(SimDisk(), disk)
    size = decode_record(data).size
    for cut in (1, 7, 8, 50, size - 1, size + 3, len(data) - 1):
        await require_rejected(disk, data[:cut])
    await require_rejected(disk, data + b"\0" * 8, "magic")
    await require_rejected(disk, data[size:], "stands at")
    await require_rejected(disk, data[:size] * 2, "stands at")


async def test_a_blank_that_does_not_end_its_file_is_rejected() -> None:
    disk = SimDisk()
    data = await pair(SimDisk(), disk)
    await require_rejected(disk, encode_blank(8), "a blank of 8 bytes")
    await require_rejected(disk, data + encode_blank(0), "a blank of 0 bytes")
    await require_rejected(disk, encode_blank(-8), "a blank of -8 bytes")


def patched(data: bytes, change: Callable[[bytearray, int], None]) -> bytes:
    """The first record, changed and sealed again: whole, but not the one that belongs there."""
    size = decode_record(data).size
    record = bytearray(data[:size])
    change(record, size)
    seal(record, 0, size)
    return bytes(record)


def set_queue_offset(offset: int) -> Callable[[bytearray, int], None]:
    def change(record: bytearray, size: int) -> None:
        place = OFFSETS.unpack_from(record, OFFSETS_AT)[1]
        OFFSETS.pack_into(record, OFFSETS_AT, offset, place)

    return change


def set_queue_id(record: bytearray, size: int) -> None:
    record[QUEUE_ID_AT : QUEUE_ID_AT + 4] = (-1).to_bytes(4, "big", signed=True)


def set_topic(topic: bytes) -> Callable[[bytearray, int], None]:
    def change(record: bytearray, size: int) -> None:
        at = bytes(record).index(b"\x06orders") + 1
        record[at : at + 6] = topic

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (set_queue_offset(0), "number 0 of queue 0 of orders, where number"),
        (set_queue_offset(10**6), "number 1000000 of queue 0 of orders"),
        (set_queue_offset(-1), "negative"),
        (set_queue_id, "queue -1"),
        (set_topic(b"../../"), "not allowed"),
        (set_topic(b"orde\xffs"), "UTF-8"),
    ],
)
async def test_a_whole_record_that_does_not_belong_there_is_rejected(
    change: Callable[[bytearray, int], None], match: str
) -> None:
    disk = SimDisk()
    await require_rejected(disk, patched(await pair(SimDisk(), disk), change), match)


async def test_bytes_for_another_place_than_the_end_are_rejected() -> None:
    disk = SimDisk()
    data = await pair(SimDisk(), disk)
    async with running_store(disk) as replica:
        for offset in (0, replica.log_end - 1, replica.log_end + 1):
            with pytest.raises(CopyError, match="the log ends at"):
                replica.append_copy(offset, data)


async def test_a_record_that_crosses_the_end_of_its_file_is_rejected() -> None:
    async with running_store(SimDisk(), options=store_options(log_file_bytes=1 << 20)) as master:
        master.put([plain("t", bytes(40_000)), plain("t", bytes(40_000))], START_MS)
        data = (await master.log_feed.read(0, 1 << 20)).data
    await require_rejected(SimDisk(), data, "its file has")


async def test_the_first_record_of_a_queue_decides_where_the_queue_begins() -> None:
    master_disk, replica_disk = SimDisk(), SimDisk()
    async with running_store(master_disk) as master:
        while len(master.log.files.starts) < 3:
            master.put([plain("t", bytes(10_000))], START_MS)
        begin = master.log.files.starts[-1]
        await master.sync()
        await master.follow_begin(begin)
        assert master.log_begin == begin
        async with running_store(replica_disk, cut=Cut(0, begin)) as replica:
            await copy_all(master, replica, SeededRng(1))
            assert replica.queue_bounds("t", 0) == master.queue_bounds("t", 0)
            assert replica.queue_bounds("t", 0)[0] > 0
            assert log_bytes(replica) == log_bytes(master)


async def test_consumers_read_from_memory_what_was_copied() -> None:
    async with running_store(SimDisk()) as master, running_store(SimDisk()) as replica:
        heard: list[tuple[str, int]] = []
        replica.on_readable(lambda topic, queue_id: heard.append((topic, queue_id)))
        master.put([plain("t", b"a", b"b")], START_MS)
        await copy_all(master, replica, SeededRng(1))
        assert heard == []  # under sync flush only what is on disk can be read
        await replica.sync()
        assert heard == [("t", 0)]
        queue = replica.queue("t", 0)
        assert queue is not None
        found = replica.reader.select_hot(queue, 0, EVERYTHING, max_messages=9, max_bytes=1 << 20)
        assert found is not None
        assert [record.body for record in iter_records(found[1])] == [b"a", b"b"]


async def test_a_replica_is_not_written() -> None:
    async with running_store(SimDisk()) as replica:
        replica.follows = True
        with pytest.raises(NotMasterError):
            replica.put([plain("t", b"a")], START_MS)
        assert replica.log_end == 0


class TestARejectingDisk:
    async def test_a_full_disk_takes_it_when_there_is_room_again(self) -> None:
        disk = SimDisk()
        data = await pair(SimDisk(), disk)
        async with running_store(disk) as replica:
            before = replica.log_end

            def full(call: str, path: Path) -> None:
                if call == "pwrite" and path.parent == replica.layout.commit_log:
                    raise ShortWriteError(errno.ENOSPC, "full", 100)

            disk.before = full
            with pytest.raises(StoreWriteError):
                replica.append_copy(before, data)
            assert replica.log_end == before
            disk.before = lambda call, path: None
            replica.append_copy(before, data)
            assert replica.log_end == before + len(data)

    async def test_a_queue_that_cannot_be_written_ends_it(self) -> None:
        disk = SimDisk()
        data = await pair(SimDisk(), disk)
        async with running_store(disk) as replica:

            def broken(call: str, path: Path) -> None:
                if call == "pwrite" and replica.layout.consume_queues in path.parents:
                    raise OSError(errno.EIO, "broken")

            disk.before = broken
            with pytest.raises(StoreFencedError):
                replica.append_copy(replica.log_end, data)
            disk.before = lambda call, path: None
            with pytest.raises(StoreFencedError):
                replica.append_copy(replica.log_end, data)
        disk.kill()
        async with running_store(disk) as replica:
            assert replica.queue_end("fresh", 0) == 1


class TestDamage:
    """Damaged stretches of the master's log have their place in the replica's."""

    async def damaged(self, master_disk: SimDisk, *, lost: int = 3) -> tuple[int, int]:
        """A master whose log has a damaged stretch, in which the numbers 2 to 1 + `lost` of a queue were."""
        async with running_store(master_disk) as master:
            for body in (b"a", b"b", *[bytes(3_000)] * lost, b"z"):
                master.put([plain("t", body)], START_MS)
            master.put([plain("u", b"other")], START_MS)
            queue = master.queue("t", 0)
            assert queue is not None
            begin, end = queue.entry(2)[0], queue.entry(2 + lost)[0]
        file = master_disk.open(master.layout.commit_log / ("0" * 20))
        for at in range(begin, end, 500):
            file.pwrite(b"\xff" * 100, at)
        file.sync_data()
        file.close()
        return begin, end

    @pytest.mark.parametrize("bytes_max", [1, 700, 1 << 20])
    async def test_they_travel_as_they_are_and_are_quarantined_by_both(self, bytes_max: int) -> None:
        master_disk, replica_disk = SimDisk(), SimDisk()
        begin, end = await self.damaged(master_disk)
        async with running_store(master_disk) as master, running_store(replica_disk) as replica:
            while replica.log_end < master.log_end:
                chunk = await master.log_feed.read(replica.log_end, max(bytes_max, 100))
                replica.append_copy(replica.log_end, chunk.data)
            assert log_bytes(replica) == log_bytes(master)
            assert list(master.quarantine) == list(replica.quarantine) == [(begin, end - begin)]
            assert replica.queue_bounds("t", 0) == master.queue_bounds("t", 0) == (0, 6)
            queue = replica.queue("t", 0)
            assert queue is not None
            records, scanned = await replica.reader.read_queue(queue, 0, 10)
            assert scanned == 0 or replica.is_sync_flush
            await replica.sync()
            records, scanned = await replica.reader.read_queue(queue, 0, 10)
            assert ([record.body for record in records], scanned) == ([b"a", b"b", b"z"], 6)
        replica_disk.kill()
        async with running_store(replica_disk) as replica:
            assert replica.queue_bounds("t", 0) == (0, 6)
            assert list(replica.quarantine) == [(begin, end - begin)]

    async def test_the_next_message_of_a_queue_that_lost_its_last_ones_is_taken_after_a_restart(self) -> None:
        master_disk, replica_disk = SimDisk(), SimDisk()
        async with running_store(master_disk) as master:
            for body in (b"a", b"lost", b"lost"):
                master.put([plain("t", body)], START_MS)
            master.put([plain("u", b"other")], START_MS)
            queue = master.queue("t", 0)
            assert queue is not None
            places = [queue.entry(number)[0] for number in (1, 2)]
        file = master_disk.open(master.layout.commit_log / ("0" * 20))
        for place in places:
            file.pwrite(b"\xff" * 50, place + 60)
        file.sync_data()
        file.close()
        async with running_store(master_disk) as master:
            async with running_store(replica_disk) as replica:
                await copy_all(master, replica, SeededRng(1))
            assert master.queue_end("t", 0) == 3
            master.put([plain("t", b"next")], START_MS)
            for clean_stop in (False, True, True):  # the second start reads the record from the log again
                async with running_store(replica_disk, clean_stop=clean_stop) as replica:
                    await copy_all(master, replica, SeededRng(1))
                    await replica.sync()
                    assert replica.queue_end("t", 0) == 4
                    assert log_bytes(replica) == log_bytes(master)
                replica_disk.kill()

    @pytest.mark.parametrize("at", [0, 4, 8, 16, 24, 28, 40])
    async def test_a_piece_that_was_changed_on_its_way_is_rejected(self, at: int) -> None:
        disk = SimDisk()
        await pair(SimDisk(), disk)
        async with running_store(fork_of(disk), clean_stop=False) as replica:
            end = replica.log_end
        piece = bytearray(encode_damage(b"x" * 100, Damage(end, 100, "damaged")))
        piece[at] ^= 0x80
        await require_rejected(disk, bytes(piece))
        piece[at] ^= 0x80
        await require_rejected(disk, bytes(piece[:-1]))
        await require_rejected(disk, bytes(piece[:20]))
