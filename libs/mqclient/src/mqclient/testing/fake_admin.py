"""What an operator asks of a fake broker, and its replication, as far as an operator sees it.

    master, replica = make_pair(cluster, "broker-a")
    replica.admin.replica.behind = 100

A fake broker keeps what it is told and answers by it; nothing else follows from it. A replica has what its master has
whenever it is asked, except for the last `behind` bytes. A role changes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hourglass.mq.v1 import admin_service_pb2 as pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2, replication_service_pb2
from mqclient.admin.replicas import FORMER_MASTER_ID, Epoch
from mqclient.errors import ConnectionLostError
from mqclient.transport import methods
from mqproto.record import decode_record

if TYPE_CHECKING:
    from mqclient.testing.fake_broker import FakeBroker
    from mqclient.testing.fake_cluster import FakeCluster

QUEUE_END, NO_OFFSET = -1, -1
_UNDECIDED = (pb.TP_PREPARED, pb.TP_PARKED)

REPLICATION_PORT_DISTANCE = 10_000


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
            return pb.DeleteSubscriptionGroupResponse(code=common_pb2.NO_PERMISSION, remark="it has active members")
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
        status.store.write_rejection = self._broker.write_rejection
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


class FakeReplica:
    """The attributes without underscore are the test's to read and to set."""

    def __init__(self, broker: FakeBroker) -> None:
        host, _, port = broker.address.partition(":")
        self.ha_address = f"{host}:{int(port) + REPLICATION_PORT_DISTANCE}"
        self.master_ha_address = ""
        self.replica_id = f"{int(port):032x}"
        self.broker_id = 0
        self.role: pb.BrokerRole.ValueType = pb.ASYNC_MASTER
        self.writable = True
        self.rejection = "it has stepped down"  # why a master that is not writable rejects
        self.epoch = Epoch(1, 1)
        self.log_end = 0
        self.behind = 0  # bytes that a replica is kept from having
        self.in_sync = True
        self.clock_ahead_ms = 0  # of a replica's wall clock
        self.lost_answers: list[str] = []  # paths of calls that do what they are asked, and answer nothing, once each
        self.requests: list[Any] = []
        self.peers = {self.ha_address: self}  # shared by all brokers of the name
        self.broker = broker
        self.methods: dict[str, Callable[[Any], Any]] = {
            methods.GET_REPLICA_STATUS.path: self._status,
            methods.STEP_DOWN.path: self._with_loss(methods.STEP_DOWN.path, self._step_down),
            methods.PROMOTE.path: self._with_loss(methods.PROMOTE.path, self._promote),
            methods.BECOME_SLAVE.path: self._with_loss(methods.BECOME_SLAVE.path, self._become_replica),
        }

    # ------------------------------------------------------------------------------------------------ for the test

    @property
    def is_master(self) -> bool:
        return self.role != pb.SLAVE

    @property
    def master(self) -> FakeReplica | None:
        """The one that it hears from; None without one, or when that is down or a replica itself."""
        found = self.peers.get(self.master_ha_address)
        alive = found is not None and not found.broker.down and found.is_master and found.epoch >= self.epoch
        return found if alive and not self.is_master and not self.broker.down else None

    def follow(self, master: FakeReplica, broker_id: int) -> None:
        """Be its replica, with this id."""
        self.role, self.writable, self.broker_id = pb.SLAVE, False, broker_id
        self.master_ha_address, self.peers = master.ha_address, master.peers
        self.peers[self.ha_address] = self
        self._register()
        self.catch_up()

    def catch_up(self) -> None:
        """Have what the master has, but for what it is kept from."""
        if (master := self.master) is not None:
            self.epoch = master.epoch
            self.log_end = max(0, master.log_end - self.behind)

    def restart(self) -> None:
        """A master that has stepped down has no master then; one that has not begins its next epoch."""
        if self.writable:
            self.epoch = Epoch(self.epoch.term, self.epoch.start + 1)
        elif self.is_master:
            self.role, self.broker_id = pb.SLAVE, FORMER_MASTER_ID
        self._register()

    def hear_of(self, master: FakeReplica) -> None:
        """The name servers have told a master that there is another one."""
        self.writable = False
        self.follow(master, FORMER_MASTER_ID)

    # ------------------------------------------------------------------------------------------------------- calls

    def _status(self, _: pb.GetReplicaStatusRequest) -> pb.GetReplicaStatusResponse:
        self.catch_up()
        replicas = [peer for peer in self.peers.values() if peer.master_ha_address == self.ha_address]
        master = self.master
        return pb.GetReplicaStatusResponse(
            cluster_name="fake",
            broker_name=self.broker.name,
            broker_id=self.broker_id,
            address=self.broker.address,
            replica_id=self.replica_id,
            role=self.role,
            writable=self.writable,
            reason="" if self.writable else "it is a replica" if not self.is_master else self.rejection,
            epoch=_epoch(self.epoch),
            log_end=self.log_end,
            durable_end=self.log_end,
            confirm_offset=self.log_end,
            min_in_sync_replicas=1,
            in_sync_version=1,
            in_sync_replicas=1 + sum(replica.in_sync for replica in replicas if replica.master)
            if self.is_master
            else 0,
            in_sync=master is not None and self.in_sync,
            connected=master is not None,
            lag_bytes=self.behind if master is not None else 0,
            lag_seconds=1.5 if master is not None and self.behind else 0.0,
            ha_address=self.ha_address,
            master_ha_address=self.master_ha_address,
            replicas=[_as_seen(replica) for replica in replicas],
        )

    def _step_down(self, request: pb.StepDownRequest) -> pb.StepDownResponse:
        if not self.is_master:
            return pb.StepDownResponse(code=common_pb2.NOT_LEADER_FOR_QUEUE, remark="it is a replica")
        if request.epoch != _epoch(self.epoch):
            return pb.StepDownResponse(code=common_pb2.SYSTEM_ERROR, remark=f"its epoch is {self.epoch}")
        self.writable = False
        return pb.StepDownResponse(log_end=self.log_end, role=self.role, queue_locks=b"of %d" % self.epoch.term)

    def _promote(self, request: pb.PromoteRequest) -> pb.PromoteResponse:
        is_another_log = request.HasField("epoch") and request.epoch != _epoch(self.epoch)
        if request.term <= self.epoch.term or self.log_end < request.log_end or is_another_log:
            remark = f"its epoch is {self.epoch} and its log ends at {self.log_end}"
            return pb.PromoteResponse(code=common_pb2.SYSTEM_ERROR, remark=remark)
        self.role, self.writable, self.broker_id = request.role, True, 0
        self.epoch, self.master_ha_address = Epoch(request.term, 0), ""
        for peer in self.peers.values():
            if peer is not self and peer.is_master:
                peer.broker.registered = False  # the name servers reject it from now on
        self._register()
        return pb.PromoteResponse()

    def _become_replica(self, request: pb.BecomeSlaveRequest) -> pb.BecomeSlaveResponse:
        if self.writable:
            return pb.BecomeSlaveResponse(code=common_pb2.SYSTEM_ERROR, remark="it is a writable master")
        self.follow(self.peers[request.master_ha_address], request.broker_id)
        return pb.BecomeSlaveResponse()

    def _with_loss(self, path: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def answer(request: Any) -> Any:
            self.requests.append(request)
            response = call(request)
            if path in self.lost_answers:
                self.lost_answers.remove(path)
                raise ConnectionLostError(f"{self.broker.address}: the connection broke")
            return response

        return answer

    def _register(self) -> None:
        self.broker.registered = True
        self.broker.addresses = {self.broker_id: self.broker.address}


def make_pair(cluster: FakeCluster, name: str, *, log_end: int = 1_000) -> tuple[FakeBroker, FakeBroker]:
    """A master and its replica, id 1, with a log of this length."""
    master, replica = cluster.add_broker(name), cluster.add_broker(name)
    master.admin.replica.log_end = log_end
    replica.admin.replica.follow(master.admin.replica, 1)
    return master, replica


def _as_seen(replica: FakeReplica) -> pb.ReplicaStatus:
    replica.catch_up()
    return pb.ReplicaStatus(
        replica_id=replica.replica_id,
        broker_id=replica.broker_id,
        address=replica.broker.address,
        connected=replica.master is not None,
        in_sync=replica.in_sync,
        written_offset=replica.log_end,
        durable_offset=replica.log_end,
        acknowledged_offset=replica.log_end,
        lag_bytes=replica.behind,
        lag_seconds=1.5 if replica.behind else 0.0,
        clock_ahead_ms=replica.clock_ahead_ms,
    )


def _epoch(epoch: Epoch) -> replication_service_pb2.Epoch:
    return epoch.to_wire()
