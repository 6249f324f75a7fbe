"""The look into a store: it shows what is there, finds every difference, and changes nothing."""

from __future__ import annotations

import errno
import json
import os
import struct
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import Checkpoint, StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mq_broker.store.state_files import encode_document
from mq_broker.testing import (
    LOG_FILE_BYTES,
    QUEUE_FILE_ENTRIES,
    STORE_ROOT,
    half,
    incoming,
    produce,
    producer_record,
    running_broker,
    store_options,
)
from mq_broker.tools.dump_log import DumpOptions, dump, main
from mq_broker.tools.findings import SHOWN_MAX
from osenv import RealDisk, SeededRng, SimClock, SimDisk

INDEX = IndexSize(slots=50, entries=200)
INDEX_HEAD, SLOTS_AT, ENTRIES_AT = 40, 40, 40 + 4 * 50
CHANGING_CALLS = {"open", "pwrite", "truncate", "allocate", "replace", "unlink", "make_dirs", "sync_data", "sync_dir"}
READING_CALLS = {"open", "exists", "list_dir", "pread", "size", "lock"}


def options(root: Path = STORE_ROOT, flush: FlushDiskType = FlushDiskType.SYNC_FLUSH) -> StoreOptions:
    layout = StoreLayout(root, LOG_FILE_BYTES, QUEUE_FILE_ENTRIES, index_size=INDEX)
    return replace(store_options(root=root, flush=flush), layout=layout)


LAYOUT = options().layout
LOG_FILE = LAYOUT.commit_log / ("0" * 20)
QUEUE_FILE = LAYOUT.consume_queue("t", 0) / ("0" * 20)


def keyed(count: int, *, queue_id: int = 0, first: int = 0, size: int = 400) -> IncomingBatch:
    """Messages with a tag and two keys each: `id-key<n>`, which is unique, and `key<n>`."""
    records = [
        producer_record("t", b"%06d" % number + bytes(size), queue_id=queue_id, tag="red", key=f"key{number}")
        for number in range(first, first + count)
    ]
    return IncomingBatch("t", queue_id, count, b"".join(records))


async def fill(broker: Broker, clock: SimClock) -> None:
    """Something of everything: two queues, three log files, several index files, a delay, two transactions."""
    for step in range(25):
        await produce(broker, keyed(5, queue_id=step % 2, first=5 * step))
        await clock.advance(0.7)
    await produce(broker, incoming("t", [b"later"], delay_level=2))
    await clock.advance(6)
    await produce(broker, incoming("t", [b"much later"], delay_level=3))
    await produce(broker, half("t", b"order", "tx-1"), half("t", b"order", "tx-2"))
    await broker.transactions.end("shop", "tx-1", TransactionState.COMMIT_MESSAGE, from_check=False)
    broker.offsets.commit("g", [("t", 0, Progress(30))])
    await clock.advance(1)


async def stored(disk: SimDisk | RealDisk, root: Path = STORE_ROOT, *, clean: bool = True) -> None:
    """A store that was filled and stopped; or killed, ten seconds and a few messages after its last checkpoint."""
    clock = SimClock()
    async with running_broker(disk, clock, store=options(root), clean_stop=clean) as broker:
        await fill(broker, clock)
        if not clean:
            await clock.advance(11)
            await produce(broker, keyed(3, first=125))
    if isinstance(disk, SimDisk):
        disk.kill()


def look(disk: SimDisk, **wanted: Any) -> tuple[int, list[str]]:
    """Exit code and lines."""
    lines: list[str] = []
    return dump(disk, DumpOptions(STORE_ROOT, **wanted), lines.append), lines


def differences(disk: SimDisk) -> list[str]:
    """What `--verify` says, without the notes; the exit code fits it."""
    code, lines = look(disk, verify=True)
    found = [line.removeprefix("difference: ") for line in lines if line.startswith("difference: ")]
    assert code == (1 if found else 0), lines
    assert lines[-1].split(": ")[1].startswith(f"{len(found)} differences")
    return found


def change(disk: SimDisk, path: Path, at: int, data: bytes) -> None:
    disk.open(path).pwrite(data, at)


def flip(disk: SimDisk, path: Path, at: int, bits: int = 0xFF) -> None:
    file = disk.open(path)
    file.pwrite(bytes([file.pread(1, at)[0] ^ bits]), at)


def index_file(disk: SimDisk, number: int = 0) -> Path:
    return LAYOUT.index / disk.list_dir(LAYOUT.index)[number]


