"""How listeners are called: plain functions, hooks, statistics, suspension, concurrency (mechanisms C12, L10, L12)."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient import (
    ConsumeFromWhere,
    ConsumeMessageContext,
    ConsumeOrderlyStatus,
    ConsumerConfig,
    ConsumeStatus,
    IllegalStateError,
    MessageExt,
    MessageModel,
    MessageQueue,
    PushConsumer,
)
from mqclient.consumer.consume_service import ConcurrencyControl, ConsumerStats
from mqclient.testing import FakeCluster, RecordingListener, consumer_of
from mqclient.transport import methods
from osenv.sim_clock import settle

SUCCESS, LATER = ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.RECONSUME_LATER


class Hook:
    hook_name = "spy"

    def __init__(self, *, breaks: bool = False) -> None:
        self.contexts: list[ConsumeMessageContext] = []
        self.after: list[tuple[bool, object]] = []
        self._breaks = breaks

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        if self._breaks:
            raise RuntimeError("broken hook")
        context.props["number"] = len(self.contexts)
        self.contexts.append(context)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        assert context is self.contexts[context.props["number"]]
        self.after.append((context.success, context.status))


async def test_plain_function_runs_in_a_thread_and_is_consumed_like_an_async_one() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    threads: set[str] = set()
    finished = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listen(messages: list[MessageExt]) -> ConsumeStatus:
        threads.add(threading.current_thread().name)
        if messages[0].body == b"2":
            loop.call_soon_threadsafe(finished.set)
        return SUCCESS

    async with consumer_of(cluster, listen, consume_concurrency=1) as consumer:
        for number in range(3):
            broker.put("orders", 0, b"%d" % number)
        async with asyncio.timeout(10):
            await finished.wait()
        await consumer.shutdown()
    assert threads == {"mqclient consume closers 0"}
    assert broker.offsets["closers", "orders", 0] == 3


@pytest.mark.mechanism("C9")
async def test_plain_functions_run_at_the_same_time() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    together = threading.Barrier(3, timeout=10)
    loop, finished, outcomes = asyncio.get_running_loop(), asyncio.Event(), []

    def listen(_: list[MessageExt]) -> ConsumeStatus:
        outcomes.append(together.wait())
        if len(outcomes) == 6:
            loop.call_soon_threadsafe(finished.set)
        return SUCCESS

    async with consumer_of(cluster, listen, consume_concurrency=3):
        for number in range(6):
            broker.put("orders", 0, b"%d" % number)
        async with asyncio.timeout(10):
            await finished.wait()


@pytest.mark.parametrize("wrapped", ["partial", "callable", "plain function around it"])
async def test_async_listener_is_known_in_every_form(wrapped: str) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    loop, listen = asyncio.get_running_loop(), RecordingListener()

    async def listening(messages: list[MessageExt]) -> ConsumeStatus:
        assert asyncio.get_running_loop() is loop
        return await listen(messages)

    class Callable:
        async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
            return await listening(messages)

    def around_it(messages: list[MessageExt]) -> Any:
        return listening(messages)

    forms: dict[str, Any] = {
        "partial": partial(listening),
        "callable": Callable(),
        "plain function around it": around_it,
    }
    async with consumer_of(cluster, forms[wrapped]):
        broker.put("orders", 0, b"x")
        await listen.has(1)


@pytest.mark.mechanism("C9")
async def test_listener_that_cancels_itself_has_failed_and_the_worker_goes_on() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()

    async def listen(messages: list[MessageExt]) -> ConsumeStatus:
        if messages[0].body == b"0" and not messages[0].reconsume_times:
            raise asyncio.CancelledError
        return await listener(messages)

    async with consumer_of(cluster, listen, consume_concurrency=1):
        broker.put("orders", 0, b"0")
        broker.put("orders", 0, b"1")
        await settle()
        assert listener.bodies == [b"1"]
        assert len(broker.send_backs) == 1


@pytest.mark.mechanism("C12")
async def test_hooks_see_every_call_and_what_came_of_it(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    hook = Hook()
    consumer = consumer_of(cluster, listener, consume_concurrency=1)
    consumer.register_consume_message_hook(Hook(breaks=True))
    consumer.register_consume_message_hook(hook)
    async with consumer:
        broker.put("orders", 0, b"good")
        await settle()
        listener.status = error = ValueError("no")
        broker.put("orders", 0, b"bad")
        await settle()
    assert hook.after[:2] == [(True, SUCCESS), (False, error)]
    first = hook.contexts[0]
    assert (first.consumer_group, first.message_queue) == ("closers", MessageQueue("orders", "broker-a", 0))
    assert [message.body for message in first.messages] == [b"good"]
    assert "the hook spy failed before" in caplog.text


async def test_suspended_consumer_pulls_nothing_and_keeps_its_queues() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    consumer = consumer_of(cluster, listener)
    with pytest.raises(IllegalStateError):
        consumer.suspend()
    async with consumer:
        broker.put("orders", 0, b"0")
        await settle()
        consumer.suspend()
        broker.put("orders", 0, b"1")  # the poll that is under way brings it
        await settle()
        broker.put("orders", 0, b"2")
        await cluster.clock.advance(60.0)
        assert listener.bodies == [b"0", b"1"]
        assert consumer.running_info("broker-a").suspended
        assert [queue.topic for queue in consumer.queues] == ["orders"]
        consumer.resume()
        await settle()
        assert listener.bodies == [b"0", b"1", b"2"]


@pytest.mark.mechanism("L10")
def test_concurrency_follows_what_waits() -> None:
    """Mechanism L10: one more from the threshold on, one less below 80 % of it."""
    control = ConcurrencyControl(2, 4, 100)
    waiting = [99, 100, 5_000, 5_000, 99, 80, 79, 0, 0]
    assert [control.adjusted(count) for count in waiting] == [2, 3, 4, 4, 4, 4, 3, 2, 2]


@pytest.mark.mechanism("L10")
@pytest.mark.parametrize("orderly", [False, True])
async def test_concurrency_is_adjusted_every_minute(orderly: bool) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=8)
    gate, running = asyncio.Event(), 0

    async def listen(messages: list[MessageExt]) -> object:
        nonlocal running
        running += 1
        await gate.wait()
        running -= 1
        return ConsumeOrderlyStatus.SUCCESS if orderly else SUCCESS

    config = ConsumerConfig(consume_thread_min=1, consume_thread_max=3, adjust_thread_pool_nums_threshold=8)
    consumer = PushConsumer("closers", cluster.url, consumer_config=config)
    consumer.subscribe("orders")
    register = consumer.register_message_listener_orderly if orderly else consumer.register_message_listener
    register(listen)  # type: ignore[arg-type]
    async with consumer:
        for queue_id in range(8):
            for _ in range(4):
                broker.put("orders", queue_id, b"x")
        await settle()
        assert running == 1
        await cluster.clock.advance(60.1)
        assert running == 2
        await cluster.clock.advance(120.1)
        assert running == 3
        assert consumer.running_info("broker-a").consume_concurrency == 3
        gate.set()
        await cluster.clock.advance(120.1)
        gate.clear()
        for queue_id in range(8):
            broker.put("orders", queue_id, b"x")
        await settle()
        assert running == 1
        gate.set()
        await settle()


@pytest.mark.mechanism("L12")
def test_statistics_are_of_the_last_minute() -> None:
    """Mechanism L12."""
    stats = ConsumerStats()
    stats.pulled("orders", 1000.0, 0.5, 120)
    stats.consumed("orders", 1001.0, 0.2, 60, success=True)
    stats.consumed("orders", 1015.0, 0.4, 6, success=False)
    (now,) = stats.of_last_minute(1020.0)
    assert (now.topic, now.pull_rt_ms, now.pull_tps) == ("orders", 500.0, 2.0)
    assert now.consume_rt_ms == pytest.approx(300.0)
    assert (now.consume_ok_tps, now.consume_failed_tps, now.consume_failed_messages) == (1.0, 0.1, 6)
    (later,) = stats.of_last_minute(1200.0)
    assert (later.pull_tps, later.consume_rt_ms, later.consume_failed_messages) == (0.0, 0.0, 6)


@pytest.mark.mechanism("L12")
async def test_running_info_tells_what_the_consumer_does() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    gate = asyncio.Event()

    async def listen(_: list[MessageExt]) -> ConsumeStatus:
        await gate.wait()
        return SUCCESS

    async with consumer_of(cluster, listen) as consumer:
        for _ in range(3):
            broker.put("orders", 1, b"x")
        await settle()
        info = consumer.running_info("broker-a")
        assert info.client_id == broker.members("closers")[0]
        assert [one.topic for one in info.data.subscriptions] == ["orders", "%RETRY%closers"]
        idle, busy = (one for one in info.queues if one.topic == "orders")
        assert (idle.queue_id, idle.cached_messages, idle.last_consume_timestamp_ms) == (0, 0, 0)
        assert (busy.commit_offset, busy.pull_offset, busy.cached_messages) == (0, 3, 3)
        assert busy.cached_bytes == 3 * len(broker.record_at(0))
        assert busy.last_consume_timestamp_ms == busy.last_pull_timestamp_ms == cluster.clock.wall_ms()
        assert consumer.running_info("broker-b").queues == []
        gate.set()


@pytest.mark.parametrize(
    ("status", "result", "remark"),
    [
        (SUCCESS, "CR_SUCCESS", ""),
        (LATER, "CR_LATER", ""),
        (ValueError("no"), "CR_THROW_EXCEPTION", "ValueError('no')"),
    ],
)
async def test_message_consumed_directly_moves_no_offset(status: object, result: str, remark: str) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    async with consumer_of(cluster, listener) as consumer:
        broker.put("orders", 0, b"x")
        await settle()
        listener.status = status
        answer = await consumer.consume_directly(listener.batches[0][0])
        assert broker_pb.ConsumeResult.Name(answer.result) == result
        assert answer.remark == remark
        assert broker.send_backs == []


def broadcaster(cluster: FakeCluster, listener: RecordingListener, name: str, folder: Path) -> PushConsumer:
    return consumer_of(
        cluster,
        listener,
        member=name,
        message_model=MessageModel.BROADCASTING,
        local_offset_store_dir=folder,
        consume_concurrency=1,
    )


@pytest.mark.mechanism("C2")
async def test_broadcasting_gives_every_member_everything_once(tmp_path: Path) -> None:
    """Mechanism C2: all messages to all; no retry topic, no offsets with the broker, no second try."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    listeners = [RecordingListener(), RecordingListener(LATER)]
    members = [broadcaster(cluster, one, f"m{at}", tmp_path) for at, one in enumerate(listeners)]
    for member in members:
        await member.start()
    for number in range(6):
        broker.put("orders", number % 2, b"%d" % number)
    for listener in listeners:
        await listener.has(6)
        assert sorted(listener.bodies) == [b"%d" % number for number in range(6)]
    await settle()
    assert (broker.offsets, broker.send_backs, broker.progress.reports) == ({}, [], [])
    assert "%RETRY%closers" not in broker.topics
    for member in members:
        await member.shutdown()


