"""The application's half of a transaction (MISSION T1, T5, T14)."""

from __future__ import annotations

from typing import Any, Protocol

from mqclient.message import LocalTransactionState, Message, MessageExt


class TransactionListener(Protocol):
    """Runs the local transaction, and answers for it later, in any process of the producer group."""

    async def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        """Do the local work; the half message is stored. `arg` is what the sender gave.

        An exception goes to the sender, and leaves the state open for a check; where it is certain that nothing was
        committed, raise LocalTransactionRolledBackError instead.
        """

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """What has become of `message.transaction_id`? It may never have begun, or still be at work.

        Before ROLLBACK_MESSAGE make sure that it cannot commit any more. Raise CheckUnansweredError while what has to
        be asked cannot be reached. Any other exception counts as UNKNOW, of which a broker takes 15
        (transactionCheckMax).
        """


class CheckUnansweredError(Exception):
    """Raised by a listener that cannot find out now, as while its database is away: the broker gets no answer.

    It asks again, every minute, for as long as it takes. UNKNOW would count, and the fifteenth one parks the message.
    """


class LocalTransactionRolledBackError(Exception):
    """Raised by a listener whose local transaction has failed and left nothing behind; the sender gets `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"the local transaction was rolled back: {cause!r}")
        self.cause = cause
