"""What an operator asks of a fake broker. It keeps what it is told and answers by it; nothing else follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hourglass.mq.v1 import admin_service_pb2 as pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2
from mqclient.testing.fake_replica import FakeReplica
from mqclient.transport import methods
from mqproto.record import decode_record

if TYPE_CHECKING:
    from mqclient.testing.fake_broker import FakeBroker

QUEUE_END, NO_OFFSET = -1, -1
_UNDECIDED = (pb.TP_PREPARED, pb.TP_PARKED)


class FakeAdmin:
    """The operator's half of `broker`. The attributes without underscore are the test's to read and to set."""

    def __init__(self, broker: FakeBroker) -> None:
        self.groups: dict[str, pb.SubscriptionGroupConfig] = {}
        self.config = {"brokerName": broker.name}
        self.life: list[pb.LifeEvent] = []
        self.transactions: dict[str, pb.TransactionInfo] = {}  # by id
        self.requests: list[Any] = []
        self.running_info: dict[str, broker_pb.ConsumerRunningInfo] = {}  # by client id
        self.consumed = broker_pb.ConsumeDirectlyResult(result=broker_pb.CR_SUCCESS)
        self.last_heartbeat_timestamp_ms = 1
        self.replica = FakeReplica(broker)
        self._broker = broker
        self.methods: dict[str, Callable[[Any], Any]] = {
            methods.UPDATE_TOPIC.path: self._update_topic,
            methods.DELETE_TOPIC.path: self._delete_topic,
            methods.LIST_TOPIC_CONFIGS.path: self._list_topic_configs,
            methods.GET_TOPIC_STATS.path: self._get_topic_stats,
            methods.UPDATE_SUBSCRIPTION_GROUP.path: self._update_group,
            methods.DELETE_SUBSCRIPTION_GROUP.path: self._delete_group,
            methods.LIST_SUBSCRIPTION_GROUPS.path: self._list_groups,
            methods.GET_CONSUME_STATS.path: self._get_consume_stats,
            methods.RESET_CONSUMER_OFFSET.path: self._reset_offset,
            methods.GET_CONSUMER_CONNECTIONS.path: self._get_connections,
            methods.GET_CONSUMER_RUNNING_INFO.path: self._get_running_info,
            methods.CONSUME_MESSAGE_DIRECTLY.path: self._consume_directly,
            methods.GET_BROKER_STATUS.path: self._get_broker_status,
            methods.GET_BROKER_CONFIG.path: self._get_broker_config,
            methods.EXPLAIN_MESSAGE.path: self._explain,
            methods.LIST_TRANSACTIONS.path: self._list_transactions,
            methods.GET_TRANSACTION.path: self._get_transaction,
            methods.DECIDE_TRANSACTION.path: self._decide_transaction,
            **self.replica.methods,
        }

    # ------------------------------------------------------------------------------------------------------- topics

    def _update_topic(self, request: pb.UpdateTopicRequest) -> pb.UpdateTopicResponse:
        self._broker.topics[request.config.topic] = request.config
        return pb.UpdateTopicResponse()

    def _delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        broker = self._broker
        if broker.topics.pop(request.topic, None) is None:
            return pb.DeleteTopicResponse(code=common_pb2.TOPIC_NOT_EXIST, remark="no such topic")
        broker.queues.update({key: [] for key in broker.queues if key[0] == request.topic})
        for key in [key for key in broker.offsets if key[1] == request.topic]:
            del broker.offsets[key]
        return pb.DeleteTopicResponse()

    def _list_topic_configs(self, _: pb.ListTopicConfigsRequest) -> pb.ListTopicConfigsResponse:
        return pb.ListTopicConfigsResponse(topics=[self._broker.topics[topic] for topic in sorted(self._broker.topics)])

    def _get_topic_stats(self, request: pb.GetTopicStatsRequest) -> pb.GetTopicStatsResponse:
        config = self._broker.topics.get(request.topic)
        if config is None:
            return pb.GetTopicStatsResponse(code=common_pb2.TOPIC_NOT_EXIST, remark="no such topic")
        response = pb.GetTopicStatsResponse()
        for queue_id in range(config.read_queue_count):
            records = self._broker.queues[request.topic, queue_id]
            response.queues.add(
                queue_id=queue_id,
                min_offset=self._broker.min_offsets[request.topic, queue_id],
                max_offset=len(records),
                last_update_timestamp_ms=decode_record(records[-1]).store_timestamp_ms if records else 0,
                about_bytes=sum(map(len, records)),
            )
        return response

    # ------------------------------------------------------------------------------------------------------- groups

    def _update_group(self, request: pb.UpdateSubscriptionGroupRequest) -> pb.UpdateSubscriptionGroupResponse:
        self.groups[request.config.group] = request.config
        return pb.UpdateSubscriptionGroupResponse()

    def _delete_group(self, request: pb.DeleteSubscriptionGroupRequest) -> pb.DeleteSubscriptionGroupResponse:
        self.requests.append(request)
        if self._broker.members(request.group):
            return pb.DeleteSubscriptionGroupResponse(code=common_pb2.NO_PERMISSION, remark="it has living members")
        if self.groups.pop(request.group, None) is None:
            code = common_pb2.SUBSCRIPTION_GROUP_NOT_EXIST
            return pb.DeleteSubscriptionGroupResponse(code=code, remark="no such group")
        return pb.DeleteSubscriptionGroupResponse()

    def _list_groups(self, _: pb.ListSubscriptionGroupsRequest) -> pb.ListSubscriptionGroupsResponse:
        return pb.ListSubscriptionGroupsResponse(groups=[self.groups[group] for group in sorted(self.groups)])

    def _get_consume_stats(self, request: pb.GetConsumeStatsRequest) -> pb.GetConsumeStatsResponse:
        if not self._knows(request.group):
            code = common_pb2.SUBSCRIPTION_GROUP_NOT_EXIST
            return pb.GetConsumeStatsResponse(code=code, remark="no such group")
        consumed = sorted({topic for group, topic, _ in self._broker.offsets if group == request.group})
        response = pb.GetConsumeStatsResponse(client_ids=self._broker.members(request.group))
        for topic in [request.topic] if request.topic else consumed:
            config = self._broker.topics.get(topic)
            for queue_id in range(config.read_queue_count if config else 0):
                response.queues.add(
                    topic=topic,
                    queue_id=queue_id,
                    broker_offset=len(self._broker.queues[topic, queue_id]),
                    consumer_offset=self._broker.offsets.get((request.group, topic, queue_id), NO_OFFSET),
                )
        return response

    def _reset_offset(self, request: pb.ResetConsumerOffsetRequest) -> pb.ResetConsumerOffsetResponse:
        self.requests.append(request)
        config = self._broker.topics.get(request.topic)
        if config is None:
            return pb.ResetConsumerOffsetResponse(code=common_pb2.TOPIC_NOT_EXIST, remark="no such topic")
        if not self._knows(request.group):
            code = common_pb2.SUBSCRIPTION_GROUP_NOT_EXIST
            return pb.ResetConsumerOffsetResponse(code=code, remark="no such group")
        response = pb.ResetConsumerOffsetResponse(client_ids=self._broker.members(request.group))
        by_hand = {one.queue_id: one.offset for one in request.offsets}
        for queue_id in sorted(by_hand) or range(config.read_queue_count):
            key = (request.group, request.topic, queue_id)
            before = self._broker.offsets.get(key, NO_OFFSET)
            offset = by_hand[queue_id] if by_hand else self._offset_at(request, queue_id)
            if before != NO_OFFSET and not request.force and not by_hand:
                offset = min(offset, before)
            self._broker.progress.set(key, offset)
            response.queues.add(queue_id=queue_id, offset_before=before, offset=offset)
        return response

    def _offset_at(self, request: pb.ResetConsumerOffsetRequest, queue_id: int) -> int:
        stored = [decode_record(data).store_timestamp_ms for data in self._broker.queues[request.topic, queue_id]]
        if request.timestamp_ms == QUEUE_END:
            return len(stored)
        return next((at for at, ms in enumerate(stored) if ms >= request.timestamp_ms), len(stored))

    def _knows(self, group: str) -> bool:
        return group in self.groups or any(one == group for one, _, _ in self._broker.offsets)

    # ------------------------------------------------------------------------------------------------------ members

    def _get_connections(self, request: pb.GetConsumerConnectionsRequest) -> pb.GetConsumerConnectionsResponse:
        response = pb.GetConsumerConnectionsResponse()
        members = self._broker.sessions.connections(request.group)
        if not members and not self._knows(request.group):
            response.code, response.remark = common_pb2.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group"
        for client_id, data in members:
            response.connections.add(
                client_id=client_id, data=data, last_heartbeat_timestamp_ms=self.last_heartbeat_timestamp_ms
            )
        return response

    def _get_running_info(self, request: pb.GetConsumerRunningInfoRequest) -> pb.GetConsumerRunningInfoResponse:
        info = self.running_info.get(request.client_id)
        if info is None:
            code = common_pb2.CONSUMER_NOT_ONLINE
            return pb.GetConsumerRunningInfoResponse(code=code, remark=f"{request.client_id} is not here")
        return pb.GetConsumerRunningInfoResponse(info=info)

    def _consume_directly(self, request: pb.ConsumeMessageDirectlyRequest) -> pb.ConsumeMessageDirectlyResponse:
        self.requests.append(request)
        return pb.ConsumeMessageDirectlyResponse(result=self.consumed)

    # ------------------------------------------------------------------------------------------- the broker itself

    def _get_broker_status(self, _: pb.GetBrokerStatusRequest) -> pb.GetBrokerStatusResponse:
        stored = sum(map(len, self._broker.queues.values()))
        status = pb.GetBrokerStatusResponse(broker_name=self._broker.name, messages_stored=stored)
        status.store.write_refusal = self._broker.write_refusal
        status.delay_levels.add(
            level=16,
            delay_ms=1_800_000,
            waiting=2,
            next_due_timestamp_ms=1_700_000_000_007,
            delivered=9,
            lateness_p50_ms=1,
            lateness_p99_ms=3,
            lateness_max_ms=4,
        )
        return status

    def _get_broker_config(self, _: pb.GetBrokerConfigRequest) -> pb.GetBrokerConfigResponse:
        return pb.GetBrokerConfigResponse(config=self.config)

    # ------------------------------------------------------------------------------------------------- transactions

    def _list_transactions(self, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        found = [
            one
            for one in self.transactions.values()
            if one.phase in _UNDECIDED
            and request.phase in (pb.TRANSACTION_PHASE_UNSPECIFIED, one.phase)
            and request.producer_group in ("", one.producer_group)
        ]
        found.sort(key=lambda one: one.store_timestamp_ms)
        wanted = request.max_transactions
        return pb.ListTransactionsResponse(transactions=found[:wanted], truncated=len(found) > wanted)

    def _get_transaction(self, request: pb.GetTransactionRequest) -> pb.GetTransactionResponse:
        if (info := self.transactions.get(request.transaction_id)) is None:
            return pb.GetTransactionResponse(code=common_pb2.QUERY_NOT_FOUND, remark="no such transaction")
        return pb.GetTransactionResponse(transaction=info)

    def _decide_transaction(self, request: pb.DecideTransactionRequest) -> pb.DecideTransactionResponse:
        self.requests.append(request)
        if (info := self.transactions.get(request.transaction_id)) is None:
            return pb.DecideTransactionResponse(code=common_pb2.QUERY_NOT_FOUND, remark="no such transaction")
        if info.phase in _UNDECIDED:
            info.phase = pb.TP_COMMITTED if request.state == broker_pb.COMMIT_MESSAGE else pb.TP_ROLLED_BACK
        return pb.DecideTransactionResponse(phase=info.phase)

    def _explain(self, request: pb.ExplainMessageRequest) -> pb.ExplainMessageResponse:
        self.requests.append(request)
        return pb.ExplainMessageResponse(events=self.life)