def record_size(disk: SimDisk, at: int = 0) -> int:
    return int.from_bytes(disk.open(LOG_FILE).pread(4, at), "big")


class TestAWholeStore:
    async def test_after_a_clean_stop_everything_agrees(self) -> None:
        disk = SimDisk()
        await stored(disk)
        code, lines = look(disk, verify=True)
        assert code == 0
        assert lines[0] == "store: /store, lock free"
        assert len(lines) == 2, lines  # no note either
        assert " 0 differences" in lines[1]
        assert len(disk.list_dir(LAYOUT.commit_log)) >= 2
        assert len(disk.list_dir(LAYOUT.index)) == 2

    async def test_after_a_kill_everything_agrees(self) -> None:
        disk = SimDisk()
        await stored(disk, clean=False)
        assert differences(disk) == []
        async with running_broker(disk, SimClock(), store=options()):
            pass
        disk.kill()
        assert differences(disk) == []

    async def test_an_empty_store_agrees(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), store=options()):
            pass
        assert differences(disk) == []

    async def test_beside_a_running_broker_it_says_that_things_move(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, store=options()) as broker:
            await fill(broker, clock)
            code, lines = look(disk, verify=True)
            assert (code, lines[0]) == (0, "store: /store, lock held; a broker is at work, what is seen may move")
            await produce(broker, keyed(3, first=125))
            assert differences(disk) == []

    @pytest.mark.parametrize("seed", range(40))
    async def test_whatever_a_power_cut_leaves_is_no_difference(self, seed: int) -> None:
        rng, disk, clock = SeededRng(seed), SimDisk(), SimClock()
        flush = FlushDiskType.ASYNC_FLUSH if seed % 2 else FlushDiskType.SYNC_FLUSH
        async with running_broker(disk, clock, store=options(flush=flush), clean_stop=False) as broker:
            await fill(broker, clock)
            await clock.advance(rng.random() * 12)
            await produce(broker, keyed(5, first=125))
        disk.crash(rng)
        assert differences(disk) == []
        async with running_broker(disk, SimClock(), store=options(flush=flush)):
            pass
        disk.kill()
        assert differences(disk) == []

    async def test_whenever_the_process_or_the_power_dies_there_is_no_difference(self) -> None:
        disk, clock, found = SimDisk(), SimClock(), list[SimDisk]()

        def keep(call: str, _path: Path) -> None:
            if call in CHANGING_CALLS:
                found.append(disk.fork())

        disk.after = keep
        for start in range(2):
            async with running_broker(disk, clock, store=options()) as broker:
                for step in range(3):
                    await produce(broker, keyed(3, queue_id=step % 2, first=100 * start + 3 * step, size=3_000))
                    await clock.advance(6)
                await produce(broker, incoming("t", [b"later"], delay_level=2), half("t", b"order", f"tx-{start}"))
                broker.offsets.commit("g", [("t", 0, Progress(2))])
                await clock.advance(11)
        assert len(found) > 400
        for number, state in enumerate(found):
            if number % 2:
                state.crash(SeededRng(number))
            else:
                state.kill()
            code, lines = look(state, verify=True)
            assert code == 0 or not lines, (number, lines)  # no line: not even the folder has survived

    async def test_an_index_that_tells_some_messages_twice_is_no_difference(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, store=options()) as broker:
            for step in range(24):
                await produce(broker, keyed(4, first=4 * step))
                await clock.advance(1)
            disk.before = reject_new_index_files
            await produce(broker, keyed(40, first=96))  # the file has room for some of its keys
            await clock.advance(1)
            disk.before = lambda _call, _path: None
            await clock.advance(30)  # asked again
        disk.kill()
        code, lines = look(disk, verify=True)
        assert code == 0, lines
        assert any(line.endswith(" entries tell a key of a message once more") for line in lines)

    async def test_messages_that_retention_has_deleted_are_no_difference(self) -> None:
        disk = SimDisk()
        await stored(disk)
        disk.unlink(LOG_FILE)
        async with running_broker(disk, SimClock(), store=options()):
            pass
        disk.kill()
        assert differences(disk) == []

    async def test_only_reading_calls_reach_the_disk_and_no_byte_changes(self) -> None:
        disk = SimDisk()
        await stored(disk)
        before, calls = disk.contents(), set[str]()
        disk.before = lambda call, _path: calls.add(call)
        for wanted in ({"verify": True}, {"files": True}, {}):
            look(disk, **wanted)
        assert calls <= READING_CALLS
        assert disk.contents() == before
        assert not disk.locks

    async def test_a_long_log_is_read_in_blocks(self) -> None:
        disk, layout = SimDisk(), StoreLayout(STORE_ROOT, 16 << 20, index_size=INDEX)
        async with running_broker(disk, SimClock(), store=replace(options(), layout=layout)) as broker:
            for step in range(48):
                await produce(broker, keyed(16, first=16 * step, size=64 << 10))
        disk.kill()
        tracemalloc.start()
        try:
            assert differences(disk) == []
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(disk.list_dir(LAYOUT.commit_log)) >= 4
        assert peak_bytes < 16 << 20


