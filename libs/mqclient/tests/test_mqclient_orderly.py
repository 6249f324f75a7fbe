"""Orderly consumption: order through failures, locks and hand-overs (mechanisms O1, O2)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from mqclient import ClientConfig, ConnectionLostError, ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt, PushConsumer
from mqclient.consumer.rebalance import HAND_OVER_S
from mqclient.testing import FakeBroker, FakeCluster, made_consumer
from mqclient.transport import methods
from osenv.sim_clock import settle

SUCCESS, SUSPEND = ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
LOCK_PATH, UNLOCK_PATH = methods.LOCK_QUEUES.path, methods.UNLOCK_QUEUES.path


class Log:
    """An orderly listener that remembers (member, body) as it begins, and does what the test wants."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, bytes]] = []
        self.running: dict[int, str] = {}  # queue id -> member
        self.failures: dict[bytes, int] = {}
        self.gate: asyncio.Event | None = None

    def of(self, member: str) -> Any:
        async def listen(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
            queue_id = messages[0].queue_id
            assert queue_id not in self.running, "two listeners for one queue"
            self.running[queue_id] = member
            try:
                self.begun.extend((member, message.body) for message in messages)
                if self.gate is not None:
                    await self.gate.wait()
            finally:
                del self.running[queue_id]
            for message in messages:
                if self.failures.get(message.body, 0) > 0:
                    self.failures[message.body] -= 1
                    return SUSPEND
            return SUCCESS

        return listen

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.begun]


def member(cluster: FakeCluster, log: Log, name: str = "m1", **options: Any) -> PushConsumer:
    made = made_consumer(
        "keepers",
        cluster.url,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        client_config=ClientConfig(instance_name=name),
        **options,
    )
    made.subscribe("orders")
    made.register_message_listener_orderly(log.of(name))
    return made


def put(broker: FakeBroker, *bodies: bytes, queue_id: int = 0) -> None:
    for body in bodies:
        broker.put("orders", queue_id, body)


def orders(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == "orders"]


@pytest.mark.mechanism("O2")
async def test_a_message_that_fails_holds_its_queue_and_no_other() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    log = Log()
    log.failures[b"a1"] = 2
    put(broker, b"a0", b"a1", b"a2")
    put(broker, b"b0", b"b1", queue_id=1)
    async with member(cluster, log):
        await settle()
        assert sorted(log.bodies) == [b"a0", b"a1", b"b0", b"b1"]
        await cluster.clock.advance(0.9)
        assert log.bodies.count(b"a1") == 1
        await cluster.clock.advance(1.2)
        of_a = [body for body in log.bodies if body.startswith(b"a")]
        assert of_a == [b"a0", b"a1", b"a1", b"a1", b"a2"]
        assert broker.send_backs == []
        assert broker.offsets["keepers", "orders", 0] == 3


async def test_reconsume_times_grow_in_place_and_the_last_failure_makes_a_dead_letter() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    log.failures[b"bad"] = 3
    put(broker, b"bad", b"good")
    async with member(cluster, log, max_reconsume_times=2, suspend_current_queue_time_s=0.5):
        await cluster.clock.advance(5.0)
        assert log.bodies[:4] == [b"bad", b"bad", b"bad", b"good"]  # once, and two tries more
        (back,) = broker.send_backs
        assert back.delay_level == -1
        assert broker.offsets["keepers", "orders", 0] == 2


async def test_dead_letter_that_cannot_be_stored_holds_the_queue() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    log.failures[b"bad"] = 99
    put(broker, b"bad", b"good")
    broker.unary_errors[methods.CONSUMER_SEND_BACK.path] = [ConnectionLostError("gone")]
    async with member(cluster, log, max_reconsume_times=1):
        await cluster.clock.advance(1.5)
        assert log.bodies == [b"bad", b"bad"]
        assert broker.offsets["keepers", "orders", 0] == 0
        await cluster.clock.advance(1.0)
        assert log.bodies[:4] == [b"bad", b"bad", b"bad", b"good"]


