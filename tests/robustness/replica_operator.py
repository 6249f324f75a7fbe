"""An operator of the brokers of replica_world.py: changes of masters, in order or by force, and given up half way.

It does what mqadmin switchMaster does, a step at a time; every method is an event, and returns whether there was
something to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replica_faults import ISOLATED_S_MAX, Faults
from replica_model import InvariantError
from replica_node import Node

from mq_broker.core.replica_state import NO_EPOCH, BrokerRole, Epoch

if TYPE_CHECKING:
    from replica_world import ReplicaWorld

GIVEN_UP = 0.06  # of the steps
FOREIGN = "different brokers'"  # what a replica says that shares no record with its master


@dataclass
class Leader:
    """The newest master that there is, or is to be; `is_open` once it has begun.

    `may_lose` is for `ReplicaModel.kept_by`; "" when the one before has handed over. Promises from number `until` on
    were made when it was the master already, by another operator.
    """

    node: Node
    term: int
    is_open: bool = True
    epoch: Epoch = NO_EPOCH
    may_lose: str = ""
    until: int | None = None
    in_sync_then: frozenset[str] | None = None  # its in-sync set when its disk was lost


@dataclass
class Switch:
    """A change of masters by an operator, step by step; it may end after any of them."""

    old: Node
    new: Node
    epoch: Epoch
    log_end: int = -1
    role: BrokerRole = BrokerRole.SLAVE
    stage: int = 0


class Operator:
    """Of one history."""

    def __init__(self, world: ReplicaWorld, faults: Faults) -> None:
        self._world, self._faults = world, faults
        self.switch: Switch | None = None
        self._strangers: set[str] = set()  # replicas that were promoted and had never followed a master

    async def begin_switch(self) -> bool:
        """A change of masters is asked for."""
        return self.switch is None and self._begin_switch()

    async def go_on_switching(self) -> bool:
        """The next step of a change of masters."""
        switch = self.switch
        if switch is None:
            return False
        if self._world.rng.random() < GIVEN_UP:
            self.switch = None
            self._world.counts["switches given up"] += 1
            return True
        steps = (self._step_down, self._wait_for_replica, self._promote, self._demote)
        if not await steps[switch.stage](switch):
            return True
        switch.stage += 1
        if switch.stage == len(steps):
            self.switch = None
            self._world.counts["switches"] += 1
        return True

    def _begin_switch(self) -> bool:
        old = self._world.leader.node
        replicas = [node for node in self._world.nodes if node is not old and node.broker is not None]
        if old.broker is None or not replicas or not self._world.leader.is_open:
            return False
        self.switch = Switch(old, self._world.rng.choice(replicas), old.broker.replication.epoch)
        return True

    async def _step_down(self, switch: Switch) -> bool:
        broker, process = switch.old.broker, switch.old.process
        if broker is None or process is None or self._world.leader.node is not switch.old:
            self.switch = None
            return False
        switch.epoch = broker.replication.epoch
        answer = await self._world.answer(process, broker.replication.step_down(switch.epoch))
        if not isinstance(answer, tuple):
            self._world.counts["step-downs rejected"] += 1
            self.switch = None
            return False
        switch.log_end, switch.role = answer
        self._world.counts["step-downs"] += 1
        return True

    async def _wait_for_replica(self, switch: Switch) -> bool:
        broker = switch.new.broker
        if broker is None:
            return False
        status = broker.replication.status()
        return (status.epoch, status.durable_end) == (switch.epoch, switch.log_end)

    async def _promote(self, switch: Switch) -> bool:
        return await self._promoted(switch.new, switch.role, switch.log_end, may_lose="", old_epoch=switch.epoch)

    async def _demote(self, switch: Switch) -> bool:
        old, new = switch.old, switch.new
        if old.broker is None or old.process is None or self._world.leader.node is not new:
            return False
        epoch = Epoch(self._world.leader.term, 0)
        answer = await self._world.answer(old.process, old.broker.replication.become_replica(2, new.ha_address, epoch))
        return answer is None

    async def _promoted(
        self, node: Node, role: BrokerRole, log_end: int, *, may_lose: str, old_epoch: Epoch = NO_EPOCH
    ) -> bool:
        """Whether the node is the master from now on; the one of `old_epoch` has stepped down."""
        broker, process = node.broker, node.process
        if broker is None or process is None or not broker.store.follows:
            return False
        known = [one.state.epoch.term for one in self._world.nodes if one.state is not None]
        term = 1 + max(*known, *(one.term for one in self._world.coming), 0)  # a term that was tried is not given again
        if node.state is not None and not node.state.first_master_id:
            self._strangers.add(node.state.replica_id)
        coming = Leader(node, term, is_open=False, may_lose=may_lose)
        self._world.coming.append(coming)
        promotion = broker.replication.promote(term, log_end, role, old_epoch, whole=old_epoch != NO_EPOCH)
        answer = await self._world.answer(process, promotion)
        self._world.counts["promotions rejected"] += answer is not None
        return self._world.leader is coming

    async def force(self) -> bool:
        """The master is gone, or cut off, and an operator makes a replica the master all the same."""
        old = self._world.leader.node
        replicas = [node for node in self._world.nodes if node is not old and node.broker is not None]
        if not replicas or not self._world.leader.is_open or old.state is None:
            return False
        new = self._world.rng.choice(replicas)
        in_sync = self._world.leader.in_sync_then
        if in_sync is None:
            in_sync = old.state.in_sync.replicas
        fate = self._world.rng.choice(("cut", "cut", "kill", "power", "disk"))
        if fate == "cut":
            for other in self._world.nodes:
                if other is not old:
                    self._faults.cut(old, other, "both")
            self._world.isolated[old.name] = self._world.clock.monotonic() + self._world.rng.random() * ISOLATED_S_MAX
        elif fate == "kill":
            await old.kill()
        elif fate == "power":
            await old.lose_power()
        else:
            await old.lose_disk()
            self._world.leader.in_sync_then = in_sync
            self._world.model.disk_lost(old.name)
        self.switch = None
        return await self.promote_by_force(new, in_sync, fate)

    async def promote_by_force(self, new: Node, in_sync: frozenset[str], fate: str) -> bool:
        """What is not in its log is lost; when it is in the in-sync set, that is nothing that was confirmed."""
        if new.broker is None or new.state is None:
            return False
        is_safe = new.state.replica_id in in_sync and not new.loses_tail
        may_lose = "unconfirmed" if is_safe else "all"
        done = await self._promoted(new, self._world.settings.master_role, 0, may_lose=may_lose)
        if done:
            self._world.counts[f"forced promotions ({fate})"] += 1
            self._world.counts["forced promotions of a replica in sync"] += is_safe
        return done

    async def take_back(self) -> bool:
        """A change of masters was given up: who has stepped down is made the master again."""
        leader, node = self._world.leader, self._world.leader.node
        broker = node.broker
        if self.switch is not None or broker is None or not broker.store.follows:
            return False
        if leader.in_sync_then is not None:
            return await self._replace_lost(leader.in_sync_then)
        may_lose = "" if leader.is_open else leader.may_lose
        if await self._promoted(node, self._world.settings.master_role, 0, may_lose=may_lose):
            self._world.counts["masters again after a switch was given up"] += 1
        return True

    async def _replace_lost(self, in_sync: frozenset[str]) -> bool:
        """The master's disk is gone, and no replica was promoted yet."""
        others = [node for node in self._world.nodes if node is not self._world.leader.node and node.broker is not None]
        if not others:
            return False
        best = max(others, key=lambda node: node.broker.store.log_end if node.broker is not None else 0)
        broker, process = best.broker, best.process
        if broker is not None and process is not None and not broker.store.follows:  # it never heard of the lost one
            await self._world.answer(process, broker.replication.step_down(broker.replication.epoch))
        return await self.promote_by_force(best, in_sync, "disk")

    async def replace_foreign(self) -> bool:
        """A replica rejects its master as another broker's: its machine is set up anew.

        docs/guides/guarantees.md allows that where one of the two logs was begun by a replica that had never followed
        a master when it was promoted, and the other one was not.
        """
        began = {node.state.first_master_id for node in self._world.nodes if node.state is not None}
        for node in self._world.nodes:
            broker = node.broker
            if broker is None or FOREIGN not in broker.replication.status().reason:
                continue
            if len(began) == 1 or not began & self._strangers:
                raise InvariantError(f"{node.name} will not follow: {broker.replication.status().reason}")
            await node.lose_disk()
            self._world.model.disk_lost(node.name)
            node.start()
            self._world.counts["replicas set up anew"] += 1
            return True
        return False
