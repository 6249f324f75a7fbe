"""Brokers that are slow or fail are left alone for a while (mechanisms P8, P11, P12)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerRejectedError,
    BrokerUnreachableError,
    CommunicationMode,
    ConnectionLostError,
    EarlierSendFailedError,
    Message,
    MessageQueue,
    MessageType,
    Producer,
    ProducerConfig,
    RequestTimeoutError,
    SendMessageContext,
    SendResult,
)
from mqclient.errors import broker_answer_error
from mqclient.producer.attempts import AttemptObserver, Hooks, LatencyFaultTolerance, not_available_duration_ms
from mqclient.producer.sender import QueueChoice
from mqclient.testing import FakeBroker, FakeCluster
from osenv import SeededRng, SimClock
from osenv.sim_clock import settle

FAULT_TOLERANT = ProducerConfig(send_latency_fault_enable=True)
QUEUES = tuple(
    MessageQueue("orders", name, number) for name in ("broker-a", "broker-b", "broker-c") for number in (0, 1)
)


@pytest.mark.mechanism("P12")
@pytest.mark.parametrize(
    ("latency_ms", "duration_ms"),
    [
        (0, 0), (49.9, 0), (50, 0), (99, 0), (100, 0), (549, 0), (550, 2_000), (1_799, 2_000), (1_800, 5_000),
        (2_999, 5_000), (3_000, 6_000), (4_999, 6_000), (5_000, 10_000), (14_999, 10_000), (15_000, 30_000),
        (10_000_000, 30_000),
    ],
)  # fmt: skip
def test_the_table_of_latencies(latency_ms: float, duration_ms: int) -> None:
    assert not_available_duration_ms(latency_ms) == duration_ms


@pytest.mark.mechanism("P12")
async def test_a_slow_broker_is_available_again_after_the_time_of_its_row() -> None:
    clock = SimClock()
    tolerance = LatencyFaultTolerance(clock)
    tolerance.update("broker-a", 600)
    tolerance.update("broker-b", 20)
    assert not tolerance.is_available("broker-a")
    assert tolerance.is_available("broker-b")
    assert tolerance.is_available("a broker that nothing is known of")
    await clock.advance(1.999)
    assert not tolerance.is_available("broker-a")
    await clock.advance(0.001)
    assert tolerance.is_available("broker-a")


@pytest.mark.mechanism("P12")
async def test_a_failure_counts_as_ten_seconds_and_a_later_fast_answer_does_not_shorten_it() -> None:
    clock = SimClock()
    tolerance = LatencyFaultTolerance(clock)
    tolerance.update("broker-a", 1, isolation=True)
    tolerance.update("broker-a", 1)
    tolerance.update("broker-a", 700)
    await clock.advance(9.999)
    assert not tolerance.is_available("broker-a")
    await clock.advance(0.001)
    assert tolerance.is_available("broker-a")


def test_the_better_half_is_picked_in_turns() -> None:
    tolerance = LatencyFaultTolerance(SimClock())
    assert tolerance.pick_one_at_least() is None
    tolerance.update("slowest", 16_000)
    assert tolerance.pick_one_at_least() == "slowest"
    tolerance.update("slow", 600)
    tolerance.update("slower", 700)
    tolerance.update("fast", 10)
    assert [tolerance.pick_one_at_least() for _ in range(4)] == ["fast", "slow", "fast", "slow"]
    tolerance.remove("fast")
    assert {tolerance.pick_one_at_least() for _ in range(4)} == {"slow"}


def chosen(choice: QueueChoice, count: int, failed_broker: str | None = None) -> Counter[str]:
    return Counter(choice.choose("orders", QUEUES, failed_broker).broker_name for _ in range(count))


def test_available_brokers_share_the_messages_and_the_one_that_failed_last_gets_none() -> None:
    tolerance = LatencyFaultTolerance(SimClock())
    choice = QueueChoice(SeededRng(1), tolerance)
    assert chosen(choice, 12) == {"broker-a": 4, "broker-b": 4, "broker-c": 4}
    tolerance.update("broker-a", 1, isolation=True)
    assert set(chosen(choice, 12)) == {"broker-b", "broker-c"}
    assert set(chosen(choice, 12, "broker-b")) == {"broker-c"}
    tolerance.update("broker-c", 1, isolation=True)
    assert set(chosen(choice, 12, "broker-b")) == {"broker-b"}  # available, and better than the other two


@pytest.mark.mechanism("P11")
def test_without_an_available_broker_the_better_half_takes_turns() -> None:
    tolerance = LatencyFaultTolerance(SimClock())
    choice = QueueChoice(SeededRng(1), tolerance)
    for name, latency_ms in (("broker-a", 900), ("broker-b", 800), ("broker-c", 700)):
        tolerance.update(name, latency_ms)
    queues = {choice.choose("orders", QUEUES) for _ in range(8)}
    assert queues == {queue for queue in QUEUES if queue.broker_name == "broker-c"}


@pytest.mark.mechanism("P11")
def test_a_broker_without_a_queue_that_can_be_written_is_forgotten_and_plain_turns_follow() -> None:
    tolerance = LatencyFaultTolerance(SimClock())
    choice = QueueChoice(SeededRng(1), tolerance)
    tolerance.update("a broker of another topic", 600)
    for name in ("broker-a", "broker-b", "broker-c"):
        tolerance.update(name, 5_000)
    first = choice.choose("orders", QUEUES)
    assert tolerance.is_available("a broker of another topic")  # nothing is known of it any more
    assert first in QUEUES


async def brokers_of_next_sends(producer: Producer, count: int) -> set[str]:
    return {(await producer.send(Message("orders", b"x"))).message_queue.broker_name for _ in range(count)}


@pytest.mark.mechanism("P11")
async def test_a_slowed_broker_loses_its_messages_and_gets_them_back_as_the_table_says() -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url, producer_config=FAULT_TOLERANT) as producer:
        assert await brokers_of_next_sends(producer, 8) == {"broker-a", "broker-b"}
        first.silent = True
        slow = await send_to(producer, first)
        await cluster.clock.advance(0.6)
        first.silent = False
        first.answer_frame(first.frames[-1])
        await slow
        assert await brokers_of_next_sends(producer, 16) == {"broker-b"}
        await cluster.clock.advance(1.9)
        assert await brokers_of_next_sends(producer, 16) == {"broker-b"}
        await cluster.clock.advance(0.2)
        assert await brokers_of_next_sends(producer, 16) == {"broker-a", "broker-b"}
    assert second.bodies


async def send_to(producer: Producer, broker: FakeBroker) -> asyncio.Task[SendResult]:
    """Send until one message is on its way to this broker, which is silent."""
    while True:
        send = asyncio.create_task(producer.send(Message("orders", b"slow")))
        await settle()
        if not send.done():
            assert broker.frames
            return send


@pytest.mark.mechanism("P8")
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_broker_that_is_gone_is_left_alone_for_ten_seconds(mode: str) -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url, producer_config=FAULT_TOLERANT) as producer:
        await brokers_of_next_sends(producer, 8)
        first.down = True
        first.break_streams()
        for _ in range(4):
            if mode == "sync":
                await producer.send(Message("orders", b"x"))
            else:
                await async_result(producer)
        first.down = False
        await cluster.clock.advance(9.9)
        assert await brokers_of_next_sends(producer, 8) == {"broker-b"}
        await cluster.clock.advance(0.2)
        assert await brokers_of_next_sends(producer, 8) == {"broker-a", "broker-b"}
    assert second.bodies


async def async_result(producer: Producer) -> SendResult:
    done: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()

    class Callback:
        async def on_success(self, result: SendResult) -> None:
            done.set_result(result)

        async def on_exception(self, error: Exception) -> None:
            done.set_exception(error)

    producer.send_async(Message("orders", b"x"), Callback())
    return await done


async def test_a_timeout_counts_against_its_broker() -> None:
    cluster, (first, _) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url, producer_config=FAULT_TOLERANT) as producer:
        first.silent = True
        late = await send_to(producer, first)
        await cluster.clock.advance(3.1)
        assert isinstance(late.exception(), RequestTimeoutError)
        first.silent = False
        first.break_streams()
        assert await brokers_of_next_sends(producer, 8) == {"broker-b"}


async def test_a_broker_that_had_to_reject_a_message_is_not_punished() -> None:
    cluster, brokers = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    async with Producer("shop", cluster.url, producer_config=FAULT_TOLERANT) as producer:
        await brokers_of_next_sends(producer, 8)
        for broker in brokers:
            broker.next_codes = [common_pb.MESSAGE_ILLEGAL]
        for _ in range(2):
            with pytest.raises(BrokerRejectedError):
                await producer.send(Message("orders", b"x"))
        assert await brokers_of_next_sends(producer, 8) == {"broker-a", "broker-b"}


async def test_one_way_messages_count_too() -> None:
    cluster, (first, _) = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    async with Producer("shop", cluster.url, producer_config=FAULT_TOLERANT) as producer:
        await brokers_of_next_sends(producer, 8)
        first.silent = True
        await producer.send_oneway(Message("orders", b"x"))
        await producer.send_oneway(Message("orders", b"x"))
        await settle()
        await cluster.clock.advance(0.7)
        first.silent = False
        first.answer_frame(first.frames[-1])
        await settle()
        assert await brokers_of_next_sends(producer, 4) == {"broker-b"}


class RecordingTolerance(LatencyFaultTolerance):
    """Remembers what it was told."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock)
        self.told: list[tuple[float, bool]] = []

    def update(self, broker: str, latency_ms: float, *, isolation: bool = False) -> None:
        self.told.append((latency_ms, isolation))


