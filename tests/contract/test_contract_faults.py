"""Faults of a network and of a broker, the same by gRPC and by frames: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from wire_world import WireWorld, wire_world

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2
from mqclient import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    OutcomeUnknownError,
    Producer,
    PushConsumer,
)
from mqclient.testing import RecordingListener
from mqclient.testing.recording import made_consumer
from mqclient.transport import methods, open_transport
from osenv import until

pytestmark = pytest.mark.processes

TOPIC, BROKER = "orders", "broker-a"
QUEUE = MessageQueue(TOPIC, BROKER, 0)
TIMEOUT_S = 30.0
LARGE = os.urandom(500_000)  # no compression makes it smaller
LARGE_MESSAGES = 40  # 20 MB: more than windows and buffers between broker and client take


@pytest.fixture(params=["grpc", "frames"])
def by_frames(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "frames")


@pytest_asyncio.fixture
async def world(by_frames: bool, tmp_path: Path) -> AsyncIterator[WireWorld]:
    async with wire_world(tmp_path, by_frames=by_frames) as world:
        async with Admin(world.url, client_config=config("setup")) as admin:
            await until(admin.cluster_list, within_s=TIMEOUT_S)
            await admin.update_topic(TOPIC, read_queue_count=1, write_queue_count=1)
        yield world


def config(name: str) -> ClientConfig:
    return ClientConfig(
        instance_name=name,
        poll_name_server_interval_s=0.2,
        name_server_timeout_s=TIMEOUT_S,
        request_timeout_s=TIMEOUT_S,
    )


async def stored(world: WireWorld) -> list[bytes]:
    async with Admin(world.other_url, client_config=config("reader")) as admin:
        return [message.body async for message in admin.read_queue(QUEUE)]


async def holds(world: WireWorld, count: int) -> bool:
    return len(await stored(world)) == count


async def test_a_cut_between_append_and_answer_stores_a_message_once(world: WireWorld) -> None:
    async with Producer("shop", world.url, client_config=config("shop")) as producer:
        await producer.send(Message(TOPIC, b"first"))
        world.network.loses_answers = True
        sending = asyncio.create_task(producer.send(Message(TOPIC, b"second"), timeout=TIMEOUT_S))
        await until(lambda: holds(world, 2), within_s=TIMEOUT_S)
        world.network.loses_answers = False
        world.network.cut()
        result = await sending
        assert result.queue_offset == 1
        await producer.send(Message(TOPIC, b"third"))
    assert await stored(world) == [b"first", b"second", b"third"]


async def test_a_cut_before_a_unary_answer_leaves_the_outcome_unknown(world: WireWorld) -> None:
    channel = open_transport(world.url).open_channel(f"127.0.0.1:{world.network.port}")
    request = broker_pb.QueryConsumerOffsetRequest(group="g", queue=common_pb2.QueueRef(topic=TOPIC))
    await channel.unary(methods.QUERY_CONSUMER_OFFSET, request, TIMEOUT_S)
    world.network.loses_answers = True
    asking = asyncio.create_task(channel.unary(methods.QUERY_CONSUMER_OFFSET, request, TIMEOUT_S))
    await until(lambda: world.network.lost_bytes, within_s=TIMEOUT_S)
    world.network.cut()
    with pytest.raises(OutcomeUnknownError):
        await asking
    world.network.loses_answers = False
    await channel.unary(methods.QUERY_CONSUMER_OFFSET, request, TIMEOUT_S)
    await channel.close()


async def test_on_a_half_open_connection_a_call_ends_with_its_own_time(world: WireWorld) -> None:
    async with Producer("shop", world.url, client_config=config("shop")) as producer:
        await producer.send(Message(TOPIC, b"first"))
        world.network.loses_answers = True
        with pytest.raises(OutcomeUnknownError):
            await producer.send(Message(TOPIC, b"second"), timeout=0.5)
        world.network.loses_answers = False
        world.network.cut()
        assert (await producer.send(Message(TOPIC, b"third"), timeout=TIMEOUT_S)).queue_offset == 2
    assert await stored(world) == [b"first", b"second", b"third"]


async def test_a_reader_that_stops_holds_up_no_other_client_and_loses_nothing(world: WireWorld) -> None:
    async with Producer("shop", world.url, client_config=config("shop")) as producer:
        for _ in range(LARGE_MESSAGES):
            await producer.send(Message(TOPIC, LARGE))
        inbox = RecordingListener()
        consumer: PushConsumer = made_consumer(
            "slow",
            world.url,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            client_config=config("slow"),
        )
        consumer.subscribe(TOPIC)
        consumer.register_message_listener(inbox)
        async with consumer:
            await until(lambda: inbox.batches, within_s=TIMEOUT_S)
            world.network.hold_answers()
            async with Admin(world.other_url, client_config=config("quick")) as admin:
                for _ in range(20):
                    assert (await admin.queue_offsets(QUEUE))[1] == LARGE_MESSAGES
            world.network.release_answers()
            await until(lambda: len(inbox.bodies) == LARGE_MESSAGES, within_s=TIMEOUT_S)


async def test_a_broker_that_drains_answers_what_it_has_read_and_comes_back(world: WireWorld, by_frames: bool) -> None:
    inbox = RecordingListener()
    consumer = made_consumer(
        "closers", world.url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, client_config=config("c")
    )
    consumer.subscribe(TOPIC)
    consumer.register_message_listener(inbox)
    async with consumer, Producer("shop", world.url, client_config=config("p")) as producer:
        sends = [asyncio.create_task(producer.send(Message(TOPIC, b"%d" % n), timeout=TIMEOUT_S)) for n in range(50)]
        await until(lambda: any(send.done() for send in sends), within_s=TIMEOUT_S)
        await world.drain()
        sends += [asyncio.create_task(producer.send(Message(TOPIC, b"%d" % n), timeout=TIMEOUT_S)) for n in (50, 51)]
        await world.start(by_frames=by_frames)
        offsets = [(await send).queue_offset for send in sends]
        await until(lambda: len(set(inbox.bodies)) == len(sends), within_s=TIMEOUT_S)
    assert sorted(offsets) == list(range(len(sends)))
    assert sorted(await stored(world)) == sorted(b"%d" % n for n in range(len(sends)))
