"""The spans of producers and consumers: their shapes as tables, on a broker with a real store in memory.

A row is: name, kind, parent's name ("" for a root, "app" for the span of the test), names of linked spans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import TraceFlags

import telemetry
from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumerConfig,
    ConsumeStatus,
    LocalTransactionRolledBackError,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageModel,
    MessageRejectedError,
    Producer,
    PullConsumer,
    PushConsumer,
    SendResult,
    TransactionProducer,
)
from mqclient.testing import RecordingTransactionListener
from osenv import SimClock
from osenv.sim_clock import settle
from telemetry.providers import PROVIDERS
from telemetry.testing.recorder import Recorder
from telemetry.trace_tree import ReceivedSpan

Row = tuple[str, str, str, list[str]]

COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)
CLIENT = "mqclient"  # the scope of the client's spans


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as recorder:
        yield recorder


def app() -> Any:
    return telemetry.tracer("test").start_as_current_span("app")


def rows(recorder: Recorder) -> list[Row]:
    """The client's spans in the order of their beginnings; spans that others have made are called by their ids."""
    spans = recorder.spans()
    names = {span.span_id: span.name for span in spans}
    names[""] = ""
    return [
        (span.name, span.kind, names[span.parent_span_id], [names[id_] for _, id_ in span.links])
        for span in sorted(spans, key=lambda span: span.start_ns)
        if span.scope == CLIENT
    ]


def by_name(recorder: Recorder) -> dict[str, ReceivedSpan]:
    return {span.name: span for span in recorder.spans()}


