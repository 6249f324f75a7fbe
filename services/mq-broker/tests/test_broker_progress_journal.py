"""The journal beside consumerOffset.json: when it is written, what begins a new file, and what a start makes of it."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import RejectedError
from mq_broker.processor.broker import Broker
from mq_broker.store.layout import StoreLayout
from mq_broker.store.progress_journal import Entry, encode_entry, scan
from mq_broker.testing import (
    STORE_ROOT,
    broker_options,
    flush_and_index,
    incoming,
    produce,
    running_broker,
    store_options,
)
from osenv import SeededRng, SimClock, SimDisk
from osenv.disk import read_file
from osenv.sim_clock import settle

CONFIG = StoreLayout(STORE_ROOT).config
LOG = StoreLayout(STORE_ROOT).commit_log
OFFSETS = CONFIG / "consumerOffset.json"
JOURNAL = "consumerOffset.journal."
ENTRIES = [
    Entry(7, "g", "t", 0, Progress(10, ((12, 14), (20, 21)), 2)),
    Entry(7, "g", "%RETRY%g", 3, Progress(0)),
    Entry(9, "g", "t", 0, None),
]


class Nothing(SeededRng):
    """Of what was not synced nothing survives a power cut."""

    def randrange(self, start: int, stop: int) -> int:  # type: ignore[override]
        return start


def journal(disk: SimDisk) -> dict[str, list[Entry]]:
    """The entries of each file of the journal."""
    names = [name for name in disk.list_dir(CONFIG) if name.startswith(JOURNAL)]
    return {name.removeprefix(JOURNAL): scan(read_file(disk, CONFIG / name)).entries for name in names}


async def fill(broker: Broker, count: int = 10) -> None:
    await produce(broker, incoming("t", [b"%d" % number for number in range(count)]))


def report(broker: Broker, offset: int, *ranges: tuple[int, int], version: int = 0) -> None:
    assert broker.offsets.commit("g", [("t", 0, Progress(offset, ranges, version))]) == ""


async def after_start(disk: SimDisk) -> Progress | None:
    async with running_broker(disk, SimClock(), work=flush_and_index, clean_stop=False) as broker:
        return broker.offsets.query("g", "t", 0)


def fail_on(call: str, error: OSError, wanted: Callable[[Path], bool]) -> Callable[[str, Path], None]:
    def fail(made: str, path: Path) -> None:
        if made == call and wanted(path):
            raise error

    return fail


def of_journal(path: Path) -> bool:
    return path.name.startswith(JOURNAL)


class TestEntries:
    def test_what_is_written_comes_back(self) -> None:
        found = scan(b"".join(map(encode_entry, ENTRIES)))
        assert (found.entries, found.damages, found.torn) == (ENTRIES, [], 0)

    def test_a_shorter_file_loses_its_last_entry_only(self) -> None:
        whole = [encode_entry(entry) for entry in ENTRIES]
        kept = len(whole[0]) + len(whole[1])
        for size in range(len(whole[2])):
            found = scan(b"".join(whole)[: kept + size])
            assert (found.entries, found.damages, found.torn) == (ENTRIES[:2], [], size)

    def test_every_changed_byte_is_noticed_and_what_follows_is_used(self) -> None:
        whole = [encode_entry(entry) for entry in ENTRIES]
        data, begin = b"".join(whole), len(whole[0])
        for at in range(begin, begin + len(whole[1])):
            for bit in (0x01, 0x80):
                found = scan(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
                assert (found.entries, found.torn) == ([ENTRIES[0], ENTRIES[2]], 0)
                assert found.damages == [(begin, len(whole[1]))]

    @given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([b"HPRG", *map(encode_entry, ENTRIES)]))))
    def test_whatever_the_bytes_each_of_them_is_accounted_for(self, parts: list[bytes]) -> None:
        data = b"".join(parts)
        found = scan(data)
        entries = sum(len(encode_entry(entry)) for entry in found.entries)
        assert entries + sum(size for _, size in found.damages) + found.torn == len(data)
        whole = [part for part in parts if part in set(map(encode_entry, ENTRIES))]
        assert list(map(encode_entry, found.entries)) == whole

    def test_an_entry_that_is_not_in_the_normal_form_is_none(self) -> None:
        assert scan(encode_entry(Entry(1, "g", "t", 0, Progress(5, ((5, 6),))))).entries == []


class TestWriting:
    async def test_what_is_reported_is_on_disk_a_moment_later_in_one_write(self) -> None:
        disk, clock, calls = SimDisk(), SimClock(), list[str]()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await fill(broker)
            disk.before = lambda call, path: calls.append(call) if path.parent == CONFIG else None
            for group in ("a", "b", "c"):
                broker.offsets.commit(group, [("t", 0, Progress(3)), ("t", 1, Progress(0))])
            await settle()
            assert calls == ["open", "pwrite", "sync_data"]
            assert len(journal(disk)["0000000001"]) == 6

    async def test_writes_keep_a_distance_and_what_comes_meanwhile_goes_together(self) -> None:
        disk, clock, calls = SimDisk(), SimClock(), list[str]()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await fill(broker)
            report(broker, 1)
            await settle()
            disk.before = lambda call, path: calls.append(call) if of_journal(path) else None
            for offset in range(2, 8):
                report(broker, offset)
                await clock.advance(0.008)
            assert calls == []
            await clock.advance(0.01)
            assert calls == ["pwrite", "sync_data"]
            assert [entry.progress for entry in journal(disk)["0000000001"]] == [Progress(1), Progress(7)]

    async def test_an_idle_broker_writes_nothing(self) -> None:
        disk, clock, calls = SimDisk(), SimClock(), list[str]()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await fill(broker)
            report(broker, 4)
            await clock.advance(31)
            disk.before = lambda call, path: calls.append(f"{call} {path}")
            report(broker, 4)
            report(broker, 2)
            await clock.advance(60)
            assert [call for call in calls if "config" in call] == []

    async def test_a_file_goes_when_the_document_and_the_one_before_have_its_entries(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await fill(broker)
            names = []
            for offset in (1, 2, 3):
                report(broker, offset)
                await clock.advance(5)
                names.append(sorted(journal(disk)))
            assert names == [["0000000001"], ["0000000002"], ["0000000003"]]


class TestRejections:
    @pytest.mark.parametrize("call", ["open", "pwrite"])
    async def test_what_the_journal_does_not_take_goes_into_a_new_file_and_into_the_document(self, call: str) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await fill(broker)
            disk.before = fail_on(call, OSError(errno.ENOSPC, "simulated"), of_journal)
            report(broker, 4)
            await settle()
            disk.before = lambda call, path: None
            assert broker.store.failure is None
            await clock.advance(5.1)
            assert json.loads(read_file(disk, OFFSETS))["offsetTable"] == {"t@g": {"0": 4}}
            assert max(journal(disk)) == "0000000002"
            assert [entry.progress for entry in journal(disk)["0000000002"]] == [Progress(4)]
        disk.crash(Nothing(0))
        assert await after_start(disk) == Progress(4)

    @pytest.mark.parametrize("call", ["sync_data", "sync_dir"])
    async def test_a_sync_that_fails_is_the_end_and_nothing_is_synced_again(self, call: str) -> None:
        disk, clock, later = SimDisk(), SimClock(), list[str]()
        broker = Broker(disk, clock, broker_options(), store_options())
        await broker.open()
        running = asyncio.create_task(broker.run())
        await fill(broker)
        disk.before = fail_on(call, OSError(errno.EIO, "simulated"), lambda path: of_journal(path) or path == CONFIG)
        report(broker, 4)
        await settle()
        disk.before = lambda call, path: later.append(f"{call} {path}") if call.startswith("sync") else None
        async with asyncio.timeout(5):
            await running  # the broker ends by itself
        assert broker.store.failure is not None
        await broker.close()
        assert later == []
        disk.before = lambda call, path: None
        disk.crash(Nothing(0))
        assert await after_start(disk) is None

    async def test_a_reset_that_the_journal_does_not_take_is_in_the_document_when_it_is_answered(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False, work=flush_and_index) as broker:
            await fill(broker)
            report(broker, 4)
            disk.before = fail_on("pwrite", OSError(errno.ENOSPC, "simulated"), of_journal)
            await broker.consume_progress.reset("g", "t", 0, force=True)
            disk.before = lambda call, path: None
        disk.crash(Nothing(0))
        assert await after_start(disk) == Progress(0, (), 1)

    async def test_a_reset_that_the_disk_does_not_take_at_all_is_not_answered(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False, work=flush_and_index) as broker:
            await fill(broker)
            report(broker, 4)
            disk.before = fail_on("sync_data", OSError(errno.EIO, "simulated"), lambda path: path.parent == LOG)
            with pytest.raises(RejectedError, match="the disk has failed"):
                await broker.offsets.set("g", [("t", 0, 0)])
            assert broker.store.failure is not None


class TestStart:
    async def lived(self) -> SimDisk:
        """The document says 3, the journal 5, with a range, and a version."""
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await fill(broker)
            report(broker, 3)
            await clock.advance(5)
            await broker.offsets.set("g", [("t", 0, 5)])
            report(broker, 5, (7, 9), version=1)
            await clock.advance(0.1)
        disk.kill()
        assert b'"0": 3' in read_file(disk, OFFSETS)
        return disk

    async def test_what_is_newer_than_the_document_is_taken_over(self) -> None:
        disk = await self.lived()
        for _ in range(3):
            assert await after_start(disk) == Progress(5, ((7, 9),), 1)
            disk.kill()

    async def test_a_torn_tail_is_passed_over_and_mentioned(self, caplog: pytest.LogCaptureFixture) -> None:
        disk = await self.lived()
        path = CONFIG / f"{JOURNAL}{max(journal(disk))}"
        file = disk.open(path)
        file.truncate(file.size() - 1)
        caplog.clear()
        assert await after_start(disk) == Progress(5, (), 1)
        assert f"{path}: the last write was cut short, or is damaged: 69 bytes are no entry" in caplog.text

    async def test_a_damaged_entry_in_the_middle_is_reported_and_what_follows_is_used(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        disk = await self.lived()
        path = CONFIG / f"{JOURNAL}{max(journal(disk))}"
        disk.open(path).pwrite(b"\xff", 30)
        assert await after_start(disk) == Progress(5, ((7, 9),), 1)
        assert f"{path}: 54 bytes at 0 are no entry; what follows is used" in caplog.text

    @pytest.mark.mechanism("C22")
    @pytest.mark.parametrize("damaged", ["consumerOffset.json", "consumerOffset.json.bak"])
    async def test_one_document_and_the_journal_know_everything(self, damaged: str) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await fill(broker)
            for offset in (2, 4, 6):
                report(broker, offset)
                broker.offsets.commit("other", [("t", 0, Progress(offset))])
                await clock.advance(5)
            report(broker, 8)
            await clock.advance(0.1)
            broker.consumer_offsets.forget_group("other")
            await clock.advance(0.1)
        disk.kill()
        disk.open(CONFIG / damaged).pwrite(b"\xff", 20)
        for _ in range(2):
            async with running_broker(disk, SimClock(), clean_stop=False) as broker:
                assert list(broker.consumer_offsets.all()) == [("g", "t", 0, 8)]
            disk.kill()

    async def test_a_damaged_document_never_takes_the_place_of_the_one_before_it(self) -> None:
        disk = await self.lived()
        before = read_file(disk, OFFSETS.with_name("consumerOffset.json.bak"))
        disk.open(OFFSETS).pwrite(b"\xff", 20)
        forks = list[SimDisk]()
        disk.before = lambda call, path: forks.append(disk.fork()) if path.parent == CONFIG else None
        assert await after_start(disk) == Progress(5, ((7, 9),), 1)
        assert read_file(disk, OFFSETS.with_name("consumerOffset.json.bak")) == before
        for fork in forks:
            fork.crash(Nothing(0))
            assert await after_start(fork) == Progress(5, ((7, 9),), 1)

    async def test_beside_a_document_of_rocketmq_s_it_does_not_count_also_later(self) -> None:
        disk = await self.lived()
        document = json.loads(read_file(disk, OFFSETS))
        theirs = {"offsetTable": {"t@g": {"0": 2}}, "dataVersion": {"counter": 1}}
        assert document["dataVersion"]["counter"] >= 1
        file = disk.open(OFFSETS)
        file.truncate(0)
        file.pwrite(json.dumps(theirs).encode(), 0)
        for _ in range(3):
            assert await after_start(disk) == Progress(2)
            disk.kill()

    async def test_what_was_cut_with_the_log_does_not_come_back_with_the_version_before(self) -> None:
        disk = await self.lived()
        log_file = StoreLayout(STORE_ROOT).commit_log / ("0" * 20)
        disk.open(log_file).pwrite(bytes(64 * 1024), 0)
        disk.unlink(StoreLayout(STORE_ROOT).checkpoint)
        disk.unlink(StoreLayout(STORE_ROOT).watermark)
        async with running_broker(disk, SimClock(), clean_stop=False) as broker:
            assert broker.offsets.query("g", "t", 0) == Progress(0, (), 1)
            await fill(broker, 20)
        disk.kill()
        disk.open(OFFSETS).pwrite(b"\xff", 20)
        assert await after_start(disk) == Progress(0, (), 1)
