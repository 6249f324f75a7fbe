"""Tells the brokers what has been finished, a moment after it was (MISSION C21).

A report rides the next poll to the broker that serves the queue, master or slave, or goes alone when none goes. It has
no answer, unless the broker leaves it out because somebody has set the offset. What is lost with a connection comes
with the next report, or with the commit every 5 s (C22).

Invariants: what was finished leaves for its broker at most REPORT_DELAY_S later, as long as there is a connection;
what was pulled before an offset was set is not reported after it, so that a report names each queue once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.connection.broker_connections import BrokerConnection
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.consumer.progress import to_wire
from mqclient.consumer.pull_from_which_node import PullFromWhichNode
from mqclient.errors import BrokerUnreachableError

logger = logging.getLogger("mqclient.progress_reports")

REPORT_DELAY_S = 0.05  # half of the 100 ms within which a broker is to know


class ProgressReports:
    """Of one consumer."""

    def __init__(self, instance: ClientInstance, nodes: PullFromWhichNode, group: str) -> None:
        self._instance = instance
        self._nodes = nodes
        self._group = group
        self._changed: dict[ProcessQueue, None] = {}  # in the order of their first change
        self._due = asyncio.Event()

    def finished_some(self, process_queue: ProcessQueue) -> None:
        """Messages of this queue have been finished."""
        if not self._changed:
            self._due.set()
        self._changed[process_queue] = None

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._due.wait()
            await self._instance.clock.sleep(REPORT_DELAY_S)
            self.report()

    def report(self) -> None:
        """Send off what has changed."""
        self._due.clear()
        changed, self._changed = self._changed, {}
        by_broker: dict[BrokerConnection, list[broker_pb.QueueProgress]] = defaultdict(list)
        for process_queue in changed:
            if process_queue.outdated:
                continue
            queue = process_queue.queue
            try:
                by_broker[self._nodes.reader(queue)[1]].append(to_wire(queue, process_queue.progress))
            except BrokerUnreachableError as error:
                logger.debug("no report of %s: %s", queue, error)
        for connection, queues in by_broker.items():
            report = broker_pb.GroupProgress(group=self._group, client_id=self._instance.client_id, queues=queues)
            connection.poll.report(report)