class TestDamageInTheLog:
    @pytest.mark.parametrize(
        ("at", "data", "reason"),
        [
            (0, b"\x00\x00\x00\x05", "impossible length 5"),
            (0, b"\x7f\xff\xff\xff", "impossible length 2147483647"),
            (4, b"\x11", "bad magic 0x11A320A7"),
            (8, b"\xff", "CRC mismatch"),
            (12, b"\x01", "CRC mismatch"),
            (28, b"\x01", "CRC mismatch"),
            (100, b"\xff", "CRC mismatch"),
            (-3, b"x", "CRC mismatch"),
        ],
    )
    async def test_a_changed_byte_of_a_record_is_named_and_what_follows_is_kept(
        self, at: int, data: bytes, reason: str
    ) -> None:
        disk = SimDisk()
        await stored(disk)
        size = record_size(disk)
        change(disk, LOG_FILE, 2 * size + at % size, data)
        assert differences(disk) == [f"commit log: offsets {2 * size} to {3 * size - 1} are damaged: {reason}"]
        _, lines = look(disk, count=3)
        assert lines[3] == f"{2 * size:>12}  {size:>6} B  DAMAGED up to {3 * size - 1}: {reason}"
        assert [line.split()[4] for line in (*lines[1:3], *lines[4:])] == ["#0", "#1", "#3"]

    async def test_a_record_of_another_place_is_no_record_here(self) -> None:
        disk = SimDisk()
        await stored(disk)
        size, file = record_size(disk), disk.open(LOG_FILE)
        file.pwrite(file.pread(size, 0), size)  # a misdirected write
        assert differences(disk) == [f"commit log: offsets {size} to {2 * size - 1} are damaged: a record of offset 0"]

    async def test_a_body_that_its_own_crc_denies_is_named(self) -> None:
        disk = SimDisk()
        await stored(disk)
        size, file = record_size(disk), disk.open(LOG_FILE)
        data = bytearray(file.pread(size, size))
        data[8:12] = b"\x00\x00\x00\x01"
        reseal(data)
        file.pwrite(data, size)
        assert differences(disk) == [f"commit log: the record at {size}: the body does not match its CRC"]

    async def test_a_queue_offset_given_twice_is_named(self) -> None:
        disk = SimDisk()
        await stored(disk)
        size, file = record_size(disk), disk.open(LOG_FILE)
        data = bytearray(file.pread(size, 2 * size))
        data[20:28] = (1).to_bytes(8, "big")
        reseal(data)
        file.pwrite(data, 2 * size)
        found = differences(disk)
        assert (
            f"consume queue: t/0: the record at log offset {2 * size} is number 1, which was given before" in found[0]
        )
        assert "numbers 2 to 2 are not in the log" in found[1]

    async def test_damage_that_recovery_has_put_aside_is_still_told(self) -> None:
        disk = SimDisk()
        await stored(disk)
        size = record_size(disk)
        flip(disk, LOG_FILE, size + 100)
        disk.unlink(LAYOUT.checkpoint)  # so that the log is read again
        async with running_broker(disk, SimClock(), store=options()):
            pass
        disk.kill()
        assert differences(disk) == [
            f"commit log: offsets {size} to {2 * size - 1} are damaged: CRC mismatch, a copy is in quarantine"
        ]

    async def test_bytes_behind_the_end_are_a_torn_tail_after_a_kill_and_wrong_after_a_clean_stop(self) -> None:
        for clean in (True, False):
            disk = SimDisk()
            await stored(disk, clean=clean)
            _, lines = look(disk)
            end = int(lines[-1].split()[0])
            last = sorted(disk.list_dir(LAYOUT.commit_log))[end // LOG_FILE_BYTES]
            change(disk, LAYOUT.commit_log / last, end % LOG_FILE_BYTES, b"\x00\x00\x01\x00\xda\xa3")
            code, lines = look(disk, verify=True)
            assert code == int(clean)
            kind = "difference" if clean else "note"
            assert f"{kind}: commit log: the log ends at {end}; what stands there up to {end + 5}" in "\n".join(lines)
            _, lines = look(disk)
            assert f"{end}  end of the log, TORN: 6 B that are no record (bad magic 0xDAA30000)" in lines[-1]

    async def test_a_short_and_a_strange_file_are_named(self) -> None:
        disk = SimDisk()
        await stored(disk)
        length = LOG_FILE_BYTES - 10  # the end of the blank, which is not read
        disk.open(LOG_FILE).truncate(length)
        disk.open(LAYOUT.commit_log / "stranger", create=True)
        _, lines = look(disk, verify=True)
        assert lines[1:-1] == [
            "difference: commit log: /store/commitlog/stranger: not the name of a file of this run",
            f"note: commit log: {LOG_FILE}: only {length} bytes long",
        ]

    async def test_what_a_short_file_has_lost_is_found(self) -> None:
        disk = SimDisk()
        await stored(disk)
        size = record_size(disk)
        disk.open(LOG_FILE).truncate(size + 10)
        disk.open(QUEUE_FILE).truncate(5)
        log, *queues = differences(disk)
        assert log == f"commit log: offsets {size} to {LOG_FILE_BYTES - 1} are damaged: CRC mismatch"
        assert queues[0] == "consume queue: t/0: entry 0 is missing"

    async def test_a_file_missing_in_the_middle_is_damage_and_the_rest_is_kept(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, store=options()) as broker:
            for step in range(60):
                await produce(broker, keyed(5, first=5 * step, size=900))
        disk.kill()
        names = disk.list_dir(LAYOUT.commit_log)
        disk.unlink(LAYOUT.commit_log / names[1])
        found = differences(disk)
        missing = f"offsets {int(names[1])} to {int(names[2]) - 1}"
        assert found[0] == f"commit log: /store/commitlog: no file holds {missing}"
        assert "the file is missing" in found[1]
        assert len(found) == 2


class TestConsumeQueues:
    @pytest.mark.parametrize("at", range(20))
    async def test_every_changed_byte_of_an_entry_is_found(self, at: int) -> None:
        disk = SimDisk()
        await stored(disk)
        flip(disk, QUEUE_FILE, 3 * 20 + at)
        (found,) = differences(disk)
        field = "log offset" if at < 8 else "size" if at < 12 else "tag hash or due time"
        assert found.startswith(f"consume queue: t/0: entry 3 says {field} ")

    async def test_a_wrong_due_time_is_found(self) -> None:
        disk = SimDisk()
        await stored(disk)
        flip(disk, LAYOUT.consume_queue("SCHEDULE_TOPIC_XXXX", 2) / ("0" * 20), 19)
        (found,) = differences(disk)
        assert found.startswith("consume queue: SCHEDULE_TOPIC_XXXX/2: entry 0 says tag hash or due time")

    async def test_missing_entries_are_told_as_one_run(self) -> None:
        disk = SimDisk()
        await stored(disk)
        change(disk, QUEUE_FILE, 20, bytes(3 * 20))
        assert differences(disk) == ["consume queue: t/0: entries 1 to 3 are missing"]

    async def test_a_missing_queue_is_found(self) -> None:
        disk = SimDisk()
        await stored(disk)
        disk.remove_tree(LAYOUT.consume_queue("t", 1))
        assert differences(disk) == ["consume queue: t/1: entries 0 to 59 are missing"]

    async def test_entries_that_no_message_has_are_found(self) -> None:
        disk = SimDisk()
        await stored(disk)
        second = disk.open(LAYOUT.consume_queue("t", 1) / ("0" * 20))
        second.pwrite(struct.pack(">qiq", 0, 100, 0), 60 * 20)
        second.pwrite(struct.pack(">qiq", 1 << 40, 100, 0), 61 * 20)
        first, behind = differences(disk)
        assert first == "consume queue: t/1: entry 60 is too many: no record at log offset 0 is that number"
        assert behind.startswith(f"consume queue: t/1: entry 61 names log offset {1 << 40}; the log ends at ")

    async def test_a_queue_of_no_topic_and_a_stray_file_are_found(self) -> None:
        disk = SimDisk()
        await stored(disk)
        disk.make_dirs(LAYOUT.consume_queues / "t" / "first")
        disk.open(LAYOUT.consume_queues / "notes.txt", create=True)
        assert [found.split(": ", 1)[1] for found in differences(disk)] == [
            "/store/consumequeue/notes.txt: a file, where a topic has a folder",
            "/store/consumequeue/t/first: not the number of a queue",
        ]


class TestIndex:
    @pytest.mark.parametrize("at", range(20))
    async def test_every_changed_byte_of_an_entry_is_found(self, at: int) -> None:
        disk = SimDisk()
        await stored(disk)
        flip(disk, index_file(disk), ENTRIES_AT + 7 * 20 + at)
        found = differences(disk)
        assert found
        assert all(line.startswith("index: ") for line in found)
        assert any("entry 7 " in line for line in found)
        assert len(found) <= 4  # it is not lost behind the first difference

    @pytest.mark.parametrize(
        "at", [at for at in range(40) if at != 15]
    )  # of the end timestamp, up to 999 ms may differ
    async def test_every_changed_byte_of_the_head_is_found(self, at: int) -> None:
        disk = SimDisk()
        await stored(disk)
        path = index_file(disk)
        flip(disk, path, at)
        assert [found for found in differences(disk) if found.startswith(f"index: {path.name}: the head ")]

    async def test_a_slot_that_forgets_its_newest_entry_is_found(self) -> None:
        disk = SimDisk()
        await stored(disk)
        path = index_file(disk)
        slots = struct.unpack(">50i", disk.open(path).pread(200, SLOTS_AT))
        slot = next(number for number, entry in enumerate(slots) if entry)
        change(disk, path, SLOTS_AT + 4 * slot, bytes(4))
        assert differences(disk) == [f"index: {path.name}: slot {slot} names entry 0; its newest is {slots[slot]}"]

    async def test_an_entry_that_is_gone_is_a_key_that_is_not_found(self) -> None:
        disk = SimDisk()
        await stored(disk)
        path = index_file(disk)
        change(disk, path, ENTRIES_AT + 7 * 20, bytes(20))
        found = "\n".join(differences(disk))
        assert "entry 7 names log offset 0, where no message has such a key" in found
        assert "no entry for the key hash" in found

    async def test_an_index_that_was_switched_off_is_only_mentioned(self) -> None:
        disk = SimDisk()
        await stored(disk)
        async with running_broker(disk, SimClock(), store=replace(options(), index_enabled=False)) as broker:
            await produce(broker, keyed(3, first=125))
        disk.kill()
        code, lines = look(disk, verify=True)
        assert code == 0, lines
        assert lines[1] == f"note: index: {index_file(disk).name} is left from when the index was switched on"

    async def test_a_missing_index_file_is_found(self) -> None:
        disk = SimDisk()
        await stored(disk)
        path = index_file(disk, -1)
        disk.unlink(path)
        found = differences(disk)
        assert found[0] == f"index: {path.name} is missing, in which the checkpoint says the index ends"
        assert "no entry for the key hash" in found[1]

    async def test_a_file_of_a_strange_length_is_named(self) -> None:
        disk = SimDisk()
        await stored(disk)
        path = index_file(disk)
        disk.open(path).truncate(1_000)
        (found,) = differences(disk)
        assert found.startswith(f"index: {path}: 1000 bytes are not the length of an index file; --index-slots says")

    async def test_index_files_of_other_proportions_need_the_number_of_their_slots(self) -> None:
        disk, layout = SimDisk(), replace(LAYOUT, index_size=IndexSize(slots=50, entries=210))
        async with running_broker(disk, SimClock(), store=replace(options(), layout=layout)) as broker:
            await produce(broker, keyed(3))
        disk.kill()
        assert len(differences(disk)) == 1
        code, lines = look(disk, verify=True, index_slots=50)
        assert code == 0, lines
        assert ", 6 index entries: " in lines[-1]

    async def test_without_a_checkpoint_the_index_is_still_compared(self) -> None:
        disk = SimDisk()
        await stored(disk)
        disk.unlink(LAYOUT.checkpoint)
        assert differences(disk) == ["checkpoint: missing"]
        flip(disk, index_file(disk), ENTRIES_AT + 7 * 20 + 3)
        assert len(differences(disk)) > 1


class TestSmallFiles:
    @pytest.mark.mechanism("S7")
    @pytest.mark.parametrize("at", range(124))
    async def test_every_changed_byte_of_the_checkpoint_is_found(self, at: int) -> None:
        disk = await self.filled()
        flip(disk, LAYOUT.checkpoint, at)
        assert differences(disk) == ["checkpoint: the CRC does not match"]

    async def filled(self) -> SimDisk:
        """A small store, because each byte has one."""
        disk = SimDisk()
        async with running_broker(disk, SimClock(), store=options()) as broker:
            await produce(broker, keyed(3))
        disk.kill()
        return disk

    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ({"log_offset": 100}, "names log offset 100, where no record begins"),
            ({"entry_count": 4}, "counts 4 consume-queue entries; the log has 3"),
            ({"newest_store_ms": 7}, "says newest store timestamp 7; the log says 1700000000000"),
            ({"full_index_ms": 5_000}, "says that the full index files end at 5000 ms; they do at 0"),
            ({"index": {"file_count": 2}}, "counts 2 index files; there are 1"),
            ({"index": {"log_offset": 1 << 40}}, f"says that the index reaches {1 << 40}, the log "),
        ],
    )
    async def test_a_checkpoint_that_is_whole_and_wrong_is_found(self, wrong: dict[str, Any], text: str) -> None:
        disk = await self.filled()
        checkpoint = Checkpoint.decode(disk.contents()[LAYOUT.checkpoint])
        assert checkpoint is not None
        if "index" in wrong:
            wrong = {"index": replace(checkpoint.index, **wrong["index"])}
        change(disk, LAYOUT.checkpoint, 0, replace(checkpoint, **wrong).encode())
        assert any(found.startswith(f"checkpoint: {text}") for found in differences(disk))

    @pytest.mark.parametrize("slot", [0, 512])
    @pytest.mark.parametrize("at", range(12))
    async def test_every_changed_byte_of_the_watermark_is_found(self, slot: int, at: int) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), store=options()) as broker:
            for number in range(3):
                await produce(broker, keyed(1, first=number))
        disk.kill()
        flip(disk, LAYOUT.watermark, slot + at)
        assert differences(disk) == [f"watermark: slot {slot // 512} is damaged: the CRC does not match"]

    async def test_a_watermark_beyond_the_log_is_found(self) -> None:
        disk = await self.filled()
        value = struct.pack(">q", 5_000)
        change(disk, LAYOUT.watermark, 0, value + struct.pack(">I", zlib.crc32(value)))
        assert "damaged: never written" in differences(disk)[0]

    @pytest.mark.parametrize(
        "name",
        ["consumerOffset.json", "delayOffset.json", "subscriptionGroup.json", "topics.json", "transactionOffset.json"],
    )
    async def test_every_changed_byte_of_a_state_file_is_found(self, name: str) -> None:
        disk = await self.filled()
        path = LAYOUT.config / name
        whole = disk.contents()[path]
        for at in range(len(whole)):
            flip(disk, path, at, 0x01)
            (found,) = differences(disk)
            assert found.startswith(f"config: {name}: ")
            flip(disk, path, at, 0x01)
        disk.unlink(path)
        assert differences(disk) == [f"config: {name} is missing"]

    async def test_the_version_before_a_damaged_one_is_mentioned(self) -> None:
        disk = SimDisk()
        await stored(disk)
        flip(disk, LAYOUT.config / "topics.json", 30)
        (found,) = differences(disk)
        assert found.endswith("; the version before it is whole")

    @pytest.mark.parametrize(
        ("name", "table", "text"),
        [
            ("consumerOffset.json", {"t@g": {"0": 4}}, "group g is at 4 of t/0, which ends at 3"),
            ("delayOffset.json", {"3": 1}, "level 3 is at 1 of SCHEDULE_TOPIC_XXXX/2, which ends at 0"),
            ("transactionOffset.json", {"half": 0, "op": 9}, "is at 9 of RMQ_SYS_TRANS_OP_HALF_TOPIC/0"),
            ("consumerOffset.json", {"t@g": ["0"]}, "is not of its form: TypeError"),
            ("producerSequence.json", {}, "is not of its form: KeyError: 'producerTable'"),
        ],
    )
    async def test_an_offset_beyond_the_end_of_its_queue_is_found(
        self, name: str, table: dict[str, object], text: str
    ) -> None:
        disk = await self.filled()
        document = encode_document({"dataVersion": {"counter": 1}, "offsetTable": table}, 0)
        disk.open(LAYOUT.config / name).truncate(0)
        change(disk, LAYOUT.config / name, 0, document)
        (found,) = differences(disk)
        assert text in found

    async def test_a_producer_s_numbers_beyond_the_end_of_a_queue_are_found(self) -> None:
        disk = await self.filled()
        entry = {"epoch": 1, "lastTimestamp": 0, "queues": "t:0 1 1+3@t:0:1"}
        document = {"dataVersion": {"counter": 1}, "producerTable": {"00000000000000ff": entry}}
        disk.open(LAYOUT.config / "producerSequence.json").truncate(0)
        change(disk, LAYOUT.config / "producerSequence.json", 0, encode_document(document, 0))
        (found,) = differences(disk)
        assert "producer 00000000000000ff is at 4 of t/0, which ends at 3" in found

    async def test_a_state_from_after_the_log_s_end_is_found(self) -> None:
        disk = await self.filled()
        path = LAYOUT.config / "delayOffset.json"
        document = encode_document({"dataVersion": {"counter": 1}, "offsetTable": {}}, 1 << 30)
        disk.open(path).truncate(0)
        change(disk, path, 0, document)
        (found,) = differences(disk)
        assert found.startswith(f"config: delayOffset.json was written when the log ended at {1 << 30}; it ends at ")


