"""The index: every key finds its messages, newest first, whatever has happened to the files meanwhile."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from struct import unpack

import pytest

from mq_broker.core.batches import index_hash, index_keys, message_keys, record_index_keys
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.store.index import IndexFile, IndexSize
from mq_broker.store.message_store import StoreOptions
from mq_broker.testing import BORN_IP, half, produce, read_all, running_broker, store_options
from mq_broker.testing_closely import ThreadedDisk
from mqproto.names import HALF_TOPIC, SCHEDULE_TOPIC, retry_topic
from mqproto.properties import DELAY, KEYS, UNIQ_KEY, decode_properties, encode_properties, java_string_hash
from mqproto.record import decode_record, encode_record
from osenv import SeededRng, SimClock, SimDisk
from osenv.sim_clock import settle

SIZE = IndexSize(slots=16, entries=40)  # number 0 is never used: 39 keys a file
START_MS = 1_700_000_000_000
MIN_INT = -(1 << 31)
FILE = Path("/index/20231114221320000")


def options(size: IndexSize = SIZE, *, enabled: bool = True) -> StoreOptions:
    store = store_options()
    return replace(store, layout=replace(store.layout, index_size=size), index_enabled=enabled)


def record(topic: str, body: bytes, properties: Mapping[str, str], queue_id: int = 0) -> bytes:
    return encode_record(
        topic=topic.encode(),
        body=body,
        properties=encode_properties(properties),
        queue_id=queue_id,
        born_timestamp_ms=1,
        born_ip=BORN_IP,
    )


def message(body: bytes, keys: str = "", unique: str = "", *, topic: str = "t", delay: int = 0) -> IncomingBatch:
    wanted = {KEYS: keys, UNIQ_KEY: unique, DELAY: str(delay) if delay else ""}
    data = record(topic, body, {name: value for name, value in wanted.items() if value})
    return IncomingBatch(topic, 0, 1, data)


def numbered(count: int, first: int = 0) -> list[IncomingBatch]:
    """Messages with three keys: their own, a unique one, and one that every seventh has."""
    return [message(b"%d" % n, f"own{n} every{n % 7}", f"id{n}") for n in range(first, first + count)]


async def indexed(broker: Broker) -> None:
    await settle()
    assert broker.store.index.indexed_end == broker.store.log_end


async def find(broker: Broker, key: str, topic: str = "t", begin_ms: int = 0, end_ms: int = 0) -> list[bytes]:
    found = await broker.querying.by_key(topic, key, max_messages=2_000, begin_ms=begin_ms, end_ms=end_ms)
    return [decode_record(data).body for data in found.records]


async def assert_all_found(broker: Broker, count: int) -> None:
    """Every key of `numbered(count)` finds exactly its messages."""
    await indexed(broker)
    for number in range(count):
        assert await find(broker, f"own{number}") == await find(broker, f"id{number}") == [b"%d" % number]
    for rest in range(7):
        assert await find(broker, f"every{rest}") == [b"%d" % n for n in reversed(range(count)) if n % 7 == rest]


def key_with_hash(prefix: str, wanted: int) -> str:
    """Seven characters behind `prefix` that give the whole this hash: a number to the base 31, digits from '0' on."""
    power = pow(31, 7, 1 << 32)
    rest = (wanted - java_string_hash(prefix) * power - sum(48 * 31**at for at in range(7))) % (1 << 32)
    digits = [rest // 31**at % 31 for at in reversed(range(7))]
    return "".join(chr(48 + digit) for digit in digits)


class TestHash:
    @pytest.mark.parametrize(
        ("topic", "key", "wanted"),
        [
            ("t", "k", 116 * 31**2 + 35 * 31 + 107),
            ("a", "\U0001f600", 97 * 31**3 + 35 * 31**2 + 0xD83D * 31 + 0xDE00),  # a surrogate pair is two units
            ("a", "é", 97 * 31**2 + 35 * 31 + 0xE9),
            ("", "", 35),
        ],
    )
    def test_hash_is_the_polynomial_of_the_utf_16_units(self, topic: str, key: str, wanted: int) -> None:
        assert index_hash(topic, key) == wanted

    def test_a_negative_hash_counts_by_its_absolute_value(self) -> None:
        assert index_hash("t", key_with_hash("t#", -17)) == 17
        assert index_hash("t", key_with_hash("t#", MIN_INT + 1)) == (1 << 31) - 1

    def test_the_smallest_hash_has_no_absolute_value_and_counts_as_0(self) -> None:
        assert java_string_hash("polygenelubricants") == MIN_INT
        assert java_string_hash("t#" + (key := key_with_hash("t#", MIN_INT))) == MIN_INT
        assert index_hash("t", key) == 0

    @pytest.mark.parametrize("length", [1, 253, 254, 255, 256, 300, 40_000])
    def test_long_keys_hash_like_short_ones(self, length: int) -> None:
        key = ("key of an order;" * length)[:length]
        assert index_hash("t", key) == abs(java_string_hash(f"t#{key}"))

    def test_records_in_memory_and_from_disk_have_the_same_keys(self) -> None:
        rng, parts, wanted = SeededRng(1), [], []
        names = [KEYS, UNIQ_KEY, f"x{KEYS}", f"{KEYS}x", f"{UNIQ_KEY}_", "a", "KEY", f"{KEYS}{UNIQ_KEY}"]
        values = ["", " ", "k", "k k", " a  b ", "ключ 键", "KEYS", "UNIQ_KEY", "\U0001f600", "x" * 300]
        for number in range(300):
            names_here = sorted(names, key=lambda _: rng.random())[: rng.randrange(0, 6)]
            properties = {name: rng.choice(values) for name in names_here}
            parts.append(record(rng.choice(["t", "тема", "x" * 127]), b"KEYS\x01no\x02" * (number % 3 + 1), properties))
            there = [*properties.get(KEYS, "").split(" "), properties.get(UNIQ_KEY, "")]  # the unique key is one key
            wanted.append(sorted(key for key in there if key))
        data, at, hot = bytearray().join(parts), 0, []
        while at < len(data):
            keys, size = index_keys(data, at, at, records_max=7, keys_max=rng.randrange(1, 12))
            hot += keys
            at += size
        records = [decode_record(bytes(part)) for part in parts]
        assert [sorted(message_keys(one)) for one in records] == wanted
        places = [sum(map(len, parts[:number])) for number in range(len(parts))]
        cold = [
            k for one, at in zip(records, places, strict=True) for k in record_index_keys(replace(one, log_offset=at))
        ]
        assert hot == cold


class TestIndexFile:
    def file(self, disk: SimDisk, *, create: bool = True) -> IndexFile:
        disk.make_dirs(FILE.parent)
        return IndexFile(disk, FILE, SIZE, create=create)

    def all_of(self, file: IndexFile, key_hash: int) -> list[int]:
        return [at for at in file.find(key_hash, 0, 1 << 62) if at is not None]

    def test_keys_in_one_slot_are_told_apart_and_come_newest_first(self) -> None:
        file = self.file(SimDisk())
        file.add([(5, 100, START_MS), (5 + 16, 200, START_MS), (5, 300, START_MS)])
        file.add([(5 + 16, 400, START_MS), (5, 500, START_MS)])
        assert self.all_of(file, 5) == [500, 300, 100]
        assert self.all_of(file, 5 + 16) == [400, 200]
        assert self.all_of(file, 5 + 32) == self.all_of(file, 6) == []

    @pytest.mark.mechanism("S4")
    def test_bytes_are_rocketmq_s(self) -> None:
        disk = SimDisk()
        file = self.file(disk)
        file.add([(5, 100, START_MS), (5, 300, START_MS + 2_999), (6, 500, START_MS + 3_000)])
        file.take_save()()
        data = disk.contents()[FILE]
        assert len(data) == SIZE.file_bytes == 40 + 16 * 4 + 40 * 20
        assert unpack(">qqqqii", data[:40]) == (START_MS, START_MS + 3_000, 100, 500, 2, 4)
        assert unpack(">16i", data[40:104]) == (0, 0, 0, 0, 0, 2, 3, *[0] * 9)
        assert unpack(">iqii", data[124:144]) == (5, 100, 0, 0)
        assert unpack(">iqii", data[144:164]) == (5, 300, 2, 1)
        assert unpack(">iqii", data[164:184]) == (6, 500, 3, 0)

    @pytest.mark.mechanism("S4")
    def test_default_size_is_the_one_of_the_article(self) -> None:
        assert IndexSize().file_bytes == 40 + 5_000_000 * 4 + 20_000_000 * 20
        assert round(IndexSize().file_bytes / 1024) == 410_156  # 410,157 KB, rounded up

    def test_a_write_that_the_disk_rejects_adds_nothing(self) -> None:
        disk = SimDisk()
        file = self.file(disk)
        file.add([(5, 100, START_MS)])
        disk.before = fail_on("pwrite")
        with pytest.raises(OSError, match="full"):
            file.add([(5, 200, START_MS), (6, 300, START_MS)])
        disk.before = lambda call, path: None
        assert (self.all_of(file, 5), self.all_of(file, 6), file.head.next_number) == ([100], [], 2)
        file.add([(6, 400, START_MS)])
        assert (self.all_of(file, 5), self.all_of(file, 6)) == ([100], [400])

    @pytest.mark.parametrize("kept", range(1, 20))
    def test_recovery_forgets_what_came_later_and_nothing_else(self, kept: int) -> None:
        disk = SimDisk()
        file = self.file(disk)
        keys = [(number % 5, number * 100, START_MS + number) for number in range(1, 20)]
        file.add(keys)
        file.take_save()()
        again = self.file(disk, create=False)
        again.recover(kept)
        again.take_save()()
        for one in (again, self.file(disk, create=False)):
            for key_hash in range(5):
                assert self.all_of(one, key_hash) == [at for k, at, _ in reversed(keys[: kept - 1]) if k == key_hash]
            assert (one.head.next_number, one.head.slots_used) == (kept, min(kept - 1, 5))

    def test_a_file_that_fills_while_it_is_saved_loses_no_key(self) -> None:
        disk = SimDisk()
        file = self.file(disk)
        file.add([(7, 100, START_MS)])
        save = file.take_save()
        file.add([(7, 100 + number, START_MS) for number in range(1, file.room + 1)])
        assert file.is_full
        save()
        file.take_save()()
        for one in (file, self.file(disk, create=False)):
            assert self.all_of(one, 7) == list(range(138, 99, -1))

    def test_a_save_that_the_disk_rejects_is_made_up_for_by_the_next(self) -> None:
        disk = SimDisk()
        file = self.file(disk)
        file.add([(7, 100, START_MS)])
        disk.before = fail_on("pwrite")
        with pytest.raises(OSError, match="full"):
            file.take_save()()
        disk.before = lambda call, path: None
        file.take_save()()
        assert self.all_of(self.file(disk, create=False), 7) == [100]


def fail_on(*calls: str, below: Path = Path("/")) -> Callable[[str, Path], None]:
    def fail(call: str, path: Path) -> None:
        if call in calls and path.is_relative_to(below):
            raise OSError(errno.ENOSPC, "the disk is full")

    return fail


class TestFinding:
    @pytest.mark.mechanism("M2")
    async def test_every_key_and_unique_key_finds_its_messages_newest_first(self) -> None:
        async with running_broker(SimDisk(), SimClock(), store=options(IndexSize(16, 512))) as broker:
            await produce(broker, *numbered(50))
            await assert_all_found(broker, 50)
            for nobody_s in ("own50", "own", "OWN1", "every7", "1", " ", "every1 every2"):
                assert await find(broker, nobody_s) == []
            assert await find(broker, "own1", topic="u") == []

    async def test_files_follow_each_other_when_full_and_every_key_is_found(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), store=options()) as broker:
            for batch in numbered(60):
                await produce(broker, batch)
            await assert_all_found(broker, 60)
        names = disk.list_dir(options().layout.index)
        assert len(names) == 5  # 180 keys, 39 a file
        assert names == sorted(names)
        assert all(len(name) == 17 and name.startswith("202311142213") for name in names)
        heads = [disk.contents()[options().layout.index / name][:40] for name in names]
        assert [unpack(">qqqqii", head)[5] for head in heads] == [40, 40, 40, 40, 180 - 4 * 39 + 1]

    @pytest.mark.mechanism("M2")
    @pytest.mark.parametrize(
        ("text", "keys"),
        [
            ("a b c", ["a", "b", "c"]),
            ("  a   b ", ["a", "b"]),
            ("twice twice", ["twice"]),
            ("ключ 键 \U0001f600 é", ["ключ", "键", "\U0001f600", "é"]),
            ("x" * 300, ["x" * 300]),
            ("y" * 30_000, ["y" * 30_000]),
            ("a=b a:b a;b", ["a=b", "a:b", "a;b"]),
        ],
    )
    @pytest.mark.parametrize("topic", ["t", "x" * 120])
    async def test_several_keys_of_any_text_find_the_message_once(self, topic: str, text: str, keys: list[str]) -> None:
        async with running_broker(SimDisk(), SimClock(), store=options()) as broker:
            await produce(broker, message(b"it", text, topic=topic), message(b"other", "z", topic=topic))
            await indexed(broker)
            for key in keys:
                assert await find(broker, key, topic) == [b"it"]

    async def test_a_unique_key_with_a_space_is_one_key(self) -> None:
        """Only KEYS are a list; RocketMQ indexes UNIQ_KEY as it is."""
        async with running_broker(SimDisk(), SimClock(), store=options()) as broker:
            await produce(broker, message(b"it", unique="order 17"))
            await indexed(broker)
            assert await find(broker, "order 17") == [b"it"]

    async def test_keys_with_the_same_hash_find_only_their_own(self) -> None:
        async with running_broker(SimDisk(), SimClock(), store=options()) as broker:
            keys = [key_with_hash("t#", number) for number in (MIN_INT, 0, 12345, -12345)]
            assert [index_hash("t", key) for key in keys] == [0, 0, 12345, 12345]
            await produce(broker, *[message(key.encode(), key) for key in keys * 2])
            await indexed(broker)
            for key in keys:
                assert await find(broker, key) == [key.encode()] * 2

    @pytest.mark.mechanism("Q1")
    @pytest.mark.parametrize("entries", [4, 40], ids=["in several files", "in one file"])
    async def test_the_time_range_is_exact_to_the_millisecond(self, entries: int) -> None:
        clock = SimClock(START_MS)
        moments = [0, 1, 999, 1_000, 1_001, 1_999, 2_000, 61_000]
        async with running_broker(SimDisk(), clock, store=options(IndexSize(16, entries))) as broker:
            before = 0
            for moment in moments:
                await clock.advance((moment - before) / 1_000)
                await produce(broker, message(b"%d" % moment, "k"))
                before = moment
            await indexed(broker)
            for begin in [*moments, 2, 1_500, 61_001]:
                for end in [*moments, 998, 60_999, 61_001]:
                    wanted = [b"%d" % moment for moment in reversed(moments) if begin <= moment <= end]
                    assert await find(broker, "k", begin_ms=START_MS + begin, end_ms=START_MS + end) == wanted

    async def test_delayed_half_and_retried_messages_stand_under_the_topic_they_are_in(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock, store=options()) as broker:
            await produce(broker, message(b"later", "k", "id-1", delay=2), half("t", b"order", "tx-1"))
            await indexed(broker)
            assert await find(broker, "k") == await find(broker, "tx-1") == []
            assert await find(broker, "k", SCHEDULE_TOPIC) == await find(broker, "id-1", SCHEDULE_TOPIC) == [b"later"]
            assert await find(broker, "tx-1", HALF_TOPIC) == [b"order"]
            await broker.transactions.end("shop", "tx-1", TransactionState.COMMIT_MESSAGE, from_check=False)
            await clock.advance(5)
            await indexed(broker)
            assert await find(broker, "k") == await find(broker, "id-1") == [b"later"]
            assert await find(broker, "tx-1") == [b"order"]
            (stored, _) = await read_all(broker, "t")
            await broker.send_back.send_back("g", stored.log_offset, delay_level=1, max_reconsume_times=0)
            await clock.advance(1)
            await indexed(broker)
            (again,) = await read_all(broker, retry_topic("g"))
            for key in decode_properties(again.properties)[UNIQ_KEY].split():
                assert await find(broker, key, retry_topic("g")) == [again.body]


@pytest.mark.mechanism("M2")
async def test_without_an_index_nothing_is_kept_and_a_later_index_knows_everything() -> None:
    disk = SimDisk()
    async with running_broker(disk, SimClock(), store=options()) as broker:
        await produce(broker, *numbered(20))
    async with running_broker(disk, SimClock(), store=options(enabled=False)) as broker:
        before = {path: data for path, data in disk.contents().items() if path.parent.name == "index"}
        await produce(broker, *numbered(20, first=20))
        await settle()
        with pytest.raises(ValueError, match="messageIndexEnable=false"):
            await find(broker, "own1")
    assert before == {path: data for path, data in disk.contents().items() if path.parent.name == "index"}
    async with running_broker(disk, SimClock(), store=options()) as broker:
        await assert_all_found(broker, 40)


@pytest.mark.parametrize("call", ["pwrite", "open", "truncate", "allocate", "make_dirs"])
async def test_a_disk_that_rejects_the_index_delays_it_by_10_s_and_loses_nothing(call: str) -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, store=options()) as broker:
        disk.before = fail_on(call, below=options().layout.index)
        await produce(broker, *numbered(30))
        await settle()
        behind = broker.store.index.indexed_end
        assert behind < broker.store.log_end
        disk.before = lambda call, path: None
        await clock.advance(9.9)
        assert broker.store.index.indexed_end == behind
        await clock.advance(0.2)
        await assert_all_found(broker, 30)


async def test_who_waits_for_the_index_and_its_own_task_index_no_message_twice() -> None:
    async with running_broker(ThreadedDisk(), SimClock(), store=options()) as broker:
        index, ends = broker.store.index, [0]
        for first in range(0, 100, 10):
            broker.producing.put(numbered(10, first))
            catching_up = [asyncio.create_task(index.catch_up()) for _ in range(3)]
            while not all(task.done() for task in catching_up):
                ends.append(index.indexed_end)
                await asyncio.sleep(0)
            assert index.indexed_end == broker.store.log_end
        assert ends == sorted(ends)
        assert (index.point.file_count, index.point.next_number) == (8, 300 - 7 * 39 + 1)
