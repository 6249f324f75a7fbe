"""Consumers' progress through the services: asked for, reported with and without an answer, and set."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core.consumer_offsets import RESETS_BITS, Progress
from mq_broker.core.limits import QUEUES_PER_REQUEST_MAX, RANGES_PER_QUEUE_MAX
from mq_broker.embedded import EmbeddedBroker
from mq_broker.embedded.embedded_broker import AbortedCallError, CallContext, MemoryStream
from mq_broker.testing import incoming, produce
from osenv.sim_clock import settle

REJECTED = "progress that a of group g reports is rejected"


class Services:
    """An embedded broker with ten messages, called as its clients call it."""

    def __init__(self, embedded: EmbeddedBroker) -> None:
        self.embedded = embedded

    async def broker(self, method: str, request: Any) -> Any:
        return await self.embedded.call(f"/hourglass.mq.v1.BrokerService/{method}", request, CallContext())

    async def admin(self, method: str, request: Any) -> Any:
        return await self.embedded.call(f"/hourglass.mq.v1.AdminService/{method}", request, CallContext())

    def poll_stream(self) -> MemoryStream:
        stream = self.embedded.stream("/hourglass.mq.v1.BrokerService/Poll")
        assert isinstance(stream, MemoryStream)
        return stream

    @property
    def log_end(self) -> int:
        return self.embedded.broker.store.log_end

    def progress(self) -> Progress | None:
        return self.embedded.broker.offsets.query("g", "t", 0)

    async def progress_after_all(self) -> Progress | None:
        """When everything that was written has been read."""
        await settle()
        return self.progress()


@asynccontextmanager
async def served() -> AsyncIterator[Services]:
    async with EmbeddedBroker("progress") as embedded:
        await produce(embedded.broker, incoming("t", [b"%d" % number for number in range(10)]))
        yield Services(embedded)


def queue(
    offset: int, *ranges: tuple[int, int], version: int = 0, topic: str = "t", log_end: int = 0
) -> pb.QueueProgress:
    finished = [pb.OffsetRange(begin=begin, end=end) for begin, end in ranges]
    return pb.QueueProgress(topic=topic, queue_id=0, offset=offset, finished=finished, version=version, log_end=log_end)


def update(*queues: pb.QueueProgress, set: bool = False) -> pb.UpdateConsumerOffsetRequest:  # noqa: A002 - the field's name
    return pb.UpdateConsumerOffsetRequest(group="g", client_id="a", queues=queues, set=set)


def report(*queues: pb.QueueProgress) -> pb.PollRequest:
    return pb.PollRequest(progress=[pb.GroupProgress(group="g", client_id="a", queues=queues)])


def pull(poll_id: int, *reports: pb.GroupProgress) -> pb.PollRequest:
    request = pb.PullRequest(group="g", topic="t", max_messages=1, max_bytes=1)
    return pb.PollRequest(poll_id=poll_id, pull=request, progress=reports)


def ask(**begin: int) -> pb.QueryConsumerOffsetRequest:
    request = pb.QueryConsumerOffsetRequest(group="g", queue=common_pb2.QueueRef(topic="t", queue_id=0))
    if begin:
        request.begin.CopyFrom(pb.ConsumeBegin(**begin))  # type: ignore[arg-type]
    return request


async def test_the_answer_to_a_report_says_what_the_broker_has_now() -> None:
    async with served() as services:
        answer = await services.broker("UpdateConsumerOffset", update(queue(2, (4, 6)), queue(0, topic="%RETRY%g")))
        assert answer.code == common_pb2.TOPIC_NOT_EXIST
        assert list(answer.queues) == []
        await services.broker("UpdateConsumerOffset", update(queue(2, (4, 6))))
        answer = await services.broker("UpdateConsumerOffset", update(queue(1, (6, 7))))
        assert (answer.code, answer.remark) == (common_pb2.SUCCESS, "")
        now = queue(2, (4, 7), log_end=services.log_end)
        assert list(answer.queues) == [now]
        found = await services.broker("QueryConsumerOffset", ask())
        assert (found.offset, found.finished, found.version) == (now.offset, now.finished, now.version)
        assert found.log_end == now.log_end


async def test_a_report_that_depends_on_more_of_the_log_is_left_out_until_it_is_there() -> None:
    """What was sent back is not finished where its retry is not."""
    async with served() as services:
        stream, needed, store = services.poll_stream(), services.log_end + 1, services.embedded.broker.store
        store.follows = True
        await services.broker("UpdateConsumerOffset", update(queue(2), queue(4, log_end=needed)))
        await stream.write(report(queue(5, log_end=needed)))
        assert await services.progress_after_all() == Progress(2)
        store.follows = False
        await produce(services.embedded.broker, incoming("t", [b"what follows"]))
        store.follows = True
        await stream.write(report(queue(5, log_end=needed)))
        assert await services.progress_after_all() == Progress(5)


async def test_a_master_takes_what_a_member_of_its_own_version_says_however_far_a_replica_had_come() -> None:
    """With SYNC_FLUSH a replica can have a tail that its master loses with its power, and tell of its end before."""
    async with served() as services:
        beyond = services.log_end + 1
        await services.broker("UpdateConsumerOffset", update(queue(2, version=1 << RESETS_BITS, log_end=beyond)))
        assert services.progress() is None  # the member has got this from a master that has replaced this one
        await services.broker("UpdateConsumerOffset", update(queue(2), queue(4, log_end=beyond)))
        assert services.progress() == Progress(4)


async def test_who_has_not_heard_of_a_new_beginning_learns_it_from_the_answer() -> None:
    async with served() as services:
        await services.broker("UpdateConsumerOffset", update(queue(5, (7, 9))))
        answer = await services.broker("UpdateConsumerOffset", update(queue(3, version=99), set=True))
        assert list(answer.queues) == [queue(3, version=1, log_end=services.log_end)]
        answer = await services.broker("UpdateConsumerOffset", update(queue(9)))
        assert (answer.code, answer.remark.startswith("left out")) == (common_pb2.SUCCESS, True)
        assert list(answer.queues) == [queue(3, version=1, log_end=services.log_end)]
        rejected = await services.broker("UpdateConsumerOffset", update(queue(11), set=True))
        assert (rejected.code, "allowed are 0 to 10" in rejected.remark) == (common_pb2.SYSTEM_ERROR, True)
        assert services.progress() == Progress(3, (), 1)


async def test_a_group_begins_where_it_is_told() -> None:
    async with served() as services:
        assert (await services.broker("QueryConsumerOffset", ask())).code == common_pb2.QUERY_NOT_FOUND
        first = await services.broker("QueryConsumerOffset", ask(where=pb.CONSUME_FROM_LAST_OFFSET))
        assert (first.code, first.offset) == (common_pb2.SUCCESS, 10)
        again = await services.broker("QueryConsumerOffset", ask(where=pb.CONSUME_FROM_FIRST_OFFSET))
        assert again.offset == 10
        with pytest.raises(
            AbortedCallError, match="3 is no valid consume_from_where; allowed are 0, 1 and 2"
        ) as rejected:
            await services.broker("QueryConsumerOffset", ask(where=3))
        assert rejected.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_too_many_queues_are_rejected() -> None:
    async with served() as services:
        many = [queue(1)] * (QUEUES_PER_REQUEST_MAX + 1)
        with pytest.raises(AbortedCallError, match="has 16385 items in this request; at most 16384"):
            await services.broker("UpdateConsumerOffset", update(*many))


async def test_progress_rides_a_poll_and_comes_alone_and_only_the_poll_is_answered() -> None:
    async with served() as services:
        stream = services.poll_stream()
        await stream.write(report(queue(1, (3, 4))))
        assert await services.progress_after_all() == Progress(1, ((3, 4),))
        await stream.write(pull(7, *report(queue(2)).progress))
        answer = await stream.read()
        assert (answer.poll_id, answer.pull.status) == (7, pb.FOUND)
        assert services.progress() == Progress(2, ((3, 4),))
        await stream.write(pb.PollRequest(poll_id=9, cancel=True, progress=report(queue(3)).progress))
        assert await services.progress_after_all() == Progress(4)
        await stream.done_writing()
        assert await stream.read() is None


async def test_a_report_that_makes_no_sense_ends_no_stream_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mq_broker.rpc.calls")
    async with served() as services:
        stream = services.poll_stream()
        many = [queue(1)] * 16_385
        ranges = [(at, at + 1) for at in range(2, 2 * RANGES_PER_QUEUE_MAX + 4, 2)]
        for wrong in (queue(11), queue(1, (1, 2)), queue(0, *ranges), queue(1, topic="unknown")):
            await stream.write(report(queue(5), wrong))
        await stream.write(report(*many))
        await stream.write(report(queue(6, version=1)))
        await stream.write(report(queue(4)))
        assert await services.progress_after_all() == Progress(5)
        left_out = await stream.read()
        assert (left_out.poll_id, [list(one.queues) for one in left_out.left_out]) == (
            0,
            [[queue(5, log_end=services.log_end)]],
        )
        await stream.write(pull(1))
        assert (await stream.read()).poll_id == 1
        assert services.progress() == Progress(5)
        levels = [record.levelno for record in caplog.records if record.getMessage().startswith(REJECTED)]
        assert levels == [logging.WARNING] + [logging.DEBUG] * 3
        assert "at most 16384 are allowed" in caplog.text
        assert "left out" in caplog.text


async def test_an_operator_sets_queues_by_hand_and_sees_what_is_finished() -> None:
    async with served() as services:
        await services.broker("UpdateConsumerOffset", update(queue(2, (4, 6), (8, 9))))
        stats = await services.admin("GetConsumeStats", admin_pb.GetConsumeStatsRequest(group="g", topic="t"))
        assert [(one.consumer_offset, one.finished_beyond) for one in stats.queues][:2] == [(2, 3), (-1, 0)]
        request = admin_pb.ResetConsumerOffsetRequest(group="g", topic="t")
        request.offsets.add(topic="t", queue_id=0, offset=7)
        answer = await services.admin("ResetConsumerOffset", request)
        assert list(answer.queues) == [admin_pb.OffsetChange(queue_id=0, offset_before=2, offset=7)]
        assert services.progress() == Progress(7, (), 1)
        request.offsets.add(topic="u", queue_id=0, offset=0)
        answer = await services.admin("ResetConsumerOffset", request)
        assert (answer.code, answer.remark) == (common_pb2.MESSAGE_ILLEGAL, "topic 't' is reset, and not 'u'")
        assert services.progress() == Progress(7, (), 1)
