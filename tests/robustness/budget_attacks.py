"""Hostile clients, as a table of behaviours: `python budget_attacks.py BROKER NAME_SERVER SEED COUNT`.

A behaviour is a coroutine that takes an `Attack` and ends within some seconds; whatever the broker answers to it is
right. To add one, write it and put it into `BEHAVIOURS`. What it may cost others says `budget.py`, which runs this as a
process of its own: its work must not be taken for the broker's.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import grpc

from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import broker_service_pb2_grpc, common_pb2, name_service_pb2, name_service_pb2_grpc
from mq_broker.testing import keyed, producer_record
from mqproto.grpc_options import CHANNEL_OPTIONS
from osenv import SeededRng

TOPIC = "hostile"
LARGE_BYTES = 4 * 1024 * 1024 - 1_024
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
METHODS = ("Send", "Pull", "QueryMessage", "EndTransaction", "UpdateConsumerOffset", "NoSuchMethod")
AT_ONCE = 4  # behaviours
HOLD_S = 0.5  # how long a behaviour stands still
WITHIN_S = 15.0
REJECTIONS = (grpc.RpcError, asyncio.TimeoutError, asyncio.InvalidStateError, OSError, grpc.aio.UsageError)


@dataclass
class Attack:
    """What a behaviour has to work with."""

    broker: str
    name_server: str
    rng: SeededRng
    open: AsyncExitStack  # what it has opened is closed when it has ended

    async def channel(self, address: str = "") -> grpc.aio.Channel:
        """A connection of its own."""
        options = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
        return await self.open.enter_async_context(grpc.aio.insecure_channel(address or self.broker, options=options))

    async def stub(self) -> Any:
        """The broker's service on a new connection."""
        return broker_service_pb2_grpc.BrokerServiceStub(await self.channel())

    def hostile_broker(self) -> name_service_pb2.BrokerIdentity:
        """One of many brokers that there are not; never the one under attack."""
        number = self.count(1, 400)
        return name_service_pb2.BrokerIdentity(
            cluster_name="hostile", broker_name=f"hostile-{number}", broker_id=self.count(0, 3), address=f"h{number}:1"
        )

    def client_id(self) -> str:
        """Of a client that has not been there before, or has."""
        return f"hostile@{self.count(0, 10_000)}"

    def count(self, least: int, most: int) -> int:
        """A random number of something."""
        return self.rng.randrange(least, most + 1)

    def pull(self, offset: int = 0, **fields: Any) -> pb.PullRequest:
        """A pull from the attackers' topic."""
        usual: dict[str, Any] = {"group": "h", "topic": TOPIC, "queue_offset": offset, "max_messages": 32}
        return pb.PullRequest(**(usual | {"max_bytes": 1 << 20} | fields))


async def unread_polls(attack: Attack) -> None:
    """Asks for large records on several connections and reads no answer."""
    for _ in range(attack.count(1, 8)):
        stream = (await attack.stub()).Poll()
        for poll_id in range(attack.count(10, 400)):
            await stream.write(pb.PollRequest(poll_id=poll_id, pull=attack.pull(), suspend_timeout_ms=15_000))
    await asyncio.sleep(HOLD_S)


async def slow_reader(attack: Attack) -> None:
    """Reads one answer now and then."""
    stream = (await attack.stub()).Poll()
    for poll_id in range(attack.count(10, 100)):
        await stream.write(pb.PollRequest(poll_id=poll_id, pull=attack.pull(), suspend_timeout_ms=15_000))
    for _ in range(3):
        await asyncio.sleep(HOLD_S / 3)
        await stream.read()


async def unread_rejections(attack: Attack) -> None:
    """Frames of batches that are rejected, without reading what was wrong with them."""
    stream = (await attack.stub()).Produce()
    frame = pb.ProduceRequest(request_id=1, batches=[pb.RecordBatch(topic="x" * 200, count=1, records=b"x")] * 1_024)
    with suppress(asyncio.TimeoutError):
        async with asyncio.timeout(2 * HOLD_S):
            for _ in range(attack.count(10, 300)):
                await stream.write(frame)
    await asyncio.sleep(HOLD_S)


