"""Incoming calls: streams, the limits of requests, answers to rejected ones, and the response memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import CoroutineType
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core import limits
from mq_broker.core.limits import (
    LEFT_OUT_TOLD_BYTES_MAX,
    RESPONSE_BYTES,
    RESPONSE_COPIES,
    SMALL_RESPONSE_BYTES,
    RejectedError,
)
from mq_broker.processor.consuming import Offsets
from mq_broker.processor.long_polling import ResponseMemory, Share
from mq_broker.processor.topic_administration import code_of
from mq_broker.rpc.conversions import queue_progress, queue_reports
from mq_broker.rpc.replication_conversions import DATA_BYTES_MAX, EPOCHS_MAX, TEXT_MAX
from mq_broker.store.errors import StoreError
from mqproto.grpc_options import FRAME_BYTES_MAX, FieldLimit, FieldLimitError, FieldLimits
from osenv import Clock
from osenv.clock import timeout

log = logging.getLogger(__name__)

# Between a stream's end and the end of its connection, as HTTP servers linger: what its peer has under way is read and
# dropped meanwhile. A connection that is closed on unread bytes is reset, and a peer that meets the reset while it
# writes drops the answers that it has not read yet.
LINGER_S = 0.25


class Replies:
    """What waits to be written to one stream. `END` closes the stream after what was put before it.

    Invariants: replies are written in the order in which handlers put them, and handlers go on at once; what waits
    counts in the response memory; a stream whose share is full reads no requests.
    """

    END = object()

    def __init__(self, share: Share) -> None:
        self.share = share
        self._queue: asyncio.Queue[tuple[Any, int]] = asyncio.Queue()
        self._written = asyncio.Event()
        self._unwritten = 0  # in the queue, and in the hands of `write_to`
        self._write_now: Callable[[Any], bool] | None = None

    def put(self, reply: object, size: int = SMALL_RESPONSE_BYTES) -> None:
        """Have `reply` written: a message, or a coroutine that makes one, which later replies then wait for.

        `size` is what it takes of the response memory, in bytes, while it waits.
        """
        if (
            self._write_now is not None
            and not self._unwritten
            and isinstance(reply, Message)
            and self._write_now(reply)
        ):
            return
        self.share.take(size)
        self._unwritten += 1
        self._queue.put_nowait((reply, size))

    def put_command(self, command: Any) -> None:
        """Have a command written that the client has not asked for; one that does not read loses its connection."""
        share, size = self.share, SMALL_RESPONSE_BYTES + RESPONSE_COPIES * command.ByteSize()
        if share.used and share.memory.room(share.client) < size:
            share.memory.break_connections([share.client])
        else:
            self.put(command, size)

    async def room(self) -> None:
        """Return when one more request may be read."""
        while not self.share.may_read:
            self._written.clear()
            await self._written.wait()

    async def write_to(self, context: Any) -> None:
        """Write until the end, or until the stream breaks. A reply that nothing waits before is written by `put`, where
        the stream offers `write_now`.
        """
        share = self.share
        self._write_now = getattr(context, "write_now", None)
        while True:
            reply, size = await self._queue.get()
            if reply is self.END:
                return
            message = await reply if isinstance(reply, CoroutineType) else reply
            share.writing_since = share.memory.clock.monotonic()
            await context.write(message)
            share.writing_since = None
            share.give_back(size)
            self._unwritten -= 1
            self._written.set()

    def drop(self) -> None:
        """Forget what was not written."""
        while not self._queue.empty():
            reply, _ = self._queue.get_nowait()
            if isinstance(reply, CoroutineType):
                reply.close()


class OpenStreams:
    """The streams of one server and their common end."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self.stopping = stopping
        self._count = 0
        self._none_is_open = asyncio.Event()
        self._none_is_open.set()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """A stream is open for as long as the block runs."""
        self._count += 1
        self._none_is_open.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none_is_open.set()

    async def end(self, clock: Clock, within_s: float) -> None:
        """End all of them, and give the peers of those that were open `LINGER_S` to read what was written last.

        Streams that are still open after `within_s` seconds are left behind.
        """
        self.stopping.set()
        if self._none_is_open.is_set():
            return
        try:
            async with timeout(clock, within_s):
                await self._none_is_open.wait()
                await clock.sleep(LINGER_S)
        except TimeoutError:
            return


