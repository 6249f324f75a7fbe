"""The broker's spans: what it does with a sampled message, and the message's trace through it."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

import telemetry
from mq_broker.core.life import NO_SPANS, Operation, Step, Subject, traced
from mq_broker.core.rewrite import single_record_batch
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.processor.recalling import NewTime
from mq_broker.telemetry import RecordedSpans, broker_spans
from mq_broker.testing import (
    COMMIT,
    ROLLBACK,
    asking_at_once,
    check_and_answer,
    end,
    half,
    incoming,
    join,
    park,
    produce,
    producer_record,
    read_all,
    running_broker,
    store_options,
)
from mq_broker.tools.findings import Finding
from mq_broker.tools.state_check import read_small_state
from mq_broker.tools.verify import verify
from mqproto.codes import ResponseCode
from mqproto.names import CHECK_MAX_TIMES_TOPIC, dlq_topic, retry_topic
from mqproto.properties import DELAY, TIMER_DELAY_MS, UNIQ_KEY, decode_properties
from mqproto.record import Record, decode_record
from osenv import SimClock, SimDisk

START_MS = 1_700_000_000_000
TRACE, SENDER = "a" * 32, "b" * 16
SAMPLED = f"00-{TRACE}-{SENDER}-01"
NAMED = {"traceparent": SAMPLED}
GROUP = "g"


class Told:
    """A process whose spans are told at once."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = RecordedSpans("broker-a", self._provider.get_tracer("test"))

    @property
    def finished(self) -> tuple[ReadableSpan, ...]:
        """In the order of their ends."""
        return self._exporter.get_finished_spans()

    def in_words(self) -> list[str]:
        """Name, and begin and end in seconds since the start."""
        return [f"{span.name} {_seconds(span.start_time):g}-{_seconds(span.end_time):g}s" for span in self.finished]


def _seconds(nanoseconds: int | None) -> float:
    assert nanoseconds is not None
    return (nanoseconds - START_MS * 1_000_000) / 1e9


@dataclass
class Scene:
    """A broker that records, its clock, and its disk."""

    broker: Broker
    clock: SimClock
    disk: SimDisk
    told: Told


@asynccontextmanager
async def scene(sampler: Sampler | None = None) -> AsyncIterator[Scene]:
    told, disk, clock = Told(sampler), SimDisk(), SimClock(START_MS)
    options = asking_at_once(check_times_max=3)
    async with running_broker(disk, clock, options=options, spans=told.spans) as broker:
        yield Scene(broker, clock, disk, told)


def message(properties: Mapping[str, str] = NAMED, topic: str = "t", **more: Any) -> IncomingBatch:
    record = producer_record(topic, b"x", key="k", properties={UNIQ_KEY: "m", **properties}, **more)
    return IncomingBatch(topic, 0, 1, record)


def traceparent(record: Record) -> str:
    return decode_properties(record.properties)["traceparent"]


async def newest(broker: Broker, topic: str) -> Record:
    return (await read_all(broker, topic))[-1]


async def bring_back(one: Scene, topic: str, times_max: int) -> None:
    record = await newest(one.broker, topic)
    send_back = one.broker.send_back.send_back
    code, *_ = await send_back(GROUP, record.log_offset, delay_level=1, max_reconsume_times=times_max)
    assert code is ResponseCode.SUCCESS


# ------------------------------------------------------------------------------------------------------- the table


async def plain(one: Scene) -> None:
    await produce(one.broker, message())
    await one.clock.advance(1)


async def by_level(one: Scene) -> None:
    await produce(one.broker, message(delay_level=2))
    await one.clock.advance(5)


async def by_timer(one: Scene) -> None:
    await produce(one.broker, message({**NAMED, TIMER_DELAY_MS: "700"}))
    await one.clock.advance(1)


async def rescheduled(one: Scene) -> None:
    await produce(one.broker, message(delay_level=3))
    await one.clock.advance(2)
    await one.broker.recalling.recall("t", "k", NewTime(delay_ms=4_000))
    await one.clock.advance(20)


async def recalled(one: Scene) -> None:
    await produce(one.broker, message(delay_level=3))
    await one.clock.advance(2)
    await one.broker.recalling.recall("t", "k")
    await one.clock.advance(20)


async def committed(one: Scene) -> None:
    await produce(one.broker, half("t", b"x", "m", properties=NAMED))
    await one.clock.advance(2)
    await end(one.broker, "m", COMMIT)


async def rolled_back(one: Scene) -> None:
    await produce(one.broker, half("t", b"x", "m", properties=NAMED))
    await one.clock.advance(2)
    await end(one.broker, "m", ROLLBACK)