class Handler:
    """Remembers in which span it was called for which messages, and answers what it is given, again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers) or [ConsumeStatus.CONSUME_SUCCESS]
        self.calls: list[tuple[str | None, list[MessageExt]]] = []

    def answer(self, messages: list[MessageExt]) -> Any:
        self.calls.append((telemetry.current_trace_id(), messages))
        answer = self.answers[min(len(self.calls), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def __call__(self, messages: list[MessageExt]) -> Any:
        return self.answer(messages)


def consumer_for(broker: EmbeddedBroker, listener: Callable[..., Any], **options: Any) -> PushConsumer:
    options.setdefault("consume_from_where", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    orderly = options.pop("orderly", False)
    consumer = PushConsumer("readers", broker.url, **options)
    consumer.subscribe("orders")
    register = consumer.register_message_listener_orderly if orderly else consumer.register_message_listener
    register(listener)
    return consumer


class Heard:
    """A callback that tells when it was called."""

    def __init__(self) -> None:
        self.results: list[SendResult] = []

    async def on_success(self, result: SendResult) -> None:
        self.results.append(result)

    async def on_exception(self, error: Exception) -> None:
        raise AssertionError(error)


async def _send(producer: Producer) -> None:
    await producer.send(Message("orders", b"1"))


async def _send_batch(producer: Producer) -> None:
    await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])


async def _send_oneway(producer: Producer) -> None:
    await producer.send_oneway(Message("orders", b"1"))


async def _send_async(producer: Producer) -> None:
    heard = Heard()
    producer.send_async(Message("orders", b"1"), heard)
    for _ in range(100):
        if heard.results:
            return
        await settle()


@pytest.mark.parametrize("send", [_send, _send_batch, _send_oneway, _send_async])
async def test_each_way_to_send_has_one_span_whose_context_travels(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder, send: Callable[[Producer], Any]
) -> None:
    handler = Handler()
    async with Producer("shop", broker.url) as producer, consumer_for(broker, handler):
        with app() as span:
            await send(producer)
        await clock.until(lambda: handler.calls)
    sent = by_name(recorder)["send orders"]
    assert sent.trace_id == trace.format_trace_id(span.get_span_context().trace_id)
    for trace_id, (message,) in handler.calls:
        assert message.properties["traceparent"].startswith(f"00-{sent.trace_id}-{sent.span_id}-")
        assert trace_id == sent.trace_id
    expected = [("process orders", "CONSUMER", "send orders", ["send orders"])] * len(handler.calls)
    assert rows(recorder) == [("send orders", "PRODUCER", "app", []), *expected]


async def test_what_the_spans_of_a_message_say(broker: EmbeddedBroker, clock: SimClock, recorder: Recorder) -> None:
    handler = Handler()
    async with Producer("shop", broker.url) as producer, consumer_for(broker, handler):
        message = Message("orders", b"12345", tag="created", keys=["order-1", "k"], delay_level=1)
        result = await producer.send(message)
        await clock.until(lambda: handler.calls)
    spans = by_name(recorder)
    both = {
        "messaging.system": "hourglass",
        "messaging.destination.name": "orders",
        "messaging.message.id": result.message_id,
        "messaging.rocketmq.message.tag": "created",
        "messaging.rocketmq.message.keys": ["order-1", "k"],
        "messaging.destination.partition.id": str(result.message_queue.queue_id),
        "hourglass.broker.name": result.message_queue.broker_name,
    }
    assert spans["send orders"].attributes == {
        **both,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "delay",
        "messaging.rocketmq.message.delay_time_level": 1,
        "hourglass.producer.group": "shop",
        "hourglass.send.status": "SEND_OK",
        "hourglass.queue.offset": result.queue_offset,
    }
    ((_, (received,)),) = handler.calls
    assert spans["process orders"].attributes == {
        **both,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "readers",
        "messaging.destination.partition.id": str(received.queue_id),
        "hourglass.queue.offset": received.queue_offset,
        "hourglass.consume.status": "CONSUME_SUCCESS",
    }
    assert (spans["send orders"].status, spans["process orders"].status) == ("UNSET", "UNSET")


@pytest.mark.mechanism("U6")
async def test_several_messages_in_one_call_are_linked_and_none_is_the_parent(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder
) -> None:
    handler = Handler()
    config = ConsumerConfig(consume_message_batch_max_size=10)
    async with Producer("shop", broker.url) as producer:
        queue = (await producer.send(Message("orders", b"0"))).message_queue
        for body in (b"1", b"2"):
            await producer.send(Message("orders", body), queue=queue)
        async with consumer_for(broker, handler, consumer_config=config):
            await clock.until(lambda: handler.calls)
    assert [len(messages) for _, messages in handler.calls] == [3]
    (span,) = [span for span in recorder.spans() if span.name == "process orders"]
    sent = [(one.trace_id, one.span_id) for one in recorder.spans() if one.name == "send orders"]
    assert (span.parent_span_id, sorted(span.links)) == ("", sorted(sent))
    assert span.attributes["messaging.batch.message_count"] == 3
    assert len({trace_id for trace_id, _ in sent} | {span.trace_id}) == 4


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_message_that_fails_is_sent_back_and_its_retries_stay_in_the_trace(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder, in_thread: bool
) -> None:
    handler = Handler(ConsumeStatus.RECONSUME_LATER, ValueError("no"), ConsumeStatus.CONSUME_SUCCESS)
    listener = handler.answer if in_thread else handler
    async with Producer("shop", broker.url) as producer, consumer_for(broker, listener):
        await producer.send(Message("orders", b"1"))
        await clock.until(lambda: len(handler.calls) == 3)
        await broker.idle()
    processed = [span for span in recorder.spans() if span.name == "process orders"]
    assert [
        (span.attributes.get("hourglass.message.reconsume_times"), span.status, span.attributes.get("error.type"))
        for span in processed
    ] == [(None, "ERROR", "RECONSUME_LATER"), (1, "ERROR", "ValueError"), (2, "UNSET", None)]
    assert [event.name for event in processed[1].events] == ["exception"]
    (trace_id,) = {span.trace_id for span in recorder.spans()}
    assert [found for found, _ in handler.calls] == [trace_id] * 3
    assert [row[:2] for row in rows(recorder) if row[0] == "send back orders"] == [("send back orders", "CLIENT")] * 2


async def test_an_orderly_message_that_is_given_up_is_a_dead_letter_in_its_trace(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder
) -> None:
    suspend = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    handler = Handler(suspend, suspend, ConsumeOrderlyStatus.SUCCESS)
    config = ConsumerConfig(max_reconsume_times=1)
    async with Producer("shop", broker.url) as producer:
        await producer.send(Message("orders", b"1"))
        async with consumer_for(broker, handler, orderly=True, consumer_config=config):
            await clock.until(lambda: "dead letter orders" in by_name(recorder))
    assert [row[:2] for row in rows(recorder)] == [
        ("send orders", "PRODUCER"),
        ("process orders", "CONSUMER"),
        ("process orders", "CONSUMER"),
        ("dead letter orders", "CLIENT"),
    ]
    assert len({span.trace_id for span in recorder.spans()}) == 1


async def test_broadcasting_has_a_span_for_each_member(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder
) -> None:
    one, two = Handler(), Handler()
    options: Any = {
        "message_model": MessageModel.BROADCASTING,
        "consumer_config": ConsumerConfig(keep_local_offsets=False),
    }
    first = consumer_for(broker, one, **options)
    other = PushConsumer("others", broker.url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, **options)
    other.subscribe("orders")
    other.register_message_listener(two)
    async with Producer("shop", broker.url) as producer, first, other:
        await producer.send(Message("orders", b"1"))
        await clock.until(lambda: one.calls and two.calls)
    processed = [span for span in recorder.spans() if span.name == "process orders"]
    assert sorted(str(span.attributes["messaging.consumer.group.name"]) for span in processed) == ["others", "readers"]
    assert {span.parent_span_id for span in processed} == {by_name(recorder)["send orders"].span_id}


class InSpan(RecordingTransactionListener):
    """Makes a span of its own where SQL would be."""

    async def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        with telemetry.tracer("mqclient").start_as_current_span("INSERT"):
            return await super().execute_local_transaction(message, transaction_id, arg)

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        with telemetry.tracer("mqclient").start_as_current_span("SELECT"):
            return await super().check_local_transaction(message)


SEND: Row = ("send orders", "PRODUCER", "app", [])
TRANSACTION: Row = ("transaction orders", "INTERNAL", "send orders", [])
EXECUTED: list[Row] = [SEND, TRANSACTION, ("INSERT", "INTERNAL", "transaction orders", [])]


def ended(operation: str, parent: str = "send orders") -> Row:
    return (f"{operation} orders", "CLIENT", parent, [])


CHECKED: list[Row] = [("check orders", "INTERNAL", "send orders", []), ("SELECT", "INTERNAL", "check orders", [])]


@pytest.mark.parametrize(
    ("state", "check_state", "expected"),
    [
        (COMMIT, UNKNOW, [*EXECUTED, ended("commit")]),
        (ROLLBACK, UNKNOW, [*EXECUTED, ended("rollback")]),
        (LocalTransactionRolledBackError(KeyError("gone")), UNKNOW, [*EXECUTED, ended("rollback")]),
        (UNKNOW, COMMIT, [*EXECUTED, *CHECKED, ended("commit", "check orders")]),
        (UNKNOW, ROLLBACK, [*EXECUTED, *CHECKED, ended("rollback", "check orders")]),
        (OSError("broken"), COMMIT, [*EXECUTED, *CHECKED, ended("commit", "check orders")]),
    ],
    ids=["commit", "rollback", "rolled back error", "check commits", "check rolls back", "error, check commits"],
)
async def test_a_transaction_is_one_trace(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder, state: Any, check_state: Any, expected: list[Row]
) -> None:
    listener = InSpan(state, check_state)
    last = expected[-1][0]
    async with TransactionProducer("shop", broker.url, transaction_listener=listener) as producer:
        with app():
            if isinstance(state, Exception):
                with pytest.raises((KeyError, OSError)):
                    await producer.send_message_in_transaction(Message("orders", b"1", keys="order-1"))
            else:
                await producer.send_message_in_transaction(Message("orders", b"1", keys="order-1"))
        await clock.until(lambda: last in by_name(recorder))
    assert rows(recorder) == expected
    assert len({span.trace_id for span in recorder.spans() if span.scope == CLIENT}) == 1
    spans = by_name(recorder)
    send, transaction = spans["send orders"], spans["transaction orders"]
    assert send.attributes["messaging.rocketmq.message.type"] == "transaction"
    assert send.attributes["messaging.message.id"] == transaction.attributes["hourglass.transaction.id"]
    assert transaction.status == ("ERROR" if isinstance(state, Exception) else "UNSET")
    if isinstance(state, LocalTransactionRolledBackError):
        assert transaction.attributes["error.type"] == "KeyError"
    if "check orders" in spans:
        assert spans["check orders"].attributes["hourglass.transaction.state"] == check_state.value


async def test_a_message_that_was_given_a_context_keeps_it_and_the_send_is_linked_with_it(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder
) -> None:
    own = f"00-{'a' * 32}-{'b' * 16}-01"
    handler = Handler()
    message = Message("orders", b"1", properties={"traceparent": own})
    async with Producer("shop", broker.url) as producer, consumer_for(broker, handler):
        with app():
            await producer.send(message)
        await clock.until(lambda: handler.calls)
    assert message.properties == {"traceparent": own}
    spans = by_name(recorder)
    assert spans["send orders"].links == [("a" * 32, "b" * 16)]
    assert spans["send orders"].trace_id == spans["app"].trace_id
    assert (spans["process orders"].trace_id, spans["process orders"].parent_span_id) == ("a" * 32, "b" * 16)


async def test_the_applications_message_is_not_changed(broker: EmbeddedBroker, recorder: Recorder) -> None:
    properties = {"shop": "7"}
    message = Message("orders", b"1", properties=properties)
    async with Producer("shop", broker.url) as producer:
        await producer.send(message)
        await producer.send_batch([message, message])
    assert message == Message("orders", b"1", properties={"shop": "7"})
    assert properties == {"shop": "7"}


async def test_a_message_without_room_for_a_context_is_sent_without(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder
) -> None:
    handler = Handler()
    async with Producer("shop", broker.url) as producer, consumer_for(broker, handler):
        longest = 31_000
        while True:
            try:
                await producer.send(Message("orders", b"1", properties={"fill": "x" * (longest + 64)}))
            except MessageRejectedError:
                break
            longest += 64
        await producer.send(Message("orders", b"last", properties={"fill": "x" * longest}))
        await clock.until(lambda: any(message.body == b"last" for _, (message,) in handler.calls))
    last = [message for _, (message,) in handler.calls if message.body == b"last"]
    assert ["traceparent" in message.properties for message in last] == [False]
    assert len(last[0].properties["fill"]) == longest


async def test_what_is_not_sampled_travels_with_that_decision(broker: EmbeddedBroker, clock: SimClock) -> None:
    handler = Handler()
    with Recorder() as recorder:
        async with Producer("shop", broker.url) as producer, consumer_for(broker, handler):
            assert PROVIDERS.sampler is not None
            PROVIDERS.sampler.follow(ALWAYS_OFF)  # and tracing stays on: as with a ratio
            await producer.send(Message("orders", b"1"))
            await clock.until(lambda: handler.calls)
        assert recorder.spans() == []
    ((_, (message,)),) = handler.calls
    assert int(message.properties["traceparent"][-2:], 16) & TraceFlags.SAMPLED == 0


async def test_a_pull_that_finds_something_is_a_span_with_links(broker: EmbeddedBroker, recorder: Recorder) -> None:
    async with Producer("shop", broker.url) as producer, PullConsumer("readers", broker.url) as consumer:
        result = await producer.send(Message("orders", b"1"))
        with app():
            await consumer.pull(result.message_queue, result.queue_offset)
            await consumer.pull(result.message_queue, result.queue_offset + 1)
    assert rows(recorder) == [
        ("send orders", "PRODUCER", "", []),
        ("receive orders", "CLIENT", "app", ["send orders"]),
    ]
    received = by_name(recorder)["receive orders"]
    assert received.attributes["messaging.batch.message_count"] == 1
    assert received.attributes["messaging.consumer.group.name"] == "readers"


async def test_a_recall_says_what_came_of_it(broker: EmbeddedBroker, recorder: Recorder) -> None:
    async with Producer("shop", broker.url) as producer:
        await producer.send(Message("orders", b"1", keys="order-1", delay_level=5))
        await producer.reschedule("orders", key="order-1", delay_ms=60_000)
        await producer.recall("orders", key="order-1")
    spans = by_name(recorder)
    assert [row[:2] for row in rows(recorder)[1:]] == [("reschedule orders", "CLIENT"), ("recall orders", "CLIENT")]
    assert spans["recall orders"].attributes["hourglass.recall.outcome"] == "REMOVED"
    assert spans["reschedule orders"].attributes["hourglass.recall.outcome"] == "RESCHEDULED"
    assert spans["recall orders"].attributes["messaging.rocketmq.message.keys"] == ["order-1"]


async def test_what_clients_measure(broker: EmbeddedBroker, clock: SimClock) -> None:
    handler = Handler(ConsumeStatus.RECONSUME_LATER, ConsumeStatus.CONSUME_SUCCESS)
    with Recorder(tracing=False) as recorder:
        async with Producer("shop", broker.url) as producer, consumer_for(broker, handler):
            await producer.send(Message("orders", b"1"))
            await clock.until(lambda: len(handler.calls) == 2)
            await producer.send_batch([Message("other", b"1"), Message("other", b"2")])
        measured = {
            (point.name, *sorted((name.rpartition(".")[0], str(value)) for name, value in point.attributes.items())): (
                point.value if point.kind == "sum" else point.count
            )
            for point in recorder.metrics()
            if point.name.startswith("messaging.")
        }
        assert recorder.spans() == []
    assert measured == {
        _series("messaging.client.sent.messages", "send", "orders"): 1,
        _series("messaging.client.sent.messages", "send", "other"): 2,
        _series("messaging.client.operation.duration", "send", "orders"): 1,
        _series("messaging.client.operation.duration", "send", "other"): 1,
        _series("messaging.client.consumed.messages", "process", "orders"): 1,
        _series("messaging.client.consumed.messages", "process", "orders", "RECONSUME_LATER"): 1,
        _series("messaging.process.duration", "process", "orders"): 1,
        _series("messaging.process.duration", "process", "orders", "RECONSUME_LATER"): 1,
    }


def _series(name: str, operation: str, topic: str, error: str = "") -> tuple[Any, ...]:
    attributes = [
        ("messaging", "hourglass"),
        ("messaging.operation", operation),
        ("messaging.operation", operation),
        ("messaging.destination", topic),
    ]
    if operation == "process":
        attributes.append(("messaging.consumer.group", "readers"))
    if error:
        attributes.append(("error", error))
    return (name, *sorted(attributes))


async def test_with_telemetry_off_nothing_is_recorded_and_nothing_travels(
    broker: EmbeddedBroker, clock: SimClock
) -> None:
    handler = Handler()
    async with Producer("shop", broker.url) as producer, consumer_for(broker, handler):
        with telemetry.tracer("test").start_as_current_span("app"):
            await producer.send(Message("orders", b"1"))
        await clock.until(lambda: handler.calls)
    ((trace_id, (message,)),) = handler.calls
    assert trace_id is None
    assert "traceparent" not in message.properties


async def test_consumers_that_are_started_in_a_span_do_not_stay_in_it(
    broker: EmbeddedBroker, clock: SimClock, recorder: Recorder
) -> None:
    handler = Handler()
    with app():
        consumer = consumer_for(broker, handler)
        producer = Producer("shop", broker.url)
        await asyncio.gather(producer.start(), consumer.start())
    PROVIDERS.sample(None)
    await producer.send(Message("orders", b"1"))  # carries nothing
    PROVIDERS.sample(ALWAYS_ON)
    await clock.until(lambda: handler.calls)
    await asyncio.gather(producer.shutdown(), consumer.shutdown())
    assert [row for row in rows(recorder) if row[0] == "process orders"] == [("process orders", "CONSUMER", "", [])]
