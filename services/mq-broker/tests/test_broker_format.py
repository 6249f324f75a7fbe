"""FORMAT.md is the specification: files built by hand from its tables are read by the code, and the other way round.

Nothing here comes from the codecs: every struct is written out from the document, and the first tests hold the tables
of the document to the numbers that are used below.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mq_broker.store
from mq_broker.core.consumer_offsets import Progress
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.schedule.timer_index import TimerIndex
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mq_broker.store.state_files import decode_document
from mq_broker.testing import broker_options, incoming, produce, producer_record, read_all, running_broker
from osenv import SimClock, SimDisk

ROOT = Path("/store")
LOG_FILE_BYTES, QUEUE_FILE_BYTES = 65_536, 100 * 20
SLOTS, ENTRIES = 7, 21  # entry 0 is never used: a file takes 20
INDEX_FILE_BYTES = 40 + 4 * SLOTS + 20 * ENTRIES
LAYOUT = StoreLayout(ROOT, LOG_FILE_BYTES, QUEUE_FILE_BYTES // 20, index_size=IndexSize(SLOTS, ENTRIES))
OPTIONS = StoreOptions(LAYOUT, FlushDiskType.SYNC_FLUSH, 200, "127.0.0.1", 10_911)

STORE_MS = 1_700_000_000_123
INDEX_NAME = "20231114221320123"
LOG_0, LOG_1 = "commitlog/00000000000000000000", "commitlog/00000000000000065536"
QUEUE_0 = "consumequeue/t/0/00000000000000000000"

# ------------------------------------------------------------------------------------------- the formats, by hand

RECORD_HEAD = ">iIIiiqqiqIiqIiiqi"  # everything before the body
RECORD_ROWS = [
    ("0", "4"), ("4", "4"), ("8", "4"), ("12", "4"), ("16", "4"), ("20", "8"), ("28", "8"), ("36", "4"), ("40", "8"),
    ("48", "4 + 4"), ("56", "8"), ("64", "4 + 4"), ("72", "4"), ("76", "8"), ("84", "4"), ("88", "b"),
    ("88 + b", "1"), ("89 + b", "t"), ("89 + b + t", "2"), ("91 + b + t", "p"),
]  # fmt: skip
ENTRY = ">qiq"
ENTRY_ROWS = [("0", "8"), ("8", "4"), ("12", "8")]
INDEX_HEAD, INDEX_ENTRY = ">qqqqii", ">iqii"
INDEX_HEAD_ROWS = [("0", "8"), ("8", "8"), ("16", "8"), ("24", "8"), ("32", "4"), ("36", "4")]
INDEX_ENTRY_ROWS = [("0", "4"), ("4", "8"), ("12", "4"), ("16", "4")]
CHECKPOINT_ROWS = [(str(at), "8") for at in (0, 8, 16, 64, 72, 80, 88, 96, 104, 112)] + [("120", "4")]
WATERMARK_ROWS = [("0", "8"), ("8", "4"), ("512", "8"), ("520", "4")]
JOURNAL_HEAD = ">4sIIqiqqIII"  # everything before topic and group
JOURNAL_ROWS = [
    ("0", "4"), ("4", "4"), ("8", "4"), ("12", "8"), ("20", "4"), ("24", "8"), ("32", "8"), ("40", "4"), ("44", "4"),
    ("48", "4"), ("52", "t"), ("52 + t", "g"), ("52 + t + g", "16 r"),
]  # fmt: skip
BLOCK_HEAD = ">IIII"  # of a run of keys
BLOCK_ROWS = [("0", "4"), ("4", "4"), ("8", "4"), ("12", "4"), ("16", "16 k"), ("16 + 16 k", "to 4,096")]


def crc(data: bytes) -> int:
    """The CRC-32 of a record, masked to 31 bits."""
    return zlib.crc32(data) & 0x7FFFFFFF


def string_hash(text: str) -> int:
    """Java's String.hashCode, for ASCII."""
    value = 0
    for char in text:
        value = (value * 31 + ord(char)) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


