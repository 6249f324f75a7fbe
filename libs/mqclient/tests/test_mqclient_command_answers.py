"""Commands that a client answers: how it is, and what its listener makes of one message (mechanisms L11-L13)."""

from __future__ import annotations

import asyncio

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import ConsumeStatus, MessageExt, PushConsumer
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener, consumer_of
from osenv.sim_clock import settle


def ask_running_info(broker: FakeBroker, command_id: int, group: str = "closers") -> None:
    command = broker_pb.GetRunningInfo(command_id=command_id, group=group)
    broker.sessions.tell(broker_pb.SessionResponse(get_running_info=command))


def consume_directly(broker: FakeBroker, command_id: int, record: bytes, group: str = "closers") -> None:
    command = broker_pb.ConsumeDirectly(command_id=command_id, group=group, record=record)
    broker.sessions.tell(broker_pb.SessionResponse(consume_directly=command))


async def answers(broker: FakeBroker, count: int = 1) -> list[broker_pb.CommandAnswer]:
    """The newest answers, when there are so many."""
    async with asyncio.timeout(10):
        while len(broker.sessions.command_answers) < count:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
    return broker.sessions.command_answers[-count:]


async def test_a_consumer_tells_how_it_is() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    async with consumer_of(cluster, RecordingListener(), member="one") as consumer:
        ask_running_info(broker, 7)
        (answer,) = await answers(broker)
        assert (answer.command_id, answer.code, answer.WhichOneof("result")) == (7, common_pb.SUCCESS, "running_info")
        assert answer.running_info == consumer.running_info("broker-a")
        assert answer.running_info.client_id == "10.0.0.1@one"
        assert {(one.topic, one.queue_id) for one in answer.running_info.queues} >= {("orders", 0), ("orders", 1)}


async def test_a_group_that_has_left_is_not_online() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with consumer_of(cluster, RecordingListener()):
        ask_running_info(broker, 1, group="others")
        consume_directly(broker, 2, b"", group="others")
        found = await answers(broker, 2)
        assert {(one.command_id, one.code) for one in found} == {(1, common_pb.CONSUMER_NOT_ONLINE), (2, 206)}
        assert {one.remark for one in found} == {"group 'others' has left this client"}


async def test_the_listener_gets_the_message_and_the_answer_says_what_came_of_it() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("orders", 0, b"x", {"KEYS": "k"})
    heard: list[tuple[bytes, str, str]] = []

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        heard.extend((one.body, one.topic, one.broker_name) for one in messages)
        return ConsumeStatus.CONSUME_SUCCESS if len(heard) == 1 else ConsumeStatus.RECONSUME_LATER

    async with consumer_of(cluster, listener):
        await settle()
        offset = broker.offsets.get(("closers", "orders", 0))
        consume_directly(broker, 3, broker.record_at(0))
        (answer,) = await answers(broker)
        assert (answer.command_id, answer.consumed.result) == (3, broker_pb.CR_LATER)
        assert heard == [(b"x", "orders", "broker-a")] * 2
        assert (broker.send_backs, broker.offsets.get(("closers", "orders", 0))) == ([], offset)


@pytest.mark.mechanism("L11")
async def test_a_slow_listener_holds_up_neither_heartbeats_nor_other_commands() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("orders", 0, b"x")
    release, heard = asyncio.Event(), list[bytes]()

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        heard.append(messages[0].body)
        if len(heard) > 1:
            await release.wait()
        return ConsumeStatus.CONSUME_SUCCESS

    async with consumer_of(cluster, listener):
        await settle()
        consume_directly(broker, 1, broker.record_at(0))
        beats = len(broker.sessions.heartbeats)
        ask_running_info(broker, 2)
        await cluster.clock.advance(30)
        assert len(broker.sessions.heartbeats) > beats
        assert [one.command_id for one in broker.sessions.command_answers] == [2]
        release.set()
        assert (await answers(broker, 2))[1].command_id == 1


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
async def test_a_record_that_came_damaged_is_answered_with_an_error(damage: bytes | None) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("orders", 0, b"x")
    async with consumer_of(cluster, RecordingListener()):
        record = broker.record_at(0)
        consume_directly(broker, 1, record[:-1] + bytes([record[-1] ^ 1]) if damage is None else damage)
        (answer,) = await answers(broker)
        assert (answer.command_id, answer.code) == (1, common_pb.SYSTEM_ERROR)
        assert answer.remark.startswith("the client could not do it: ")


async def test_an_error_of_the_consumer_is_answered_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: PushConsumer, broker_name: str) -> broker_pb.ConsumerRunningInfo:
        raise RuntimeError(f"not at {broker_name}")

    monkeypatch.setattr(PushConsumer, "running_info", broken)
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with consumer_of(cluster, RecordingListener()):
        ask_running_info(broker, 1)
        (answer,) = await answers(broker)
        assert answer.code == common_pb.SYSTEM_ERROR
        assert "RuntimeError('not at broker-a')" in answer.remark
        assert "get_running_info of 127.0.0.1:10911 could not be carried out" in caplog.text


@pytest.mark.parametrize("is_back", [False, True], ids=["before the next one", "after it"])
async def test_an_answer_whose_stream_is_gone_is_dropped_and_the_next_stream_works(*, is_back: bool) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("orders", 0, b"x")
    release = asyncio.Event()

    async def listener(_: list[MessageExt]) -> ConsumeStatus:
        await release.wait()
        return ConsumeStatus.CONSUME_SUCCESS

    async with consumer_of(cluster, listener):
        consumer_ids = broker.members("closers")
        consume_directly(broker, 1, broker.record_at(0))
        await settle()
        broker.break_streams()
        await cluster.clock.advance(5 if is_back else 0)
        assert broker.members("closers") == (consumer_ids if is_back else [])
        release.set()
        await settle()
        await cluster.clock.advance(5)
        ask_running_info(broker, 2)
        (answer,) = await answers(broker)
        assert [one.command_id for one in broker.sessions.command_answers] == [answer.command_id] == [2]


async def test_a_client_whose_heartbeat_one_group_rejects_works_in_the_others() -> None:
    """The broker knows the groups that it has not rejected: they are balanced, and the client takes its leave."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("orders", 0, b"x")
    listener = RecordingListener()
    async with consumer_of(cluster, listener) as consumer:
        await settle()
        broker.sessions.answer = broker_pb.HeartbeatAck(code=common_pb.SUBSCRIPTION_NOT_CONSISTENT, remark="others")
        broker.break_streams()
        opened: list[str] = []
        consumer.session_opened = lambda: opened.append("opened")  # type: ignore[method-assign]
        await cluster.clock.advance(5)
        assert opened == ["opened"]
