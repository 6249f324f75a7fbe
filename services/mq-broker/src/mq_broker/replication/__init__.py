"""Replication at work: a master that feeds its replicas, a replica that follows its master (mechanisms H1-H5)."""

from __future__ import annotations

from mq_broker.replication.frames import Connect
from mq_broker.replication.master import MasterReplication
from mq_broker.replication.node import Node
from mq_broker.replication.replica import ReplicaReplication

Replication = MasterReplication | ReplicaReplication


def replication_of(node: Node, connect: Connect | None) -> Replication:
    """As config/replica.json says. Raises ValueError for a replica that has no way to connect to a master."""
    if node.file.state.role.is_master:
        return MasterReplication(node)
    if connect is None:
        raise ValueError("a replica needs a way to connect to its master")
    return ReplicaReplication(node, connect)
