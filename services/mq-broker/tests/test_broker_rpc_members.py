"""Members over the wire: rejected heartbeats, queue locks, and commands that go down a session and come up answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import admin_service_pb2_grpc, broker_service_pb2_grpc
from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import common_pb2 as common
from mq_broker.core.limits import QUEUES_PER_REQUEST_MAX
from mq_broker.processor.broker import Broker
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.registration import Registration
from mq_broker.testing import broker_options, incoming, produce, running_broker
from mqproto.record import decode_record
from osenv import SimClock, SimDisk


class Wire:
    """A served broker and stubs to it."""

    def __init__(self, broker: Broker, channel: grpc.aio.Channel) -> None:
        self.broker = broker
        self.stub: Any = broker_service_pb2_grpc.BrokerServiceStub(channel)
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(channel)

    async def joined(self, client_id: str, data: pb.ConsumerData) -> tuple[Any, pb.HeartbeatAck]:
        """A session, and what it was answered."""
        session = self.stub.Session()
        await session.write(pb.SessionRequest(heartbeat=pb.Heartbeat(client_id=client_id, consumers=[data])))
        return session, (await self.command(session, "heartbeat_ack")).heartbeat_ack

    async def command(self, session: Any, name: str) -> pb.SessionResponse:
        """The next command of this name."""
        async with asyncio.timeout(10):
            while True:
                response = await session.read()
                assert isinstance(response, pb.SessionResponse)
                if response.WhichOneof("command") == name:
                    return response


@asynccontextmanager
async def served() -> AsyncIterator[Wire]:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        stopping = asyncio.Event()
        server = grpc.aio.server()
        registration = Registration(broker_options().identity, broker.topics, [], clock, 30)
        broker_service_pb2_grpc.add_BrokerServiceServicer_to_server(BrokerService(broker, stopping), server)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(broker, registration, dict), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Wire(broker, channel)
        stopping.set()
        await server.stop(1)


def data(expression: str = "*", **fields: Any) -> pb.ConsumerData:
    return pb.ConsumerData(group="g", subscriptions=[pb.Subscription(topic="t", expression=expression)], **fields)


async def test_a_heartbeat_that_differs_is_answered_with_the_difference_and_the_session_goes_on() -> None:
    async with served() as wire:
        first, ack = await wire.joined("a", data("paid"))
        assert ack == pb.HeartbeatAck()
        second, ack = await wire.joined("b", data("created"))
        assert ack.code == common.SUBSCRIPTION_NOT_CONSISTENT
        assert "member a wants tag 'paid' of topic 't', this client wants tag 'created'" in ack.remark
        again = pb.Heartbeat(client_id="b", consumers=[data(" paid ")])
        await second.write(pb.SessionRequest(heartbeat=again))
        assert (await wire.command(second, "heartbeat_ack")).heartbeat_ack == pb.HeartbeatAck()
        assert (await wire.stub.GetConsumerList(pb.GetConsumerListRequest(group="g"))).client_ids == ["a", "b"]
        first.cancel()
        second.cancel()


async def test_queues_are_locked_kept_and_given_back() -> None:
    async with served() as wire:
        await produce(wire.broker, incoming("t", [b"x"]))
        queues = [common.QueueRef(topic="t", queue_id=number) for number in range(2)]
        one, _ = await wire.joined("a", data(orderly=True))
        two, _ = await wire.joined("b", data(orderly=True))

        async def lock(client_id: str) -> list[int]:
            answer = await wire.stub.LockQueues(pb.LockQueuesRequest(group="g", client_id=client_id, queues=queues))
            assert answer.code == common.SUCCESS
            return [queue.queue_id for queue in answer.locked]

        assert [await lock("a"), await lock("b"), await lock("a")] == [[0, 1], [], [0, 1]]
        await wire.stub.UnlockQueues(pb.UnlockQueuesRequest(group="g", client_id="a", queues=queues[:1]))
        assert (await wire.command(two, "consumer_ids_changed")).consumer_ids_changed.group == "g"
        assert await lock("b") == [0]
        stranger = await wire.stub.LockQueues(pb.LockQueuesRequest(group="g", client_id="c", queues=queues))
        assert (stranger.code, bool(stranger.remark)) == (common.CONSUMER_NOT_ONLINE, True)
        one.cancel()
        two.cancel()


@pytest.mark.parametrize("method", ["LockQueues", "UnlockQueues"])
async def test_too_many_queues_at_once_are_rejected(method: str) -> None:
    async with served() as wire:
        request_type = getattr(pb, f"{method}Request")
        queues = [common.QueueRef(topic="t")] * (QUEUES_PER_REQUEST_MAX + 1)
        with pytest.raises(grpc.aio.AioRpcError, match=f"at most {QUEUES_PER_REQUEST_MAX}"):
            await getattr(wire.stub, method)(request_type(group="g", client_id="a", queues=queues))


async def test_connections_tell_what_each_member_said() -> None:
    async with served() as wire:
        said = data("a || b", message_model=pb.BROADCASTING, consume_from_where=pb.CONSUME_FROM_TIMESTAMP)
        session, _ = await wire.joined("a", said)
        answer = await wire.admin.GetConsumerConnections(admin_pb.GetConsumerConnectionsRequest(group="g"))
        assert [(one.client_id, one.data) for one in answer.connections] == [("a", said)]
        assert answer.connections[0].last_heartbeat_timestamp_ms == 1_700_000_000_000
        missing = await wire.admin.GetConsumerConnections(admin_pb.GetConsumerConnectionsRequest(group="unknown"))
        assert missing.code == common.SUBSCRIPTION_GROUP_NOT_EXIST
        session.cancel()


@pytest.mark.mechanism("L12")
async def test_running_info_is_asked_of_the_member_itself() -> None:
    async with served() as wire:
        session, _ = await wire.joined("a", data())
        request = admin_pb.GetConsumerRunningInfoRequest(group="g", client_id="a")
        asking = asyncio.ensure_future(wire.admin.GetConsumerRunningInfo(request))
        command = (await wire.command(session, "get_running_info")).get_running_info
        assert command.group == "g"
        info = pb.ConsumerRunningInfo(client_id="a", consume_concurrency=20)
        answer = pb.CommandAnswer(command_id=command.command_id, running_info=info)
        await session.write(pb.SessionRequest(command_answer=answer))
        assert await asking == admin_pb.GetConsumerRunningInfoResponse(info=info)
        session.cancel()


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (pb.CommandAnswer(code=common.CONSUMER_NOT_ONLINE, remark="left"), common.CONSUMER_NOT_ONLINE, "left"),
        (pb.CommandAnswer(consumed=pb.ConsumeDirectlyResult()), common.SYSTEM_ERROR, "answered ConsumeDirectlyResult"),
        (pb.CommandAnswer(), common.SYSTEM_ERROR, "answered NoneType"),
        (pb.CommandAnswer.FromString(b"\x10\x4d\x1a\x01?"), common.SYSTEM_ERROR, "the client answered 77: ?"),
        (None, common.CONSUMER_NOT_ONLINE, "session has ended"),
    ],
)
async def test_what_is_no_running_info_becomes_a_rejection(
    answer: pb.CommandAnswer | None, code: int, sentence: str
) -> None:
    async with served() as wire:
        session, _ = await wire.joined("a", data())
        request = admin_pb.GetConsumerRunningInfoRequest(group="g", client_id="a")
        asking = asyncio.ensure_future(wire.admin.GetConsumerRunningInfo(request))
        command = (await wire.command(session, "get_running_info")).get_running_info
        if answer is None:
            session.cancel()
        else:
            numbered = pb.CommandAnswer()
            numbered.CopyFrom(answer)
            numbered.command_id = command.command_id
            await session.write(pb.SessionRequest(command_answer=numbered))
        response = await asking
        assert (response.code, sentence in response.remark) == (code, True)
        session.cancel()


async def test_a_message_is_consumed_by_the_member_that_was_chosen() -> None:
    async with served() as wire:
        (outcome,) = await produce(wire.broker, incoming("t", [b"body"]))
        sessions = {name: (await wire.joined(name, data()))[0] for name in ("a", "b")}
        request = admin_pb.ConsumeMessageDirectlyRequest(group="g", client_id="b", log_offset=outcome.base_log_offset)
        asking = asyncio.ensure_future(wire.admin.ConsumeMessageDirectly(request))
        command = (await wire.command(sessions["b"], "consume_directly")).consume_directly
        assert decode_record(command.record).body == b"body"
        result = pb.ConsumeDirectlyResult(result=pb.CR_LATER, spent_ms=3)
        answer = pb.CommandAnswer(command_id=command.command_id, consumed=result)
        await sessions["b"].write(pb.SessionRequest(command_answer=answer))
        assert await asking == admin_pb.ConsumeMessageDirectlyResponse(result=result)
        rejected = await wire.admin.ConsumeMessageDirectly(
            admin_pb.ConsumeMessageDirectlyRequest(group="g", client_id="b", log_offset=outcome.base_log_offset + 1)
        )
        assert rejected.code == common.QUERY_NOT_FOUND
        for session in sessions.values():
            session.cancel()


async def test_an_answer_before_anything_else_and_one_without_a_caller_do_no_harm() -> None:
    async with served() as wire:
        session = wire.stub.Session()
        await session.write(pb.SessionRequest(command_answer=pb.CommandAnswer(command_id=5)))
        await session.write(pb.SessionRequest(heartbeat=pb.Heartbeat(client_id="a", consumers=[data()])))
        assert (await wire.command(session, "heartbeat_ack")).heartbeat_ack == pb.HeartbeatAck()
        session.cancel()


async def test_the_switch_for_different_subscriptions_travels() -> None:
    async with served() as wire:
        config = admin_pb.SubscriptionGroupConfig(group="g", consume_enable=True, different_subscriptions_allowed=True)
        await wire.admin.UpdateSubscriptionGroup(admin_pb.UpdateSubscriptionGroupRequest(config=config))
        listed = await wire.admin.ListSubscriptionGroups(admin_pb.ListSubscriptionGroupsRequest())
        (told,) = listed.groups
        assert told.different_subscriptions_allowed
        first, _ = await wire.joined("a", data("paid"))
        second, ack = await wire.joined("b", data("created"))
        assert ack.code == common.SUCCESS
        first.cancel()
        second.cancel()
