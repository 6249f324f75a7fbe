"""Forged frames: impossible claims of a replica, and impossible bytes of a master. They have to be rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replica_model import InvariantError
from replica_network import Link

from mq_broker.core.replica_state import Epoch
from mq_broker.replication.feed import FINAL_FRAME_TIMEOUT_S
from mq_broker.replication.frames import Follow, LogBytes, MasterFrame, ReplicaFrame, Report

if TYPE_CHECKING:
    from replica_world import ReplicaWorld

HEARD_S = 0.3 + 2 * FINAL_FRAME_TIMEOUT_S  # a side may reject only then: the way back may be full, or cut
OVER_LONG_BYTES = 9 * 1024 * 1024


class Forger:
    """An attacker between master and replica."""

    def __init__(self, world: ReplicaWorld) -> None:
        self._world = world

    async def forge(self) -> bool:
        """One frame on one link over which a replica follows; the link has to end by it, and nothing else happens."""
        world = self._world
        links = [link for link in world.network.links if self._is_at_work(link)]
        if not links:
            return False
        link = world.rng.choice(links)
        kind = world.rng.choice(
            (
                "an acknowledgement beyond the log",
                "an acknowledgement of another epoch",
                "an acknowledgement that goes back",
                "a second request to follow",
                "log bytes of a stale epoch",
                "log bytes with a gap",
                "log bytes that are no records",
                "over-long log bytes",
            )
        )
        if "log bytes" in kind:
            injected, victim = link.down.inject(self._master_frame(kind, link)), link.replica
        else:
            injected, victim = link.up.inject(self._replica_frame(kind, link)), link.master
        if not injected:
            return False
        end = world.clock.monotonic() + HEARD_S
        ends = self._log_end(link)
        while victim.node not in link.ended_by and victim.is_alive and world.clock.monotonic() < end:
            await world.advance(0.01)
        if victim.node not in link.ended_by and victim.is_alive:
            raise InvariantError(
                f"{kind} was taken by {victim.node}: the log ended at {ends}, now {self._log_end(link)}"
            )
        world.counts[f"forged: {kind}"] += 1
        return True

    def _is_at_work(self, link: Link) -> bool:
        """Whether the replica follows over it, and both sides can be asked."""
        world = self._world
        replica, master = (self._node(one.node) for one in (link.replica, link.master))
        if link.ended_by or replica.process is not link.replica or master.process is not link.master:
            return False
        if replica.broker is None or master.broker is None or replica.disk_s or master.disk_s:
            return False
        follows = replica.broker.replication.status()
        if not follows.connected or follows.master_ha_address != master.ha_address:
            return False
        return link is [one for one in world.network.links if one.replica is link.replica][-1] and any(
            one.connected and one.replica_id == replica.state.replica_id
            for one in master.broker.replication.status().replicas
            if replica.state is not None
        )

    def _replica_frame(self, kind: str, link: Link) -> ReplicaFrame:
        master = self._node(link.master.node).broker
        assert master is not None
        epoch, end = master.replication.epoch, master.store.log_end
        match kind:
            case "an acknowledgement beyond the log":
                return ReplicaFrame(epoch, Report(end + 1_000, end + 1_000, end + 1_000))
            case "an acknowledgement of another epoch":
                return ReplicaFrame(Epoch(epoch.term, epoch.start - 1), Report(end, end, end))
            case "an acknowledgement that goes back":
                return ReplicaFrame(epoch, Report(end, end, -1))
            case _:
                return ReplicaFrame(epoch, Follow(end))

    def _master_frame(self, kind: str, link: Link) -> MasterFrame:
        replica, master = self._node(link.replica.node).broker, self._node(link.master.node).broker
        assert replica is not None
        assert master is not None
        epoch, end = replica.replication.epoch, replica.store.log_end
        match kind:
            case "log bytes of a stale epoch":
                return MasterFrame(Epoch(epoch.term, epoch.start - 1), LogBytes(end, b"x" * 100, end))
            case "log bytes with a gap":
                return MasterFrame(epoch, LogBytes(end + 100, b"x" * 100, end))
            case "log bytes that are no records":
                return MasterFrame(epoch, LogBytes(end, b"x" * 100, end))
            case _:
                return MasterFrame(epoch, LogBytes(end, bytes(OVER_LONG_BYTES), end))

    def _log_end(self, link: Link) -> list[int]:
        brokers = [self._node(one.node).broker for one in (link.replica, link.master)]
        return [broker.store.log_end for broker in brokers if broker is not None]

    def _node(self, name: str):  # type: ignore[no-untyped-def]
        return next(node for node in self._world.nodes if node.name == name)
