"""BrokerService: decodes each call, passes it to its processor, and encodes the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any, NoReturn

import grpc

from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import broker_service_pb2_grpc, common_pb2
from mq_broker.core.limits import (
    FRAME_BATCHES_MAX,
    POLLS_PER_STREAM_MAX,
    RESPONSE_BYTES,
    RESPONSE_COPIES,
    RESULT_BYTES,
    SMALL_RESPONSE_BYTES,
)
from mq_broker.core.producer_sequences import BatchSequence
from mq_broker.core.rewrite import Failure
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.consuming import ConsumeFromWhere, QueueReport
from mq_broker.processor.long_polling import Poll
from mq_broker.processor.producing import BatchOutcome, IncomingBatch
from mq_broker.processor.querying import QueryError
from mq_broker.rpc.calls import REQUEST_LIMITS, OpenStreams, ProgressReports, Replies, answering, limited, pump, room
from mq_broker.rpc.conversions import (
    client_groups,
    command_answer,
    consumer_offset,
    locked_queues,
    new_time,
    pull_query,
    queue_progress,
    queue_refs,
    queue_reports,
    recalled_message,
    reset_command,
    write_pull_result,
)
from mqproto.codes import ResponseCode
from mqproto.grpc_options import FieldLimitError


@limited(pb.DESCRIPTOR.services_by_name["BrokerService"])
class BrokerService(broker_service_pb2_grpc.BrokerServiceServicer):
    """The RPCs of `hourglass.mq.v1.BrokerService`. `stopping` ends the streams."""

    def __init__(self, broker: Broker, stopping: asyncio.Event) -> None:
        self._broker = broker
        self.streams = OpenStreams(stopping)

    async def _pump(self, context: Any, replies: Replies, handle: Callable[[Any], None]) -> None:
        with self.streams.one_more():
            await pump(context, replies, handle, self.streams.stopping)

    @asynccontextmanager
    async def _replies(self, context: Any) -> AsyncIterator[Replies]:
        """The replies of a stream, for as long as it lasts."""
        share = self._broker.response_memory.share(context.peer())
        try:
            yield Replies(share)
        finally:
            self._broker.long_polling.ended(share)

    # --------------------------------------------------------------------------------------------- produce

    async def Produce(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """Frames in, results out, in the order of the frames; the next frame is stored while one is being synced."""
        client = context.peer()
        async with self._replies(context) as replies:
            stream = self._broker.producer_sequences.stream()

            def handle(request: pb.ProduceRequest) -> None:
                stream.of(request.producer_id)
                size = SMALL_RESPONSE_BYTES + RESULT_BYTES * len(request.batches)
                replies.put(self._produce(request, client), size)

            with closing(stream):
                await self._pump(context, replies, handle)

    def _produce(self, request: pb.ProduceRequest, client: str) -> Coroutine[Any, Any, pb.ProduceResponse]:
        producing = self._broker.producing
        if len(request.batches) > FRAME_BATCHES_MAX:
            remark = f"the frame has {len(request.batches)} batches; at most {FRAME_BATCHES_MAX} are allowed"
            outcomes = [BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, remark)] * FRAME_BATCHES_MAX
        else:
            outcomes = producing.put([incoming_batch(batch, request) for batch in request.batches], client)
        log_end = self._broker.store.log_end

        async def response() -> pb.ProduceResponse:
            acknowledged = await producing.acknowledge(outcomes, log_end)
            return pb.ProduceResponse(request_id=request.request_id, results=[batch_result(o) for o in acknowledged])

        return response()

    async def Send(self, request: pb.SendRequest, context: Any) -> pb.SendResponse:
        producing = self._broker.producing
        outcomes = producing.put([incoming_batch(request.batch, request)], context.peer())
        acknowledged = await producing.acknowledge(outcomes, self._broker.store.log_end)
        return pb.SendResponse(result=batch_result(acknowledged[0]))

    # --------------------------------------------------------------------------------------------- consume

    async def Poll(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """The long polls of one client. A poll id that is in use is rejected, and with it the stream."""
        async with self._replies(context) as replies:
            await self._poll(context, replies)

    async def _poll(self, context: Any, replies: Replies) -> None:
        polling, client = self._broker.long_polling, context.peer()
        polls: dict[int, Poll | None] = {}
        reports = ProgressReports(self._broker.offsets)

        def handle(request: pb.PollRequest) -> None:
            poll_id, action = request.poll_id, request.WhichOneof("action")
            if request.progress and (told := reports.take(request)) is not None:
                replies.put(told)
            if action == "cancel" and (waiting := polls.get(poll_id)) is not None:
                polling.expire(waiting)
            if action != "pull":
                return
            REQUEST_LIMITS.check(request.pull)
            if poll_id in polls or len(polls) >= POLLS_PER_STREAM_MAX:
                raise _BadRequestError(f"poll {poll_id} is open, or there are more than {POLLS_PER_STREAM_MAX}")

            def reply(result: Any) -> None:
                polls.pop(poll_id, None)
                response = pb.PollResponse(poll_id=poll_id)
                write_pull_result(result, response.pull, self._broker.offsets)
                replies.put(response, SMALL_RESPONSE_BYTES + RESPONSE_COPIES * len(result.records))

            polls[poll_id] = None
            query = pull_query(request.pull, client)
            poll = polling.poll(query, request.suspend_timeout_ms, reply, replies.share)
            if poll_id in polls:
                polls[poll_id] = poll

        try:
            await self._pump(context, replies, handle)
        except (_BadRequestError, FieldLimitError) as error:
            await _reject(context, str(error))
        finally:
            for poll in list(polls.values()):
                if poll is not None:
                    polling.cancel(poll)

    async def Pull(self, request: pb.PullRequest, context: Any) -> pb.PullResponse:
        pulling = self._broker.pulling
        query = pull_query(request, context.peer())
        share = await room(self._broker.response_memory, context)
        response = pb.PullResponse()
        write_pull_result(pulling.pull_hot(query) or await pulling.pull(query), response, self._broker.offsets)
        share.give_back(RESPONSE_BYTES - RESPONSE_COPIES * len(response.records))
        return response

    # --------------------------------------------------------------------------------------------- session

    async def Session(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """A client's session: the end of the stream is the client's end."""
        async with self._replies(context) as replies:
            await self._session(context, replies)

    async def _session(self, context: Any, replies: Replies) -> None:
        sessions, commands = self._broker.sessions, self._broker.client_commands
        session, client_id = _Session(replies), ""

        def handle(request: pb.SessionRequest) -> None:
            nonlocal client_id
            REQUEST_LIMITS.check(request)
            if request.WhichOneof("event") == "command_answer":
                answer = request.command_answer
                commands.answered(session, answer.command_id, command_answer(answer))
                return
            heartbeat = request.heartbeat
            if not heartbeat.client_id or (client_id and heartbeat.client_id != client_id):
                raise _BadRequestError("a heartbeat names its client, and the same one for all of a session")
            client_id = heartbeat.client_id
            code, remark = sessions.heartbeat(session, client_groups(heartbeat, context.peer()))
            ack = pb.HeartbeatAck(code=code, remark=remark)  # type: ignore[arg-type]
            replies.put(pb.SessionResponse(heartbeat_ack=ack))

        try:
            await self._pump(context, replies, handle)
        except (_BadRequestError, FieldLimitError) as error:
            await _reject(context, str(error))
        finally:
            sessions.ended(session, client_id)
            commands.ended(session)

    async def GetConsumerList(self, request: pb.GetConsumerListRequest, context: Any) -> pb.GetConsumerListResponse:
        return pb.GetConsumerListResponse(client_ids=self._broker.sessions.members.consumer_ids(request.group))

    @answering(pb.LockQueuesResponse)
    async def LockQueues(self, request: pb.LockQueuesRequest, context: Any) -> pb.LockQueuesResponse:
        queues = locked_queues(request.queues)
        held = await self._broker.queue_locking.lock(request.group, request.client_id, queues, request.incarnation)
        return pb.LockQueuesResponse(locked=queue_refs(held))

    @answering(pb.UnlockQueuesResponse)
    async def UnlockQueues(self, request: pb.UnlockQueuesRequest, context: Any) -> pb.UnlockQueuesResponse:
        queues = locked_queues(request.queues)
        self._broker.queue_locking.unlock(request.group, request.client_id, queues, request.incarnation)
        return pb.UnlockQueuesResponse()

    # ----------------------------------------------------------------------------------- retries and offsets

    async def ConsumerSendBack(self, request: pb.ConsumerSendBackRequest, context: Any) -> pb.ConsumerSendBackResponse:
        sent = await self._broker.send_back.send_back(
            request.group,
            request.log_offset,
            delay_level=request.delay_level,
            max_reconsume_times=request.max_reconsume_times,
            client=context.peer(),
            failure=Failure(request.failure, request.client_id),
            version=request.version if request.HasField("version") else None,
        )
        return pb.ConsumerSendBackResponse(code=sent.code, remark=sent.remark, log_end=sent.log_end)  # type: ignore[arg-type]

    @answering(pb.QueryConsumerOffsetResponse)
    async def QueryConsumerOffset(
        self, request: pb.QueryConsumerOffsetRequest, context: Any
    ) -> pb.QueryConsumerOffsetResponse:
        offsets, queue = self._broker.offsets, (request.group, request.queue.topic, request.queue.queue_id)
        if request.HasField("begin"):
            try:
                where = ConsumeFromWhere(request.begin.where)
            except ValueError:
                await _reject(context, f"{request.begin.where} is no valid consume_from_where; allowed are 0, 1 and 2")
            begin = request.begin
            begun = await offsets.begin(*queue, where, begin.timestamp_ms, whole_topic=begin.whole_topic)
            return consumer_offset(begun, offsets.log_needed)
        progress = await offsets.known(*queue)
        if progress is None:
            remark = f"group {request.group!r} has committed no offset for this queue"
            return pb.QueryConsumerOffsetResponse(code=common_pb2.QUERY_NOT_FOUND, remark=remark)
        return consumer_offset(progress, offsets.log_needed)

    @answering(pb.UpdateConsumerOffsetResponse)
    async def UpdateConsumerOffset(
        self, request: pb.UpdateConsumerOffsetRequest, context: Any
    ) -> pb.UpdateConsumerOffsetResponse:
        offsets, group, remark = self._broker.offsets, request.group, ""
        if request.set:
            await offsets.set(group, [(one.topic, one.queue_id, one.offset) for one in request.queues])
        else:
            remark = offsets.commit(group, queue_reports(group, request.queues, offsets))
        now = [
            queue_progress(one.topic, one.queue_id, progress, offsets.log_needed)
            for one in request.queues
            if (progress := offsets.query(group, one.topic, one.queue_id)) is not None
        ]
        return pb.UpdateConsumerOffsetResponse(remark=remark, queues=now)

    async def GetQueueOffsets(self, request: pb.GetQueueOffsetsRequest, context: Any) -> pb.GetQueueOffsetsResponse:
        topic, queue_id = request.queue.topic, request.queue.queue_id
        if self._broker.topics.get(topic) is None:
            return pb.GetQueueOffsetsResponse(code=common_pb2.TOPIC_NOT_EXIST, remark=f"topic {topic!r} does not exist")
        low, high = self._broker.store.queue_bounds(topic, queue_id)
        return pb.GetQueueOffsetsResponse(min_offset=low, max_offset=high)

    # -------------------------------------------------------------------------------------------- find

    async def SearchOffset(self, request: pb.SearchOffsetRequest, context: Any) -> pb.SearchOffsetResponse:
        topic, queue_id = request.queue.topic, request.queue.queue_id
        config = self._broker.topics.get(topic)
        if config is None:
            return pb.SearchOffsetResponse(code=common_pb2.TOPIC_NOT_EXIST, remark=f"topic {topic!r} does not exist")
        if not 0 <= queue_id < config.queue_count:
            remark = f"topic {topic!r} has no queue {queue_id}; it has 0 to {config.queue_count - 1}"
            return pb.SearchOffsetResponse(code=common_pb2.QUERY_NOT_FOUND, remark=remark)
        try:
            offset = await self._broker.querying.offset_by_time(topic, queue_id, request.timestamp_ms)
        except OSError as error:
            return pb.SearchOffsetResponse(code=common_pb2.SYSTEM_ERROR, remark=str(error))
        return pb.SearchOffsetResponse(offset=offset)

    async def QueryMessage(self, request: pb.QueryMessageRequest, context: Any) -> pb.QueryMessageResponse:
        await room(self._broker.response_memory, context)
        try:
            found = await self._broker.querying.by_key(
                request.topic,
                request.key,
                max_messages=request.max_messages,
                begin_ms=request.begin_timestamp_ms,
                end_ms=request.end_timestamp_ms,
                client=context.peer(),
            )
        except QueryError as error:
            return pb.QueryMessageResponse(code=common_pb2.MESSAGE_ILLEGAL, remark=str(error))
        except OSError as error:
            return pb.QueryMessageResponse(code=common_pb2.SYSTEM_ERROR, remark=str(error))
        return pb.QueryMessageResponse(
            count=len(found.records),
            records=b"".join(found.records),
            truncated=found.truncated,
            indexed_log_offset=self._broker.store.index.indexed_end,
        )

    async def ViewMessage(self, request: pb.ViewMessageRequest, context: Any) -> pb.ViewMessageResponse:
        await room(self._broker.response_memory, context)
        try:
            record = await self._broker.querying.by_log_offset(request.log_offset)
        except ValueError as error:
            return pb.ViewMessageResponse(code=common_pb2.QUERY_NOT_FOUND, remark=str(error))
        except OSError as error:
            return pb.ViewMessageResponse(code=common_pb2.SYSTEM_ERROR, remark=str(error))
        return pb.ViewMessageResponse(record=record)

    # ------------------------------------------------------------------------------------ messages that wait

    @answering(pb.RecallMessageResponse)
    async def RecallMessage(self, request: pb.RecallMessageRequest, context: Any) -> pb.RecallMessageResponse:
        answer = await self._broker.recalling.recall(request.topic, request.key, new_time(request))
        if not answer.messages:
            remark = f"no message of {request.topic!r} with the key {request.key!r} waits here, or has waited"
            return pb.RecallMessageResponse(code=common_pb2.QUERY_NOT_FOUND, remark=remark)
        return pb.RecallMessageResponse(messages=map(recalled_message, answer.messages), truncated=answer.truncated)

    # ---------------------------------------------------------------------------------------- transactions

    async def EndTransaction(self, request: pb.EndTransactionRequest, context: Any) -> pb.EndTransactionResponse:
        try:
            state = TransactionState(request.state)
        except ValueError:
            await _reject(context, f"{request.state} is no transaction state; allowed are 0, 1 and 2")
        ended = await self._broker.transactions.end(
            request.producer_group, request.transaction_id, state, from_check=request.from_check
        )
        return pb.EndTransactionResponse(
            code=ended.code,  # type: ignore[arg-type]
            remark=ended.remark,
            outcome=ended.outcome,  # type: ignore[arg-type]
        )


class _BadRequestError(ValueError):
    """A request on a stream that makes no sense."""


class _Session:
    """The stream of commands to one client."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies

    def check_transaction(self, producer_group: str, transaction_id: str, record: bytes) -> None:
        check = pb.CheckTransaction(producer_group=producer_group, transaction_id=transaction_id, record=record)
        self._replies.put_command(pb.SessionResponse(check_transaction=check))

    def consumer_ids_changed(self, group: str) -> None:
        self._replies.put_command(pb.SessionResponse(consumer_ids_changed=pb.ConsumerIdsChanged(group=group)))

    def topic_route_changed(self, topics: Sequence[str]) -> None:
        self._replies.put(pb.SessionResponse(topic_route_changed=pb.TopicRouteChanged(topics=topics)))

    def reset_consumer_offset(self, group: str, queues: Sequence[QueueReport]) -> None:
        self._replies.put_command(pb.SessionResponse(reset_consumer_offset=reset_command(group, queues)))

    def get_running_info(self, command_id: int, group: str) -> None:
        command = pb.GetRunningInfo(command_id=command_id, group=group)
        self._replies.put_command(pb.SessionResponse(get_running_info=command))

    def consume_directly(self, command_id: int, group: str, record: bytes) -> None:
        command = pb.ConsumeDirectly(command_id=command_id, group=group, record=record)
        self._replies.put_command(pb.SessionResponse(consume_directly=command))


async def _reject(context: Any, sentence: str) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
    raise AssertionError("abort raises")


def incoming_batch(batch: pb.RecordBatch, request: pb.ProduceRequest | pb.SendRequest) -> IncomingBatch:
    """A batch of the request, with its producer."""
    base = batch.base_sequence
    batch_sequence = None
    if base:
        batch_sequence = BatchSequence(
            request.producer_id, request.producer_epoch, base, batch.first_unanswered_sequence
        )
    return IncomingBatch(batch.topic, batch.queue_id, batch.count, batch.records, batch_sequence)


def batch_result(outcome: BatchOutcome) -> pb.BatchResult:
    result = pb.BatchResult(
        code=outcome.code,  # type: ignore[arg-type]  # an IntEnum with the wire's numbers
        remark=outcome.remark,
        base_queue_offset=outcome.base_queue_offset,
        base_log_offset=outcome.base_log_offset,
    )
    for stretch in outcome.stretches:
        result.stretches.add(
            count=stretch.count,
            base_queue_offset=stretch.base_queue_offset,
            base_log_offset=stretch.base_log_offset,
        )
    return result
