"""A change of the role, written down; the broker takes it up when it is opened anew."""

from __future__ import annotations

from dataclasses import replace

from mq_broker.core.refusals import RefusedError
from mq_broker.core.replication.epochs import NO_EPOCH, Epoch
from mq_broker.core.replication.replica_state import ReplicaState
from mq_broker.core.replication.roles import BrokerRole
from mq_broker.core.state_names import QUEUE_LOCKS
from mq_broker.ha.node import Node
from mq_broker.store.state_files import decode_document
from mqproto.codes import ResponseCode


async def promote(
    node: Node, term: int, log_end: int, role: BrokerRole, epoch: Epoch, *, whole: bool, queue_locks: bytes
) -> None:
    """Write down that this broker is the master. Raises RefusedError, StoreFencedError, OSError.

    `whole`: the master of `epoch` has stepped down, and its log ends at `log_end`. `queue_locks`: what it has answered.
    """
    seen = node.file.state.epoch
    if not role.is_master:
        raise RefusedError(ResponseCode.SYSTEM_ERROR, f"{role.name} is no role of a master")
    if term <= seen.term:
        sentence = f"term {term}; this broker has seen epoch {seen}, so it has to be a greater one"
        raise RefusedError(ResponseCode.SYSTEM_ERROR, sentence)
    if epoch not in (NO_EPOCH, seen):
        sentence = f"this broker has followed the master of epoch {seen}, and not that of epoch {epoch}"
        raise RefusedError(ResponseCode.SYSTEM_ERROR, sentence)
    await node.store.sync()
    if node.store.log_end < log_end:
        sentence = f"the log of this broker ends at {node.store.log_end}, and has to reach {log_end}"
        raise RefusedError(ResponseCode.SYSTEM_ERROR, sentence)
    has_all = whole and epoch == seen and node.store.log_end == log_end
    _take_over_locks(node, term, queue_locks if epoch == seen else b"")
    await node.store.persist(QUEUE_LOCKS)
    try:
        master_time = node.master_time(exact=True)
        await node.remember(lambda state: replace(state.promoted(term, role, has_all=has_all), master_time=master_time))
    except OSError:
        node.locks.succeed(None, seen.term, seen.term)  # another one may be promoted, and lend queues
        raise


def _take_over_locks(node: Node, term: int, document: bytes) -> None:
    try:
        node.locks.succeed(decode_document(document) if document else None, node.file.state.epoch.term, term)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        sentence = f"queue_locks is not what a master that steps down answers: {error!r}"
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence) from error


async def become_slave(node: Node, broker_id: int, master_ha_address: str) -> None:
    """Write down that this broker is a slave. Raises OSError."""

    def changed(state: ReplicaState) -> ReplicaState:
        return replace(
            state,
            role=BrokerRole.SLAVE,
            broker_id=broker_id,
            master_ha_address=master_ha_address or state.master_ha_address,
        )

    await node.remember(changed)
