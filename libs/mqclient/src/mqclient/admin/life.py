"""The whole life of a message, as far as the brokers know it."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from mqclient.admin.asking import AdminCalls, answer_of, on_each
from mqclient.transport.methods import EXPLAIN_MESSAGE
from mqproto.codes import LifeEventKind


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """One thing that happened to one message on one broker, or is the case with it now.

    `timestamp_ms` is when the record that tells it was stored; 0 for what is the case now. `group` is the consumer
    group of RETRIED, DEAD, CONSUMED, UNCONSUMED, and of DELIVERED to a retry topic, and the producer group of HALF,
    COMMITTED, ROLLED_BACK and PARKED. `due_timestamp_ms` is set for WAITING and RETRIED, and for DELIVERED while the
    record that waited is in the log. `reconsume_times` are the tries before the record of the event was written.
    """

    timestamp_ms: int
    kind: LifeEventKind
    message_id: str
    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    group: str = ""
    due_timestamp_ms: int = 0
    reconsume_times: int = 0


class LifeAdmin(AdminCalls):
    """The call that explains."""

    async def explain(self, key: str, *, topic: str | None = None, max_messages: int = 32) -> list[LifeEvent]:
        """Everything that the masters know of the messages with this key or unique id, in `topic` or in every topic.

        By time; what is the case now comes last. Each broker looks at up to `max_messages` messages, at most 2,000.
        Raises NoRouteError when there is no broker, and the first refusal of a broker.
        """
        request = admin_pb.ExplainMessageRequest(topic=topic or "", key=key, max_messages=max_messages)
        answers = await on_each(await self._targets(), lambda target: answer_of(target, EXPLAIN_MESSAGE, request))
        events = [_event(one, target.name) for target, answer in answers for one in answer.events]
        return sorted(events, key=lambda event: (event.timestamp_ms == 0, event.timestamp_ms))


def _event(event: admin_pb.LifeEvent, broker_name: str) -> LifeEvent:
    return LifeEvent(
        timestamp_ms=event.timestamp_ms,
        kind=LifeEventKind(event.kind),
        message_id=event.message_id,
        broker_name=broker_name,
        topic=event.topic,
        queue_id=event.queue_id,
        queue_offset=event.queue_offset,
        log_offset=event.log_offset,
        group=event.group,
        due_timestamp_ms=event.due_timestamp_ms,
        reconsume_times=event.reconsume_times,
    )