async def test_batches_keep_the_order() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    bodies = [b"%03d" % number for number in range(100)]
    put(broker, *bodies)
    async with member(cluster, log, consume_message_batch_max_size=7):
        await settle()
        assert log.bodies == bodies


async def test_queue_is_not_consumed_before_its_lock_is_granted() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    log = Log()
    put(broker, b"a")
    put(broker, b"b", queue_id=1)
    broker.locks.rejected.add(("keepers", "orders", 0))
    async with member(cluster, log) as consumer:
        await cluster.clock.advance(3.0)
        assert orders(consumer) == [1]
        assert log.bodies == [b"b"]
        broker.locks.rejected.clear()
        await cluster.clock.advance(5.0)
        assert orders(consumer) == [0, 1]
        assert log.bodies == [b"b", b"a"]


async def test_locks_are_renewed_every_20_s() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with member(cluster, Log()):
        await settle()
        before = len(broker.locks.requests)
        await cluster.clock.advance(300.0)
        assert len(broker.locks.requests) - before == 15
        assert broker.locks.holder("keepers", "orders", 0) == broker.members("keepers")[0]


@pytest.mark.mechanism("O2")
async def test_member_stops_30_s_after_its_last_renewal_and_begins_anew_with_a_new_lock() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    put(broker, b"0")
    async with member(cluster, log) as consumer:
        await settle()
        broker.unary_errors[LOCK_PATH] = [ConnectionLostError("gone")] * 2  # the renewals after 20 s and 40 s
        await cluster.clock.advance(29.0)
        put(broker, b"1")
        await settle()
        assert log.bodies == [b"0", b"1"]
        await cluster.clock.advance(2.0)
        put(broker, b"2")
        await settle()
        assert log.bodies == [b"0", b"1"]
        await cluster.clock.advance(40.0)
        assert log.bodies == [b"0", b"1", b"2"]
        assert orders(consumer) == [0]


async def test_lock_that_the_broker_has_given_away_ends_the_consumption_at_the_next_renewal() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    async with member(cluster, log) as consumer:
        await settle()
        broker.locks.rejected.add(("keepers", "orders", 0))
        await cluster.clock.advance(20.1)
        assert orders(consumer) == []
        put(broker, b"0")
        await cluster.clock.advance(5.0)
        assert log.bodies == []


@pytest.mark.mechanism("O2")
async def test_queue_is_handed_over_when_the_running_listener_has_ended() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    log = Log()
    put(broker, b"a0", b"a1")
    put(broker, b"b0", b"b1", queue_id=1)
    async with AsyncExitStack() as stack:
        log.gate = asyncio.Event()
        first = await stack.enter_async_context(member(cluster, log, "m1"))
        await settle()
        assert log.bodies == [b"a0", b"b0"]
        second = await stack.enter_async_context(member(cluster, log, "m2"))
        await cluster.clock.advance(10.0)
        assert orders(first) == [0]
        assert orders(second) == []
        assert log.bodies == [b"a0", b"b0"]
        log.gate.set()
        await cluster.clock.advance(HAND_OVER_S)
        assert orders(second) == [1]
        assert log.begun[-1] == ("m2", b"b1")
        assert [body for body in log.bodies if body.startswith(b"b")] == [b"b0", b"b1"]


