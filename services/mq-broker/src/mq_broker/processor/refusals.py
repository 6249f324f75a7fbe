"""What a slave refuses, and with which code what the store refuses is answered."""

from __future__ import annotations

from mq_broker.core.limits import RefusedError
from mq_broker.store.errors import NotMasterError, NotReplicatedError, StoreError, StoreFencedError
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode

NOT_MASTER = "this broker follows a master, and takes nothing itself: ask the one of its name with brokerId 0"


def code_of(error: StoreError) -> ResponseCode:
    """The code for what the store refuses."""
    if isinstance(error, NotMasterError):
        return ResponseCode.NOT_LEADER_FOR_QUEUE
    if isinstance(error, StoreFencedError):
        return ResponseCode.SERVICE_NOT_AVAILABLE
    if isinstance(error, NotReplicatedError):
        return ResponseCode.FLUSH_SLAVE_TIMEOUT
    return ResponseCode.SYSTEM_ERROR


def require_master(store: MessageStore) -> None:
    """Raise RefusedError on a slave, and on a master that has stepped down: what is asked for is the master's alone."""
    if store.follows:
        raise RefusedError(ResponseCode.NOT_LEADER_FOR_QUEUE, NOT_MASTER)
