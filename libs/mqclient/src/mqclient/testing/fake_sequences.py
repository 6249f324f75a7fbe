"""How a fake broker recognises a record that it has stored already, and holds the client to the rules of numbering."""

from __future__ import annotations

from typing import NamedTuple

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqproto.properties import PRODUCER_SEQUENCE, decode_properties
from mqproto.record import decode_record, iter_records


class Place(NamedTuple):
    """Where a record stands."""

    queue_offset: int
    log_offset: int
    size: int


_Queue = tuple[int, str, int]  # producer id, topic, queue id


class FakeSequences:
    """The places of all numbered records, the epoch of each producer, and what it needs no answer for any more."""

    def __init__(self) -> None:
        self._places: dict[_Queue, dict[int, Place]] = {}
        self._epochs: dict[int, int] = {}
        self._first_unanswered: dict[_Queue, int] = {}

    def problem(self, request: broker_pb.ProduceRequest, batch: broker_pb.RecordBatch) -> str:
        """Why the batch is refused; empty when it is not."""
        if not batch.base_sequence:
            return ""
        producer_id, epoch, queue = request.producer_id, request.producer_epoch, _queue(request, batch)
        if epoch < self._epochs.get(producer_id, 0):
            return f"epoch {epoch} comes too late, there is {self._epochs[producer_id]}"
        if batch.base_sequence < self._first_unanswered.get(queue, 0):
            return f"sequence {batch.base_sequence} comes too late: no answer was needed for it any more"
        if not 0 < batch.first_unanswered_sequence <= batch.base_sequence:
            return f"the first unanswered sequence is {batch.first_unanswered_sequence}"
        for sequence, record in enumerate(iter_records(batch.records), batch.base_sequence):
            text = decode_properties(record.properties).get(PRODUCER_SEQUENCE, "")
            id_, _, rest = text.partition(":")
            record_epoch, _, number = rest.partition(":")
            if (id_, number) != (f"{producer_id:016x}", str(sequence)) or not 0 < int(record_epoch) <= epoch:
                return f"record {sequence} of producer {producer_id:016x} and epoch {epoch} says {text!r}"
        self._epochs[producer_id] = epoch
        self._first_unanswered[queue] = max(self._first_unanswered.get(queue, 0), batch.first_unanswered_sequence)
        return ""

    def place(self, request: broker_pb.ProduceRequest, batch: broker_pb.RecordBatch, number: int) -> Place | None:
        """Where the record at `number` in the batch stands already."""
        return self._places.get(_queue(request, batch), {}).get(batch.base_sequence + number)

    def remember(
        self, request: broker_pb.ProduceRequest, batch: broker_pb.RecordBatch, number: int, place: Place
    ) -> None:
        if batch.base_sequence:
            self._places.setdefault(_queue(request, batch), {})[batch.base_sequence + number] = place

    def forget(self, record: bytes) -> None:
        """The record was lost."""
        decoded = decode_record(record)
        for places in self._places.values():
            for sequence in [one for one, place in places.items() if place.log_offset == decoded.log_offset]:
                del places[sequence]


def fill_in(result: broker_pb.BatchResult, places: list[Place]) -> None:
    """Say where the records of a batch stand."""
    stretches: list[broker_pb.StoredStretch] = []
    end = (-1, -1)
    for place in places:
        if end != (place.queue_offset, place.log_offset):
            stretches.append(
                broker_pb.StoredStretch(base_queue_offset=place.queue_offset, base_log_offset=place.log_offset)
            )
        stretches[-1].count += 1
        end = place.queue_offset + 1, place.log_offset + place.size
    result.base_queue_offset, result.base_log_offset = places[0].queue_offset, places[0].log_offset
    if len(stretches) > 1:
        result.stretches.extend(stretches)


def _queue(request: broker_pb.ProduceRequest, batch: broker_pb.RecordBatch) -> _Queue:
    return request.producer_id, batch.topic, batch.queue_id
