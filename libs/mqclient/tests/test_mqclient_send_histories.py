"""Generated histories of sends, breaks, rejections, cancels and deadlines against a small model
(docs/reference/contracts.md#the-wire).

On every history: each send ends; what has a result is stored where the result says; what failed with "not stored" is
not stored; no broker stores a message twice; ordered queues keep their order; what is sent again is the same bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    Message,
    MessageQueue,
    MQClientError,
    OutcomeUnknownError,
    Producer,
    SendResult,
)
from mqclient.testing import FakeBroker, FakeCluster, FrameFault
from mqproto.record import decode_record, iter_records
from osenv.sim_clock import settle

SEND_TIMEOUT_S = 3.0
QUEUE_COUNT = 2


@dataclass
class Sent:
    """One message of a history; `begun` and `ended` are numbers of steps."""

    body: bytes
    task: asyncio.Task[SendResult]
    ordered_in: int | None
    begun: int
    cancelled: bool = False
    ended: int | None = None


@dataclass
class History:
    """What has happened so far."""

    cluster: FakeCluster
    brokers: list[FakeBroker]
    producer: Producer
    sent: list[Sent] = field(default_factory=list)
    step: int = 0

    def send(self, count: int, ordered_in: int | None, delay_level: int) -> None:
        for _ in range(count):
            body = b"%d" % len(self.sent)
            message = Message("orders", body, delay_level=delay_level)
            selector = None if ordered_in is None else _select
            send = self.producer.send(message, timeout=SEND_TIMEOUT_S, selector=selector, selector_argument=ordered_in)
            self.sent.append(Sent(body, asyncio.create_task(send), ordered_in, self.step))

    def cancel(self, number: int) -> None:
        if self.sent:
            one = self.sent[number % len(self.sent)]
            one.cancelled |= one.task.cancel()

    async def apply(self, step: tuple[Any, ...]) -> None:
        name, *arguments = step
        broker = self.brokers[arguments.pop(0) % len(self.brokers)] if name in BROKER_STEPS else self.brokers[0]
        match name:
            case "send":
                self.send(*arguments)
            case "cancel":
                self.cancel(*arguments)
            case "advance":
                await self.cluster.clock.advance(*arguments)
            case "fault":
                broker.frame_faults.extend(arguments)
            case "reject":
                broker.next_codes.extend(arguments)
            case "silent":
                (broker.silent,) = arguments
            case "break":
                broker.break_streams()
            case "down":
                broker.down = True
                broker.break_streams()
            case "up":
                broker.down = False
        if name != "send" or self.step % 3:
            await settle()
        self.note_ends()
        self.step += 1

    def note_ends(self) -> None:
        for one in self.sent:
            if one.task.done() and one.ended is None:
                one.ended = self.step

    async def finish(self) -> None:
        """End all faults, and let enough time pass for every send to end."""
        for broker in self.brokers:
            broker.down = broker.silent = False
            broker.frame_faults.clear()
            broker.next_codes.clear()
        await self.cluster.clock.advance(SEND_TIMEOUT_S + 0.1)
        self.note_ends()


BROKER_STEPS = frozenset({"fault", "reject", "silent", "break", "down", "up"})
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 40), st.none(), st.sampled_from([0, 0, 0, 3])),
    st.tuples(st.just("send"), st.integers(1, 8), st.integers(0, QUEUE_COUNT - 1), st.sampled_from([0, 0, 0, 3])),
    st.tuples(st.just("cancel"), st.integers(0, 1000)),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.1])),
    st.tuples(st.just("fault"), st.integers(0, 1), st.sampled_from(list(FrameFault))),
    st.tuples(
        st.just("reject"),
        st.integers(0, 1),
        st.sampled_from([0, int(common_pb.SYSTEM_BUSY), int(common_pb.MESSAGE_ILLEGAL)]),
    ),
    st.tuples(st.just("silent"), st.integers(0, 1), st.booleans()),
    st.tuples(st.sampled_from(["break", "down", "up"]), st.integers(0, 1)),
)
HISTORIES = st.lists(STEPS, max_size=40)


def _select(queues: Any, _: Message, queue_id: int) -> MessageQueue:
    queue: MessageQueue = queues[queue_id]
    return queue


async def run(steps: list[tuple[Any, ...]], *broker_names: str) -> History:
    cluster, brokers = FakeCluster.of(*broker_names, queue_count=QUEUE_COUNT)
    async with Producer("shop", cluster.url) as producer:
        history = History(cluster, brokers, producer)
        for step in steps:
            await history.apply(step)
        await history.finish()
        assert all(one.task.done() for one in history.sent)
    return history


def check_outcomes(history: History) -> None:
    stored = [Counter(broker.bodies) for broker in history.brokers]
    assert all(count == 1 for of_broker in stored for count in of_broker.values())
    for one in history.sent:
        copies = sum(one.body in of_broker for of_broker in stored)
        if one.task.cancelled():
            assert one.cancelled
        elif (error := one.task.exception()) is None:
            result = one.task.result()
            broker = next(b for b in history.brokers if b.name == result.message_queue.broker_name)
            record = decode_record(broker.queues["orders", result.message_queue.queue_id][result.queue_offset])
            assert (record.body, record.log_offset) == (one.body, result.log_offset)
        else:
            assert isinstance(error, MQClientError)
            assert not copies or isinstance(error, OutcomeUnknownError), error


def check_order(history: History) -> None:
    """A message of an ordered queue is not stored behind, nor without, an earlier one that was under way with it."""
    for queue_id in range(QUEUE_COUNT):
        bodies = [decode_record(record).body for record in history.brokers[0].queues["orders", queue_id]]
        places = {body: place for place, body in enumerate(bodies)}
        ordered = [one for one in history.sent if one.ordered_in == queue_id]
        in_place = [places[one.body] for one in ordered if one.body in places]
        assert in_place == sorted(in_place)
        for at, earlier in enumerate(ordered):
            for later in ordered[at + 1 :]:
                if earlier.body not in places and later.body in places and not earlier.cancelled:
                    assert earlier.ended is not None
                    assert earlier.ended <= later.begun


def check_wire(history: History) -> None:
    """The numbers of a queue only rise on a stream, and a number always means the same bytes."""
    for broker in history.brokers:
        meaning: dict[tuple[int, str, int, int], bytes] = {}
        last: defaultdict[tuple[int, int, str, int], int] = defaultdict(int)
        for frame in broker.frames:
            for batch in frame.batches:
                queue = frame.producer_id, batch.topic, batch.queue_id
                records = [record.properties + record.body for record in iter_records(batch.records)]
                assert len(records) == batch.count
                on_stream = frame.producer_epoch, *queue
                assert batch.base_sequence > last[on_stream]
                last[on_stream] = batch.base_sequence + batch.count - 1
                for sequence, record in enumerate(records, batch.base_sequence):
                    assert meaning.setdefault((*queue, sequence), record) == record


# A batch whose outcome is unknown behind one that was answered; then the broker is unreachable until the deadline has
# passed.
LATE = [
    ("send", 3, None, 0),
    ("fault", 0, FrameFault.BREAK_AFTER_STORE),
    ("send", 3, 0, 0),
    ("down", 0),
    ("advance", 1.0),
    ("send", 2, 0, 0),
    ("advance", 3.1),
    ("up", 0),
]


@settings(max_examples=300, deadline=None)
@given(HISTORIES)
@example(LATE)
def test_one_broker_stores_everything_once_and_in_order(steps: list[tuple[Any, ...]]) -> None:
    history = asyncio.run(run(steps, "broker-a"))
    check_outcomes(history)
    check_order(history)
    check_wire(history)


@settings(max_examples=300, deadline=None)
@given(HISTORIES)
@example(LATE)
def test_with_two_brokers_each_stores_a_message_at_most_once(steps: list[tuple[Any, ...]]) -> None:
    history = asyncio.run(run(steps, "broker-a", "broker-b"))
    check_outcomes(history)
    check_wire(history)
