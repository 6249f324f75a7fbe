"""The broker behind real gRPC on loopback: streams, answers, and requests that make no sense."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from hourglass.mq.v1 import admin_service_pb2, admin_service_pb2_grpc, broker_service_pb2_grpc, common_pb2
from hourglass.mq.v1 import broker_service_pb2 as pb
from mq_broker.core.limits import FRAME_BATCHES_MAX
from mq_broker.processor.broker import Broker
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.registration import Registration
from mq_broker.testing import broker_options, incoming, running_broker
from mqproto import codes
from mqproto.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from mqproto.names import retry_topic
from mqproto.record import iter_records
from osenv import SimClock, SimDisk


class Wire:
    """A served broker and stubs to it."""

    def __init__(self, broker: Broker, disk: SimDisk, channel: grpc.aio.Channel, stopping: asyncio.Event) -> None:
        self.broker, self.disk, self.channel, self.stopping = broker, disk, channel, stopping
        self.stub: Any = broker_service_pb2_grpc.BrokerServiceStub(channel)
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(channel)


@asynccontextmanager
async def served(clock: SimClock | None = None) -> AsyncIterator[Wire]:
    clock = clock or SimClock()
    disk = SimDisk()
    async with running_broker(disk, clock) as broker:
        stopping = asyncio.Event()
        server = grpc.aio.server(options=SERVER_OPTIONS)
        registration = Registration(broker_options().identity, broker.topics, [], clock, 30)
        broker_service_pb2_grpc.add_BrokerServiceServicer_to_server(BrokerService(broker, stopping), server)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(broker, registration, dict), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
            yield Wire(broker, disk, channel, stopping)
        stopping.set()
        await server.stop(1)


def batch(topic: str = "t", bodies: tuple[bytes, ...] = (b"x",), queue_id: int = 0) -> pb.RecordBatch:
    one = incoming(topic, bodies, queue_id=queue_id)
    return pb.RecordBatch(topic=one.topic, queue_id=one.queue_id, count=one.count, records=one.records)


def poll(poll_id: int, offset: int, suspend_timeout_ms: int = 15_000) -> pb.PollRequest:
    pull = pb.PullRequest(group="g", topic="t", queue_offset=offset, max_messages=32, max_bytes=1 << 20)
    return pb.PollRequest(poll_id=poll_id, pull=pull, suspend_timeout_ms=suspend_timeout_ms)


@pytest.mark.mechanism("S10", "U9")
async def test_produce_answers_each_batch_of_each_request() -> None:
    async with served() as wire:
        call = wire.stub.Produce()
        await call.write(pb.ProduceRequest(request_id=1, batches=[batch(bodies=(b"0", b"1")), batch(queue_id=9)]))
        await call.write(pb.ProduceRequest(request_id=2, batches=[batch(bodies=(b"2",))]))
        first, second = await call.read(), await call.read()
        assert (first.request_id, second.request_id) == (1, 2)
        assert [result.code for result in first.results] == [common_pb2.SUCCESS, common_pb2.TOPIC_NOT_EXIST]
        assert "no queue 9" in first.results[1].remark
        assert second.results[0].base_queue_offset == 2
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_frame_with_too_many_batches_is_rejected_and_the_stream_goes_on() -> None:
    async with served() as wire:
        call = wire.stub.Produce()
        await call.write(pb.ProduceRequest(request_id=1, batches=[batch()] * (FRAME_BATCHES_MAX + 1)))
        rejected = await call.read()
        assert {result.code for result in rejected.results} == {common_pb2.MESSAGE_ILLEGAL}
        await call.write(pb.ProduceRequest(request_id=2, batches=[batch()]))
        assert (await call.read()).results[0].code == common_pb2.SUCCESS
        call.cancel()


async def test_send_stores_one_batch() -> None:
    async with served() as wire:
        response = await wire.stub.Send(pb.SendRequest(batch=batch()))
        assert response.result.code == common_pb2.SUCCESS
        response = await wire.stub.Send(pb.SendRequest(batch=pb.RecordBatch(topic="t", count=1, records=b"junk")))
        assert response.result.code == common_pb2.MESSAGE_ILLEGAL


async def test_a_held_poll_is_answered_by_the_message_it_waits_for() -> None:
    async with served() as wire:
        await wire.stub.Send(pb.SendRequest(batch=batch()))
        call = wire.stub.Poll()
        await call.write(poll(1, 0))
        await call.write(poll(2, 1))
        assert (await call.read()).poll_id == 1
        await wire.stub.Send(pb.SendRequest(batch=batch(bodies=(b"new",))))
        answer = await call.read()
        assert (answer.poll_id, answer.pull.status, answer.pull.next_begin_offset) == (2, pb.FOUND, 2)
        assert [record.body for record in iter_records(answer.pull.records)] == [b"new"]
        call.cancel()


async def test_a_cancelled_poll_is_answered_and_a_closed_stream_holds_nothing() -> None:
    async with served() as wire:
        await wire.stub.Send(pb.SendRequest(batch=batch()))
        call = wire.stub.Poll()
        await call.write(poll(1, 1))
        await call.write(poll(2, 1))
        await call.write(pb.PollRequest(poll_id=1, cancel=True))
        answer = await call.read()
        assert (answer.poll_id, answer.pull.status) == (1, pb.NO_NEW_MSG)
        assert wire.broker.long_polling.held == 1
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert wire.broker.long_polling.held == 0


async def test_a_poll_id_that_is_in_use_ends_the_stream_with_a_sentence() -> None:
    async with served() as wire:
        await wire.stub.Send(pb.SendRequest(batch=batch()))
        call = wire.stub.Poll()
        await call.write(poll(1, 1))
        await call.write(poll(1, 1))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "poll 1 is open" in await call.details()
        async with asyncio.timeout(10):  # the stream ends here before the broker has cleaned up
            while wire.broker.long_polling.held:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0)


def heartbeat(client_id: str, *groups: str) -> pb.SessionRequest:
    consumers = [pb.ConsumerData(group=group) for group in groups]
    return pb.SessionRequest(heartbeat=pb.Heartbeat(client_id=client_id, consumers=consumers))


async def test_a_session_joins_its_groups_and_its_end_leaves_them() -> None:
    async with served() as wire:
        stays, leaves = wire.stub.Session(), wire.stub.Session()
        await stays.write(heartbeat("a", "g"))
        assert (await stays.read()).consumer_ids_changed.group == "g"
        assert (await stays.read()).WhichOneof("command") == "heartbeat_ack"
        await leaves.write(heartbeat("b", "g"))
        assert (await stays.read()).consumer_ids_changed.group == "g"
        members = await wire.stub.GetConsumerList(pb.GetConsumerListRequest(group="g"))
        assert list(members.client_ids) == ["a", "b"]
        leaves.cancel()
        assert (await stays.read()).consumer_ids_changed.group == "g"
        members = await wire.stub.GetConsumerList(pb.GetConsumerListRequest(group="g"))
        assert list(members.client_ids) == ["a"]
        assert wire.broker.topics.get(retry_topic("g")) is not None
        stays.cancel()


async def test_an_illegal_group_is_answered_and_a_nameless_client_is_rejected() -> None:
    async with served() as wire:
        call = wire.stub.Session()
        await call.write(heartbeat("a", "not a name"))
        ack = (await call.read()).heartbeat_ack
        assert ack.code == common_pb2.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "not allowed" in ack.remark
        await call.write(heartbeat(""))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_streams_end_when_the_server_stops() -> None:
    async with served() as wire:
        calls = [wire.stub.Produce(), wire.stub.Poll(), wire.stub.Session()]
        await calls[2].write(heartbeat("a"))
        await calls[2].read()
        wire.stopping.set()
        for call in calls:
            assert await call.read() is grpc.aio.EOF


async def test_offsets_are_asked_for_and_committed() -> None:
    async with served() as wire:
        await wire.stub.Send(pb.SendRequest(batch=batch(bodies=(b"0", b"1", b"2"))))
        queue = common_pb2.QueueRef(topic="t", queue_id=0)
        bounds = await wire.stub.GetQueueOffsets(pb.GetQueueOffsetsRequest(queue=queue))
        assert (bounds.min_offset, bounds.max_offset) == (0, 3)
        query = pb.QueryConsumerOffsetRequest(group="g", queue=queue)
        assert (await wire.stub.QueryConsumerOffset(query)).code == common_pb2.QUERY_NOT_FOUND
        progress = pb.QueueProgress(topic="t", queue_id=0, offset=2)
        update = pb.UpdateConsumerOffsetRequest(group="g", client_id="a", queues=[progress])
        assert (await wire.stub.UpdateConsumerOffset(update)).code == common_pb2.SUCCESS
        assert (await wire.stub.QueryConsumerOffset(query)).offset == 2
        unknown = pb.GetQueueOffsetsRequest(queue=common_pb2.QueueRef(topic="unknown"))
        assert (await wire.stub.GetQueueOffsets(unknown)).code == common_pb2.TOPIC_NOT_EXIST


async def test_send_back_of_a_made_up_message_is_rejected() -> None:
    async with served() as wire:
        response = await wire.stub.ConsumerSendBack(pb.ConsumerSendBackRequest(group="g", log_offset=12))
        assert (response.code, bool(response.remark)) == (common_pb2.QUERY_NOT_FOUND, True)


async def test_topics_are_made_by_an_operator_and_the_status_counts() -> None:
    async with served() as wire:
        config = common_pb2.TopicConfig(topic="orders", read_queue_count=2, write_queue_count=2, perm=6)
        response = await wire.admin.UpdateTopic(admin_service_pb2.UpdateTopicRequest(config=config))
        assert response.code == common_pb2.SUCCESS
        config.perm = 99
        response = await wire.admin.UpdateTopic(admin_service_pb2.UpdateTopicRequest(config=config))
        assert (response.code, "perm 99" in response.remark) == (common_pb2.MESSAGE_ILLEGAL, True)
        await wire.stub.Send(pb.SendRequest(batch=batch("orders")))
        status = await wire.admin.GetBrokerStatus(admin_service_pb2.GetBrokerStatusRequest())
        assert (status.broker_name, status.messages_put, status.messages_stored) == ("broker-a", 2, 2)
        assert [one.level for one in status.delay_levels] == [-1, *range(1, 19)]


async def test_a_reset_is_answered_and_comes_down_the_session() -> None:
    async with served() as wire:
        await wire.stub.Send(pb.SendRequest(batch=batch(bodies=(b"0", b"1"))))
        session = wire.stub.Session()
        await session.write(heartbeat("a", "g"))
        for _ in range(2):
            await session.read()
        progress = pb.QueueProgress(topic="t", queue_id=0, offset=2)
        await wire.stub.UpdateConsumerOffset(pb.UpdateConsumerOffsetRequest(group="g", queues=[progress]))
        request = admin_service_pb2.ResetConsumerOffsetRequest(group="g", topic="t", timestamp_ms=0, force=True)
        answer = await wire.admin.ResetConsumerOffset(request)
        assert (answer.code, list(answer.client_ids)) == (common_pb2.SUCCESS, ["a"])
        changes = {change.queue_id: (change.offset_before, change.offset) for change in answer.queues}
        assert changes == {0: (2, 0), 1: (-1, 0), 2: (-1, 0), 3: (-1, 0)}
        command = (await session.read()).reset_consumer_offset
        assert command.group == "g"
        now = [pb.QueueProgress(topic="t", queue_id=queue_id, offset=0, version=1) for queue_id in range(4)]
        assert list(command.queues) == now
        late = await wire.stub.UpdateConsumerOffset(pb.UpdateConsumerOffsetRequest(group="g", queues=[progress]))
        assert (late.code, late.remark.startswith("left out")) == (common_pb2.SUCCESS, True)
        assert [(one.offset, one.version) for one in late.queues] == [(0, 1)]
        session.cancel()


async def test_groups_and_their_progress_travel_as_they_are() -> None:
    async with served() as wire:
        config = admin_service_pb2.SubscriptionGroupConfig(
            group="g", consume_broadcast_enable=True, retry_max_times=3, broker_id=0, which_broker_when_consume_slowly=2
        )
        await wire.admin.UpdateSubscriptionGroup(admin_service_pb2.UpdateSubscriptionGroupRequest(config=config))
        listed = await wire.admin.ListSubscriptionGroups(admin_service_pb2.ListSubscriptionGroupsRequest())
        assert list(listed.groups) == [config]
        await wire.stub.Send(pb.SendRequest(batch=batch()))
        pull = pb.PullRequest(group="g", topic="t", max_messages=1, max_bytes=1)
        rejected = await wire.stub.Pull(pull)
        assert (rejected.code, "consumeEnable=false" in rejected.remark) == (common_pb2.NO_PERMISSION, True)
        stats = await wire.admin.GetConsumeStats(admin_service_pb2.GetConsumeStatsRequest(group="g", topic="t"))
        assert [(one.queue_id, one.broker_offset, one.consumer_offset) for one in stats.queues] == [
            (0, 1, -1),
            (1, 0, -1),
            (2, 0, -1),
            (3, 0, -1),
        ]


async def test_what_is_rejected_and_what_the_disk_rejects_is_an_answer() -> None:
    async with served() as wire:
        await wire.stub.Send(pb.SendRequest(batch=batch()))
        missing = await wire.admin.DeleteTopic(admin_service_pb2.DeleteTopicRequest(topic="missing"))
        assert (missing.code, missing.remark) == (common_pb2.TOPIC_NOT_EXIST, "topic 'missing' does not exist")
        for method, request in (
            (wire.admin.GetTopicStats, admin_service_pb2.GetTopicStatsRequest(topic="missing")),
            (wire.admin.GetConsumeStats, admin_service_pb2.GetConsumeStatsRequest(group="unknown")),
            (wire.admin.DeleteSubscriptionGroup, admin_service_pb2.DeleteSubscriptionGroupRequest(group="unknown")),
        ):
            answer = await method(request)
            assert (answer.code != common_pb2.SUCCESS, "does not exist" in answer.remark) == (True, True)

        def full(call: str, path: Path) -> None:
            if call == "pwrite":
                raise OSError(errno.ENOSPC, "No space left on device")

        wire.disk.before = full
        answer = await wire.admin.DeleteTopic(admin_service_pb2.DeleteTopicRequest(topic="t"))
        assert (answer.code, "No space left on device" in answer.remark) == (common_pb2.SYSTEM_ERROR, True)
        wire.disk.before = lambda call, path: None
        for code in (common_pb2.SUCCESS, common_pb2.TOPIC_NOT_EXIST):
            again = await wire.admin.DeleteTopic(admin_service_pb2.DeleteTopicRequest(topic="t"))
            assert again.code == code, "the rejected deletion has changed nothing"


def test_the_codes_of_the_wire_are_those_of_the_core() -> None:
    assert dict(common_pb2.ResponseCode.items()) == {code.name: code.value for code in codes.ResponseCode}
    wire_status = {name.removeprefix("PULL_STATUS_"): value for name, value in pb.PullStatus.items()}
    assert wire_status == {status.name: status.value for status in codes.PullStatus}
