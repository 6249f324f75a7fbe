"""Replication over real gRPC on loopback, with a master that the test plays; and every frame there and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from hourglass.mq.v1 import replication_service_pb2 as pb
from hourglass.mq.v1 import replication_service_pb2_grpc
from mq_broker.core.replica_state import Epoch, EpochBegin, EpochHistory
from mq_broker.replication.frames import (
    Follow,
    LinkError,
    LogBytes,
    MasterFrame,
    MasterHeartbeat,
    MasterHello,
    MasterLink,
    Probe,
    ProbeAnswer,
    ProgressEntries,
    Rejection,
    ReplicaFrame,
    ReplicaHello,
    Report,
    StateDocument,
)
from mq_broker.rpc import replication
from mq_broker.rpc.replication import ReplicationService, connect, server_options
from mq_broker.rpc.replication_conversions import (
    DATA_BYTES_MAX,
    EPOCHS_MAX,
    master_frame,
    master_frame_message,
    replica_frame,
    replica_frame_message,
)
from osenv import SeededRng

TIMEOUT_S = 10
EPOCH = Epoch(7, 3)
REPLICA_ID = "0123456789abcdef" * 2

numbers = st.integers(0, (1 << 63) - 1)
epochs = st.builds(Epoch, numbers, numbers)
texts = st.text(max_size=40)
replica_ids = st.text("0123456789abcdef", min_size=32, max_size=32)


@st.composite
def histories(draw: st.DrawFn) -> EpochHistory:
    ascending = sorted(draw(st.sets(epochs, max_size=6)))
    offsets = sorted(draw(st.lists(numbers, min_size=len(ascending), max_size=len(ascending))))
    return EpochHistory(tuple(map(EpochBegin, ascending, offsets)))


replica_events = st.one_of(
    st.builds(
        ReplicaHello, texts, texts, replica_ids, numbers, texts, numbers, numbers, histories(), st.integers(0, 9)
    ),
    st.builds(Probe, numbers, numbers, st.integers(0, (1 << 32) - 1)),
    st.builds(Follow, numbers),
    st.builds(Report, numbers, numbers, numbers),
    st.builds(ProgressEntries, st.binary(max_size=100)),
)
master_events = st.one_of(
    st.builds(
        MasterHello, replica_ids, numbers, numbers, histories(), st.booleans(), st.integers(0, 9), numbers, texts
    ),
    st.builds(ProbeAnswer, numbers, st.booleans()),
    st.builds(LogBytes, numbers, st.binary(max_size=100), numbers),
    st.builds(StateDocument, texts, st.binary(max_size=100)),
    st.builds(ProgressEntries, st.binary(max_size=100)),
    st.builds(MasterHeartbeat, numbers, numbers, numbers, numbers, st.booleans(), numbers),
    st.builds(Rejection, texts),
)


class TestFrames:
    @given(st.builds(ReplicaFrame, epochs, replica_events))
    @settings(max_examples=50, deadline=None)
    def test_a_replica_s_frame_arrives_as_it_was_sent(self, frame: ReplicaFrame) -> None:
        wire = replica_frame_message(frame).SerializeToString()
        assert replica_frame(pb.ReplicaFrame.FromString(wire)) == frame

    @given(st.builds(MasterFrame, epochs, master_events))
    @settings(max_examples=50, deadline=None)
    def test_a_master_s_frame_arrives_as_it_was_sent(self, frame: MasterFrame) -> None:
        wire = master_frame_message(frame).SerializeToString()
        assert master_frame(pb.MasterFrame.FromString(wire)) == frame

    @given(st.builds(ReplicaFrame, epochs, replica_events), st.data())
    @settings(max_examples=50, deadline=None)
    def test_a_frame_with_a_negative_number_is_rejected_by_the_field_s_name(
        self, frame: ReplicaFrame, data: st.DataObject
    ) -> None:
        message = replica_frame_message(frame)
        event = getattr(message, message.WhichOneof("event") or "")
        fields = [field.name for field in event.DESCRIPTOR.fields if field.type == field.TYPE_INT64]
        if not fields:
            return
        name = data.draw(st.sampled_from(fields))
        setattr(event, name, -1)
        with pytest.raises(ValueError, match=f"{name} is -1"):
            replica_frame(message)

    def test_10_000_mutated_messages_become_frames_or_value_errors(self) -> None:
        rng = SeededRng(8)
        corpus = [
            replica_frame_message(ReplicaFrame(EPOCH, hello())).SerializeToString(),
            replica_frame_message(ReplicaFrame(EPOCH, Report(9, 8, 8))).SerializeToString(),
            master_frame_message(MasterFrame(EPOCH, MasterHeartbeat(0, 9, 8, 7, True, 2))).SerializeToString(),
            master_frame_message(MasterFrame(EPOCH, LogBytes(0, b"abc", 9))).SerializeToString(),
        ]
        kinds: tuple[tuple[Any, Any, Any], ...] = (
            (pb.ReplicaFrame, replica_frame, replica_frame_message),
            (pb.MasterFrame, master_frame, master_frame_message),
        )
        outcomes = {"decoded": 0, "rejected": 0, "no message": 0}
        for _ in range(5_000):
            data = bytearray(rng.choice(corpus))
            for _ in range(rng.randrange(0, 4)):
                data[rng.randrange(0, len(data))] = rng.randrange(0, 256)
            for kind, decode, encode in kinds:
                try:
                    frame = decode(kind.FromString(bytes(data)))
                except DecodeError:
                    outcomes["no message"] += 1
                except ValueError:
                    outcomes["rejected"] += 1
                else:
                    outcomes["decoded"] += 1
                    assert decode(encode(frame)) == frame
        assert min(outcomes.values()) > 100

    @pytest.mark.parametrize(
        ("message", "sentence"),
        [
            (
                pb.ReplicaFrame(),
                "the frame has no event; one of hello, probe, follow, report, progress, leave_notice is needed",
            ),
            (pb.ReplicaFrame(epoch=pb.Epoch(term=-1), follow=pb.Follow()), "epoch.term is -1; it cannot be negative"),
            (pb.ReplicaFrame(follow=pb.Follow(log_offset=-7)), "log_offset is -7; it cannot be negative"),
            (pb.ReplicaFrame(hello=pb.ReplicaHello(replica_id="a")), "replica_id 'a' is not 32 hexadecimal digits"),
            (pb.ReplicaFrame(hello=pb.ReplicaHello(replica_id="A" * 32)), "is not 32 hexadecimal digits in lower case"),
            (
                pb.ReplicaFrame(progress=pb.Progress(entries=bytes(DATA_BYTES_MAX + 1))),
                "entries has 8388609 bytes; at most 8388608 are allowed",
            ),
            (
                pb.ReplicaFrame(hello=pb.ReplicaHello(replica_id=REPLICA_ID, address="x" * 5_000)),
                "address has 5000 characters; at most 4096 are allowed",
            ),
        ],
    )
    def test_what_makes_no_sense_is_rejected_with_a_sentence(self, message: pb.ReplicaFrame, sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            replica_frame(message)

    @pytest.mark.parametrize(
        ("begins", "sentence"),
        [
            ([(2, 0, 0), (1, 0, 9)], "epoch 1.0 cannot follow 2.0 at offset 9"),
            ([(1, 0, 9), (2, 0, 3)], "epoch 2.0 cannot follow 1.0 at offset 3"),
            ([(1, 0, -1)], "nothing may be negative"),
            ([(1, n, n) for n in range(EPOCHS_MAX + 1)], "the history has 4097 epochs; at most 4096 are allowed"),
        ],
    )
    def test_a_history_out_of_order_or_too_long_is_rejected(
        self, begins: list[tuple[int, int, int]], sentence: str
    ) -> None:
        history = [pb.EpochBegin(epoch=pb.Epoch(term=t, start=s), log_offset=at) for t, s, at in begins]
        with pytest.raises(ValueError, match=sentence):
            replica_frame(pb.ReplicaFrame(hello=pb.ReplicaHello(replica_id=REPLICA_ID, history=history)))

    def test_of_a_history_that_is_too_long_the_newest_epochs_are_sent(self) -> None:
        begins = tuple(EpochBegin(Epoch(1, number), number) for number in range(EPOCHS_MAX + 10))
        frame = MasterFrame(EPOCH, MasterHello(REPLICA_ID, 0, 9_999, EpochHistory(begins), synchronous=False))
        arrived = master_frame(master_frame_message(frame)).event
        assert isinstance(arrived, MasterHello)
        assert arrived.history.begins == begins[10:]


def hello() -> ReplicaHello:
    history = EpochHistory((EpochBegin(Epoch(1, 1), 0), EpochBegin(EPOCH, 500)))
    return ReplicaHello("c", "broker-a", REPLICA_ID, 1, "10.0.0.1:10911", 0, 900, history)


class PlayedMaster:
    """Hands out the links of replicas; each is served until the test ends it, or the replica is gone."""

    def __init__(self) -> None:
        self.links: asyncio.Queue[MasterLink] = asyncio.Queue()
        self.done = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def serve(self, link: MasterLink) -> None:
        self.links.put_nowait(link)
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Wire:
    def __init__(self, master: PlayedMaster, stopping: asyncio.Event, port: int) -> None:
        self.master, self.stopping, self.port = master, stopping, port
        self.address = f"127.0.0.1:{port}"


@asynccontextmanager
async def served() -> AsyncIterator[Wire]:
    master, stopping = PlayedMaster(), asyncio.Event()
    server = grpc.aio.server(options=server_options())
    replication_service_pb2_grpc.add_ReplicationServiceServicer_to_server(ReplicationService(master, stopping), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with asyncio.timeout(2 * TIMEOUT_S):
        yield Wire(master, stopping, port)
        stopping.set()
        await server.stop(1)


class TestStream:
    async def test_frames_go_both_ways_in_their_order(self) -> None:
        async with served() as wire, connect(wire.address) as replica:
            await replica.send(ReplicaFrame(EPOCH, hello()))
            master = await wire.master.links.get()
            assert master.peer.startswith("ipv4:127.0.0.1:")
            assert await master.receive() == ReplicaFrame(EPOCH, hello())
            sent = [MasterFrame(EPOCH, LogBytes(at, bytes(100), 0)) for at in range(50)]
            await asyncio.gather(*(master.send(frame) for frame in sent))
            assert [await replica.receive() for _ in sent] == sent
            reports = [ReplicaFrame(EPOCH, Report(at, at, at)) for at in range(50)]
            await asyncio.gather(*(replica.send(frame) for frame in reports))
            assert [await master.receive() for _ in reports] == reports

    async def test_the_largest_frame_goes_through(self) -> None:
        async with served() as wire, connect(wire.address) as replica:
            reporting = asyncio.create_task(replica.send(ReplicaFrame(EPOCH, ProgressEntries(bytes(DATA_BYTES_MAX)))))
            master = await wire.master.links.get()
            assert await master.receive() == ReplicaFrame(EPOCH, ProgressEntries(bytes(DATA_BYTES_MAX)))
            await reporting
            topics = MasterFrame(EPOCH, StateDocument("topics.json", bytes(40_000_000)))  # of 100,000 topics
            sending = asyncio.create_task(master.send(topics))
            assert await replica.receive() == topics
            await sending
            sending = asyncio.create_task(master.send(MasterFrame(EPOCH, LogBytes(0, bytes(DATA_BYTES_MAX), 0))))
            assert await replica.receive() == MasterFrame(EPOCH, LogBytes(0, bytes(DATA_BYTES_MAX), 0))
            await sending

    async def test_a_send_waits_for_a_replica_that_does_not_read(self) -> None:
        async with served() as wire, connect(wire.address) as replica:
            await replica.send(ReplicaFrame(EPOCH, Follow(0)))
            master = await wire.master.links.get()
            frame = MasterFrame(EPOCH, LogBytes(0, bytes(DATA_BYTES_MAX), 0))
            sends = [asyncio.create_task(master.send(frame)) for _ in range(4)]
            assert await replica.receive() == frame
            assert not sends[-1].done()  # there is no room for it on the way
            for _ in sends[1:]:
                assert await replica.receive() == frame
            await asyncio.gather(*sends)

    async def test_a_receive_that_was_given_up_loses_no_frame(self) -> None:
        async with served() as wire, connect(wire.address) as replica:
            await replica.send(ReplicaFrame(EPOCH, Follow(1)))
            master = await wire.master.links.get()
            assert await master.receive() == ReplicaFrame(EPOCH, Follow(1))
            for receiver in (master, replica):
                given_up = asyncio.create_task(receiver.receive())
                await asyncio.sleep(0)
                given_up.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await given_up
            await replica.send(ReplicaFrame(EPOCH, Follow(2)))
            assert await master.receive() == ReplicaFrame(EPOCH, Follow(2))
            await master.send(MasterFrame(EPOCH, Rejection("no")))
            assert await replica.receive() == MasterFrame(EPOCH, Rejection("no"))

    async def test_what_the_master_says_last_arrives_and_then_the_end(self) -> None:
        async with served() as wire, connect(wire.address) as replica:
            await replica.send(ReplicaFrame(EPOCH, Follow(1)))
            master = await wire.master.links.get()
            await master.send(MasterFrame(EPOCH, Rejection("this broker is a replica itself")))
            wire.master.done.set()
            assert await replica.receive() == MasterFrame(EPOCH, Rejection("this broker is a replica itself"))
            assert await replica.receive() is None
            assert await replica.receive() is None
            with pytest.raises(LinkError, match="is gone"):
                await replica.send(ReplicaFrame(EPOCH, Follow(2)))

    async def test_the_streams_end_when_the_server_stops(self) -> None:
        async with served() as wire, connect(wire.address) as replica:
            await replica.send(ReplicaFrame(EPOCH, Follow(1)))
            await wire.master.links.get()
            wire.stopping.set()
            assert await replica.receive() is None
            await wire.master.cancelled.wait()

    async def test_a_replica_that_goes_ends_what_serves_it(self) -> None:
        async with served() as wire:
            async with connect(wire.address) as replica:
                await replica.send(ReplicaFrame(EPOCH, Follow(1)))
                master = await wire.master.links.get()
                assert await master.receive() is not None
                receiving = asyncio.create_task(master.receive())
                await asyncio.sleep(0)
            await wire.master.cancelled.wait()
            (end,) = await asyncio.gather(receiving, return_exceptions=True)
            assert end is None or isinstance(end, LinkError)

    async def test_a_frame_that_makes_no_sense_ends_the_stream_with_a_sentence(self) -> None:
        async with served() as wire, grpc.aio.insecure_channel(wire.address) as channel:
            stub: Any = replication_service_pb2_grpc.ReplicationServiceStub(channel)
            call = stub.Replicate()
            await call.write(pb.ReplicaFrame(follow=pb.Follow(log_offset=-7)))
            master = await wire.master.links.get()
            with pytest.raises(LinkError, match="log_offset is -7"):
                await master.receive()
            wire.master.done.set()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert await call.details() == "log_offset is -7; it cannot be negative"


class TestChannel:
    async def test_no_listener_is_a_link_error_at_the_first_frame(self) -> None:
        async with served() as wire:
            address = wire.address
        async with asyncio.timeout(TIMEOUT_S), connect(address) as replica:
            with pytest.raises(LinkError, match=f"the stream with {address} is gone"):
                await replica.receive()
            with pytest.raises(LinkError, match=f"the stream with {address} is gone"):
                await replica.send(ReplicaFrame(EPOCH, Follow(1)))

    async def test_what_is_no_address_is_a_link_error(self) -> None:
        with pytest.raises(LinkError, match="'nowhere' is not an address; write host:port"):
            async with connect("nowhere"):
                pass

    async def test_a_master_that_has_stopped_for_good_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A process under SIGSTOP, or a network that swallows: the connection stands, without an answer.
        monkeypatch.setattr(replication, "REPLICA_KEEPALIVE_MS", 200)
        monkeypatch.setattr(replication, "REPLICA_PING_TIMEOUT_MS", 200)
        async with served() as wire, swallowing(wire.port) as (address, swallow), connect(address) as replica:
            await replica.send(ReplicaFrame(EPOCH, Follow(1)))
            master = await wire.master.links.get()
            await master.send(MasterFrame(EPOCH, Rejection("soon nothing comes any more")))
            assert await replica.receive() is not None
            swallow.set()
            with pytest.raises(LinkError, match="is gone"):
                await replica.receive()


@asynccontextmanager
async def swallowing(port: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The address of a way to `port` that keeps its connections and lets nothing through once the event is set."""
    swallow = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not swallow.is_set():
                    writer.write(data)
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        tasks.append(asyncio.create_task(forward(reader, back)))
        tasks.append(asyncio.create_task(forward(there, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", swallow
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