async def many_unary_pulls(attack: Attack) -> None:
    """Unary pulls of large records, all at once, that are given up."""
    stub = await attack.stub()
    calls = [stub.Pull(attack.pull()) for _ in range(attack.count(10, 200))]
    await asyncio.sleep(HOLD_S)
    for call in calls:
        call.cancel()


async def held_polls(attack: Attack) -> None:
    """Thousands of polls that one message wakes."""
    stub = await attack.stub()
    for _ in range(attack.count(1, 3)):
        stream = stub.Poll()
        for poll_id in range(attack.count(100, 3_000)):
            await stream.write(pb.PollRequest(poll_id=poll_id, pull=attack.pull(1 << 40), suspend_timeout_ms=15_000))
    await send(stub, producer_record(TOPIC, b"wake up"))
    await asyncio.sleep(HOLD_S)


async def cold_polls(attack: Attack) -> None:
    """Polls of what is not in memory, read at once."""
    stream = (await attack.stub()).Poll()
    count = attack.count(10, 300)
    for poll_id in range(count):
        pull = attack.pull(attack.count(0, 20), queue_id=attack.count(0, 3), max_messages=1)
        await stream.write(pb.PollRequest(poll_id=poll_id, pull=pull))
    for _ in range(count):
        await stream.read()


async def long_expressions(attack: Attack) -> None:
    """Filters of every length, each another one."""
    stub = await attack.stub()
    for number in range(attack.count(5, 50)):
        expression = f"{number}" + "x" * attack.count(0, 20_000)
        with suppress(grpc.RpcError):
            await stub.Pull(attack.pull(expression=expression, expression_type=attack.rng.choice(["", "TAG", "SQL92"])))


async def key_queries(attack: Attack) -> None:
    """One key again and again, stored and asked for."""
    stub = await attack.stub()
    for number in range(attack.count(1, 40)):
        await send(stub, keyed(TOPIC, key="same", unique_id=f"{number}").records)
    request = pb.QueryMessageRequest(topic=TOPIC, key="same", max_messages=2_000)
    recall = pb.RecallMessageRequest(topic=TOPIC, key="same")
    calls = [stub.QueryMessage(request) for _ in range(attack.count(1, 32))] + [stub.RecallMessage(recall)]
    await asyncio.gather(*calls, return_exceptions=True)


async def huge_messages(attack: Attack) -> None:
    """The largest messages that are taken, and larger ones."""
    stub = await attack.stub()
    for _ in range(attack.count(1, 5)):
        with suppress(grpc.RpcError):
            await send(stub, producer_record(TOPIC, bytes(attack.count(1 << 20, LARGE_BYTES)), queue_id=0))
        with suppress(grpc.RpcError):
            await send(stub, bytes(attack.count(5 << 20, 16 << 20)))


async def many_streams(attack: Attack) -> None:
    """Streams on which nothing is said."""
    stub = await attack.stub()
    streams = [getattr(stub, attack.rng.choice(["Poll", "Produce", "Session"]))() for _ in range(attack.count(10, 300))]
    await asyncio.sleep(HOLD_S)
    for stream in streams:
        stream.cancel()