def index_hash(topic: str, key: str) -> int:
    return abs(string_hash(f"{topic}#{key}"))


def record(
    body: bytes, *, log_offset: int, queue_offset: int, properties: dict[str, str], topic: str = "t", queue_id: int = 0
) -> bytes:
    """One record as the log has it."""
    name, text = topic.encode(), "".join(f"{k}\x01{v}\x02" for k, v in properties.items()).encode()
    size = 91 + len(body) + len(name) + len(text) + 20
    host = 0x7F000001
    head = struct.pack(
        RECORD_HEAD, size, 0xDAA320A7, crc(body), queue_id, 77, queue_offset, log_offset, 0, STORE_MS - 5,
        host, 1234, STORE_MS, host, 10_911, 0, 0, len(body),
    )  # fmt: skip
    data = head + body + bytes([len(name)]) + name + struct.pack(">h", len(text) + 20) + text
    return data + b"__CRC32#\x01" + f"{crc(data):010d}"[::-1].encode() + b"\x02"


class Parsed(NamedTuple):
    """A record taken apart by the table."""

    log_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_ms: int
    body: bytes
    properties: dict[str, str]


def take_apart(log: bytes) -> Iterator[Parsed]:
    """Every record of a whole log of files, whose CRCs and places are checked."""
    at = 0
    while at < len(log):
        size, magic = struct.unpack_from(">iI", log, at)
        room = LOG_FILE_BYTES - at % LOG_FILE_BYTES
        if magic == 0xCBD43194:
            assert size == room
            at += room
            continue
        if size == 0:
            assert not log[at:].strip(b"\0"), "nothing stands behind the last record"
            return
        assert magic == 0xDAA320A7
        assert size + 8 <= room, "a record does not cross the end of its file, and a blank fits behind it"
        fields = struct.unpack_from(RECORD_HEAD, log, at)
        body_size, topic_at = fields[16], at + 88 + fields[16]
        body = log[at + 88 : at + 88 + body_size]
        topic_size = log[topic_at]
        topic = log[topic_at + 1 : topic_at + 1 + topic_size].decode()
        (properties_size,) = struct.unpack_from(">h", log, topic_at + 1 + topic_size)
        text_at = topic_at + 3 + topic_size
        assert text_at + properties_size == at + size
        tail = log[at + size - 20 : at + size]
        assert tail[:9] == b"__CRC32#\x01"
        assert tail[19:] == b"\x02"
        assert int(tail[9:19][::-1]) == crc(log[at : at + size - 20])
        assert fields[2] == crc(body)
        assert fields[6] == at
        assert fields[7] in (0x0, 0x8)
        text = log[text_at : at + size - 20].decode()
        assert text == "" or text.endswith("\x02")
        properties = dict(one.split("\x01") for one in text.split("\x02")[:-1])
        yield Parsed(at, size, topic, fields[3], fields[5], fields[11], body, properties)
        at += size


def document(fields: dict[str, Any], log_offset: int) -> bytes:
    """A state file: a line for each field, three fields of Hourglass's own at the end, the last one its CRC."""
    whole = {**fields, "logOffset": log_offset, "formatVersion": 1, "crc32": "00000000"}
    lines = [f' "{name}": {json.dumps(value)}' for name, value in whole.items()]
    return sealed_document("{\n" + ",\n".join(lines) + "\n}\n")


def sealed_document(text: str) -> bytes:
    data = text.encode()
    return data.replace(b'"crc32": "00000000"', b'"crc32": "%08x"' % zlib.crc32(data))


def padded(data: bytes, size: int) -> bytes:
    assert len(data) <= size
    return data + bytes(size - len(data))