class TestWhatIsShown:
    async def test_a_record_is_one_line_with_its_place_names_and_state(self) -> None:
        disk = SimDisk()
        await stored(disk)
        _, lines = look(disk)
        size = record_size(disk)
        assert lines[2] == (
            f"{size:>12}  {size:>6} B  t/0 #1  2023-11-14T22:13:20.000Z  tag=red  keys=key1  unique=id-key1  "
            "body 406 B '000001" + "." * 26 + "...'"
        )
        text = "\n".join(lines)
        assert "SCHEDULE_TOPIC_XXXX/1 #0" in text
        assert "[delayed by level 2 until 2023-11-14T22:13:42.500Z for t/0]" in text
        assert "[delivered, was delayed at 2:0]" in text
        assert "[half message for t/0]" in text
        assert "[committed, was half #0]" in text
        assert "[op: half #0 ended COMMITTED]" in text
        assert "blank: the rest of the file" in text
        assert lines[-1].endswith("  end of the log")

    async def test_from_count_and_topic_choose_records(self) -> None:
        disk = SimDisk()
        await stored(disk)
        size = record_size(disk)
        _, lines = look(disk, start=2 * size, count=2)
        assert [line.split()[4] for line in lines[1:]] == ["#2", "#3"]
        _, lines = look(disk, start=2 * size + 1, count=1)
        assert lines[1] == f"note: nothing begins at {2 * size + 1}; going on at {3 * size}"
        assert lines[2].split()[0] == str(3 * size)
        _, lines = look(disk, start=1 << 40)
        assert lines[1:] == [f"note: nothing begins at {1 << 40} or behind it"]
        _, lines = look(disk, topic="RMQ_SYS_TRANS_HALF_TOPIC")
        assert sum("unique=tx-" in line for line in lines) == 2
        assert not any("t/0 #" in line for line in lines)

    async def test_files_shows_every_part(self) -> None:
        disk = SimDisk()
        await stored(disk)
        _, lines = look(disk, files=True)
        kinds = [line.partition(":")[0] for line in lines]
        assert set(kinds) == {
            "store", "version", "commit log", "checkpoint", "watermark", "config", "journal", "consume queue", "index",
        }  # fmt: skip
        text = "\n".join(lines)
        assert "config: name=topics.json format_version=1 data_version=" in text
        assert "consume queue: topic=t queue_id=1 first_entry=0 next_entry=60" in text
        assert f"index: name={index_file(disk).name} begin_ms=1700000000000" in text
        assert "checkpoint: log_offset=" in text

    @pytest.mark.parametrize("damaged", [False, True])
    @pytest.mark.parametrize("wanted", [{"verify": True}, {"files": True}, {}])
    async def test_json_is_one_object_a_line(self, damaged: bool, wanted: dict[str, bool]) -> None:
        disk = SimDisk()
        await stored(disk)
        if damaged:
            flip(disk, LOG_FILE, 100)
            flip(disk, LAYOUT.checkpoint, 70)
            flip(disk, LAYOUT.config / "topics.json", 30)
        code, lines = look(disk, as_json=True, **wanted)
        objects = [json.loads(line) for line in lines]
        assert objects[0] | {"kind": "store", "lock": "free", "was_open": False} == objects[0]
        if "verify" in wanted:
            assert objects[-1]["kind"] == "verdict"
            assert bool(objects[-1]["differences"]) is damaged is bool(code)
            assert {one["part"] for one in objects[1:-1]} == (
                {"commit log", "checkpoint", "config"} if damaged else set()
            )
        elif not wanted:
            assert {one["kind"] for one in objects[1:]} - {"damage"} == {"record", "blank", "tail"}
            assert objects[-1]["written"] == 0

    async def test_what_a_client_has_sent_cannot_move_the_cursor(self) -> None:
        disk = SimDisk()
        record = producer_record("t", b"\x1b[2J\r\nnew line", tag="a\x1b[31m", key="\u202ek")
        async with running_broker(disk, SimClock(), store=options()) as broker:
            await produce(broker, IncomingBatch("t", 0, 1, record))
        disk.kill()
        _, lines = look(disk)
        assert all(line.isprintable() for line in lines)
        assert "tag=a.[31m" in lines[1]
        _, lines = look(disk, as_json=True)
        assert all(line.isprintable() for line in lines)
        assert json.loads(lines[1])["tag"] == "a\x1b[31m"

    async def test_no_more_than_a_hundred_differences_are_shown_and_all_are_counted(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, store=options()) as broker:
            await produce(broker, keyed(300, size=1))
        disk.kill()
        for number in range(150):
            flip(disk, QUEUE_FILE if number < 100 else QUEUE_FILE.with_name(f"{2_000:020d}"), number % 100 * 20 + 15)
        code, lines = look(disk, verify=True)
        assert code == 1
        assert len(lines) == SHOWN_MAX + 2
        assert lines[-1].endswith(": 150 differences (50 more lines than shown)")


