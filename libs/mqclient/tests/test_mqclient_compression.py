"""Large bodies travel compressed and arrive as they were (RocketMQ's compressMsgBodyOverHowmuch)."""

from __future__ import annotations

import asyncio
import os
import threading
import zlib

import pytest

from mqclient import (
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    RejectedError,
    TransactionProducer,
    UnreadableBodyError,
)
from mqclient.message import DECOMPRESSED_BYTES_MAX, compress, decompress
from mqclient.testing import FakeBroker, FakeCluster, RecordingTransactionListener
from mqproto.record import (
    CRC_MASK,
    FLAG_COMPRESSED,
    FLAG_COMPRESSION_LZ4,
    FLAG_COMPRESSION_ZLIB,
    FLAG_COMPRESSION_ZSTD,
    FLAG_TRANSACTION_PREPARED,
    Record,
    decode_record,
)
from osenv.sim_clock import settle

TEXT = b"a body that can be made smaller; " * 1_000
ZLIB_5 = 0x301  # compressed, and in the type's bits: zlib, as RocketMQ 5 writes it


def stored(broker: FakeBroker) -> list[Record]:
    return [decode_record(record) for _, queue in sorted(broker.queues.items()) for record in queue]


@pytest.mark.parametrize(("size", "compressed"), [(4_095, False), (4_096, True), (300_000, True)])
async def test_bodies_are_compressed_from_4096_bytes_on(size: int, compressed: bool) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    message = Message("orders", (TEXT * 10)[:size])
    async with Producer("shop", cluster.url) as producer:
        await producer.send(message)
    (record,) = stored(broker)
    assert record.sys_flag == (ZLIB_5 if compressed else 0)
    assert len(record.body) < 2_000 if compressed else record.body == message.body
    assert record.body_crc == zlib.crc32(record.body) & CRC_MASK  # of what travels, as in RocketMQ
    assert MessageExt(record, "broker-a").body == message.body == (TEXT * 10)[:size]


async def test_it_is_zlib_at_level_5_and_can_be_switched_off() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", TEXT))
    async with Producer(
        "shop", cluster.url, producer_config=ProducerConfig(compress_msg_body_over_howmuch=None)
    ) as producer:
        await producer.send(Message("orders", TEXT))
    first, second = sorted(stored(broker), key=lambda record: len(record.body))
    assert first.body == zlib.compress(TEXT, 5)
    assert (second.body, second.sys_flag) == (TEXT, 0)


async def test_what_would_not_become_smaller_travels_as_it_is() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    body = os.urandom(10_000)
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", body))
    (record,) = stored(broker)
    assert (record.body, record.sys_flag) == (body, 0)


async def test_half_messages_one_way_messages_and_delayed_ones_are_compressed_too() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with TransactionProducer(
        "shop", cluster.url, transaction_listener=RecordingTransactionListener("UNKNOW")
    ) as producer:
        await producer.send_oneway(Message("orders", TEXT))
        await producer.send(Message("orders", TEXT, delay_level=3))
        result = await producer.send_message_in_transaction(Message("orders", TEXT))
        half = broker.transactions.open[result.transaction_id]
    assert half.sys_flag == ZLIB_5 | FLAG_TRANSACTION_PREPARED
    assert {record.sys_flag for record in stored(broker)} == {ZLIB_5}


async def test_a_very_large_body_is_compressed_in_a_thread_that_ends_with_the_producer() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("mqclient-compression")]

    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", (TEXT * 10)[: 256 * 1024]))
        assert threads() == []
        await producer.send(Message("orders", (TEXT * 10)[: 256 * 1024 + 1]))
        assert len(threads()) == 1
    async with asyncio.timeout(5):
        while threads():  # noqa: ASYNC110 - a thread sets no event
            await asyncio.sleep(0.001)
    assert len(broker.bodies) == 2


async def test_messages_for_a_chosen_queue_keep_their_order_while_a_thread_works() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    queue = MessageQueue("orders", "broker-a", 0)
    bodies = [bytes([number]) * (2_000_000 if number % 2 == 0 else 10) for number in range(6)]
    async with Producer("shop", cluster.url) as producer:
        await asyncio.gather(*(producer.send(Message("orders", body), queue=queue) for body in bodies))
    messages = [MessageExt(record, "broker-a") for record in stored(broker)]
    assert [message.body[0] for message in messages] == list(range(6))


async def test_a_later_change_of_the_message_is_not_sent() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.next_codes = [2]
    message = Message("orders", b"as it was")
    async with Producer("shop", cluster.url) as producer:
        send = asyncio.create_task(producer.send(message))
        await settle()
        message.body = b"as it is now"
        await cluster.clock.advance(1.0)
        await send
    assert broker.bodies == [b"as it was"]


@pytest.mark.parametrize("kind", [0, FLAG_COMPRESSION_ZLIB])
def test_zlib_of_rocketmq_4_and_5_is_read(kind: int) -> None:
    assert decompress(zlib.compress(TEXT), FLAG_COMPRESSED | kind) == TEXT
    assert decompress(b"plain", kind) == b"plain"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(FLAG_COMPRESSION_LZ4, "LZ4"), (FLAG_COMPRESSION_ZSTD, "ZSTD"), (0x5 << 8, "type 5"), (0x7 << 8, "type 7")],
)
def test_other_types_are_named(kind: int, name: str) -> None:
    with pytest.raises(UnreadableBodyError, match=f"compressed with {name}; this client reads zlib only"):
        decompress(b"x", FLAG_COMPRESSED | kind)
    assert issubclass(UnreadableBodyError, RejectedError)


def test_a_few_kilobytes_do_not_become_gigabytes() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    assert len(bomb) < 20_000
    with pytest.raises(UnreadableBodyError, match="larger than 1,000,000 bytes"):
        decompress(bomb, FLAG_COMPRESSED, 1_000_000)
    assert len(decompress(bomb, FLAG_COMPRESSED, 10_000_000)) == 10_000_000
    assert DECOMPRESSED_BYTES_MAX == 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("body", "reason"), [(b"not zlib", "is not:"), (zlib.compress(TEXT)[:-10], "ends before its end")]
)
def test_a_damaged_body_is_said_to_be_so(body: bytes, reason: str) -> None:
    with pytest.raises(UnreadableBodyError, match=reason):
        decompress(body, FLAG_COMPRESSED)


def test_compressing_says_when_it_does_not_pay() -> None:
    assert compress(os.urandom(5_000), 5) is None
    assert compress(TEXT, 5) == zlib.compress(TEXT, 5)