async def checked(one: Scene) -> None:
    await produce(one.broker, half("t", b"x", "m", properties=NAMED))
    join(one.broker)
    for answer in (None, None, COMMIT):
        await one.clock.advance(1)
        await (check_and_answer(one.broker, "m") if answer is None else check_and_answer(one.broker, "m", answer))


async def committed_to_wait(one: Scene) -> None:
    await produce(one.broker, half("t", b"x", "m", properties={**NAMED, DELAY: "1"}))
    await one.clock.advance(2)
    await end(one.broker, "m", COMMIT)
    await one.clock.advance(1)


async def parked(one: Scene) -> None:
    await park(one.broker, "m", properties=NAMED)
    assert traceparent(await newest(one.broker, CHECK_MAX_TIMES_TOPIC)) == SAMPLED


async def parked_and_decided(one: Scene) -> None:
    await park(one.broker, "m", properties=NAMED)
    await one.clock.advance(60)
    await one.broker.transactions.decide("m", COMMIT)


async def retried(one: Scene) -> None:
    await produce(one.broker, message())
    await one.clock.advance(1)
    await bring_back(one, "t", 16)
    await one.clock.advance(1)


async def given_up(one: Scene) -> None:
    await produce(one.broker, message())
    await one.clock.advance(1)
    await bring_back(one, "t", 1)
    await one.clock.advance(1)
    await bring_back(one, retry_topic(GROUP), 1)


Act = Callable[[Scene], Awaitable[None]]

# What happens, the spans of it from the sender's down, and where the message stands in the end.
SHAPES: tuple[tuple[Act, list[str], str], ...] = (
    (plain, [], "t"),
    (by_level, ["wait t 0-5s"], "t"),
    (by_timer, ["wait t 0-0.7s"], "t"),
    (rescheduled, ["wait t 2-6s"], "t"),
    (recalled, [], ""),
    (committed, ["half t 0-2s"], "t"),
    (rolled_back, ["half t 0-2s"], ""),
    (checked, ["half t 0-3s"], "t"),
    (committed_to_wait, ["half t 0-2s", "wait t 2-3s"], "t"),
    (parked, [], ""),
    (parked_and_decided, ["half t 0-60s"], "t"),
    (retried, ["wait %RETRY%g 1-2s"], retry_topic(GROUP)),
    (given_up, ["wait %RETRY%g 1-2s", "dead letter %DLQ%g 2-2s"], dlq_topic(GROUP)),
)


@pytest.mark.mechanism("U6")
@pytest.mark.parametrize(("act", "spans", "topic"), SHAPES, ids=[act.__name__ for act, *_ in SHAPES])
async def test_each_way_through_the_broker_has_its_spans(act: Act, spans: list[str], topic: str) -> None:
    async with scene() as one:
        await act(one)
        assert one.told.in_words() == spans
        parent = SENDER
        for span in one.told.finished:
            assert span.context is not None
            assert span.parent is not None
            assert span.kind is SpanKind.INTERNAL
            assert (format_trace_id(span.context.trace_id), format_span_id(span.parent.span_id)) == (TRACE, parent)
            parent = format_span_id(span.context.span_id)
        if topic:
            assert traceparent(await newest(one.broker, topic)) == f"00-{TRACE}-{parent}-01"


COMMON = {
    "messaging.system": "hourglass",
    "messaging.destination.name": "t",
    "messaging.destination.partition.id": "0",
    "messaging.message.id": "m",
    "hourglass.message.reconsume_times": 0,
    "hourglass.broker.name": "broker-a",
}
WAITED = {"messaging.operation.name": "wait", "hourglass.delay.lateness": 0.0}
HALVED = {
    "messaging.operation.name": "half",
    "hourglass.producer.group": "shop",
    "hourglass.transaction.checks": 0,
    "hourglass.transaction.state": "committed",
}


@pytest.mark.parametrize(
    ("act", "own"),
    [
        (
            by_level,
            WAITED
            | {
                "messaging.rocketmq.message.delay_time_level": 2,
                "messaging.rocketmq.message.delivery_timestamp": START_MS + 5_000,
            },
        ),
        (by_timer, WAITED | {"messaging.rocketmq.message.delivery_timestamp": START_MS + 700}),
        (committed, HALVED),
        (rolled_back, HALVED | {"hourglass.transaction.state": "rolled back"}),
        (checked, HALVED | {"hourglass.transaction.checks": 2}),
        (
            given_up,
            {
                "messaging.operation.name": "dead letter",
                "messaging.destination.name": "%DLQ%g",
                "messaging.consumer.group.name": "g",
                "hourglass.message.reconsume_times": 2,
            },
        ),
    ],
)
async def test_a_span_says_what_the_broker_knows(act: Act, own: dict[str, object]) -> None:
    async with scene() as one:
        await act(one)
        assert dict(one.told.finished[-1].attributes or {}) == COMMON | own