class TestCommandLine:
    async def test_exit_codes_on_a_real_disk(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        disk = RealDisk()
        try:
            await stored(disk, tmp_path / "store")
        finally:
            disk.close()
        before = everything_below(tmp_path)
        root = str(tmp_path / "store")
        assert main([root, "--verify"]) == 0
        assert main([root, "--files", "--json"]) == 0
        assert main([root, "--from", "0", "--count", "1", "--topic", "t"]) == 0
        assert everything_below(tmp_path) == before
        assert capsys.readouterr().out.count("store:") == 2
        with (tmp_path / "store/consumequeue/t/0" / ("0" * 20)).open("r+b") as file:
            file.write(b"\x01")
        assert main([root, "--verify"]) == 1
        assert "difference: consume queue: t/0: entry 0 says log offset" in capsys.readouterr().out

    async def test_beside_a_running_broker_on_a_real_disk(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        disk, clock = RealDisk(), SimClock()
        try:
            async with running_broker(disk, clock, store=options(tmp_path)) as broker:
                await fill(broker, clock)
                assert main([str(tmp_path), "--verify"]) == 0
                assert f"store: {tmp_path}, lock held; a broker is at work" in capsys.readouterr().out
                await produce(broker, keyed(3, first=125))
        finally:
            disk.close()
        assert main([str(tmp_path), "--verify"]) == 0
        assert f"store: {tmp_path}, lock free\n" in capsys.readouterr().out

    def test_no_store_there_is_2(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for where in (tmp_path, tmp_path / "nowhere"):
            assert main([str(where), "--verify"]) == 2
            assert f"dump_log: there is no store in {where}" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "arguments", [[], ["store", "--what"], ["store", "--from", "-1"], ["store", "--count", "x"]]
    )
    def test_a_bad_command_line_is_2(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
        assert "usage: python -m mq_broker.tools.dump_log" in capsys.readouterr().err

    async def test_a_disk_that_cannot_be_read_is_1(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "commitlog").mkdir()
        (tmp_path / "commitlog" / ("0" * 20)).mkdir()
        assert main([str(tmp_path)]) == 1
        assert "dump_log: [Errno 21]" in capsys.readouterr().err


def reseal(record: bytearray) -> None:
    """Make the record's own CRC right again, so that only what is inside is wrong."""
    digits = b"%010d" % (zlib.crc32(record[:-20]) & 0x7FFFFFFF)
    record[-11:-1] = digits[::-1]


def everything_below(root: Path) -> dict[Path, tuple[int, bytes]]:
    """Each file with its time of change and its bytes."""
    files: dict[Path, tuple[int, bytes]] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            files[path] = (path.stat().st_mtime_ns, path.read_bytes())
    return files


def reject_new_index_files(call: str, path: Path) -> None:
    """A disk that has no room for another index file."""
    if call == "truncate" and path.parent == LAYOUT.index:
        raise OSError(errno.ENOSPC, "simulated")
