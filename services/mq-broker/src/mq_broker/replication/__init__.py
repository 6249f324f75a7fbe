"""Replication at work: a master that feeds its slaves, a slave that follows its master (mechanisms H1-H5)."""

from __future__ import annotations

from mq_broker.replication.frames import Connect
from mq_broker.replication.master import MasterReplication
from mq_broker.replication.node import Node
from mq_broker.replication.slave import SlaveReplication

Replication = MasterReplication | SlaveReplication


def replication_of(node: Node, connect: Connect | None) -> Replication:
    """As config/replica.json says. Raises ValueError for a slave that has no way to connect to a master."""
    if node.file.state.role.is_master:
        return MasterReplication(node)
    if connect is None:
        raise ValueError("a slave needs a way to connect to its master")
    return SlaveReplication(node, connect)