@pytest.mark.mechanism("C2")
async def test_broadcasting_goes_on_where_it_was_also_on_the_same_machine_only(tmp_path: Path) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for round_number, name in enumerate(["m0", "m0", "m1"]):
        broker.put("orders", 0, b"%d" % round_number)
        listener = RecordingListener()
        async with broadcaster(cluster, listener, name, tmp_path):
            await listener.has(1 if name == "m0" else 3)
            await settle()
        expected = {"m0": [b"%d" % round_number], "m1": [b"0", b"1", b"2"]}
        assert listener.bodies == expected[name]


async def test_second_broadcaster_of_the_same_name_is_rejected(tmp_path: Path) -> None:
    cluster, _ = FakeCluster.of("broker-a", queue_count=1)
    other, _ = FakeCluster.of("broker-b", queue_count=1)
    async with broadcaster(cluster, RecordingListener(), "m0", tmp_path):
        with pytest.raises(IllegalStateError, match="another instance_name"):
            await broadcaster(other, RecordingListener(), "m0", tmp_path).start()


async def test_broadcasters_that_keep_no_offsets_begin_anew_and_write_nothing(tmp_path: Path) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("orders", 0, b"before")
    for body in (b"first life", b"second life"):
        listener = RecordingListener()
        async with consumer_of(
            cluster,
            listener,
            message_model=MessageModel.BROADCASTING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            local_offset_store_dir=tmp_path,
            keep_local_offsets=False,
        ) as consumer:
            await settle()
            assert consumer.queues
            broker.put("orders", 0, body)
            await listener.has(1)
            await settle()
        assert listener.bodies == [body]
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - an empty folder of a test


