"""What becomes of a message that was not consumed (MISSION R1, C2)."""

from __future__ import annotations

import logging
from enum import Enum

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.consume_service import BY_RECONSUME_TIMES, TO_DEAD_LETTERS
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.errors import require_success
from mqclient.message import MessageExt
from mqclient.observed.requests import traced_give_back
from mqclient.transport.methods import CONSUMER_SEND_BACK
from telemetry import is_tracing

logger = logging.getLogger("mqclient.give_back")

FAILURE_CHARACTERS_MAX = 512
GROUPS_OWN = 0  # number of tries


class SendBack:
    """Back to the master of its broker, which stores it anew: to be tried again, or with the dead letters."""

    def __init__(self, instance: ClientInstance, group: str, reconsume_times_max: int | None) -> None:
        self._instance = instance
        self._group = group
        self._reconsume_times_max = reconsume_times_max

    async def __call__(
        self,
        process_queue: ProcessQueue,
        message: MessageExt,
        *,
        failure: object,
        delay_level: int = BY_RECONSUME_TIMES,
    ) -> None:
        """Raises MQClientError."""
        if self._reconsume_times_max == 0:
            delay_level = TO_DEAD_LETTERS
        sending, dead = self._send(process_queue, message, delay_level, failure), delay_level < 0
        await (traced_give_back(self._group, message, dead=dead, sending=sending) if is_tracing() else sending)

    async def _send(self, process_queue: ProcessQueue, message: MessageExt, delay_level: int, failure: object) -> None:
        request = broker_pb.ConsumerSendBackRequest(
            group=self._group,
            log_offset=message.log_offset,
            delay_level=delay_level,
            max_reconsume_times=self._reconsume_times_max or GROUPS_OWN,
            failure=failure_text(failure),
            client_id=self._instance.client_id,
            version=process_queue.version,
        )
        response = await self._instance.calls.to_master(message.broker_name, CONSUMER_SEND_BACK, request)
        require_success(response.code, response.remark, message.broker_name)
        process_queue.sent_back(response.log_end)


class Discard:
    """In broadcasting a message that could not be consumed is not tried again (C2)."""

    async def __call__(
        self,
        process_queue: ProcessQueue,
        message: MessageExt,
        *,
        failure: object,
        delay_level: int = BY_RECONSUME_TIMES,
    ) -> None:
        """Raises nothing."""
        del process_queue, failure, delay_level
        logger.warning("%r was not consumed, and in broadcasting it does not come again", message)


def failure_text(failure: object) -> str:
    """What a listener answered or raised, or a sentence about it, as a dead letter keeps it."""
    if isinstance(failure, BaseException):
        kind = type(failure)
        failure = f"{kind.__module__}.{kind.__qualname__}: {failure}".removeprefix("builtins.")
    elif isinstance(failure, Enum):
        failure = f"the listener answered {failure.name}"
    elif not isinstance(failure, str):
        failure = f"the listener answered {type(failure).__name__}, no status"
    text = " ".join(str(failure).encode(errors="replace").decode().split())
    return text if len(text) <= FAILURE_CHARACTERS_MAX else f"{text[: FAILURE_CHARACTERS_MAX - 3]}..."
