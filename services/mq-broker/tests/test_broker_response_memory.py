"""Responses that clients do not read take a bounded part of the broker's memory, and hold up no other client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import broker_service_pb2_grpc
from mq_broker.core.limits import (
    CLIENT_RESPONSE_BYTES_MAX,
    RESPONSE_BYTES,
    RESPONSE_COPIES,
    RESPONSE_MEMORY_BYTES_MIN,
    STALLED_WRITE_S,
)
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.embedded.embedded_broker import CallContext
from mq_broker.processor import long_polling
from mq_broker.processor.broker import Broker
from mq_broker.processor.long_polling import ResponseMemory
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.calls import Replies, pump
from mq_broker.rpc.registration import Registration
from mq_broker.testing import incoming, produce, running_broker, store_options
from mqproto.codes import PullStatus, ResponseCode
from mqproto.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from osenv import SimClock, SimDisk

BODY_BYTES = 1_000_000
POLLS = 60


@asynccontextmanager
async def served(channels: int) -> AsyncIterator[tuple[Broker, list[Any]]]:
    """A broker with one large message behind gRPC, and stubs that each have a connection of their own."""
    store = store_options(log_file_bytes=4 * 1024 * 1024)
    async with running_broker(SimDisk(), SimClock(), store=store) as broker:
        await produce(broker, incoming("t", [bytes(BODY_BYTES)]))
        server = grpc.aio.server(options=SERVER_OPTIONS)
        broker_service_pb2_grpc.add_BrokerServiceServicer_to_server(BrokerService(broker, asyncio.Event()), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        options = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        opened = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(channels)]
        yield broker, [broker_service_pb2_grpc.BrokerServiceStub(channel) for channel in opened]
        for channel in opened:
            await channel.close()
        await server.stop(0)


def pull(offset: int = 0) -> pb.PullRequest:
    return pb.PullRequest(group="g", topic="t", queue_offset=offset, max_messages=32, max_bytes=1 << 20)


async def test_responses_that_are_not_read_wait_unbuilt_and_come_when_they_are() -> None:
    async with served(2) as (broker, (slow, good)):
        memory, stream = broker.response_memory, slow.Poll()
        for poll_id in range(POLLS):
            await stream.write(pb.PollRequest(poll_id=poll_id, pull=pull(), suspend_timeout_ms=15_000))
        while not memory.waiting_clients and memory.used <= CLIENT_RESPONSE_BYTES_MAX:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        for _ in range(20):
            assert (await good.Pull(pull())).count == 1
            assert CLIENT_RESPONSE_BYTES_MAX - RESPONSE_BYTES < memory.used <= CLIENT_RESPONSE_BYTES_MAX
        read = [await stream.read() for _ in range(POLLS)]
        assert sorted(one.poll_id for one in read) == list(range(POLLS))
        assert {(one.pull.count, len(one.pull.records) > BODY_BYTES) for one in read} == {(1, True)}
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        while memory.used:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)


class _StoppedPeer:
    """A peer that sends for ever and takes nothing."""

    def __init__(self) -> None:
        self.sent = 0

    async def read(self) -> int:
        await asyncio.sleep(0)
        self.sent += 1
        return self.sent

    async def write(self, _reply: object) -> None:
        await asyncio.Event().wait()


async def test_a_stream_whose_replies_are_not_read_reads_no_requests() -> None:
    memory, peer = ResponseMemory(SimClock()), _StoppedPeer()
    replies = Replies(memory.share("peer"))
    size = CLIENT_RESPONSE_BYTES_MAX // 16
    pumping = asyncio.create_task(pump(peer, replies, lambda _: replies.put("rejected", size), asyncio.Event()))
    for _ in range(200):
        await asyncio.sleep(0)
    assert peer.sent == 16
    assert memory.used == CLIENT_RESPONSE_BYTES_MAX
    pumping.cancel()
    await asyncio.gather(pumping, return_exceptions=True)


async def test_clients_share_equally_what_there_is() -> None:
    memory = ResponseMemory(SimClock(), 4 * CLIENT_RESPONSE_BYTES_MAX)
    shares = [memory.share(f"client {number}") for number in range(7)]
    for _ in range(1_000):
        for share in shares:
            if share.may_build:
                share.take(RESPONSE_BYTES)
    assert memory.used <= memory.bytes_max
    assert max(share.used for share in shares) - min(share.used for share in shares) <= RESPONSE_BYTES
    assert memory.share("one more").may_build


async def test_connections_that_do_not_read_are_broken_when_there_is_no_room_for_others() -> None:
    clock, broken = SimClock(), list[str]()
    memory = ResponseMemory(clock, RESPONSE_MEMORY_BYTES_MIN)

    def break_connections(clients: Collection[str]) -> None:
        broken.extend(sorted(clients))
        for share in stopped:
            share.close()

    memory.break_connections = break_connections
    stopped = [memory.share(client) for client in ("a", "b", "c")]
    for share in stopped:
        share.take(RESPONSE_BYTES)
        share.writing_since = clock.monotonic()
    good = [memory.share(client) for client in ("d", "e", "f")]
    waiting = [asyncio.create_task(share.reserve()) for share in good]
    await clock.advance(STALLED_WRITE_S - 0.001)
    assert (broken, any(task.done() for task in waiting)) == ([], False)
    await clock.advance(0.001)
    await asyncio.gather(*waiting)
    assert broken == ["a", "b", "c"]
    assert memory.used == 3 * RESPONSE_BYTES


async def test_no_more_stalled_connections_are_broken_than_room_is_needed_the_largest_first() -> None:
    clock, broken = SimClock(), list[str]()
    memory = ResponseMemory(clock, 6 * RESPONSE_BYTES)
    stalled = {client: [memory.share(client), memory.share(client)] for client in ("small", "large", "middle")}

    def break_connections(clients: Collection[str]) -> None:
        broken.extend(clients)
        for share in (share for client in clients for share in stalled[client]):
            share.close()

    memory.break_connections = break_connections
    for client, count in (("small", 1), ("large", 3), ("middle", 2)):
        for number in range(count):
            stalled[client][number % 2].take(RESPONSE_BYTES)
        for share in stalled[client]:
            share.writing_since = clock.monotonic()
    waiting = [asyncio.create_task(memory.share(client).reserve()) for client in ("a", "b")]
    stalled["small"][0].wait(lambda: None)
    await clock.advance(STALLED_WRITE_S)
    await asyncio.gather(*waiting)
    assert broken == ["large"]


async def test_a_stopped_client_alone_keeps_its_connection() -> None:
    clock, broken = SimClock(), list[object]()
    memory = ResponseMemory(clock)
    memory.break_connections = broken.append
    share = memory.share("slow")
    while share.may_build:
        share.take(RESPONSE_BYTES)
    share.writing_since = clock.monotonic()
    share.wait(lambda: None)
    await clock.advance(3_600)
    assert broken == []


async def test_a_session_that_does_not_read_its_commands_loses_its_connection() -> None:
    memory, broken = ResponseMemory(SimClock()), list[object]()
    memory.break_connections = broken.append
    replies = Replies(memory.share("peer"))
    command = pb.SessionResponse(check_transaction=pb.CheckTransaction(record=bytes(BODY_BYTES)))
    for _ in range(100):
        replies.put_command(command)
    assert memory.used <= CLIENT_RESPONSE_BYTES_MAX
    assert broken[0] == ["peer"]
    assert memory.used >= RESPONSE_COPIES * BODY_BYTES * 10


def query(expression: str = "*") -> PullQuery:
    return PullQuery("g", "t", 0, 1, 32, 1 << 20, expression)


async def test_too_many_open_polls_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "POLLS_PER_CLIENT_MAX", 10)
    monkeypatch.setattr(long_polling, "POLLS_MAX", 25)
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        await produce(broker, incoming("t", [b"x"]))
        polling, answers = broker.long_polling, list[PullResult]()
        a, b, c = (broker.response_memory.share(client) for client in "abc")
        polls = [polling.poll(query(), 15_000, answers.append, a) for _ in range(11)]
        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_BUSY]
        assert "one connection at most 10" in answers[0].remark
        polling.cancel(polls[0])
        polling.poll(query(), 15_000, answers.append, a)
        assert len(answers) == 1
        polling.poll(query("x" * 10_240), 15_000, answers.append, b)  # a long expression counts as several
        assert len(answers) == 2
        for _ in range(20):
            polling.poll(query(), 15_000, answers.append, c)
        assert polling.held <= 25
        assert len(answers) > 2
        await clock.advance(15)
        assert [answer.status for answer in answers].count(PullStatus.NO_NEW_MSG) == 20
        assert polling.held == 0
        polling.poll(query(), 15_000, answers.append, a)
        assert polling.held == 1


async def test_long_answers_to_operators_wait_for_room_and_take_it_until_they_are_read() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        memory = broker.response_memory
        service = AdminService(broker, Registration(broker.identity, broker.topics, [], SimClock(), 30), dict)
        calls: list[tuple[Any, Any]] = [
            (service.ListTopicConfigs, admin_pb.ListTopicConfigsRequest()),
            (service.ListSubscriptionGroups, admin_pb.ListSubscriptionGroupsRequest()),
            (service.GetConsumeStats, admin_pb.GetConsumeStatsRequest(group="g")),
            (service.ListTransactions, admin_pb.ListTransactionsRequest(max_transactions=1)),
            (service.GetConsumerConnections, admin_pb.GetConsumerConnectionsRequest(group="g")),
            (service.ExplainMessage, admin_pb.ExplainMessageRequest(topic="t", key="k")),
            (service.GetTransaction, admin_pb.GetTransactionRequest(transaction_id="x")),
        ]
        others = memory.share("others")
        others.take(memory.bytes_max)
        contexts = [CallContext() for _ in calls]
        asked = [
            asyncio.create_task(method(request, context))
            for (method, request), context in zip(calls, contexts, strict=True)
        ]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not any(task.done() for task in asked)
        others.close()
        answers = await asyncio.gather(*asked)
        assert memory.used == sum(RESPONSE_COPIES * answer.ByteSize() for answer in answers) > 0
        for context in contexts:
            context.end()
        assert memory.used == 0