# ------------------------------------------------------------------------------------------- what leaves bytes alone

ALL_ACTS = [act for act, *_ in SHAPES]


@pytest.mark.parametrize("act", ALL_ACTS, ids=[act.__name__ for act in ALL_ACTS])
async def test_the_log_differs_in_span_ids_and_their_crcs_only(act: Act) -> None:
    logs = []
    for spans in (NO_SPANS, Told().spans):
        disk, clock = SimDisk(), SimClock(START_MS)
        options = asking_at_once(check_times_max=3)
        async with running_broker(disk, clock, options=options, spans=spans) as broker:
            await act(Scene(broker, clock, disk, Told()))
            logs.append(bytes(broker.store.log.read(0, broker.store.log_end)))
    without, with_spans = (_parts(log) for log in logs)
    assert [_masked(record) for record in without] == [_masked(record) for record in with_spans]
    assert not any(_span_id(record) != SENDER for record in without if b"traceparent" in record.properties)


def _parts(log: bytes) -> list[Record]:
    records, at = [], 0
    while at < len(log):
        records.append(decode_record(log, at))
        at += records[-1].size
    return records


def _span_id(record: Record) -> str:
    return traceparent(record).split("-")[2]


def _masked(record: Record) -> tuple[object, ...]:
    properties = record.properties
    if b"traceparent" in properties:
        properties = properties.replace(_span_id(record).encode(), b"?" * 16)
    place = (record.size, record.queue_id, record.queue_offset, record.log_offset, record.store_timestamp_ms)
    return (*place, record.sys_flag, record.reconsume_times, record.body_crc, record.body, record.topic, properties)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"traceparent": f"00-{TRACE}-{SENDER}-00"},
        {"traceparent": f"00-{'0' * 32}-{SENDER}-01"},
        {"traceparent": f"00-{TRACE}-{'0' * 16}-01"},
        {"traceparent": f"00-{TRACE.upper()}-{SENDER}-01"},
        {"traceparent": f"01-{TRACE}-{SENDER}-01-more"},
        {"traceparent": SAMPLED[:-1]},
        {"traceparent": ""},
        {"my-traceparent": SAMPLED},
        {"traceparent ": SAMPLED},
        {"note": f"traceparent={SAMPLED}"},
    ],
)
async def test_a_context_that_is_none_or_is_not_sampled_stays_as_it_is(properties: dict[str, str]) -> None:
    async with scene() as one:
        await produce(one.broker, message(properties, delay_level=1))
        await one.clock.advance(1)
        delivered = decode_properties((await newest(one.broker, "t")).properties)
        assert {name: delivered.get(name) for name in properties} == properties
        assert one.told.finished == ()


async def test_a_process_that_does_not_sample_changes_nothing() -> None:
    async with scene(ALWAYS_OFF) as one:
        await by_level(one)
        assert (traceparent(await newest(one.broker, "t")), one.told.finished) == (SAMPLED, ())


async def test_what_is_carried_over_keeps_its_sender() -> None:
    async with scene() as one:
        await produce(one.broker, message(delay_level=3))
        await one.clock.advance(4)
        assert await one.broker.delay.carry_over(one.broker.store.log_end) == 1
        assert one.told.finished == ()
        await one.clock.advance(6)
        assert one.told.in_words() == ["wait t 4-10s"]


async def test_a_delivery_that_the_disk_rejects_has_no_span_and_the_next_try_has_one() -> None:
    async with scene() as one:
        await produce(one.broker, message(delay_level=1))

        def reject(call: str, path: Path) -> None:
            if call == "pwrite":
                raise OSError(errno.ENOSPC, "no space left")

        one.disk.before = reject
        await one.clock.advance(1)
        assert not one.told.in_words()
        one.disk.before = lambda call, path: None
        await one.clock.advance(10)
        assert one.told.in_words() == ["wait t 0-11s"]
        (span,) = one.told.finished
        assert span.parent is not None
        assert span.context is not None
        assert format_span_id(span.parent.span_id) == SENDER
        assert traceparent(await newest(one.broker, "t")) == f"00-{TRACE}-{format_span_id(span.context.span_id)}-01"
        assert dict(span.attributes or {})["hourglass.delay.lateness"] == 10.0


