"""What a producer may put into a record, and what becomes of records that earlier versions took without limits."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from mq_broker.core.batches import Batch, BatchError, check_batch
from mq_broker.core.rewrite import single_record_batch
from mq_broker.processor.broker import Broker
from mq_broker.store.index import IndexFile, IndexSize
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import BORN_IP, incoming, produce, read_all, running_broker, store_options
from mq_broker.testing_replication import copy_all, log_bytes, running_store
from mqproto.properties import RESERVED, java_string_hash
from mqproto.record import (
    BODY_AT,
    BODY_BYTES_MAX,
    CRC_BYTES,
    CRC_MASK,
    CRC_PLACEHOLDER,
    FLAG_BORN_HOST_V6,
    HEAD,
    MESSAGE_MAGIC,
)
from osenv import SeededRng, SimClock, SimDisk

TOPIC = "t"
PROPERTIES_BYTES_ALLOWED = 32_079  # of a producer, with the 20 bytes of the CRC property
FILE_BYTES = 1024 * 1024
OPTIONS = store_options(log_file_bytes=FILE_BYTES)
LAZY = store_options(flush=FlushDiskType.ASYNC_FLUSH, log_file_bytes=FILE_BYTES)
BEHIND = [b"%d" % number for number in range(20)]


def raw_record(properties: bytes, *, body: bytes = b"x", topic: str = TOPIC, sys_flag: int = 0) -> bytes:
    """A record as any program can send one; nothing is checked."""
    size_field = (len(properties) + CRC_BYTES).to_bytes(2, "big")
    tail = bytes((len(topic),)) + topic.encode() + size_field + properties + CRC_PLACEHOLDER
    head = HEAD.pack(
        BODY_AT + len(body) + len(tail), MESSAGE_MAGIC, zlib.crc32(body) & CRC_MASK, 0, 0, 0, 0, sys_flag, 1,
        BORN_IP, 0, 0, 0, 0, 0, 0, len(body),
    )  # fmt: skip
    return head + body + tail


def long_properties(size: int) -> bytes:
    """One property with which the properties of a record take `size` bytes."""
    return b"a\x01" + b"v" * (size - CRC_BYTES - 3) + b"\x02"


def check(properties: bytes) -> None:
    check_batch(TOPIC, 0, 1, raw_record(properties), BODY_BYTES_MAX)


def store_unchecked(broker: Broker, data: bytes, tag: str = "") -> None:
    """Store the record as a version did that had no such limit."""
    broker.topics.ensure_for_arrival(TOPIC, 0)
    broker.store.put([single_record_batch(TOPIC, 0, data, java_string_hash(tag))], broker.time.stamp_ms())


async def bodies(broker: Broker, expression: str = "*") -> list[bytes]:
    return [record.body for record in await read_all(broker, TOPIC, expression=expression)]


class TestLongProperties:
    def test_a_producer_may_send_what_leaves_room_for_the_broker_s_own(self) -> None:
        check(long_properties(PROPERTIES_BYTES_ALLOWED))
        with pytest.raises(BatchError, match="the properties take 32,080 bytes; at most 32,079 are allowed"):
            check(long_properties(PROPERTIES_BYTES_ALLOWED + 1))

    @pytest.mark.parametrize("size", [32_767, 32_768, 65_535])
    async def test_a_kill_loses_nothing_behind_a_record_with_long_properties(self, size: int) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), store=LAZY, clean_stop=False) as broker:
            store_unchecked(broker, raw_record(long_properties(size)))
            await produce(broker, incoming(TOPIC, BEHIND))
            assert await bodies(broker) == [b"x", *BEHIND]
        disk.kill()
        for _ in range(2):  # from disk, and once more
            async with running_broker(disk, SimClock(), store=LAZY) as broker:
                assert await bodies(broker) == [b"x", *BEHIND]

    @pytest.mark.parametrize("size", [32_768, 65_535])
    async def test_a_replica_copies_a_record_with_long_properties(self, size: int) -> None:
        async with (
            running_store(SimDisk(), options=OPTIONS) as master,
            running_store(SimDisk(), options=OPTIONS) as replica,
        ):
            master.put([single_record_batch(TOPIC, 0, raw_record(p), 0) for p in (long_properties(size), b"")], 1)
            await copy_all(master, replica, SeededRng(1))
            assert log_bytes(replica) == log_bytes(master)

    async def test_an_intact_record_that_cannot_be_read_does_not_end_the_log(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), store=LAZY, clean_stop=False) as broker:
            store_unchecked(broker, raw_record(b"", sys_flag=FLAG_BORN_HOST_V6))
            await produce(broker, incoming(TOPIC, BEHIND))
        disk.kill()
        for _ in range(2):
            async with running_broker(disk, SimClock(), store=LAZY) as broker:
                assert await bodies(broker) == BEHIND

    async def test_a_replica_copies_what_stands_behind_an_intact_record_that_cannot_be_read(self) -> None:
        disk = SimDisk()
        async with running_store(disk, options=OPTIONS, clean_stop=False) as master:
            unreadable = raw_record(b"", sys_flag=FLAG_BORN_HOST_V6)
            master.put([single_record_batch(TOPIC, 0, data, 0) for data in (unreadable, raw_record(b""))], 1)
            await master.wait_stored(master.log_end)
        disk.kill()
        async with (
            running_store(disk, options=OPTIONS) as master,
            running_store(SimDisk(), options=OPTIONS) as replica,
        ):
            await copy_all(master, replica, SeededRng(1))
            assert log_bytes(replica) == log_bytes(master)
            queue = replica.queue(TOPIC, 0)
            assert queue is not None
            assert (queue.first_offset, queue.max_offset) == (1, 2)


class TestReservedProperties:
    @pytest.mark.parametrize("name", sorted(RESERVED))
    def test_a_reserved_property_is_allowed_once(self, name: str) -> None:
        with pytest.raises(BatchError):
            check(f"a\x011\x02{name}\x011\x02b\x012\x02{name}\x011\x02".encode())

    def test_the_error_names_the_property(self) -> None:
        with pytest.raises(BatchError, match="record 0 has the property TAGS more than once; it is allowed once"):
            check(b"TAGS\x01a\x02TAGS\x01b\x02")

    async def test_a_stored_record_with_two_tags_has_the_last_one_in_memory_and_on_disk(self) -> None:
        disk, two = SimDisk(), raw_record(b"TAGS\x01first\x02TAGS\x01last\x02")
        async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
            store_unchecked(broker, two, "last")
            await produce(broker, incoming(TOPIC, BEHIND))
            assert await bodies(broker) == [b"x", *BEHIND]
        async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
            assert await bodies(broker) == [b"x", *BEHIND]
            assert await bodies(broker, "last") == [b"x"]
            assert await bodies(broker, "first") == []


class TestKeysAndTags:
    def test_a_record_has_128_keys_at_the_most(self) -> None:
        check(b"KEYS\x01" + b" ".join(b"%d" % number for number in range(128)) + b"\x02")
        check(b"KEYS\x01" + b" " * 20_000 + b"\x02")  # spaces are no keys
        for keys in ([b"k"] * 129, [b"%d" % number for number in range(129)]):
            with pytest.raises(BatchError, match="record 0 has 129 keys; at most 128 are allowed"):
                check(b"KEYS\x01" + b" ".join(keys) + b"\x02")

    @pytest.mark.parametrize("name", ["TAGS", "UNIQ_KEY"])
    def test_a_tag_and_a_unique_key_take_255_bytes_at_the_most(self, name: str) -> None:
        check(f"{name}\x01{'ü' * 127}x\x02".encode())
        with pytest.raises(BatchError, match=f"the property {name} takes 256 bytes; at most 255 are allowed"):
            check(f"{name}\x01{'ü' * 128}\x02".encode())

    async def test_the_index_takes_few_keys_in_one_step_however_many_a_record_has(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[int] = []
        add = IndexFile.add

        def counted(file: IndexFile, keys: list[tuple[int, int, int]]) -> None:
            steps.append(len(keys))
            add(file, keys)

        monkeypatch.setattr(IndexFile, "add", counted)
        layout = replace(OPTIONS.layout, index_size=IndexSize(slots=1_024, entries=100_000))
        async with running_broker(SimDisk(), SimClock(), store=replace(OPTIONS, layout=layout)) as broker:
            data = raw_record(b"KEYS\x01" + b" ".join(b"%d" % number for number in range(600)) + b"\x02")
            broker.store.put([Batch(TOPIC, 0, bytearray(data * 64), [len(data)] * 64, [0] * 64)], 1)
            await broker.store.index.catch_up()
        assert sum(steps) == 64 * 600
        assert max(steps) <= 1_024 + 600