async def test_lock_of_a_queue_that_is_given_up_lasts_as_long_as_its_listener_runs() -> None:
    """It is renewed although the queue is another one's by now: else that one would begin after 60 s."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    log = Log()
    put(broker, b"b0", b"b1", queue_id=1)
    async with AsyncExitStack() as stack:
        log.gate = asyncio.Event()
        await stack.enter_async_context(member(cluster, log, "m1"))
        await settle()
        second = await stack.enter_async_context(member(cluster, log, "m2"))
        await cluster.clock.advance(300.0)
        assert (log.bodies, orders(second)) == ([b"b0"], [])
        log.gate.set()
        await cluster.clock.advance(1.0)
        assert log.begun == [("m1", b"b0"), ("m2", b"b1")]


async def test_locks_are_renewed_while_a_shutdown_waits_for_its_listener() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    log.gate = asyncio.Event()
    put(broker, b"0")
    consumer = member(cluster, log)
    await consumer.start()
    await settle()
    leaving = asyncio.ensure_future(consumer.shutdown(timeout_s=600.0))
    await cluster.clock.advance(300.0)
    assert broker.locks.holder("keepers", "orders", 0) is not None
    log.gate.set()
    await leaving
    assert broker.locks.holder("keepers", "orders", 0) is None
    assert broker.offsets["keepers", "orders", 0] == 1


async def test_pause_after_a_failure_does_not_hold_up_a_hand_over() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    log = Log()
    log.failures[b"b0"] = 1
    put(broker, b"b0", b"b1", queue_id=1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(member(cluster, log, "m1", suspend_current_queue_time_s=3_600.0))
        await settle()
        await stack.enter_async_context(member(cluster, log, "m2"))
        await cluster.clock.advance(2 * HAND_OVER_S)
        assert log.begun == [("m1", b"b0"), ("m2", b"b0"), ("m2", b"b1")]


async def test_shutdown_finishes_what_runs_commits_it_and_gives_the_locks_back() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    log.gate = asyncio.Event()
    put(broker, b"0", b"1")
    consumer = member(cluster, log)
    await consumer.start()
    await settle()
    leaving = asyncio.ensure_future(consumer.shutdown())
    await settle()
    assert not leaving.done()
    assert broker.locks.holder("keepers", "orders", 0) is not None
    log.gate.set()
    await leaving
    assert log.bodies == [b"0"]
    assert broker.offsets["keepers", "orders", 0] == 1
    assert broker.locks.holder("keepers", "orders", 0) is None


async def test_locks_stay_when_a_listener_does_not_end_in_time(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    log.gate = asyncio.Event()
    put(broker, b"0")
    consumer = member(cluster, log)
    await consumer.start()
    await settle()
    leaving = asyncio.ensure_future(consumer.shutdown(timeout_s=1.0))
    await cluster.clock.advance(1.1)
    await leaving
    assert "did not finish in time" in caplog.text
    assert broker.locks.holder("keepers", "orders", 0) is not None


async def test_offset_set_anew_waits_for_the_listener_that_runs() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    put(broker, b"0", b"1", b"2")
    async with member(cluster, log):
        await settle()
        log.gate = asyncio.Event()
        put(broker, b"3")
        await settle()
        broker.progress.set(("keepers", "orders", 0), 1)
        await cluster.clock.advance(10.1)  # the next commit hears of the new version
        assert log.bodies == [b"0", b"1", b"2", b"3"]
        log.gate.set()
        await settle()
        assert log.bodies == [b"0", b"1", b"2", b"3", b"1", b"2", b"3"]


async def test_slots_are_shared_by_all_queues() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=4)
    log = Log()
    log.gate = asyncio.Event()
    for queue_id in range(4):
        put(broker, b"%d" % queue_id, queue_id=queue_id)
    async with member(cluster, log, consume_concurrency=2):
        await settle()
        assert len(log.bodies) == 2
        log.gate.set()
        await settle()
        assert sorted(log.bodies) == [b"0", b"1", b"2", b"3"]


@pytest.mark.mechanism("O1")
async def test_one_queue_makes_one_order_for_all() -> None:
    """Mechanism O1: one queue, one member that has it; the others are idle."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    log = Log()
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(cluster, log, f"m{number}")) for number in range(3)]
        put(broker, *(b"%02d" % number for number in range(50)))
        await settle()
        assert sum(map(len, map(orders, members))) == 1
        assert log.bodies == [b"%02d" % number for number in range(50)]
