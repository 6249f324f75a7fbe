"""Messages of a fake broker that wait for a time of their own, until the test lets them go or they are recalled."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.testing.fake_records import keys_of, rewritten
from mqproto.properties import PRODUCER_SEQUENCE, TIMER_DELAY_MS, TIMER_DELIVER_MS, UNIQ_KEY, decode_properties
from mqproto.record import Record
from osenv import Clock

MESSAGES_MAX = 2_000


@dataclass
class WaitingMessage:
    """One message; `outcome` is how its wait has ended, unspecified while it lasts."""

    record: Record
    due_timestamp_ms: int
    outcome: broker_pb.RecallOutcome.ValueType = broker_pb.RECALL_OUTCOME_UNSPECIFIED

    @property
    def waits(self) -> bool:
        return self.outcome == broker_pb.RECALL_OUTCOME_UNSPECIFIED


class FakeWaiting:
    """What waits and has waited, in the order of its coming. The attributes without underscore are the test's."""

    def __init__(self, clock: Clock) -> None:
        self.messages: list[WaitingMessage] = []
        self.requests: list[broker_pb.RecallMessageRequest] = []
        self.messages_max = MESSAGES_MAX  # of one request
        self._clock = clock

    def add(self, record: Record) -> None:
        properties = decode_properties(record.properties)
        if TIMER_DELAY_MS in properties:
            due_ms = self._clock.wall_ms() + int(properties[TIMER_DELAY_MS])
        else:
            due_ms = int(properties[TIMER_DELIVER_MS])
        self.messages.append(WaitingMessage(record, due_ms))

    def take_due(self) -> list[Record]:
        """What is due now, in the order of the due times; from now on it has been delivered."""
        due = [one for one in self.messages if one.waits and one.due_timestamp_ms <= self._clock.wall_ms()]
        for message in due:
            message.outcome = broker_pb.ALREADY_DELIVERED
        return [message.record for message in sorted(due, key=lambda one: one.due_timestamp_ms)]

    def recall(self, request: broker_pb.RecallMessageRequest) -> broker_pb.RecallMessageResponse:
        """Answer for all messages with the key; change `messages_max` of those that wait, the newest first."""
        self.requests.append(request)
        response, changed = broker_pb.RecallMessageResponse(), 0
        for message in reversed(self.messages):
            if message.record.topic != request.topic or request.key not in keys_of(message.record):
                continue
            if message.waits:
                changed += 1
                if changed > self.messages_max:
                    response.truncated = True
                    break
                self._change(message, request)
            response.messages.add(
                message_id=decode_properties(message.record.properties)[UNIQ_KEY],
                outcome=message.outcome or broker_pb.RESCHEDULED,
                due_timestamp_ms=message.due_timestamp_ms if message.waits else 0,
            )
        if not response.messages:
            response.code, response.remark = common_pb.QUERY_NOT_FOUND, f"nothing with the key {request.key!r} waits"
        return response

    def _change(self, message: WaitingMessage, request: broker_pb.RecallMessageRequest) -> None:
        match request.WhichOneof("reschedule"):
            case "deliver_timestamp_ms":
                message.due_timestamp_ms = request.deliver_timestamp_ms
            case "delay_ms":
                message.due_timestamp_ms = self._clock.wall_ms() + request.delay_ms
            case _:
                message.outcome = broker_pb.REMOVED


def delivered_record(record: Record) -> bytes:
    """What has waited, as it is delivered."""
    return rewritten(record, without={TIMER_DELAY_MS, TIMER_DELIVER_MS, PRODUCER_SEQUENCE})