async def test_a_half_that_cannot_be_read_is_rolled_back_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as one:
        await produce(one.broker, half("t", b"x", "m", properties=NAMED))

        async def reject(log_offset: int) -> Record:
            raise OSError(errno.EIO, "input/output error")

        monkeypatch.setattr(one.broker.store.reader, "read_record", reject)
        assert (await end(one.broker, "m", ROLLBACK)).outcome is ROLLBACK
        assert one.told.finished == ()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("act", [committed_to_wait, given_up], ids=lambda act: act.__name__)
async def test_the_store_is_whole_and_is_recovered(act: Act, is_killed: bool) -> None:
    disk, clock, told = SimDisk(), SimClock(START_MS), Told()
    options = asking_at_once(check_times_max=3)
    async with running_broker(disk, clock, options=options, spans=told.spans, clean_stop=not is_killed) as broker:
        await act(Scene(broker, clock, disk, told))
        log = broker.store.log.read(0, broker.store.log_end)
    if is_killed:
        disk.kill()
    else:
        layout, found = store_options().layout, list[Finding]()
        verify(disk, layout, read_small_state(disk, layout), found.append, index_slots=layout.index_size.slots)
        assert not [str(one) for one in found if one.kind == "difference"]
    seen, again = len(told.finished), SimClock(clock.wall_ms())
    async with running_broker(disk, again, options=options, spans=told.spans) as broker:
        await again.advance(60)
        assert broker.store.log.read(0, len(log)) == log
        assert (broker.store.log_end, len(told.finished)) == (len(log), seen)


# ---------------------------------------------------------------------------------------------------------- in place


class Fixed:
    """Every span has the same id."""

    is_on = True
    span_id = "c" * 16

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0

    def begin(self, step: Step, subject: Subject, traceparent: str) -> Fixed:
        self.begun += 1
        return self

    def end(self) -> None:
        self.ended += 1


def write(rejected: bool) -> None:
    if rejected:
        raise OSError(errno.ENOSPC, "no space left")


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)
OTHERS = st.dictionaries(NAMES | st.sampled_from(["xtraceparent", "Traceparent", "tracestate"]), NAMES, max_size=4)
STEP = Step(Operation.WAIT, 0, 1)


@given(
    before=OTHERS,
    after=OTHERS,
    flags=st.integers(0, 255),
    body=st.binary(min_size=1, max_size=40) | st.just(f"\x02traceparent\x01{SAMPLED}\x02".encode()),
    topic=st.sampled_from(["t", "traceparent", "é" * 20]),
    rejected=st.booleans(),
)
def test_nothing_but_16_digits_changes_and_they_come_back_when_the_write_is_rejected(
    before: dict[str, str], after: dict[str, str], flags: int, body: bytes, topic: str, rejected: bool
) -> None:
    sent = f"00-{TRACE}-{SENDER}-{flags:02x}"
    properties = before | {"traceparent": sent} | after
    data = producer_record(topic, body, properties=properties)
    batch, spans = single_record_batch(topic, 0, data, 0), Fixed()
    try:
        with traced(spans, [(batch, STEP)]):
            carried = bytes(batch.buffer)
            write(rejected)
    except OSError:
        assert bytes(batch.buffer) == data
    if flags & 1 and properties["traceparent"] == sent:
        expected = decode_properties(decode_record(data).properties) | {
            "traceparent": f"00-{TRACE}-{Fixed.span_id}-{flags:02x}"
        }
        assert decode_properties(decode_record(carried).properties) == expected
        assert sum(old != new for old, new in zip(data, carried, strict=True)) == 16
        assert (spans.begun, spans.ended) == (1, 0 if rejected else 1)
    else:
        assert (carried, spans.begun) == (data, 0)


def test_without_spans_records_are_not_read() -> None:
    moved = iter([(single_record_batch("t", 0, b"no record", 0), STEP)])
    with traced(NO_SPANS, moved):
        pass
    assert next(moved)


def test_a_process_that_traces_nothing_has_no_spans() -> None:
    assert not telemetry.is_tracing()
    assert broker_spans("broker-a") is NO_SPANS


async def test_many_messages_of_one_step_have_a_span_each() -> None:
    async with scene() as one:
        batch = incoming("plain", [b"y"], delay_level=1)
        await produce(one.broker, *[message(delay_level=1) for _ in range(40)], batch)
        await one.clock.advance(1)
        records = await read_all(one.broker, "t")
        ids = [format_span_id(span.context.span_id) for span in one.told.finished if span.context is not None]
        assert [_span_id(record) for record in records] == ids
        assert len(set(ids)) == 40