async def test_message_that_fails_while_its_consumer_leaves_comes_again_once_and_not_twice() -> None:
    """Given back and finished, or neither: else each restart doubles it (bug zoo 30)."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    gate = asyncio.Event()

    async def fail(_: list[MessageExt]) -> ConsumeStatus:
        await gate.wait()
        return LATER

    leaving = consumer_of(cluster, fail)
    await leaving.start()
    broker.put("orders", 0, b"x")
    await settle()
    shutdown = asyncio.ensure_future(leaving.shutdown())
    await settle()
    gate.set()
    await shutdown
    listener = RecordingListener()
    async with consumer_of(cluster, listener, member="heir"):
        await cluster.clock.advance(1.0)
        assert listener.bodies == [b"x"]
        assert listener.batches[0][0].reconsume_times == 1
    assert len(broker.send_backs) == 1


@pytest.mark.mechanism("C19")
async def test_all_queues_of_a_broker_share_one_stream_and_no_thread() -> None:
    """Mechanism C19: one pull service for the process; here a stream and a task for each queue."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=64)
    threads = threading.active_count()
    listener = RecordingListener()
    async with consumer_of(cluster, listener):
        await settle()
        assert len(broker.polled_offsets) == 64
        assert [stream.path for stream in broker.streams].count(methods.POLL.path) == 1
        assert threading.active_count() == threads