async def pump(context: Any, replies: Replies, handle: Callable[[Any], None], stopping: asyncio.Event) -> None:
    """Hand each request to `handle` and write the replies, until the peer has sent its last one or the server stops.

    Then no request is read any more, and the replies to those that were handled are still written. What `handle` raises
    ends the stream likewise, and is raised here. Cancelled when the peer is gone.
    """
    read_all = _handle_all if hasattr(context, "deliver_to") else _read_all
    reader = asyncio.create_task(read_all(context, replies, handle), name="stream reader")
    writer = asyncio.create_task(replies.write_to(context), name="stream writer")
    stop = asyncio.create_task(stopping.wait(), name="stream stop")
    try:
        await asyncio.wait((reader, writer, stop), return_when=asyncio.FIRST_COMPLETED)
        has_read_all = reader.done()
        reader.cancel()  # what it read from here on would be handled, and its reply stand behind the end
        replies.put(Replies.END, 0)
        await writer  # also before a rejection: gRPC sends no status while a message is being written
        if has_read_all:
            reader.result()
    finally:
        for task in (reader, writer, stop):
            task.cancel()
        replies.drop()


async def _read_all(context: Any, replies: Replies, handle: Callable[[Any], None]) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        handle(request)
        if not replies.share.may_read:
            await replies.room()


async def _handle_all(context: Any, replies: Replies, handle: Callable[[Any], None]) -> None:
    """The same for a stream that hands each request over in the step in which it comes, and None at the end."""
    has_ended: asyncio.Future[bool]

    def take(command: Any) -> None:
        if has_ended.done():
            return
        if command is None:
            has_ended.set_result(True)
            return
        try:
            handle(context.parse(command.body))
        except Exception as error:
            context.deliver_to(None)
            has_ended.set_exception(error)
            return
        if not replies.share.may_read:
            context.deliver_to(None)
            has_ended.set_result(False)

    while True:
        await replies.room()
        has_ended = asyncio.get_running_loop().create_future()
        context.deliver_to(take)
        try:
            if await has_ended:
                return
        finally:
            context.deliver_to(None)


# What a processor rejects, and what the disk rejects, as an answer of the method's own type; and room for answers.

