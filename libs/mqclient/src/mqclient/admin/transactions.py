"""Transactions looked at and decided: the open ones, and those that nobody could answer for (MISSION T10)."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.admin.asking import AdminCalls, Target, answer_of, on_each
from mqclient.errors import BrokerRejectedError, ConnectionLostError, IllegalArgumentError, MQClientError
from mqclient.message import MessageExt
from mqclient.transport import Method, RequestT, ResponseT
from mqclient.transport.methods import DECIDE_TRANSACTION, GET_TRANSACTION, LIST_TRANSACTIONS
from mqproto.codes import ResponseCode, TransactionPhase
from mqproto.record import RecordError, decode_record

LISTED_MAX = 2_000  # by one broker, as messages of a query (MISSION Q1)


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """One transaction on one broker; of one that has ended only the first three fields are known.

    `store_timestamp_ms` is when its half message was stored first, `check_times` how many checks were answered with
    UNKNOW, `log_offset` where the newest copy stands. `topic`, where the message is going, and `keys` are empty for a
    message that cannot be read.
    """

    transaction_id: str
    broker_name: str
    phase: TransactionPhase
    producer_group: str = ""
    topic: str = ""
    store_timestamp_ms: int = 0
    check_times: int = 0
    log_offset: int = 0
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionList:
    """Undecided transactions, the oldest first, and whether there are more than were asked for."""

    transactions: tuple[TransactionInfo, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class TransactionDetails:
    """One transaction, and its message as it would be delivered, while it is undecided.

    Without a message `remark` says why there is none, if it should be there.
    """

    info: TransactionInfo
    message: MessageExt | None
    remark: str = ""


class TransactionAdmin(AdminCalls):
    """Calls about transactions. An id names no broker: all masters are asked until one knows it."""

    async def list_transactions(
        self, *, phase: TransactionPhase | None = None, producer_group: str = "", max_transactions: int = 32
    ) -> TransactionList:
        """The oldest transactions that are PREPARED or PARKED (`phase`: one of the two), of one group or of all.

        Of all masters together at most `max_transactions`, up to 2,000. Raises IllegalArgumentError, NoRouteError when
        there is no broker, and the first refusal of a broker.
        """
        if phase not in (None, TransactionPhase.PREPARED, TransactionPhase.PARKED):
            raise IllegalArgumentError(f"transactions are listed that are PREPARED or PARKED, not {phase!r}")
        if not 1 <= max_transactions <= LISTED_MAX:
            raise IllegalArgumentError(f"{max_transactions} transactions; allowed are 1 to {LISTED_MAX}")
        request = admin_pb.ListTransactionsRequest(
            phase=admin_pb.TransactionPhase.ValueType(phase or 0),
            producer_group=producer_group,
            max_transactions=max_transactions,
        )
        answers = await on_each(await self._targets(), lambda target: answer_of(target, LIST_TRANSACTIONS, request))
        found = [_info(one, target) for target, answer in answers for one in answer.transactions]
        found.sort(key=lambda one: one.store_timestamp_ms)
        truncated = len(found) > max_transactions or any(answer.truncated for _, answer in answers)
        return TransactionList(tuple(found[:max_transactions]), truncated)

    async def transaction(self, transaction_id: str) -> TransactionDetails:
        """Everything about one transaction.

        Raises BrokerRejectedError with QUERY_NOT_FOUND when no broker knows it (any more), NoRouteError when there is
        no broker, and when none knows it, the first error of one that could not be asked.
        """
        request = admin_pb.GetTransactionRequest(transaction_id=_checked(transaction_id))
        target, answer = await self._ask_who_knows(GET_TRANSACTION, request)
        return TransactionDetails(
            _info(answer.transaction, target), _message(answer.record, target.name), answer.remark
        )

    async def decide_transaction(self, transaction_id: str, *, commit: bool) -> TransactionPhase:
        """Commit a transaction that is open or parked, or roll it back; durable on return.

        Returns how it has ended: COMMITTED or ROLLED_BACK, by this call or by an earlier word, which then stands.
        Raises as `transaction`, and the refusal of the broker that has it.
        """
        state = broker_pb.COMMIT_MESSAGE if commit else broker_pb.ROLLBACK_MESSAGE
        request = admin_pb.DecideTransactionRequest(transaction_id=_checked(transaction_id), state=state)
        _, answer = await self._ask_who_knows(DECIDE_TRANSACTION, request)
        return TransactionPhase(answer.phase)

    async def _ask_who_knows(self, method: Method[RequestT, ResponseT], request: RequestT) -> tuple[Target, ResponseT]:
        """The broker that knows the transaction, and its answer; one that cannot be asked keeps no other from it."""
        unknown: MQClientError | None = None
        failure: MQClientError | None = None
        for target in await self._targets():
            try:
                return target, await answer_of(target, method, request)
            except MQClientError as error:
                if isinstance(error, BrokerRejectedError) and error.code == ResponseCode.QUERY_NOT_FOUND:
                    unknown = unknown or error
                else:
                    failure = failure or error
        raise failure or unknown or AssertionError("there is always a target")


def _checked(transaction_id: str) -> str:
    if not transaction_id:
        raise IllegalArgumentError("the id of the transaction is empty")
    return transaction_id


def _info(info: admin_pb.TransactionInfo, target: Target) -> TransactionInfo:
    return TransactionInfo(
        transaction_id=info.transaction_id,
        broker_name=target.name,
        phase=TransactionPhase(info.phase),
        producer_group=info.producer_group,
        topic=info.topic,
        store_timestamp_ms=info.store_timestamp_ms,
        check_times=info.check_times,
        log_offset=info.log_offset,
        keys=tuple(info.keys),
    )


def _message(record: bytes, broker_name: str) -> MessageExt | None:
    """The message that has no place of its own yet. Raises ConnectionLostError when the bytes are damaged."""
    try:
        return MessageExt(decode_record(record), broker_name) if record else None
    except RecordError as error:
        raise ConnectionLostError(f"the answer of {broker_name} was damaged on its way: {error}") from error
