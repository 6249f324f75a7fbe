"""Between protobuf messages and the plain values of what an operator asks of transactions."""

from __future__ import annotations

from dataclasses import asdict

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from mq_broker.core.limits import RefusedError
from mq_broker.core.transactions import Phase, TransactionState
from mq_broker.processor.transactions import Transaction
from mqproto.codes import ResponseCode, TransactionPhase

_PHASES = {
    Phase.PREPARED: TransactionPhase.PREPARED,
    Phase.PARKED: TransactionPhase.PARKED,
    Phase.COMMITTED: TransactionPhase.COMMITTED,
    Phase.ROLLED_BACK: TransactionPhase.ROLLED_BACK,
}


def transaction_phase(phase: Phase) -> admin_pb.TransactionPhase.ValueType:
    """The phase by its number on the wire."""
    return admin_pb.TransactionPhase.ValueType(_PHASES[phase])


def phase_or_none(number: int) -> Phase | None:
    """The phase that the number stands for; None for the unspecified one. Raises RefusedError."""
    if number == admin_pb.TRANSACTION_PHASE_UNSPECIFIED:
        return None
    for phase, known in _PHASES.items():
        if known == number:
            return phase
    raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"{number} is no phase of a transaction; 0 to {len(_PHASES)} are")


def transaction_state(number: int) -> TransactionState:
    """The state that the number stands for. Raises RefusedError."""
    try:
        return TransactionState(number)
    except ValueError:
        sentence = f"{number} is no transaction state; allowed are 0, 1 and 2"
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence) from None


def transaction_info(transaction: Transaction) -> admin_pb.TransactionInfo:
    """The transaction; its fields have the wire's names."""
    return admin_pb.TransactionInfo(**{**asdict(transaction), "phase": transaction_phase(transaction.phase)})
