"""AdminService: an operator's requests to this broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from hourglass.mq.v1 import admin_service_pb2 as pb
from hourglass.mq.v1 import admin_service_pb2_grpc, broker_service_pb2, common_pb2
from mq_broker.core.limits import TOPICS_PER_PAGE_MAX, RejectedError
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.broker import Broker
from mq_broker.processor.querying import QueryError
from mq_broker.rpc.calls import answering, limited, within_memory
from mq_broker.rpc.conversions import (
    backup_response,
    connection,
    delay_status,
    offset_change,
    phase_or_none,
    queue_consume_stats,
    reset_offsets,
    subscription_group,
    transaction_info,
    transaction_phase,
    transaction_state,
)
from mq_broker.rpc.registration import Registration
from mq_broker.rpc.replication import ReplicationAdministration
from mq_broker.store.errors import StoreError
from mqproto.codes import ResponseCode
from mqproto.values import MessageT, to_message, to_value

ResultT = TypeVar("ResultT")


@limited(pb.DESCRIPTOR.services_by_name["AdminService"])
class AdminService(ReplicationAdministration, admin_service_pb2_grpc.AdminServiceServicer):
    """The RPCs of `hourglass.mq.v1.AdminService`. `config` gives the configuration in force, by its keys."""

    def __init__(self, broker: Broker, registration: Registration, config: Callable[[], Mapping[str, str]]) -> None:
        self._broker = broker
        self._registration = registration
        self._config = config
        self.response_memory = broker.response_memory

    # ------------------------------------------------------------------------------------------------ topics

    @answering(pb.UpdateTopicResponse)
    async def UpdateTopic(self, request: pb.UpdateTopicRequest, context: Any) -> pb.UpdateTopicResponse:
        await self._broker.topic_administration.update(to_value(TopicConfig, request.config))
        await self._registration.announce()
        return pb.UpdateTopicResponse()

    @answering(pb.DeleteTopicResponse)
    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Any) -> pb.DeleteTopicResponse:
        await self._broker.topic_administration.delete(request.topic)
        await self._registration.announce()
        return pb.DeleteTopicResponse()

    @within_memory
    async def ListTopicConfigs(self, request: pb.ListTopicConfigsRequest, context: Any) -> pb.ListTopicConfigsResponse:
        behind = self._broker.topics.all(after=request.after)
        page = behind[: min(request.topics_max, TOPICS_PER_PAGE_MAX)] if request.topics_max > 0 else behind
        return pb.ListTopicConfigsResponse(
            topics=_messages(common_pb2.TopicConfig, page), more_follow=len(page) < len(behind)
        )

    @answering(pb.GetTopicStatsResponse)
    async def GetTopicStats(self, request: pb.GetTopicStatsRequest, context: Any) -> pb.GetTopicStatsResponse:
        stats = await self._broker.topic_administration.stats(request.topic)
        return pb.GetTopicStatsResponse(queues=_messages(pb.QueueStats, stats))

    # ------------------------------------------------------------------------------------------------ groups

    @answering(pb.UpdateSubscriptionGroupResponse)
    async def UpdateSubscriptionGroup(
        self, request: pb.UpdateSubscriptionGroupRequest, context: Any
    ) -> pb.UpdateSubscriptionGroupResponse:
        known = self._broker.groups.get(request.config.group)
        await self._broker.group_administration.update(subscription_group(request.config, known))
        await self._registration.announce()
        return pb.UpdateSubscriptionGroupResponse()

    @answering(pb.DeleteSubscriptionGroupResponse)
    async def DeleteSubscriptionGroup(
        self, request: pb.DeleteSubscriptionGroupRequest, context: Any
    ) -> pb.DeleteSubscriptionGroupResponse:
        await self._broker.group_administration.delete(request.group, clean_offsets=request.clean_offsets)
        await self._registration.announce()
        return pb.DeleteSubscriptionGroupResponse()

    @within_memory
    async def ListSubscriptionGroups(
        self, request: pb.ListSubscriptionGroupsRequest, context: Any
    ) -> pb.ListSubscriptionGroupsResponse:
        return pb.ListSubscriptionGroupsResponse(
            groups=_messages(pb.SubscriptionGroupConfig, self._broker.groups.all())
        )

    @within_memory
    @answering(pb.GetConsumeStatsResponse)
    async def GetConsumeStats(self, request: pb.GetConsumeStatsRequest, context: Any) -> pb.GetConsumeStatsResponse:
        progress = await self._broker.consume_progress.stats(request.group, request.topic)
        members = self._broker.sessions.members.consumer_ids(request.group)
        return pb.GetConsumeStatsResponse(queues=map(queue_consume_stats, progress), client_ids=members)

    @answering(pb.ResetConsumerOffsetResponse)
    async def ResetConsumerOffset(
        self, request: pb.ResetConsumerOffsetRequest, context: Any
    ) -> pb.ResetConsumerOffsetResponse:
        progress = self._broker.consume_progress
        if request.offsets:
            changes, told = await progress.reset_to(
                request.group, request.topic, reset_offsets(request.topic, request.offsets)
            )
        else:
            changes, told = await progress.reset(
                request.group, request.topic, request.timestamp_ms, force=request.force
            )
        return pb.ResetConsumerOffsetResponse(queues=map(offset_change, changes), client_ids=told)

    # ------------------------------------------------------------------------------------------------ members

    @within_memory
    @answering(pb.GetConsumerConnectionsResponse)
    async def GetConsumerConnections(
        self, request: pb.GetConsumerConnectionsRequest, context: Any
    ) -> pb.GetConsumerConnectionsResponse:
        connections = self._broker.client_commands.connections(request.group)
        return pb.GetConsumerConnectionsResponse(connections=map(connection, connections))

    @answering(pb.GetConsumerRunningInfoResponse)
    async def GetConsumerRunningInfo(
        self, request: pb.GetConsumerRunningInfoRequest, context: Any
    ) -> pb.GetConsumerRunningInfoResponse:
        result = await self._broker.client_commands.running_info(request.group, request.client_id)
        return pb.GetConsumerRunningInfoResponse(info=_require(result, broker_service_pb2.ConsumerRunningInfo))

    @answering(pb.ConsumeMessageDirectlyResponse)
    async def ConsumeMessageDirectly(
        self, request: pb.ConsumeMessageDirectlyRequest, context: Any
    ) -> pb.ConsumeMessageDirectlyResponse:
        commands = self._broker.client_commands
        result = await commands.consume_directly(request.group, request.client_id, request.log_offset)
        return pb.ConsumeMessageDirectlyResponse(result=_require(result, broker_service_pb2.ConsumeDirectlyResult))

    # ------------------------------------------------------------------------------------- the broker itself

    async def GetBrokerConfig(self, request: pb.GetBrokerConfigRequest, context: Any) -> pb.GetBrokerConfigResponse:
        return pb.GetBrokerConfigResponse(config=self._config())

    async def GetBrokerStatus(self, request: pb.GetBrokerStatusRequest, context: Any) -> pb.GetBrokerStatusResponse:
        broker = self._broker
        return pb.GetBrokerStatusResponse(
            broker_name=broker.identity.broker_name,
            broker_id=broker.identity.broker_id,
            boot_timestamp_ms=broker.boot_timestamp_ms,
            log_min_offset=broker.store.log_begin,
            log_max_offset=broker.store.log_end,
            messages_put=broker.store.messages_put,
            messages_got=broker.pulling.messages_got,
            messages_stored=broker.store.messages_stored,
            polls_held=broker.long_polling.held,
            delay_levels=[
                delay_status(queue, broker.options.delay_levels, broker.delay.delivery.lateness(queue.level))
                for queue in broker.delay.queues
            ],
            store=self._store_status(),
        )

    async def BackupStore(  # type: ignore[override]  # it writes its answers itself
        self, request: pb.BackupStoreRequest, context: Any
    ) -> None:
        try:
            async with aclosing(self._broker.backup.parts()) as parts:
                async for part in parts:
                    await context.write(backup_response(part))
        except (RejectedError, StoreError) as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except OSError as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"the broker's disk has rejected: {error}")

    @within_memory
    @answering(pb.ExplainMessageResponse)
    async def ExplainMessage(self, request: pb.ExplainMessageRequest, context: Any) -> pb.ExplainMessageResponse:
        explaining = self._broker.explaining
        try:
            events = await explaining.explain(request.topic, request.key, max_messages=request.max_messages)
        except QueryError as error:
            return pb.ExplainMessageResponse(code=common_pb2.MESSAGE_ILLEGAL, remark=str(error))
        return pb.ExplainMessageResponse(events=_messages(pb.LifeEvent, events))

    # -------------------------------------------------------------------------------------------- transactions

    @within_memory
    @answering(pb.ListTransactionsResponse)
    async def ListTransactions(self, request: pb.ListTransactionsRequest, context: Any) -> pb.ListTransactionsResponse:
        found, truncated = await self._broker.transaction_administration.undecided(
            phase_or_none(request.phase), request.producer_group, request.max_transactions
        )
        return pb.ListTransactionsResponse(transactions=map(transaction_info, found), truncated=truncated)

    @within_memory
    @answering(pb.GetTransactionResponse)
    async def GetTransaction(self, request: pb.GetTransactionRequest, context: Any) -> pb.GetTransactionResponse:
        found, record, remark = await self._broker.transaction_administration.get(request.transaction_id)
        return pb.GetTransactionResponse(transaction=transaction_info(found), record=record, remark=remark)

    @answering(pb.DecideTransactionResponse)
    async def DecideTransaction(
        self, request: pb.DecideTransactionRequest, context: Any
    ) -> pb.DecideTransactionResponse:
        state = transaction_state(request.state)
        phase = await self._broker.transaction_administration.decide(request.transaction_id, state)
        return pb.DecideTransactionResponse(phase=transaction_phase(phase))

    def _store_status(self) -> pb.StoreStatus:
        store, retention = self._broker.store, self._broker.retention
        return pb.StoreStatus(
            confirm_offset=store.readable_end,
            durable_offset=store.flusher.durable_end,
            indexed_offset=store.index.indexed_end,
            disk_used_share=store.gate.used_share,
            write_rejection=f"the disk has failed: {store.failure}" if store.failure else store.gate.rejection or "",
            damaged=[pb.DamagedStretch(log_offset=at, size=size) for at, size in store.quarantine],
            files_deleted=retention.files_deleted,
            messages_carried=retention.carried,
        )


def _messages(message_type: type[MessageT], values: Iterable[object]) -> Iterator[MessageT]:
    return (to_message(message_type, value) for value in values)


def _require(result: object, kind: type[ResultT]) -> ResultT:
    """What the client answered. Raises RejectedError when that is something else than it was asked for."""
    if isinstance(result, kind):
        return result
    raise RejectedError(ResponseCode.SYSTEM_ERROR, f"the client answered {type(result).__name__}, not {kind.__name__}")
