"""The replication of a fake broker, as far as an operator sees it, and pairs of such brokers.

    master, slave = make_pair(cluster, "broker-a")
    slave.admin.replica.behind = 100

A slave has what its master has whenever somebody asks it, except for the last `behind` bytes. A role changes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hourglass.mq.v1 import admin_service_pb2 as pb
from hourglass.mq.v1 import common_pb2, replication_service_pb2
from mqclient.admin.replicas import FORMER_MASTER_ID, Epoch
from mqclient.errors import ConnectionLostError
from mqclient.transport import methods

if TYPE_CHECKING:
    from mqclient.testing.fake_broker import FakeBroker
    from mqclient.testing.fake_cluster import FakeCluster

REPLICATION_PORT_DISTANCE = 10_000


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
        self.refusal = "it has stepped down"  # why a master that is not writable refuses
        self.epoch = Epoch(1, 1)
        self.log_end = 0
        self.behind = 0  # bytes that a slave is kept from having
        self.in_sync = True
        self.clock_ahead_ms = 0  # of a slave's wall clock
        self.lost_answers: list[str] = []  # paths of calls that do what they are asked, and answer nothing, once each
        self.requests: list[Any] = []
        self.peers = {self.ha_address: self}  # shared by all brokers of the name
        self.broker = broker
        self.methods: dict[str, Callable[[Any], Any]] = {
            methods.GET_REPLICA_STATUS.path: self._status,
            methods.STEP_DOWN.path: self._with_loss(methods.STEP_DOWN.path, self._step_down),
            methods.PROMOTE.path: self._with_loss(methods.PROMOTE.path, self._promote),
            methods.BECOME_SLAVE.path: self._with_loss(methods.BECOME_SLAVE.path, self._become_slave),
        }

    # ------------------------------------------------------------------------------------------------ for the test

    @property
    def is_master(self) -> bool:
        return self.role != pb.SLAVE

    @property
    def master(self) -> FakeReplica | None:
        """The one that it hears from; None without one, or when that is down or a slave itself."""
        found = self.peers.get(self.master_ha_address)
        alive = found is not None and not found.broker.down and found.is_master and found.epoch >= self.epoch
        return found if alive and not self.is_master and not self.broker.down else None

    def follow(self, master: FakeReplica, broker_id: int) -> None:
        """Be its slave, with this id."""
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
        """A master that has stepped down is nobody's slave then; one that has not begins its next epoch."""
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
        slaves = [peer for peer in self.peers.values() if peer.master_ha_address == self.ha_address]
        master = self.master
        return pb.GetReplicaStatusResponse(
            cluster_name="fake",
            broker_name=self.broker.name,
            broker_id=self.broker_id,
            address=self.broker.address,
            replica_id=self.replica_id,
            role=self.role,
            writable=self.writable,
            reason="" if self.writable else "it is a slave" if not self.is_master else self.refusal,
            epoch=_epoch(self.epoch),
            log_end=self.log_end,
            durable_end=self.log_end,
            confirm_offset=self.log_end,
            min_in_sync_replicas=1,
            in_sync_version=1,
            in_sync_replicas=1 + sum(slave.in_sync for slave in slaves if slave.master) if self.is_master else 0,
            in_sync=master is not None and self.in_sync,
            connected=master is not None,
            lag_bytes=self.behind if master is not None else 0,
            lag_seconds=1.5 if master is not None and self.behind else 0.0,
            ha_address=self.ha_address,
            master_ha_address=self.master_ha_address,
            replicas=[_as_seen(slave) for slave in slaves],
        )

    def _step_down(self, request: pb.StepDownRequest) -> pb.StepDownResponse:
        if not self.is_master:
            return pb.StepDownResponse(code=common_pb2.NOT_LEADER_FOR_QUEUE, remark="it is a slave")
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
                peer.broker.registered = False  # the name servers refuse it from now on
        self._register()
        return pb.PromoteResponse()

    def _become_slave(self, request: pb.BecomeSlaveRequest) -> pb.BecomeSlaveResponse:
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
    """A master and its slave, id 1, with a log of this length."""
    master, slave = cluster.add_broker(name), cluster.add_broker(name)
    master.admin.replica.log_end = log_end
    slave.admin.replica.follow(master.admin.replica, 1)
    return master, slave


def _as_seen(slave: FakeReplica) -> pb.ReplicaStatus:
    slave.catch_up()
    return pb.ReplicaStatus(
        replica_id=slave.replica_id,
        broker_id=slave.broker_id,
        address=slave.broker.address,
        connected=slave.master is not None,
        in_sync=slave.in_sync,
        written_offset=slave.log_end,
        durable_offset=slave.log_end,
        acknowledged_offset=slave.log_end,
        lag_bytes=slave.behind,
        lag_seconds=1.5 if slave.behind else 0.0,
        clock_ahead_ms=slave.clock_ahead_ms,
    )


def _epoch(epoch: Epoch) -> replication_service_pb2.Epoch:
    return epoch.to_wire()
