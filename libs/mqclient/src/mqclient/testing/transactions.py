"""A transaction listener that remembers, and does as it is told."""

from __future__ import annotations

from typing import Any

from mqclient.message import LocalTransactionState, Message, MessageExt


class RecordingTransactionListener:
    """Answers `state` and `check_state`, or raises them when they are exceptions."""

    def __init__(
        self,
        state: Any = LocalTransactionState.COMMIT_MESSAGE,
        check_state: Any = LocalTransactionState.ROLLBACK_MESSAGE,
    ) -> None:
        self.state = state
        self.check_state = check_state
        self.executed: list[tuple[Message, str, Any]] = []
        self.checked: list[MessageExt] = []

    async def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        self.executed.append((message, transaction_id, arg))
        return _answer(self.state)

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.checked.append(message)
        return _answer(self.check_state)


def _answer(state: Any) -> LocalTransactionState:
    if isinstance(state, BaseException):
        raise state
    answer: LocalTransactionState = state
    return answer
