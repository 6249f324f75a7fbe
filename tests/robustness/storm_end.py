"""How a storm ends: no more faults, a time of quiet; then everything has come, and both logs are the same bytes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from storm_clients import GROUPS, PLAIN
from storm_model import InvariantError

from mq_broker.core.replica_state import BrokerRole
from mq_broker.processor.broker import Broker
from mq_broker.store.log_scan import Damage, scan_log
from mqproto.record import Record

if TYPE_CHECKING:
    from storm_world import StormWorld

QUIET_S_MAX = 400.0  # a lock of a dead member, check-backs, retries, all in a row
LOOK_S = 2.0
ON_ITS_WAY_S = 20.0  # for the retries of a dead letter that a restored backup has brought back


class Ending:
    """Of one history."""

    def __init__(self, world: StormWorld) -> None:
        self._world = world

    async def finish(self) -> None:
        """All faults are over, and all machines up."""
        world = self._world
        world.is_quiet = True
        end = world.now + QUIET_S_MAX
        while missing := self._unsettled():
            if world.now >= end:
                raise InvariantError(f"not settled after {QUIET_S_MAX:.0f} s: {missing}")
            await world.advance(LOOK_S)
        await world.advance(ON_ITS_WAY_S)
        if missing := self._unsettled():
            raise InvariantError(f"not settled any more, after {ON_ITS_WAY_S:.0f} s: {missing}")
        world.model.check_end(self._check_logs())
        self._check_queues()

    def _unsettled(self) -> str:
        """What is still to come; "" for nothing."""
        brokers = [node.broker for node in self._world.nodes]
        if None in brokers:
            return "a broker does not run"
        masters = [broker for broker in brokers if broker is not None and broker.is_master]
        if len(masters) != 1:
            return f"{len(masters)} masters"
        if not all(loop.done() for loop in self._world.sender.loops):
            return "a producer has not come to its end"
        return self._unfinished(masters[0], [broker for broker in brokers if broker is not None])

    def _unfinished(self, master: Broker, brokers: list[Broker]) -> str:
        status = master.replication.status()
        if not status.writable:
            return f"the master is not writable: {status.reason}"
        if status.in_sync_replicas < len(brokers) and status.role is BrokerRole.SYNC_MASTER:
            return f"{status.in_sync_replicas} replicas in sync: {status.replicas}"
        if len(ends := {broker.store.log_end for broker in brokers}) > 1:
            return f"the logs end at {ends}"
        if any(queue.waiting for queue in master.delay.queues):
            return "messages wait for their delivery"
        if open_count := len(master.transaction_table.all_open()):
            return f"{open_count} open transactions"
        if missing := self._world.model.missing():
            return f"{len(missing)} to be consumed: {'; '.join(missing[:5])}"
        return ""

    def _check_queues(self) -> None:
        """What the operator was answered last about the topic's queues is so, or what was asked for since."""
        world = self._world
        master = world.master.broker
        assert master is not None
        allowed = set()
        for count, answer in reversed(world.queues):
            allowed.add(count)
            if answer is not None and not world.model.lost(answer):
                break
        config = master.topics.get(PLAIN)
        if config is None or config.write_queue_count not in allowed:
            raise InvariantError(f"{PLAIN} is {config}; the operator was answered {sorted(allowed)} write queues")

    def _check_logs(self) -> Counter[tuple[str, bytes]]:
        """How often each topic holds each body."""
        logs = []
        for node in self._world.nodes:
            broker = node.broker
            assert broker is not None
            begin, data = node.log()
            logs.append(data[: broker.store.log_end - begin])
        if len(set(logs)) > 1:
            raise InvariantError(f"the logs differ: {[len(log) for log in logs]} bytes")
        self._world.counts["bytes of logs compared"] += len(logs[0])
        master = self._world.nodes[0].broker
        assert master is not None
        stored: Counter[tuple[str, bytes]] = Counter()
        for found in scan_log(master.store.log.files, master.store.log_begin, master.store.log_end):
            if isinstance(found, Damage):
                raise InvariantError(f"the log is damaged: {found}")
            if isinstance(found, Record):
                stored[found.topic, found.body] += 1
        for group in GROUPS:
            self._world.counts[f"dead letters of {group.name}"] += sum(
                count for (topic, _), count in stored.items() if topic == f"%DLQ%{group.name}"
            )
        return stored
