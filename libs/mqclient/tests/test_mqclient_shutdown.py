"""A shutdown ends in time, whatever hangs, and leaves nothing behind, whichever task is cancelled.

Mechanism L14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mqclient import (
    Admin,
    ClientConfig,
    ConsumeStatus,
    Message,
    MessageExt,
    MQClientError,
    Producer,
    SendResult,
    SendStatus,
    TransactionProducer,
)
from mqclient.testing import (
    FakeBroker,
    FakeCluster,
    RecordingListener,
    RecordingTransactionListener,
    consumer_of,
)
from osenv.sim_clock import settle

Leaves = Any  # a producer, a consumer or an admin


def everything_of(cluster: FakeCluster) -> list[Leaves]:
    return [
        Producer("shop", cluster.url, client_config=ClientConfig(instance_name="p")),
        TransactionProducer(
            "payers",
            cluster.url,
            transaction_listener=RecordingTransactionListener(),
            client_config=ClientConfig(instance_name="t"),
        ),
        consumer_of(cluster, RecordingListener(), member="c"),
        Admin(cluster.url, client_config=ClientConfig(instance_name="a")),
    ]


class CalledBack:
    """A callback whose `wait` has the outcome of what `send_async` has sent."""

    def __init__(self) -> None:
        self._outcome: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()

    async def on_success(self, result: SendResult) -> None:
        self._outcome.set_result(result)

    async def on_exception(self, error: Exception) -> None:
        self._outcome.set_exception(error)

    async def wait(self) -> SendResult:
        return await self._outcome


async def does_nothing() -> None:
    """What a broker does that has stopped, when a client ends its stream."""


def fall_silent(cluster: FakeCluster) -> None:
    """No server answers any more; every connection stays open."""
    for broker in cluster.brokers.values():
        broker.silent = True
        broker.unary_gate = asyncio.Event()
        for stream in broker.streams:
            stream.done_writing = does_nothing  # type: ignore[method-assign]
    for server in cluster.name_servers.values():
        server.silent = True


async def begin_work(made: Leaves, broker: FakeBroker) -> list[asyncio.Task[Any]]:
    """Calls that will hang, as an application has them."""
    if isinstance(made, TransactionProducer):
        return [asyncio.create_task(made.send_message_in_transaction(Message("orders", b"x"), timeout=60.0))]
    if isinstance(made, Producer):
        called_back = CalledBack()
        made.send_async(Message("orders", b"x"), called_back, timeout=60.0)
        return [
            asyncio.create_task(made.send_oneway(Message("orders", b"x"))),  # whose result may be None
            asyncio.create_task(made.send(Message("orders", b"x"), timeout=60.0)),
            asyncio.create_task(made.send(Message("not-cached-yet", b"x"), timeout=60.0)),
            asyncio.create_task(called_back.wait()),
        ]
    if isinstance(made, Admin):
        return [asyncio.create_task(made.topic_list())]
    broker.put("orders", 0, b"x")
    return []


async def ends_within(cluster: FakeCluster, seconds: float, ending: Awaitable[Any]) -> None:
    """Move the clock until it has ended; it has to by then, and not a millisecond later."""
    task = asyncio.ensure_future(ending)
    await cluster.clock.advance(seconds)
    assert task.done()
    await task


@pytest.mark.parametrize("timeout_s", [0.0, 0.5, 4.0, 10.0])
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_shutdown_takes_no_longer_than_it_may_when_everything_is_silent(number: int, timeout_s: float) -> None:
    cluster, (broker, _) = FakeCluster.of("broker-a", "broker-b")
    before = asyncio.all_tasks()
    made = everything_of(cluster)[number]
    await made.start()
    if isinstance(made, Producer):
        await made.send(Message("orders", b"x"))
    await settle()
    fall_silent(cluster)
    calls = await begin_work(made, broker)
    await settle()
    await ends_within(cluster, timeout_s, made.shutdown(timeout_s=timeout_s))
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert outcome is None or isinstance(outcome, MQClientError)
    assert asyncio.all_tasks() == before
    assert cluster.clock.timers == 0
    assert all(channel.closed for channel in cluster.channels)


async def test_leaving_a_context_on_a_silent_broker_ends_in_time() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    before = asyncio.all_tasks()
    broker.silent = True
    sends: list[asyncio.Task[Any]] = []

    async def live() -> None:
        async with Producer("shop", cluster.url) as producer:
            sends.append(asyncio.create_task(producer.send(Message("orders", b"x"), timeout=60.0)))
            await settle()

    await ends_within(cluster, 10.0, live())
    (outcome,) = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(outcome, MQClientError)
    assert asyncio.all_tasks() == before


async def test_an_admin_leaves_at_once_and_its_calls_end() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    before = asyncio.all_tasks()
    admin = Admin(cluster.url)
    await admin.start()
    await admin.topic_list()
    fall_silent(cluster)
    calls = await begin_work(admin, broker)
    await settle()
    await ends_within(cluster, 0.0, admin.shutdown())
    await cluster.clock.advance(3.1)
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, MQClientError)
    assert asyncio.all_tasks() == before


@pytest.mark.mechanism("L14")
async def test_what_was_accepted_before_the_shutdown_is_sent_by_it() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    producer = Producer("shop", cluster.url)
    await producer.start()
    sends = [asyncio.create_task(producer.send(Message("orders", b"%d" % number))) for number in range(200)]
    await settle()
    leaving = asyncio.create_task(producer.shutdown())
    await settle()
    assert not leaving.done()
    broker.silent = False
    answered = 0
    while not leaving.done():
        for frame in broker.frames[answered:]:
            answered += 1
            broker.answer_frame(frame)
        await settle()
    results = await asyncio.gather(*sends)
    assert {result.send_status for result in results} == {SendStatus.SEND_OK}
    assert len(broker.bodies) == 200


async def test_last_offsets_reach_the_brokers_that_answer_when_another_is_silent() -> None:
    cluster, (hangs, answers) = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    consumer = consumer_of(cluster, RecordingListener())
    await consumer.start()
    for broker in (hangs, answers):
        broker.put("orders", 0, b"x")
    await settle()
    hangs.unary_gate = asyncio.Event()
    await ends_within(cluster, 2.0, consumer.shutdown(timeout_s=2.0))
    assert answers.offsets["closers", "orders", 0] == 1
    assert answers.members("closers") == []


async def test_a_listener_that_ignores_its_cancellation_is_left_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    release = asyncio.Event()

    async def stubborn(_: list[MessageExt]) -> ConsumeStatus:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = consumer_of(cluster, stubborn, consume_concurrency=1)
    await consumer.start()
    broker.put("orders", 0, b"x")
    await settle()
    await ends_within(cluster, 3.0, consumer.shutdown(timeout_s=2.0))
    assert "1 tasks go on although they were cancelled: mqclient consume 0" in caplog.text
    assert broker.members("closers") == []
    release.set()
    await settle()


async def cancelled_after(rounds: int, call: Callable[[], Awaitable[Any]]) -> bool:
    """Begin the call, cancel it after so many rounds of the event loop, and say whether it was still running."""
    task = asyncio.ensure_future(call())
    for _ in range(rounds):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


@pytest.mark.parametrize("number", [0, 1, 2, 3])
async def test_a_start_that_is_cancelled_at_any_point_leaves_nothing_behind(number: int) -> None:
    was_cancelled = []
    for rounds in range(60):
        cluster, (broker,) = FakeCluster.of("broker-a")
        before = asyncio.all_tasks()
        made = everything_of(cluster)[number]
        was_cancelled.append(await cancelled_after(rounds, made.start))
        if not was_cancelled[-1]:
            await made.shutdown()
        assert asyncio.all_tasks() == before, rounds
        assert cluster.clock.timers == 0, rounds
        assert broker.streams == [], rounds
        assert all(channel.closed for channel in cluster.channels), rounds
    assert was_cancelled[0]
    assert not was_cancelled[-1]


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
async def test_a_shutdown_that_is_cancelled_at_any_point_leaves_nothing_behind(number: int, silent: bool) -> None:
    was_cancelled = []
    for rounds in range(1, 40):  # cancelled before its first step, it has not begun
        cluster, (broker,) = FakeCluster.of("broker-a")
        before = asyncio.all_tasks()
        made = everything_of(cluster)[number]
        await made.start()
        await settle()
        if silent:
            fall_silent(cluster)
        calls = await begin_work(made, broker)
        await settle()
        was_cancelled.append(await cancelled_after(rounds, made.shutdown))
        await cluster.clock.advance(5.0)  # an admin's call has a time-out of its own
        for call in calls:
            assert call.done(), rounds
            assert not call.cancelled(), rounds
            assert call.exception() is None or isinstance(call.exception(), MQClientError)
        assert asyncio.all_tasks() == before, rounds
        assert cluster.clock.timers == 0, rounds
        assert all(channel.closed for channel in cluster.channels), rounds
    assert was_cancelled[0]


@pytest.mark.parametrize("hangs", ["broker", "name server"])
async def test_sends_that_are_cancelled_at_any_point_leave_nothing_behind_and_harm_no_other(hangs: str) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    before = asyncio.all_tasks()
    async with Producer("shop", cluster.url) as producer:
        broker.silent = hangs == "broker"
        cluster.name_servers["name-server-0"].silent = hangs == "name server"
        kept = asyncio.create_task(producer.send(Message("orders", b"kept"), timeout=600.0))
        for rounds in range(30):
            assert await cancelled_after(rounds, lambda: producer.send(Message("orders", b"x"), timeout=60.0))
        broker.silent = cluster.name_servers["name-server-0"].silent = False
        for frame in list(broker.frames):
            broker.answer_frame(frame)
        await cluster.clock.advance(2.0)
        if hangs == "broker":
            assert (await kept).send_status is SendStatus.SEND_OK
        else:
            kept.cancel()
        assert (await producer.send(Message("orders", b"y"))).send_status is SendStatus.SEND_OK
    await asyncio.wait([kept])
    assert asyncio.all_tasks() == before
    assert cluster.clock.timers == 0