ServiceT = TypeVar("ServiceT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

UnaryMethod = Callable[[ServiceT, RequestT, Any], Awaitable[ResponseT]]


def answering(
    response_type: Callable[..., ResponseT],
) -> Callable[[UnaryMethod[ServiceT, RequestT, ResponseT]], UnaryMethod[ServiceT, RequestT, ResponseT]]:
    """Let a method raise RejectedError, StoreError and OSError: they become answers with a code and a sentence."""

    def decorate(method: UnaryMethod[ServiceT, RequestT, ResponseT]) -> UnaryMethod[ServiceT, RequestT, ResponseT]:
        @wraps(method)
        async def answered(service: ServiceT, request: RequestT, context: Any) -> ResponseT:
            try:
                return await method(service, request, context)
            except RejectedError as error:
                return response_type(code=error.code, remark=str(error))
            except StoreError as error:
                return response_type(code=code_of(error), remark=str(error))
            except OSError as error:
                return response_type(code=common_pb2.SYSTEM_ERROR, remark=f"the disk has rejected: {error}")

        return answered

    return decorate


async def room(memory: ResponseMemory, context: Any) -> Share:
    """Room for the response to a unary call, until the client has it."""
    share = memory.share(context.peer())
    context.add_done_callback(lambda _: share.close())
    await share.reserve()
    return share


def within_memory(
    method: UnaryMethod[ServiceT, RequestT, ResponseT],
) -> UnaryMethod[ServiceT, RequestT, ResponseT]:
    """Build a response of any length only when there is room, as those to consumers are; the service has it."""

    @wraps(method)
    async def built(service: ServiceT, request: RequestT, context: Any) -> ResponseT:
        share = await room(cast(Any, service).response_memory, context)
        response = await method(service, request, context)
        share.give_back(RESPONSE_BYTES - RESPONSE_COPIES * cast(Message, response).ByteSize())
        return response

    return built


# The limit of each text and repeated field of the requests of BrokerService, AdminService and ReplicationService.
#
# Calls with one request are checked by `limited`, on the class of the service; the streams check each request when they
# read it: Poll, Session and Replicate as a whole, Produce its number of batches here and each batch as
# `processor/producing.py` comes to it.

ServicerT = TypeVar("ServicerT", bound=type)

_NAME, _TEXT, _KEY = limits.NAME_CHARACTERS_MAX, limits.TEXT_CHARACTERS_MAX, limits.KEY_CHARACTERS_MAX
_EXPRESSION = FieldLimit(limits.EXPRESSION_CHARACTERS_MAX, limits.EXPRESSIONS_CHARACTERS_MAX)
_GROUPS, _QUEUES = limits.GROUPS_PER_REQUEST_MAX, limits.QUEUES_PER_REQUEST_MAX

REQUEST_LIMITS = FieldLimits(
    {
        "BecomeSlaveRequest.master_ha_address": _TEXT,
        "CommandAnswer.remark": _TEXT,
        "ConsumeDirectlyResult.remark": _TEXT,
        "ConsumeMessageDirectlyRequest.client_id": _TEXT,
        "ConsumeMessageDirectlyRequest.group": _NAME,
        "ConsumerData.group": _NAME,
        "ConsumerData.subscriptions": limits.SUBSCRIPTIONS_PER_REQUEST_MAX,
        "ConsumerRunningInfo.client_id": _TEXT,
        "ConsumerRunningInfo.queues": _QUEUES,
        "ConsumerRunningInfo.stats": limits.SUBSCRIPTIONS_PER_REQUEST_MAX,
        "ConsumerSendBackRequest.client_id": _TEXT,
        "ConsumerSendBackRequest.failure": limits.FAILURE_CHARACTERS_MAX,
        "ConsumerSendBackRequest.group": _NAME,
        "DecideTransactionRequest.transaction_id": _KEY,
        "DeleteSubscriptionGroupRequest.group": _NAME,
        "DeleteTopicRequest.topic": _NAME,
        "EndTransactionRequest.producer_group": _NAME,
        "EndTransactionRequest.transaction_id": _KEY,
        "ExplainMessageRequest.key": _KEY,
        "ExplainMessageRequest.topic": _NAME,
        "GetConsumeStatsRequest.group": _NAME,
        "GetConsumeStatsRequest.topic": _NAME,
        "GetConsumerConnectionsRequest.group": _NAME,
        "GetConsumerListRequest.group": _NAME,
        "GetConsumerRunningInfoRequest.client_id": _TEXT,
        "GetConsumerRunningInfoRequest.group": _NAME,
        "GetTopicStatsRequest.topic": _NAME,
        "ListTopicConfigsRequest.after": _NAME,
        "GetTransactionRequest.transaction_id": _KEY,
        "GroupProgress.client_id": _TEXT,
        "GroupProgress.group": _NAME,
        "GroupProgress.queues": _QUEUES,
        "Heartbeat.client_id": _TEXT,
        "Heartbeat.incarnation": _TEXT,
        "Heartbeat.consumers": _GROUPS,
        "Heartbeat.producers": _GROUPS,
        "ListTransactionsRequest.producer_group": _NAME,
        "LockQueuesRequest.client_id": _TEXT,
        "LockQueuesRequest.group": _NAME,
        "LockQueuesRequest.incarnation": _TEXT,
        "LockQueuesRequest.queues": _QUEUES,
        "PollRequest.progress": _GROUPS,
        "ProcessQueueInfo.topic": _NAME,
        "ProduceRequest.batches": limits.FRAME_BATCHES_MAX,
        "ProducerData.group": _NAME,
        "Progress.entries": DATA_BYTES_MAX,
        "PromoteRequest.queue_locks": limits.QUEUE_LOCKS_BYTES_MAX,
        "PullRequest.expression": limits.EXPRESSION_CHARACTERS_MAX,
        "PullRequest.expression_type": _NAME,
        "PullRequest.group": _NAME,
        "PullRequest.topic": _NAME,
        "QueryConsumerOffsetRequest.group": _NAME,
        "QueryMessageRequest.key": _KEY,
        "QueryMessageRequest.topic": _NAME,
        "QueueOffset.topic": _NAME,
        "QueueProgress.finished": limits.RANGES_PER_REQUEST_MAX,
        "QueueProgress.topic": _NAME,
        "QueueRef.topic": _NAME,
        "RecallMessageRequest.key": _KEY,
        "RecallMessageRequest.topic": _NAME,
        "RecordBatch.records": FRAME_BYTES_MAX,  # gRPC itself takes no larger message
        "RecordBatch.topic": _NAME,
        "ReplicaHello.address": TEXT_MAX,
        "ReplicaHello.broker_name": TEXT_MAX,
        "ReplicaHello.cluster_name": TEXT_MAX,
        "ReplicaHello.history": EPOCHS_MAX,
        "ReplicaHello.replica_id": TEXT_MAX,
        "ResetConsumerOffsetRequest.group": _NAME,
        "ResetConsumerOffsetRequest.offsets": _QUEUES,
        "ResetConsumerOffsetRequest.topic": _NAME,
        "Subscription.expression": _EXPRESSION,
        "Subscription.expression_type": _NAME,
        "Subscription.topic": _NAME,
        "SubscriptionGroupConfig.group": _NAME,
        "TopicConfig.topic": _NAME,
        "TopicConsumeStats.topic": _NAME,
        "UnlockQueuesRequest.client_id": _TEXT,
        "UnlockQueuesRequest.group": _NAME,
        "UnlockQueuesRequest.incarnation": _TEXT,
        "UnlockQueuesRequest.queues": _QUEUES,
        "UpdateConsumerOffsetRequest.client_id": _TEXT,
        "UpdateConsumerOffsetRequest.group": _NAME,
        "UpdateConsumerOffsetRequest.queues": _QUEUES,
    }
)


def limited(descriptor: ServiceDescriptor) -> Callable[[ServicerT], ServicerT]:
    """Have each call of the service that has one request end with INVALID_ARGUMENT when it is beyond a limit."""

    def decorate(service: ServicerT) -> ServicerT:
        for method in descriptor.methods:
            if not method.client_streaming and method.input_type.fields:
                setattr(service, method.name, _limited(getattr(service, method.name)))
        return service

    return decorate


def _limited(method: Callable[[Any, Any, Any], Awaitable[Any]]) -> Callable[[Any, Any, Any], Awaitable[Any]]:
    @wraps(method)
    async def checked(service: Any, request: Any, context: Any) -> Any:
        try:
            REQUEST_LIMITS.check(request)
        except FieldLimitError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await method(service, request, context)

    return checked


class ProgressReports:
    """What the members of groups report on one Poll stream, beside their polls (mechanism C21).

    Invariant: a report has no answer unless it is left out because the offset was reset: then the member hears at once
    what the broker has. No report ends the stream; what is wrong with one goes to the log, as a warning the first time.
    """

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._has_warned = False

    def take(self, request: pb.PollRequest) -> pb.PollResponse | None:
        """Add what the request reports. Returns what the member has to hear."""
        try:
            REQUEST_LIMITS.check(request, ("progress",))
        except FieldLimitError as error:
            self._tell("a client", str(error))
            return None
        told = pb.PollResponse()
        for report in request.progress:
            who = f"{report.client_id} of group {report.group}"
            try:
                reports = queue_reports(report.group, report.queues, self._offsets)
                remark = self._offsets.commit(report.group, reports)
            except RejectedError as error:
                self._tell(who, str(error))
            else:
                if remark:
                    log.debug("progress that %s reports: %s", who, remark)
                    self._add_left_out(report, told)
        return told if told.left_out else None

    def _add_left_out(self, report: pb.GroupProgress, told: pb.PollResponse) -> None:
        """What the broker has of those queues whose version is another one."""
        size, queues = 0, list[pb.QueueProgress]()
        for one in report.queues:
            known = self._offsets.query(report.group, one.topic, one.queue_id)
            if known is not None and known.version != one.version:
                queues.append(queue_progress(one.topic, one.queue_id, known, self._offsets.log_needed))
                size += queues[-1].ByteSize()
                if size > LEFT_OUT_TOLD_BYTES_MAX:
                    break
        told.left_out.append(pb.GroupProgress(group=report.group, client_id=report.client_id, queues=queues))

    def _tell(self, who: str, sentence: str) -> None:
        log.log(
            logging.DEBUG if self._has_warned else logging.WARNING,
            "progress that %s reports is rejected: %s; of this stream no more warnings",
            who,
            sentence,
        )
        self._has_warned = True