@pytest.mark.parametrize(
    ("mode", "error", "told"),
    [
        (CommunicationMode.SYNC, None, [(200.0, False)]),
        (CommunicationMode.SYNC, BrokerUnreachableError("x"), [(200.0, True)]),
        (CommunicationMode.ASYNC, BrokerUnreachableError("x"), [(3_000.0, True)]),
        (CommunicationMode.ASYNC, ConnectionLostError("x"), [(200.0, True)]),
        (CommunicationMode.SYNC, RequestTimeoutError("x"), [(200.0, True)]),
        (CommunicationMode.SYNC, broker_answer_error(2, "busy", "broker-a"), [(200.0, True)]),
        (CommunicationMode.SYNC, broker_answer_error(16, "no permission", "broker-a"), [(200.0, True)]),
        (CommunicationMode.SYNC, broker_answer_error(13, "illegal", "broker-a"), [(200.0, False)]),
        (CommunicationMode.SYNC, asyncio.CancelledError(), [(200.0, False)]),
        (CommunicationMode.SYNC, EarlierSendFailedError("x"), []),
    ],
)
async def test_what_a_try_counts_as(
    mode: CommunicationMode, error: BaseException | None, told: list[tuple[float, bool]]
) -> None:
    clock = SimClock()
    tolerance = RecordingTolerance(clock)
    context = SendMessageContext(
        producer_group="shop",
        messages=(Message("orders", b"x"),),
        unique_id="ID",
        message_queue=QUEUES[0],
        broker_address="127.0.0.1:10911",
        born_host="127.0.0.1",
        communication_mode=mode,
        message_type=MessageType.NORMAL_MSG,
    )
    watch = AttemptObserver(context, Hooks(), tolerance, clock)
    await clock.advance(0.2)
    watch.ended(error=error)
    assert tolerance.told == told


@pytest.mark.mechanism("P11")
async def test_fault_tolerance_is_off_unless_it_is_wished() -> None:
    assert not ProducerConfig().send_latency_fault_enable
    cluster, (first, _) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        first.silent = True
        slow = await send_to(producer, first)
        await cluster.clock.advance(2.0)
        first.silent = False
        first.answer_frame(first.frames[-1])
        await slow
        assert await brokers_of_next_sends(producer, 8) == {"broker-a", "broker-b"}