async def half_open_connections(attack: Attack) -> None:
    """Connections on which nothing comes, or the beginning of something."""
    host, _, port = attack.rng.choice([attack.broker, attack.name_server]).rpartition(":")
    for _ in range(attack.count(5, 60)):
        _, writer = await asyncio.open_connection(host, int(port))
        attack.open.callback(writer.close)
        writer.write(
            attack.rng.choice(
                [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", attack.rng.randbytes(200), b"GET / HTTP/1.1\r\n"]
            )
        )
    await asyncio.sleep(HOLD_S)


async def malformed_requests(attack: Attack) -> None:
    """Bytes that are no protobuf message, to every method and to none."""
    channel = await attack.channel()
    for _ in range(attack.count(5, 50)):
        method = attack.rng.choice(METHODS)
        call: Any = channel.unary_unary(f"/hourglass.mq.v1.BrokerService/{method}")
        with suppress(grpc.RpcError):
            await call(attack.rng.randbytes(attack.count(0, 5_000)))


async def huge_registrations(attack: Attack) -> None:
    """Brokers with more topics than they may have, told in parts and not, that go at once."""
    stub: Any = name_service_pb2_grpc.NameServiceStub(await attack.channel(attack.name_server))
    for _ in range(attack.count(1, 3)):
        stream, broker, prefix = stub.RegisterBroker(), attack.hostile_broker(), "t" * attack.count(1, 100)
        for part in range(attack.count(1, 6)):
            topics = [
                common_pb2.TopicConfig(
                    topic=f"{prefix}-{part}-{number}", read_queue_count=4, write_queue_count=4, perm=6
                )
                for number in range(attack.count(1, 20_000))
            ]
            request = name_service_pb2.RegisterBrokerRequest(
                broker=broker, topics=topics, adds=part > 0, more_follows=attack.count(0, 3) > 0
            )
            await stream.write(request)
            await stream.read()
        stream.cancel()


async def many_registrations(attack: Attack) -> None:
    """Brokers that come and go, with and without unregistering, under names of their own or one name."""
    stub: Any = name_service_pb2_grpc.NameServiceStub(await attack.channel(attack.name_server))
    streams = []
    for _ in range(attack.count(10, 300)):
        streams.append(stub.RegisterBroker())
        await streams[-1].write(name_service_pb2.RegisterBrokerRequest(broker=attack.hostile_broker()))
    await asyncio.sleep(HOLD_S)
    for stream in streams:
        if attack.count(0, 1):
            goodbye = name_service_pb2.UnregisterBrokerRequest(broker=attack.hostile_broker())
            await stub.UnregisterBroker(goodbye)
        stream.cancel()


async def unread_registrations(attack: Attack) -> None:
    """One broker registers again and again, and reads no answer."""
    stub: Any = name_service_pb2_grpc.NameServiceStub(await attack.channel(attack.name_server))
    stream = stub.RegisterBroker()
    broker = attack.hostile_broker()
    host = "h" * attack.count(1, 16_000)
    with suppress(asyncio.TimeoutError):
        async with asyncio.timeout(2 * HOLD_S):
            for _ in range(attack.count(10, 1_000)):
                request = name_service_pb2.RegisterBrokerRequest(broker=broker, ha_address=f"{host}:1")
                await stream.write(request)
    await asyncio.sleep(HOLD_S)


async def malformed_registrations(attack: Attack) -> None:
    """Streams that begin with bytes that are no registration, with names that are none, and with nothing."""
    channel = await attack.channel(attack.name_server)
    stub: Any = name_service_pb2_grpc.NameServiceStub(channel)
    for _ in range(attack.count(5, 50)):
        raw: Any = channel.stream_stream("/hourglass.mq.v1.NameService/RegisterBroker")()
        with suppress(*REJECTIONS):
            if attack.count(0, 2):
                await raw.write(attack.rng.randbytes(attack.count(0, 5_000)))
                await raw.read()
    for _ in range(attack.count(1, 10)):
        stream, broker = stub.RegisterBroker(), attack.hostile_broker()
        broker.address = attack.rng.choice(["", "nowhere", "x" * 20_000, "h:99999"])
        with suppress(*REJECTIONS):
            await stream.write(name_service_pb2.RegisterBrokerRequest(broker=broker, data_version=-1))
            await stream.read()


async def huge_heartbeats(attack: Attack) -> None:
    """Clients with more groups, subscriptions and longer names than any real client has."""
    stub = await attack.stub()
    for _ in range(attack.count(1, 5)):
        session, length = stub.Session(), attack.count(1, 5_000)
        consumers = [
            pb.ConsumerData(
                group=f"hostile-{number}", subscriptions=[pb.Subscription(topic=TOPIC, expression="x" * length)]
            )
            for number in range(attack.count(1, 3_000_000 // (length + 100)))
        ]
        producers = [pb.ProducerData(group="p" * attack.count(0, 300)) for _ in range(attack.count(0, 1_000))]
        with suppress(*REJECTIONS):
            await session.write(session_request(attack.client_id(), consumers=consumers, producers=producers))
            await session.read()
        session.cancel()


async def many_heartbeats(attack: Attack) -> None:
    """Clients that come with another id each, beat without a pause, and read no answer."""
    stub = await attack.stub()
    sessions = [(stub.Session(), attack.client_id()) for _ in range(attack.count(1, 100))]
    for _ in range(attack.count(1, 30)):
        for session, client_id in sessions:
            consumer = pb.ConsumerData(
                group=f"hostile-{attack.count(0, 50)}", subscriptions=[pb.Subscription(topic=TOPIC)]
            )
            await session.write(session_request(client_id, consumers=[consumer]))
    await asyncio.sleep(HOLD_S)


async def malformed_heartbeats(attack: Attack) -> None:
    """Sessions of bytes that are no heartbeat, of answers to commands that were never sent, and of nothing."""
    channel = await attack.channel()
    for _ in range(attack.count(5, 50)):
        raw: Any = channel.stream_stream("/hourglass.mq.v1.BrokerService/Session")()
        answer = pb.SessionRequest(command_answer=pb.CommandAnswer(command_id=attack.count(0, 1 << 40)))
        for data in [answer.SerializeToString(), attack.rng.randbytes(attack.count(0, 5_000)), b""][
            attack.count(0, 3) :
        ]:
            with suppress(*REJECTIONS):
                await raw.write(data)
        if attack.count(0, 1):
            raw.cancel()


async def half_open_sessions(attack: Attack) -> None:
    """Clients that say who they are, and vanish without a word: their connections break in the middle of a frame."""
    host, _, port = attack.broker.rpartition(":")
    for _ in range(attack.count(1, 20)):
        session = (await attack.stub()).Session()
        await session.write(session_request(attack.client_id()))
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE + (b"\0\0\0\4\0\0\0\0\0" + b"\0\xff\xff\1\4\0\0\0\1")[: attack.count(1, 18)])
        writer.transport.abort()
    await asyncio.sleep(HOLD_S)


async def routes(attack: Attack) -> None:
    """Routes of topics that there are not, and all topics, unread."""
    stub: Any = name_service_pb2_grpc.NameServiceStub(await attack.channel(attack.name_server))
    for _ in range(attack.count(1, 50)):
        with suppress(grpc.RpcError):
            await stub.QueryRoute(name_service_pb2.QueryRouteRequest(topic="x" * attack.count(0, 5_000)))
    calls = [stub.ListTopics(name_service_pb2.ListTopicsRequest()) for _ in range(attack.count(1, 200))]
    await asyncio.sleep(HOLD_S)
    for call in calls:
        call.cancel()


Behaviour = Callable[[Attack], Awaitable[None]]
BEHAVIOURS: tuple[Behaviour, ...] = (
    unread_polls, slow_reader, unread_rejections, many_unary_pulls, held_polls, cold_polls, long_expressions,
    key_queries, huge_messages, many_streams, half_open_connections, malformed_requests, routes, huge_registrations,
    many_registrations, unread_registrations, malformed_registrations, huge_heartbeats, many_heartbeats,
    malformed_heartbeats, half_open_sessions,
)  # fmt: skip


def session_request(client_id: str, **fields: Any) -> pb.SessionRequest:
    return pb.SessionRequest(heartbeat=pb.Heartbeat(client_id=client_id, **fields))


async def send(stub: Any, records: bytes) -> None:
    """One record to the attackers' topic; whether it is taken does not matter."""
    await stub.Send(pb.SendRequest(batch=pb.RecordBatch(topic=TOPIC, queue_id=0, count=1, records=records)))


async def prepare(broker: str) -> None:
    """A large record in the attackers' topic, and small ones."""
    async with grpc.aio.insecure_channel(broker, options=CHANNEL_OPTIONS) as channel:
        stub = broker_service_pb2_grpc.BrokerServiceStub(channel)
        for size in (LARGE_BYTES, *[1_000] * 20):
            await send(stub, producer_record(TOPIC, bytes(size)))


async def run(broker: str, name_server: str, seed: int, count: int) -> None:
    """`count` behaviours, some at a time; which and how is the seed's."""
    rng, waiting = SeededRng(seed), list(range(count))

    async def work() -> None:
        while waiting:
            waiting.pop()
            behaviour, own = rng.choice(BEHAVIOURS), SeededRng(rng.randrange(0, 1 << 32))
            async with AsyncExitStack() as opened:
                with suppress(*REJECTIONS):
                    await asyncio.wait_for(behaviour(Attack(broker, name_server, own, opened)), WITHIN_S)

    await prepare(broker)
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    socket.setdefaulttimeout(WITHIN_S)
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
