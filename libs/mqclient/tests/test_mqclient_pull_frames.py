"""Pulls that bring the records as bytes, and readers that leave the master alone (mechanisms C6, H4)."""

from __future__ import annotations

import pytest

from mqclient import IllegalArgumentError, MessageQueue, MessageSelector, PullConsumer, PullStatus
from mqclient.testing import FakeBroker, FakeCluster
from mqclient.transport import methods
from mqproto.record import iter_sealed_records

QUEUE = MessageQueue("orders", "broker-a", 0)
PULL = methods.PULL.path


def pair() -> tuple[FakeCluster, FakeBroker, FakeBroker]:
    """A master with a replica."""
    cluster, (master,) = FakeCluster.of("broker-a", queue_count=1)
    return cluster, master, cluster.add_replica(master)


def put(broker: FakeBroker, *bodies: bytes, tag: str = "red") -> None:
    for body in bodies:
        broker.put("orders", 0, body, {"TAGS": tag})


def bodies(records: bytes) -> list[bytes]:
    return [record.body for record in iter_sealed_records(records)]


class TestFrames:
    async def test_a_frame_is_what_the_broker_keeps_and_where_to_go_on(self) -> None:
        cluster, master, _ = pair()
        put(master, b"0", b"1", b"2")
        async with PullConsumer("readers", cluster.url) as consumer:
            frame = await consumer.pull_frame(QUEUE, 1, max_messages=5)
            assert frame.records == b"".join(master.queues["orders", 0][1:])
            assert (frame.status, frame.next_begin_offset) == (PullStatus.FOUND, 3)
            assert (frame.min_offset, frame.max_offset) == (0, 3)
            end = await consumer.pull_frame(QUEUE, 3)
            assert (end.status, end.records) == (PullStatus.NO_NEW_MSG, b"")

    async def test_the_text_of_tags_is_for_its_reader_to_compare(self) -> None:
        """The fake broker is one whose tags all have the same hash."""
        cluster, master, _ = pair()
        put(master, b"0")
        put(master, b"1", tag="blue")
        async with PullConsumer("readers", cluster.url) as consumer:
            frame = await consumer.pull_frame(QUEUE, 0, expression=MessageSelector.by_tag("blue"))
            assert bodies(frame.records) == [b"0", b"1"]

    async def test_a_damaged_record_is_found_by_its_reader(self) -> None:
        cluster, master, _ = pair()
        put(master, b"0")
        master.queues["orders", 0][0] = master.queues["orders", 0][0][:-1] + b"?"
        async with PullConsumer("readers", cluster.url) as consumer:
            frame = await consumer.pull_frame(QUEUE, 0)
            with pytest.raises(ValueError, match="CRC mismatch"):
                bodies(frame.records)

    async def test_a_block_beyond_what_a_broker_waits_is_rejected(self) -> None:
        cluster, _, _ = pair()
        async with PullConsumer("readers", cluster.url) as consumer:
            with pytest.raises(IllegalArgumentError, match="a broker waits for 0 to 15 s"):
                await consumer.pull_frame(QUEUE, 0, block_s=16)


class TestPreferringReplicas:
    async def test_a_replica_serves_whatever_is_suggested(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1", b"2")
        replica.copy_from(master)
        async with PullConsumer("readers", cluster.url, prefers_replicas=True) as consumer:
            for offset in range(3):
                frame = await consumer.pull_frame(QUEUE, offset, max_messages=1)
                assert frame.next_begin_offset == offset + 1
        assert replica.unary_paths.count(PULL) == 3
        assert PULL not in master.unary_paths

    async def test_its_master_serves_what_the_replica_has_not_got_and_then_the_replica_again(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0")
        replica.copy_from(master)
        put(master, b"1", b"2")
        async with PullConsumer("readers", cluster.url, prefers_replicas=True) as consumer:
            assert bodies((await consumer.pull_frame(QUEUE, 1, max_messages=1)).records) == [b"1"]
            assert (replica.unary_paths.count(PULL), master.unary_paths.count(PULL)) == (1, 1)
            replica.copy_from(master)
            assert bodies((await consumer.pull_frame(QUEUE, 2)).records) == [b"2"]
            assert (replica.unary_paths.count(PULL), master.unary_paths.count(PULL)) == (2, 1)

    async def test_only_the_master_calls_an_offset_illegal(self) -> None:
        cluster, master, replica = pair()
        replica.judges_offsets = True
        put(master, b"0")
        async with PullConsumer("readers", cluster.url, prefers_replicas=True) as consumer:
            assert bodies((await consumer.pull_frame(QUEUE, 0)).records) == [b"0"]
            assert (await consumer.pull_frame(QUEUE, 5)).status is PullStatus.OFFSET_ILLEGAL

    async def test_without_a_replica_the_master_serves(self) -> None:
        cluster, (master,) = FakeCluster.of("broker-a", queue_count=1)
        put(master, b"0")
        async with PullConsumer("readers", cluster.url, prefers_replicas=True) as consumer:
            assert (await consumer.pull(QUEUE, 0)).messages[0].body == b"0"

    async def test_a_replica_that_cannot_be_reached_is_passed_over(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        replica.copy_from(master)
        replica.down = True
        async with PullConsumer("readers", cluster.url, prefers_replicas=True) as consumer:
            assert bodies((await consumer.pull_frame(QUEUE, 0)).records) == [b"0", b"1"]
        assert cluster.clock.monotonic() == 0.0
