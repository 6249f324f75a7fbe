"""The broker's locks on the queues of an orderly consumer (MISSION O1, O2).

A broker lends a queue to one member of a group for 60 s from its last request. A member asks again every 20 s, and
begins with nothing more than 30 s after it last asked with success: so it has stopped long before anybody else begins,
also when its requests take their time and when it was asleep meanwhile. Only a master lends: while there is none, a
member goes on for the rest of its 30 s and then pauses until there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.pulling import reference
from mqclient.errors import MQClientError, require_success
from mqclient.message import MessageQueue, by_broker
from mqclient.transport.methods import LOCK_QUEUES, UNLOCK_QUEUES

logger = logging.getLogger("mqclient.queue_locks")

LOCK_INTERVAL_S = 20.0  # RocketMQ's rebalanceLockInterval
LOCK_LIVE_S = 30.0  # RocketMQ's rebalanceLockMaxLiveTime


class QueueLocks:
    """Asks for locks, and gives them back; keeps nothing."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """For each queue whether this member has it now, until LOCK_LIVE_S after the call.

        Left out is what no broker has answered for: there it is as it was.
        """
        answers: dict[MessageQueue, bool] = {}
        for broker_name, asked in by_broker(queues):
            request = broker_pb.LockQueuesRequest(
                group=self._group,
                client_id=self._instance.client_id,
                queues=map(reference, asked),
                incarnation=self._instance.incarnation,
            )
            try:
                answer = await self._instance.calls.to_master(broker_name, LOCK_QUEUES, request)
                require_success(answer.code, answer.remark, broker_name)
            except MQClientError as error:
                logger.warning("queues of group %s could not be locked at %s: %s", self._group, broker_name, error)
                continue
            locked = {(one.topic, one.queue_id) for one in answer.locked}
            answers.update((queue, (queue.topic, queue.queue_id) in locked) for queue in asked)
        return answers

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Somebody else may have them at once; what cannot be given back now becomes free by itself."""
        for broker_name, given_back in by_broker(queues):
            request = broker_pb.UnlockQueuesRequest(
                group=self._group,
                client_id=self._instance.client_id,
                queues=map(reference, given_back),
                incarnation=self._instance.incarnation,
            )
            try:
                answer = await self._instance.calls.to_master(broker_name, UNLOCK_QUEUES, request)
                require_success(answer.code, answer.remark, broker_name)
            except MQClientError as error:
                logger.warning("queues of group %s stay locked at %s for a minute: %s", self._group, broker_name, error)
