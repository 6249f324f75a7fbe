"""What is told of messages that wait: by explain, by the metrics, by the status, and by RecallMessage's answers."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import admin_service_pb2_grpc, broker_service_pb2_grpc, common_pb2
from hourglass.mq.v1 import broker_service_pb2 as pb
from mq_broker.core.topics import TIMER
from mq_broker.processor.broker import Broker
from mq_broker.processor.recalling import NewTime
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.registration import Registration
from mq_broker.telemetry import LATENESS_BOUNDS_S, BrokerMetrics
from mq_broker.testing import (
    broker_options,
    delivering_broker,
    in_ten_seconds,
    incoming,
    life_in_words,
    produce,
    running_broker,
    timed,
)
from mqproto.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from mqproto.properties import DELAY_MS_MAX
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
LATENESS, WAITING = "hourglass.delay.lateness", "hourglass.delay.waiting"


FIRST_WAIT = {
    "level": "0s WAITING SCHEDULE_TOPIC_XXXX:2#0 due 10s",
    "timer": "0s WAITING rmq_sys_wheel_timer:0#0 due 10s",
}


class TestExplain:
    async def explain(self, broker: Broker) -> list[str]:
        await settle()  # the index follows
        return life_in_words(await broker.explaining.explain("", "m", max_messages=0), START_MS)

    @pytest.mark.parametrize("restart", [False, True])
    @pytest.mark.parametrize("kind", ["level", "timer"])
    async def test_a_recalled_message_has_waited_and_was_recalled(self, kind: str, restart: bool) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock) as broker:
            await produce(broker, in_ten_seconds(kind))
            await clock.advance(1)
            await broker.recalling.recall("t", "k")
            await clock.advance(60)
            told = await self.explain(broker)
        if restart:
            async with delivering_broker(disk, clock) as broker:
                told = await self.explain(broker)
        assert told == [FIRST_WAIT[kind], "1s RECALLED SCHEDULE_TOPIC_RECALLED:0#0"]

    @pytest.mark.parametrize("restart", [False, True])
    @pytest.mark.parametrize("kind", ["level", "timer"])
    async def test_a_rescheduled_message_has_waited_twice(self, kind: str, restart: bool) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        second = 0 if kind == "level" else 1
        async with delivering_broker(disk, clock) as broker:
            await produce(broker, in_ten_seconds(kind))
            await clock.advance(1)
            await broker.recalling.recall("t", "k", NewTime(delay_ms=20_000))
            await clock.advance(60)
            told = await self.explain(broker)
        if restart:
            async with delivering_broker(disk, clock) as broker:
                told = await self.explain(broker)
        assert told == [
            FIRST_WAIT[kind],
            f"1s WAITING rmq_sys_wheel_timer:0#{second} due 21s",
            "21s DELIVERED t:0#0 due 21s",
        ]


class TestMetrics:
    def points(self, reader: InMemoryMetricReader, name: str) -> dict[Any, Any]:
        data = reader.get_metrics_data()
        assert data is not None
        return {
            (point.attributes or {}).get("hourglass.delay.level"): point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }

    async def test_deliveries_are_counted_by_level_in_the_class_of_their_lateness(self) -> None:
        reader, clock, disk = InMemoryMetricReader(), SimClock(START_MS), SimDisk()
        provider = MeterProvider([reader])
        async with delivering_broker(disk, clock, options=broker_options("1s 5s")) as broker:
            with BrokerMetrics(provider.get_meter("test")).showing(broker):
                await produce(broker, incoming("t", [b"x"] * 3, delay_level=1), timed("t", b"x", delay_ms=700))
                waiting = {level: point.value for level, point in self.points(reader, WAITING).items()}
                assert waiting == {TIMER: 1, 1: 3, 2: 0}
                await clock.advance(0.7)

                def reject(call: str, path: Path) -> None:
                    if call == "pwrite":
                        raise OSError(errno.ENOSPC, "no space left")

                disk.before = reject
                await clock.advance(1)  # rejected at 1 s, and asked again 10 s later
                disk.before = lambda call, path: None
                await clock.advance(20)
                points = self.points(reader, LATENESS)
                assert {level: (point.count, point.sum) for level, point in points.items()} == {
                    TIMER: (1, 0),
                    1: (3, 30),
                }
                assert points[1].explicit_bounds == LATENESS_BOUNDS_S
                assert points[1].bucket_counts[LATENESS_BOUNDS_S.index(60.0)] == 3
                assert points[TIMER].bucket_counts[0] == 1
                assert {point.value for point in self.points(reader, WAITING).values()} == {0}
        provider.shutdown()


@asynccontextmanager
async def served(clock: SimClock) -> AsyncIterator[tuple[Broker, Any, Any]]:
    """A broker behind gRPC, with stubs for its clients and its operators."""
    async with running_broker(SimDisk(), clock) as broker:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        registration = Registration(broker_options().identity, broker.topics, [], clock, 30)
        broker_service_pb2_grpc.add_BrokerServiceServicer_to_server(BrokerService(broker, asyncio.Event()), server)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(broker, registration, dict), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
            client: Any = broker_service_pb2_grpc.BrokerServiceStub(channel)
            admin: Any = admin_service_pb2_grpc.AdminServiceStub(channel)
            yield broker, client, admin
        await server.stop(1)


class TestCalls:
    async def test_each_fate_has_its_answer(self) -> None:
        clock = SimClock(START_MS)
        async with served(clock) as (broker, client, _):
            await produce(broker, in_ten_seconds("level", "early"))
            await clock.advance(10)
            await produce(broker, in_ten_seconds("timer", "now"), in_ten_seconds("level", "later"))
            request = pb.RecallMessageRequest(topic="t", key="later", delay_ms=20_000)
            answer = await client.RecallMessage(request)
            (one,) = answer.messages
            wanted = "later", pb.RESCHEDULED, START_MS + 30_000
            assert (one.message_id, one.outcome, one.due_timestamp_ms) == wanted
            request = pb.RecallMessageRequest(topic="t", key="later", deliver_timestamp_ms=START_MS + 40_000)
            assert (await client.RecallMessage(request)).messages[0].due_timestamp_ms == START_MS + 40_000
            answer = await client.RecallMessage(pb.RecallMessageRequest(topic="t", key="k"))
            assert (answer.code, answer.remark, answer.truncated) == (common_pb2.SUCCESS, "", False)
            assert {one.message_id: (one.outcome, one.due_timestamp_ms) for one in answer.messages} == {
                "early": (pb.ALREADY_DELIVERED, 0),
                "now": (pb.REMOVED, 0),
                "later": (pb.REMOVED, 0),
            }

    @pytest.mark.parametrize(
        ("request_", "code", "sentence"),
        [
            (
                pb.RecallMessageRequest(topic="t", key="unknown"),
                common_pb2.QUERY_NOT_FOUND,
                "waits here, or has waited",
            ),
            (pb.RecallMessageRequest(topic="t"), common_pb2.MESSAGE_ILLEGAL, "a topic and a key"),
            (pb.RecallMessageRequest(key="k"), common_pb2.MESSAGE_ILLEGAL, "a topic and a key"),
            (pb.RecallMessageRequest(topic="t", key="k", delay_ms=-1), common_pb2.MESSAGE_ILLEGAL, "0 or more"),
            (
                pb.RecallMessageRequest(topic="t", key="k", delay_ms=DELAY_MS_MAX + 1),
                common_pb2.MESSAGE_ILLEGAL,
                "at most 3,456,000,000 (40 days) are allowed",
            ),
        ],
    )
    async def test_what_cannot_be_answered_has_a_code_and_a_sentence(
        self, request_: pb.RecallMessageRequest, code: int, sentence: str
    ) -> None:
        async with served(SimClock(START_MS)) as (broker, client, _):
            await produce(broker, in_ten_seconds("timer"))
            answer = await client.RecallMessage(request_)
            assert (answer.code, list(answer.messages)) == (code, [])
            assert sentence in answer.remark
            assert broker.delay.waiting(TIMER) == 1

    async def test_a_full_disk_rejects_a_recall(self) -> None:
        async with served(SimClock(START_MS)) as (broker, client, _):
            await produce(broker, in_ten_seconds("timer"))
            broker.store.gate.measured(0.95)
            answer = await client.RecallMessage(pb.RecallMessageRequest(topic="t", key="k"))
            assert (answer.code, list(answer.messages)) == (common_pb2.SYSTEM_ERROR, [])
            assert "full" in answer.remark

    async def test_the_status_has_waiting_messages_next_due_time_and_lateness_by_level(self) -> None:
        clock = SimClock(START_MS)
        async with served(clock) as (broker, client, admin):

            async def status() -> dict[int, admin_pb.DelayLevelStatus]:
                answer = await admin.GetBrokerStatus(admin_pb.GetBrokerStatusRequest())
                return {level.level: level for level in answer.delay_levels}

            await produce(broker, in_ten_seconds("level", "a"), in_ten_seconds("level", "b"), in_ten_seconds("timer"))
            await clock.advance(1)
            await produce(broker, in_ten_seconds("level", "c"))
            await client.RecallMessage(pb.RecallMessageRequest(topic="t", key="a"))
            levels = await status()
            assert levels.keys() == {TIMER, *range(1, 19)}
            assert (levels[3].delay_ms, levels[3].waiting, levels[3].next_due_timestamp_ms) == (
                10_000,
                2,
                START_MS + 10_000,
            )
            assert (levels[TIMER].delay_ms, levels[TIMER].waiting) == (0, 1)
            assert levels[TIMER].next_due_timestamp_ms == START_MS + 10_000
            assert (levels[4].waiting, levels[4].next_due_timestamp_ms) == (0, 0)
            await client.RecallMessage(pb.RecallMessageRequest(topic="t", key="b"))
            assert START_MS < (await status())[3].next_due_timestamp_ms <= START_MS + 11_000
            await clock.advance(20)
            assert [(one.level, one.delivered) for one in (await status()).values() if one.delivered] == [
                (-1, 1),
                (3, 1),
            ]
            assert {(one.waiting, one.next_due_timestamp_ms) for one in (await status()).values()} == {(0, 0)}
            assert {one.lateness_max_ms for one in (await status()).values()} == {0}
