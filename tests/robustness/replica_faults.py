"""Everything that may happen to the brokers of replica_world.py and to the network between them.

Every method is an event, and returns whether there was something to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replica_node import LAYOUT, Node

if TYPE_CHECKING:
    from replica_world import ReplicaWorld

ISOLATED_S_MAX = 3.0  # so long the name servers may not hear a node that is cut off
FORCED_SHARE = 0.86  # of the disk: the oldest file goes
LOG_FILES_MIN = 4  # fewer stay


class Faults:
    """Of one history."""

    def __init__(self, world: ReplicaWorld) -> None:
        self._world = world

    def _two(self) -> tuple[Node, Node]:
        first = self._world.rng.choice(self._world.nodes)
        return first, self._world.rng.choice([node for node in self._world.nodes if node is not first])

    async def cut_off(self) -> bool:
        """One node is cut off, in both directions or in one; the name servers may hear it still."""
        node, _ = self._two()
        kind = self._world.rng.choice(("both", "out", "in"))
        for other in self._world.nodes:
            if other is not node:
                self.cut(node, other, kind)
        if kind == "both" and self._world.rng.random() < 0.5:
            self._world.isolated[node.name] = self._world.clock.monotonic() + self._world.rng.random() * ISOLATED_S_MAX
        self._world.counts["partitions" if kind == "both" else "one-way partitions"] += 1
        return True

    def cut(self, node: Node, other: Node, kind: str) -> None:
        if kind in {"both", "out"}:
            self._world.network.cut((node.name, other.name))
        if kind in {"both", "in"}:
            self._world.network.cut((other.name, node.name))

    async def mend(self) -> bool:
        if self._world.network.is_whole:
            return False
        self._world.network.mend()
        self._world.counts["mends"] += 1
        return True

    async def break_links(self) -> bool:
        broken = self._world.network.break_links()
        self._world.counts["links broken"] += broken
        return broken > 0

    async def slow(self) -> bool:
        first, second = self._two()
        self._world.network.slow((first.name, second.name))
        self._world.counts["slow ways"] += 1
        return True

    async def slow_disk(self) -> bool:
        node, _ = self._two()
        if node.process is None:
            return False
        node.process.disk_s = node.disk_s = self._world.rng.choice((0.0, 0.0, 0.002, 0.03))
        self._world.counts["disks that change their speed"] += 1
        return True

    async def stop(self) -> bool:
        node, _ = self._two()
        if node.process is None or node.process.is_stopped:
            return False
        node.process.stop()
        self._world.counts["processes stopped"] += 1
        return True

    async def go_on(self) -> bool:
        stopped = [node.process for node in self._world.nodes if node.process is not None and node.process.is_stopped]
        if not stopped:
            return False
        self._world.rng.choice(stopped).go_on()
        return True

    async def kill(self) -> bool:
        node, _ = self._two()
        if not node.is_up:
            return False
        self._world.measure(node)
        await node.kill()
        self._world.counts["kills"] += 1
        return True

    async def lose_power(self) -> bool:
        """Of one machine, or of all of them at once."""
        node, _ = self._two()
        if not node.is_up:
            return False
        nodes = self._world.nodes if self._world.rng.random() < 0.2 else [node]
        for one in nodes:
            self._world.measure(one)
            await one.lose_power()
        self._world.counts["power cuts" if len(nodes) == 1 else "power cuts of all"] += 1
        return True

    async def start(self) -> bool:
        dead = [node for node in self._world.nodes if not node.is_up]
        if not dead:
            return False
        self._world.rng.choice(dead).start()
        self._world.counts["starts"] += 1
        return True

    async def retain(self) -> bool:
        """The disk of the master is too full, until the oldest file of its log has gone."""
        disk = self._world.leader.node.disk
        if disk.used_share or len(disk.list_dir(LAYOUT.commit_log)) < LOG_FILES_MIN:
            return False
        disk.used_share = FORCED_SHARE
        self._world.counts["disks too full"] += 1
        return True
