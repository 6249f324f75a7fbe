"""What becomes of an unanswered batch when its stream breaks, as a table.

| may the broker have stored it? | it is gone (reopening.py) | it is no master (NOT_LEADER_FOR_QUEUE) | else |
|---|---|---|---|
| no caller waits for it any more | dropped | dropped | dropped |
| a sender of it went elsewhere | fails: unknown outcome | fails: unknown outcome | fails: unknown outcome |
| yes, and it may move | fails: unknown outcome | sent again | sent again |
| yes, and it may not move | sent again | sent again | sent again |
| no, and it may move | fails: not stored | fails: not stored | sent again |
| no, and it may not move | sent again | sent again | sent again |

Sent again means: the same records with the same numbers to the master of the same broker name, before anything new,
until the deadlines of its messages. That master recognises what it has stored, also when it was a slave before, because
the numbers are in the log that it has copied; so only a move to another broker name can store a message twice. A broker
whose name has another master by now, as the route says, counts as "else".
"""

from __future__ import annotations

from mqclient.errors import BrokerRefusedError, BrokerUnreachableError, ConnectionLostError, MQClientError
from mqclient.producer.frames import Batch


def failure_of(batch: Batch, *, left: bool, gone: bool, error: MQClientError) -> MQClientError | None:
    """The error for those who wait for the batch; None when it is sent again.

    `left`: the broker may have stored it. `gone`: it takes nothing, and nobody has taken its place yet.
    """
    if batch.moved:
        return ConnectionLostError(str(error))
    if not gone or not batch.terms.may_move:
        return None
    if isinstance(error, BrokerRefusedError):
        return None if left else error
    return ConnectionLostError(str(error)) if left else BrokerUnreachableError(str(error))
