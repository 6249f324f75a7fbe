"""What becomes of an unanswered batch when its stream breaks, as a table.

| may the broker have stored it? | the broker is gone (reopening.py) | else |
|---|---|---|
| no caller waits for it any more | dropped | dropped |
| a sender of it went elsewhere | fails: unknown outcome | fails: unknown outcome |
| yes, and it may move | fails: unknown outcome | sent again |
| yes, and it may not move | sent again | sent again |
| no, and it may move | fails: not stored | sent again |
| no, and it may not move | sent again | sent again |

Sent again means: the same records with the same numbers to the same broker, before anything new, until the deadlines of
its messages. The broker recognises what it had stored; so only a move to another broker can store a message twice.
"""

from __future__ import annotations

from mqclient.errors import BrokerUnreachableError, ConnectionLostError, MQClientError
from mqclient.producer.frames import Batch


def failure_of(batch: Batch, *, left: bool, gone: bool, error: MQClientError) -> MQClientError | None:
    """The error for those who wait for the batch; None when it is sent again. `left`: the broker may have stored it."""
    if batch.moved or (left and gone and batch.terms.may_move):
        return ConnectionLostError(str(error))
    if not left and gone and batch.terms.may_move:
        return BrokerUnreachableError(str(error))
    return None
