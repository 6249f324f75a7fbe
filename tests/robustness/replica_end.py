"""How a history of replica_world.py ends: no more faults, a time of quiet, and all brokers have the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replica_clients import GROUP, QUEUES, TOPIC
from replica_model import InvariantError
from replica_operator import Operator

from mq_broker.core.replica_state import BrokerRole
from mq_broker.processor.broker import Broker
from mq_broker.store.log_scan import Damage, scan_log
from mqproto.record import Record

if TYPE_CHECKING:
    from replica_world import ReplicaWorld

END_S_MAX = 60.0  # by then everything is settled


class Ending:
    """Of one history."""

    def __init__(self, world: ReplicaWorld, operator: Operator) -> None:
        self._world, self._operator = world, operator

    async def finish(self) -> None:
        """All faults are over; in the end all brokers have the same, and it is what was promised."""
        self._world.network.mend()
        self._world.isolated.clear()
        self._operator.switch = None
        for node in self._world.nodes:
            node.disk_s = 0.0
            if node.process is not None:
                node.process.disk_s = 0.0
                node.process.go_on()
            if not node.is_up:
                node.start()
        waited_s = 0.0
        while (missing := self._unsettled()) and waited_s < END_S_MAX:
            await self._world.advance(0.25)
            waited_s += 0.25
            if waited_s % 5.0 == 0.0:
                await self._operator.take_back()
                await self._operator.replace_foreign()
        if missing:
            raise InvariantError(f"not settled after {waited_s:.0f} s: {missing}")
        await self._check_all()

    def _unsettled(self) -> str:
        """What is still to come; "" for nothing."""
        brokers = [node.broker for node in self._world.nodes]
        if None in brokers:
            return "a broker does not run"
        leader = self._world.leader.node.broker
        assert leader is not None
        status = leader.replication.status()
        if not status.writable:
            return f"the master is not writable: {status.reason}"
        if any(
            broker is not leader and broker.replication.role is not BrokerRole.SLAVE for broker in brokers if broker
        ):
            return "a second master"
        if status.in_sync_replicas < len(self._world.nodes) and status.role is BrokerRole.SYNC_MASTER:
            others = [broker.replication.status() for broker in brokers if broker and broker is not leader]
            reasons = [f"{one.role.name}: {one.reason}" for one in others]
            return f"{status.in_sync_replicas} of {len(brokers)} replicas are in sync: {reasons}; {status.replicas}"
        ends = {broker.store.stored_end for broker in brokers if broker} | {leader.store.log_end}
        if len(ends) > 1:
            return f"the logs end at {ends}"
        if any(queue.waiting for queue in leader.delay.queues):
            return "messages wait for their delivery"
        if len({str(self._progress(broker)) for broker in brokers if broker}) > 1:
            return f"progress differs: {[self._progress(broker) for broker in brokers if broker]}"
        return ""

    def _progress(self, broker: Broker) -> list[Any]:
        return [broker.consumer_offsets.progress(GROUP, TOPIC, queue) for queue in range(QUEUES)]

    async def _check_all(self) -> None:
        logs = [self._world.log_of(node) for node in self._world.nodes]
        begin = max(log.begin for log in logs)
        contents = {log.data[begin - log.begin : log.end - log.begin] for log in logs}
        if len(contents) > 1:
            raise InvariantError(f"the logs differ between {begin} and {[log.end for log in logs]}")
        leader = self._world.leader.node.broker
        assert leader is not None
        log = self._world.log_of(self._world.leader.node)
        self._world.model.kept_by(self._world.leader.node.name, log, "the end")
        self._world.model.check_log(self._records(leader), TOPIC, leader.store.log_begin)
        for queue_id in range(QUEUES):
            self._world.model.check_progress(GROUP, queue_id, leader.consumer_offsets.progress(GROUP, TOPIC, queue_id))
        self._world.counts["bytes of logs compared"] += len(contents.pop())

    def _records(self, broker: Broker) -> list[Record]:
        files = broker.store.log.files
        found = list(scan_log(files, broker.store.log_begin, broker.store.log_end))
        for damage in found:
            if isinstance(damage, Damage):
                raise InvariantError(f"the log is damaged: {damage}")
        return [record for record in found if isinstance(record, Record)]