def index_file(keys: list[tuple[int, int, int]]) -> bytes:
    """An index file of (hash, log offset, store ms), which share a begin timestamp."""
    slots, entries = [0] * SLOTS, [bytes(20)]
    begin_ms = keys[0][2]
    for number, (key_hash, log_offset, store_ms) in enumerate(keys, 1):
        slot = key_hash % SLOTS
        entries.append(struct.pack(INDEX_ENTRY, key_hash, log_offset, (store_ms - begin_ms) // 1000, slots[slot]))
        slots[slot] = number
    head = struct.pack(INDEX_HEAD, begin_ms, keys[-1][2], keys[0][1], keys[-1][1], sum(map(bool, slots)), len(keys) + 1)
    return padded(head + struct.pack(f">{SLOTS}i", *slots) + b"".join(entries), INDEX_FILE_BYTES)


def write(disk: SimDisk, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        disk.make_dirs((ROOT / name).parent)
        disk.open(ROOT / name, create=True).pwrite(data, 0)


def read(disk: SimDisk, name: str) -> bytes:
    return disk.contents()[ROOT / name]


def names_below(disk: SimDisk, folder: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted(disk.contents()) if path.is_relative_to(ROOT / folder)]


# --------------------------------------------------------------------------------------------------- the document


def tables() -> dict[str, list[tuple[str, str]]]:
    """The (at, size) columns of each table of FORMAT.md, by the heading above it."""
    found: dict[str, list[tuple[str, str]]] = {}
    heading = ""
    assert mq_broker.store.__file__ is not None
    for line in Path(mq_broker.store.__file__).with_name("FORMAT.md").read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"#+ (.*)", line):
            heading = match[1]
        elif (match := re.fullmatch(r"\| ([^|]*\S) \| ([^|]*\S) \|.*", line)) and match[1] != "at":
            found.setdefault(heading, []).append((match[1], match[2]))
    return found


@pytest.mark.parametrize(
    ("heading", "rows"),
    [
        ("Record", RECORD_ROWS),
        ("Consume queue", ENTRY_ROWS),
        ("Index head", INDEX_HEAD_ROWS),
        ("Index entry", INDEX_ENTRY_ROWS),
        ("Checkpoint", CHECKPOINT_ROWS),
        ("Watermark", WATERMARK_ROWS),
        ("Journal of progress", JOURNAL_ROWS),
        ("Block of a run", BLOCK_ROWS),
    ],
)
def test_the_document_s_table_is_the_one_that_is_used_here(heading: str, rows: list[tuple[str, str]]) -> None:
    assert tables()[heading] == rows


@pytest.mark.parametrize(
    ("form", "rows"),
    [
        (RECORD_HEAD, RECORD_ROWS[:15]),
        (ENTRY, ENTRY_ROWS),
        (INDEX_HEAD, INDEX_HEAD_ROWS),
        (INDEX_ENTRY, INDEX_ENTRY_ROWS),
        (JOURNAL_HEAD, JOURNAL_ROWS[:10]),
        (BLOCK_HEAD, BLOCK_ROWS[:4]),
    ],
)
def test_a_struct_that_is_used_here_has_the_fields_of_its_table(form: str, rows: list[tuple[str, str]]) -> None:
    sizes = [int(size) for _, row_size in rows for size in row_size.split(" + ")]
    assert [struct.calcsize(f">{field}") for field in re.findall(r"\d*\D", form[1:])] == sizes
    at = 0
    for row_at, row_size in rows:
        assert int(row_at) == at
        at += sum(map(int, row_size.split(" + ")))
    assert struct.calcsize(form) == at


@pytest.mark.mechanism("S1")
def test_every_table_of_the_document_is_used_here() -> None:
    assert set(tables()) == {
        "Record", "Consume queue", "Index head", "Index entry", "Checkpoint", "Watermark", "Journal of progress",
        "Block of a run", "Special topics",
    }  # fmt: skip


# ------------------------------------------------------------------------------------- by hand, read by the code


class HandMade:
    """A store of three messages, of which the third stands in the second file, cleanly stopped."""

    def __init__(self) -> None:
        self.records = [
            record(b"first", log_offset=0, queue_offset=0, properties={"TAGS": "red", "KEYS": "a b", "UNIQ_KEY": "u1"})
        ]
        self.records.append(record(bytes(65_000), log_offset=len(self.records[0]), queue_offset=1, properties={}))
        used = sum(map(len, self.records))
        blank = struct.pack(">iI", LOG_FILE_BYTES - used, 0xCBD43194)
        third = record(b"third", log_offset=LOG_FILE_BYTES, queue_offset=2, properties={"KEYS": "a"})
        self.end = LOG_FILE_BYTES + len(third)
        hashes = [("u1", 0), ("a", 0), ("b", 0), ("a", LOG_FILE_BYTES)]
        entries = [
            (0, len(self.records[0]), string_hash("red")),
            (len(self.records[0]), len(self.records[1]), 0),
            (LOG_FILE_BYTES, len(third), 0),
        ]
        self.files = {
            LOG_0: padded(b"".join(self.records) + blank, LOG_FILE_BYTES),
            LOG_1: padded(third, LOG_FILE_BYTES),
            QUEUE_0: padded(b"".join(struct.pack(ENTRY, *entry) for entry in entries), QUEUE_FILE_BYTES),
            f"index/{INDEX_NAME}": index_file([(index_hash("t", key), at, STORE_MS) for key, at in hashes]),
            "checkpoint": self.checkpoint(),
            "watermark": self.watermark(),
            "config/topics.json": document(self.topics(), self.end),
            "config/subscriptionGroup.json": document(self.groups(), self.end),
            "config/consumerOffset.json": document(self.offsets({"t@g": {"0": 2}}), self.end),
            "config/delayOffset.json": document(self.offsets({"3": 0}), self.end),
            "config/transactionOffset.json": document(self.offsets({"half": 0, "op": 0}), self.end),
        }

    def checkpoint(self) -> bytes:
        rocketmq = struct.pack(">qqq", STORE_MS, STORE_MS, 0)
        own = struct.pack(">qqqqqqq", self.end, 3, STORE_MS, int(INDEX_NAME), 5, self.end, 1)
        data = padded(rocketmq, 64) + own
        return padded(data + struct.pack(">I", zlib.crc32(data)), 4_096)

    def watermark(self) -> bytes:
        older, newer = (struct.pack(">q", offset) for offset in (len(self.records[0]), self.end))
        slots = [padded(slot + struct.pack(">I", zlib.crc32(slot)), 512) for slot in (older, newer)]
        return b"".join(slots)

    @staticmethod
    def topics() -> dict[str, Any]:
        entry = {
            "order": False, "perm": 6, "readQueueNums": 5, "topicFilterType": "SINGLE_TAG", "topicName": "t",
            "topicSysFlag": 0, "writeQueueNums": 5,
        }  # fmt: skip
        return {"dataVersion": {"counter": 3}, "topicConfigTable": {"t": entry}}

    @staticmethod
    def groups() -> dict[str, Any]:
        group = {"groupName": "g", "consumeEnable": True, "retryMaxTimes": 9, "retryQueueNums": 1}
        return {"dataVersion": {"counter": 1}, "subscriptionGroupTable": {"g": group}}

    @staticmethod
    def offsets(table: dict[str, Any]) -> dict[str, Any]:
        return {"dataVersion": {"counter": 1}, "offsetTable": table}


@pytest.mark.mechanism("S1")
async def test_a_store_made_by_hand_opens_as_cleanly_stopped_and_nothing_is_told_again() -> None:
    disk, hand = SimDisk(), HandMade()
    write(disk, hand.files)
    broker = Broker(disk, SimClock(), broker_options(), OPTIONS)
    report = broker.store.open(lambda record: None)
    assert (report.records, report.rebuilt, report.log_end) == (0, False, hand.end)
    assert report.newest_store_ms == STORE_MS
    broker.store.release()
    for name in (LOG_0, LOG_1, QUEUE_0, f"index/{INDEX_NAME}"):
        assert read(disk, name) == hand.files[name], name


async def test_messages_made_by_hand_are_read_field_for_field() -> None:
    disk = SimDisk()
    write(disk, HandMade().files)
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        first, second, third = await read_all(broker, "t")
        assert [first.body, len(second.body), third.body] == [b"first", 65_000, b"third"]
        assert (first.queue_offset, third.queue_offset, third.log_offset) == (0, 2, LOG_FILE_BYTES)
        assert (first.flag, first.born_timestamp_ms, first.store_timestamp_ms) == (77, STORE_MS - 5, STORE_MS)
        assert (first.born_host, first.store_host) == (("127.0.0.1", 1234), ("127.0.0.1", 10_911))
        assert first.properties == b"TAGS\x01red\x02KEYS\x01a b\x02UNIQ_KEY\x01u1\x02"
        assert [one.body for one in await read_all(broker, "t", expression="red")] == [b"first"]


async def test_an_index_made_by_hand_finds_every_key_newest_first() -> None:
    disk = SimDisk()
    write(disk, HandMade().files)
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        for key, wanted in {"u1": [0], "a": [LOG_FILE_BYTES, 0], "b": [0], "c": []}.items():
            assert [at for at in broker.store.index.find("t", key, 0, 1 << 62) if at is not None] == wanted, key


async def test_states_made_by_hand_are_taken_over() -> None:
    disk = SimDisk()
    write(disk, HandMade().files)
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        topic, group = broker.topics.get("t"), broker.groups.get_or_create("g")
        assert topic is not None
        assert group is not None
        assert (topic.read_queue_count, topic.write_queue_count, group.retry_max_times) == (5, 5, 9)
        assert broker.consumer_offsets.query("g", "t", 0) == 2


def journal_entry(
    data_version: int, offset: int, ranges: tuple[tuple[int, int], ...] = (), version: int = 0, queue_id: int = 0
) -> bytes:
    """What group g has finished of a queue of t."""
    sizes = struct.pack(">III", len(ranges), 1, 1)
    fields = struct.pack(">qiqq", data_version, queue_id, offset, version) + sizes + b"t" + b"g"
    fields += b"".join(struct.pack(">qq", *one) for one in ranges)
    body = struct.pack(">I", len(fields) + 12) + fields
    return b"HPRG" + struct.pack(">I", zlib.crc32(body)) + body


JOURNAL_1, JOURNAL_2 = (f"config/consumerOffset.journal.{number:010d}" for number in (1, 2))


async def test_a_journal_made_by_hand_is_taken_over() -> None:
    disk, hand = SimDisk(), HandMade()
    offsets = hand.offsets({"t@g": {"0": 1, "1": 0, "2": 0}}) | {
        "finishedTable": {"t@g": {"0": "2+1"}}, "versionTable": {"t@g": {"1": 3}},
    }  # fmt: skip
    journal = {
        JOURNAL_1: journal_entry(1, 3) + journal_entry(2, 0, version=4, queue_id=1) + b"HPRG",
        JOURNAL_2: journal_entry(3, -1, queue_id=2) + journal_entry(3, 0, ((1, 2),), queue_id=0)[:-1],
    }
    write(disk, hand.files | {"config/consumerOffset.json": document(offsets, hand.end)} | journal)
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        found = [broker.offsets.query("g", "t", queue_id) for queue_id in range(3)]
        assert found == [Progress(1, ((2, 3),)), Progress(0, (), 4), None]


async def test_due_times_made_by_hand_are_read_and_written_as_they_were_made_by_hand() -> None:
    head, keys = struct.pack(BLOCK_HEAD, 1, 0, 2, 0)[:12], struct.pack(">QQQQ", STORE_MS, 1, STORE_MS + 1, 0)
    rest = padded(keys, 4_096 - 16)
    manifest = {"queueOffset": 2, "runs": [{"number": 1, "blocks": 1, "fromBlock": 0}]}
    files = {
        "timer/0000000001": head + struct.pack(">I", zlib.crc32(head + rest)) + rest,
        "timer/runs.json": document(manifest, 77),
    }

    async def log_durable() -> int:
        return 77

    made, written = SimDisk(), SimDisk()
    write(made, files)
    indexes = [TimerIndex(disk, SimClock(), LAYOUT.timer, lambda _: False, log_durable) for disk in (made, written)]
    assert [index.open(2) for index in indexes] == [2, 0]
    assert await indexes[0].take_due(STORE_MS + 1, 9) == [(STORE_MS, 1), (STORE_MS + 1, 0)]
    indexes[1].add(STORE_MS + 1, 0)
    indexes[1].add(STORE_MS, 1)
    await indexes[1].close()
    assert {name: read(written, name) for name in names_below(written, "timer")} == files


async def test_a_state_without_our_own_fields_is_rocketmq_s_and_is_taken_over() -> None:
    disk, hand = SimDisk(), HandMade()
    write(disk, hand.files | {"config/consumerOffset.json": json.dumps(hand.offsets({"t@g": {"0": 1}})).encode()})
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        assert broker.consumer_offsets.query("g", "t", 0) == 1


async def test_the_log_made_by_hand_tells_the_rest_as_it_was_made_by_hand() -> None:
    disk, hand = SimDisk(), HandMade()
    write(disk, {name: hand.files[name] for name in (LOG_0, LOG_1)})
    clock = SimClock()
    async with running_broker(disk, clock, store=OPTIONS) as broker:
        assert len(await read_all(broker, "t")) == 3
        await clock.advance(1)
    for name in (LOG_0, LOG_1, QUEUE_0, "checkpoint", f"index/{INDEX_NAME}"):
        assert read(disk, name) == hand.files[name], name


@pytest.mark.mechanism("S3")
async def test_before_the_first_message_that_is_left_stand_blanks() -> None:
    disk, hand = SimDisk(), HandMade()
    write(disk, {LOG_1: hand.files[LOG_1]})
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        assert [one.body for one in await read_all(broker, "t")] == [b"third"]
    blank = struct.pack(ENTRY, 0, 0x7FFFFFFF, 0)
    assert read(disk, QUEUE_0) == padded(blank * 2 + hand.files[QUEUE_0][40:60], QUEUE_FILE_BYTES)


async def test_a_damaged_record_is_copied_into_quarantine_and_its_entry_names_the_stretch() -> None:
    disk, hand = SimDisk(), HandMade()
    at, size = len(hand.records[0]), len(hand.records[1])
    damaged = bytearray(hand.files[LOG_0])
    damaged[at + 90] ^= 0xFF
    write(disk, {LOG_0: bytes(damaged), LOG_1: hand.files[LOG_1], "watermark": hand.files["watermark"]})
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        assert [one.body for one in await read_all(broker, "t")] == [b"first", b"third"]
    assert read(disk, f"quarantine/{at:020d}-{size}") == damaged[at : at + size]
    assert read(disk, LOG_0) == damaged
    assert struct.unpack_from(ENTRY, read(disk, QUEUE_0), 20) == (at, size, 0)


# -------------------------------------------------------------------------------- by the code, taken apart by hand


async def filled() -> SimDisk:
    """A store that the broker has written and closed: two queues, two log files, keys, tags, a delayed message."""
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, store=OPTIONS) as broker:
        for number in range(12):
            one = producer_record("t", bytes(9_000), queue_id=number % 2, tag=f"tag{number}", key=f"key{number}")
            await produce(broker, IncomingBatch("t", number % 2, 1, one))
            await clock.advance(0.9)
        await produce(broker, incoming("t", [b"later"], delay_level=3))
        broker.offsets.commit("g", [("t", 0, Progress(5))])
        await clock.advance(12)
    return disk


def log_of(disk: SimDisk) -> list[Parsed]:
    names = names_below(disk, "commitlog")
    assert names == [f"commitlog/{number * LOG_FILE_BYTES:020d}" for number in range(len(names))]
    files = [read(disk, name) for name in names]
    assert {len(data) for data in files} == {LOG_FILE_BYTES}
    return list(take_apart(b"".join(files)))


@pytest.mark.mechanism("S2")
async def test_every_record_of_the_log_is_as_the_table_says() -> None:
    disk = await filled()
    found = log_of(disk)
    assert [one.body[:5] for one in found if one.topic == "t"] == [bytes(5)] * 12 + [b"later"]
    assert [one.queue_offset for one in found if (one.topic, one.queue_id) == ("t", 1)] == list(range(6))
    assert found[3].properties == {"UNIQ_KEY": "id-key3", "KEYS": "key3", "TAGS": "tag3"}
    assert found[0].store_ms == 1_700_000_000_000
    assert found[-1].log_offset > LOG_FILE_BYTES


@pytest.mark.mechanism("S3")
async def test_every_consume_queue_entry_is_as_the_table_says() -> None:
    disk = await filled()
    wanted: dict[str, list[tuple[int, int, int]]] = {}
    for one in log_of(disk):
        code = string_hash(one.properties.get("TAGS", ""))
        if one.topic == "SCHEDULE_TOPIC_XXXX":
            code = one.store_ms + 10_000
        wanted.setdefault(f"{one.topic}/{one.queue_id}", []).append((one.log_offset, one.size, code))
    assert set(wanted) == {"t/0", "t/1", "SCHEDULE_TOPIC_XXXX/2"}
    for name, entries in wanted.items():
        (file,) = names_below(disk, f"consumequeue/{name}")
        data = padded(b"".join(struct.pack(ENTRY, *entry) for entry in entries), QUEUE_FILE_BYTES)
        assert file == f"consumequeue/{name}/" + "0" * 20
        assert read(disk, file) == data, name


def index_of(found: list[Parsed]) -> dict[str, list[tuple[int, int, int]]]:
    """What index files there have to be, with their keys, twenty in each."""
    keys = [
        (index_hash(one.topic, key), one.log_offset, one.store_ms)
        for one in found
        for key in (one.properties.get("UNIQ_KEY"), one.properties.get("KEYS"))
        if key
    ]
    runs = [keys[at : at + ENTRIES - 1] for at in range(0, len(keys), ENTRIES - 1)]
    return {datetime.fromtimestamp(run[0][2] / 1000, UTC).strftime("%Y%m%d%H%M%S%f")[:17]: run for run in runs}


@pytest.mark.mechanism("S4")
async def test_every_index_file_is_as_the_table_says() -> None:
    disk = await filled()
    wanted = index_of(log_of(disk))
    assert [len(keys) for keys in wanted.values()] == [20, 6]  # a unique key and a key of twelve, a unique key of two
    assert names_below(disk, "index") == [f"index/{name}" for name in wanted]
    for name, keys in wanted.items():
        assert read(disk, f"index/{name}") == index_file(keys)


@pytest.mark.mechanism("S7")
async def test_the_checkpoint_is_as_the_table_says() -> None:
    disk = await filled()
    found = log_of(disk)
    full, last = index_of(found).items()
    end, newest_ms = found[-1].log_offset + found[-1].size, found[-1].store_ms
    data = read(disk, "checkpoint")
    assert len(data) == 4_096
    assert struct.unpack_from(">qqq", data, 0) == (newest_ms, newest_ms, full[1][-1][2])
    assert struct.unpack_from(">qqq", data, 64) == (end, len(found), newest_ms)
    assert struct.unpack_from(">qqqq", data, 88) == (int(last[0]), len(last[1]) + 1, end, 2)
    assert struct.unpack_from(">I", data, 120) == (zlib.crc32(data[:120]),)
    assert not (data[24:64] + data[124:]).strip(b"\0")


async def test_the_watermark_is_as_the_table_says() -> None:
    disk = await filled()
    found = log_of(disk)
    data = read(disk, "watermark")
    assert len(data) == 1_024
    slots = [struct.unpack_from(">qI", data, at) for at in (0, 512)]
    for offset, crc_ in slots:
        assert crc_ == zlib.crc32(struct.pack(">q", offset))
    assert not (data[12:512] + data[524:]).strip(b"\0")
    ends = {one.log_offset + one.size for one in found}
    assert {offset for offset, _ in slots} <= ends
    assert max(offset for offset, _ in slots) == max(ends)


@pytest.mark.mechanism("S5")
async def test_every_state_file_has_rocketmq_s_fields_and_our_own_at_its_end() -> None:
    disk = await filled()
    found = log_of(disk)
    end = found[-1].log_offset + found[-1].size
    contents = {name: json.loads(read(disk, name)) for name in names_below(disk, "config") if name.endswith(".json")}
    for name, content in contents.items():
        own = [content.pop(field) for field in ("logOffset", "formatVersion", "crc32")]
        assert own[0] <= end
        assert read(disk, name) == document(content, own[0]), name
    tables_ = {name.removeprefix("config/"): content for name, content in contents.items()}
    assert tables_["consumerOffset.json"]["offsetTable"] == {"t@g": {"0": 5}}
    assert tables_["delayOffset.json"]["offsetTable"] == {"3": 1}
    assert tables_["transactionOffset.json"]["offsetTable"] == {"half": 0, "op": 0}
    assert tables_["topics.json"]["topicConfigTable"]["t"]["perm"] == 6
    assert "subscriptionGroupTable" in tables_["subscriptionGroup.json"]


def test_a_state_file_may_be_written_in_any_lines() -> None:
    """Earlier versions wrote one for each brace and value."""
    fields = {"offsetTable": {"t@g": {"0": 5}}, "logOffset": 7, "formatVersion": 1}
    text = json.dumps({**fields, "crc32": "00000000"}, indent=1) + "\n"
    read_ = decode_document(sealed_document(text))
    assert {name: read_[name] for name in fields} == fields


async def test_the_journal_of_progress_and_the_tables_beside_it_are_as_the_document_says() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, store=OPTIONS) as broker:
        await produce(broker, incoming("t", [bytes(5)] * 9))
        broker.offsets.commit("g", [("t", 0, Progress(2, ((4, 7), (8, 9)))), ("t", 1, Progress(0))])
        await clock.advance(0.01)
        await broker.offsets.set("g", [("t", 1, 0)])
        await clock.advance(0.1)
        entries = journal_entry(2, 2, ((4, 7), (8, 9))) + journal_entry(2, 0, queue_id=1)
        assert read(disk, JOURNAL_1) == entries + journal_entry(3, 0, version=1, queue_id=1)
        await broker.store.rewrite("consumerOffset.json")
    content = json.loads(read(disk, "config/consumerOffset.json"))
    assert content["offsetTable"] == {"t@g": {"0": 2, "1": 0}}
    assert content["finishedTable"] == {"t@g": {"0": "4+3 8+1"}}
    assert content["versionTable"] == {"t@g": {"1": 1}}


@pytest.mark.mechanism("S1")
async def test_abort_exists_while_the_broker_runs_and_the_lock_stays() -> None:
    disk = SimDisk()
    async with running_broker(disk, SimClock(), store=OPTIONS):
        assert (read(disk, "abort"), read(disk, "lock")) == (disk.boot_id().encode(), b"")
    assert names_below(disk, "abort") == []
    assert read(disk, "lock") == b""
