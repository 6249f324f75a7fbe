"""All of an operator's calls under one name."""

from __future__ import annotations

from mqclient.admin.backups import BackupAdmin
from mqclient.admin.consumers import ConsumerAdmin
from mqclient.admin.dead_letters import DeadLetterAdmin
from mqclient.admin.life import LifeAdmin
from mqclient.admin.replication import ReplicationAdmin
from mqclient.admin.transactions import TransactionAdmin
from mqclient.admin.waiting_messages import WaitingMessageAdmin


class Admin(
    DeadLetterAdmin, ConsumerAdmin, ReplicationAdmin, LifeAdmin, WaitingMessageAdmin, TransactionAdmin, BackupAdmin
):
    """What an operator asks of the cluster.

    A change goes to every master that a name server knows, or to those of `cluster_name`, or to the broker at
    `broker_address` alone. The brokers are asked one after the other, in the order of their names. The first error ends
    the call; it is the error of the broker that made it, and names those that had done what was asked before. Nothing
    is taken back there: every change can be asked for again.

        async with Admin("mq://127.0.0.1:9876") as admin:
            await admin.update_topic("orders", read_queue_count=8, write_queue_count=8)
    """
