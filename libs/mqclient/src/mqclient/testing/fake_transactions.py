"""Half messages of a fake broker: kept aside until somebody ends them, asked for when the test says so."""

from __future__ import annotations

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.testing.fake_records import is_timed, rewritten
from mqproto.properties import DELAY, PGROUP, PRODUCER_SEQUENCE, TRAN_MSG, UNIQ_KEY, decode_properties
from mqproto.record import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_PREPARED,
    Record,
    iter_records,
)


class FakeTransactions:
    """By transaction id: the halves that are open, and how the others have ended."""

    def __init__(self) -> None:
        self.open: dict[str, Record] = {}
        self.outcomes: dict[str, int] = {}
        self.requests: list[broker_pb.EndTransactionRequest] = []

    def prepare(self, record: Record) -> None:
        self.open[decode_properties(record.properties)[UNIQ_KEY]] = record

    def end(self, request: broker_pb.EndTransactionRequest) -> tuple[broker_pb.EndTransactionResponse, Record | None]:
        """The answer, and the half if it is committed by this."""
        self.requests.append(request)
        id_, committed = request.transaction_id, None
        if id_ in self.open and request.state != broker_pb.UNKNOW:
            record = self.open.pop(id_)
            self.outcomes[id_] = request.state
            committed = record if request.state == broker_pb.COMMIT_MESSAGE else None
        if id_ not in self.open and id_ not in self.outcomes:
            remark = f"no transaction {id_!r} is known"
            return broker_pb.EndTransactionResponse(code=common_pb.QUERY_NOT_FOUND, remark=remark), None
        outcome = broker_pb.TransactionState.ValueType(self.outcomes.get(id_, broker_pb.UNKNOW))
        return broker_pb.EndTransactionResponse(outcome=outcome), committed

    def check(self, id_: str) -> broker_pb.CheckTransaction:
        """What a member of the half's producer group is asked."""
        record = self.open[id_]
        group = decode_properties(record.properties)[PGROUP]
        return broker_pb.CheckTransaction(producer_group=group, transaction_id=id_, record=committed_record(record))


def committed_record(record: Record) -> bytes:
    """The half message as it is delivered, or waits."""
    flags = record.sys_flag & ~FLAG_TRANSACTION_MASK | FLAG_TRANSACTION_COMMIT
    return rewritten(record, without={TRAN_MSG, PRODUCER_SEQUENCE}, sys_flag=flags)


def is_half(record: Record) -> bool:
    return record.sys_flag & FLAG_TRANSACTION_MASK == FLAG_TRANSACTION_PREPARED


def refusal(batch: broker_pb.RecordBatch) -> str:
    """Why a broker does not take this batch; empty when it does."""
    records = list(iter_records(batch.records))
    properties = [decode_properties(record.properties) for record in records]
    if len(records) != batch.count:
        return f"the batch says {batch.count} records and holds {len(records)}"
    if len({(one.get(DELAY), is_timed(record)) for one, record in zip(properties, records, strict=True)}) > 1:
        return "the batch mixes delays"
    if any(is_half(record) for record in records):
        if len(records) > 1:
            return "a half message travels in a batch of its own"
        if properties[0].get(TRAN_MSG) != "true" or not properties[0].get(UNIQ_KEY) or not properties[0].get(PGROUP):
            return f"a half message has the properties {TRAN_MSG}, {UNIQ_KEY} and {PGROUP}"
    elif any(TRAN_MSG in one for one in properties):
        return f"{TRAN_MSG} without the prepared bit"
    return ""
