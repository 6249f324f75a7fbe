"""The part of a broker that replication has, by its role."""

from __future__ import annotations

from mq_broker.ha.links import Connect
from mq_broker.ha.master import MasterReplication
from mq_broker.ha.node import Node
from mq_broker.ha.slave import SlaveReplication

Replication = MasterReplication | SlaveReplication


def replication_of(node: Node, connect: Connect | None) -> Replication:
    """As config/replica.json says. Raises ValueError for a slave that has no way to connect to a master."""
    if node.file.state.role.is_master:
        return MasterReplication(node)
    if connect is None:
        raise ValueError("a slave needs a way to connect to its master")
    return SlaveReplication(node, connect)
