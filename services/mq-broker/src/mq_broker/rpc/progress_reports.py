"""What the members of groups report on one Poll stream, beside their polls (MISSION C21).

Invariant: a report has no answer and never ends the stream; what is wrong with it goes to the log, as a warning the
first time.
"""

from __future__ import annotations

import logging

from hourglass.mq.v1 import broker_service_pb2 as pb
from mq_broker.core.refusals import RefusedError
from mq_broker.processor.offsets import Offsets
from mq_broker.rpc.conversions import queue_report
from mq_broker.rpc.request_limits import REQUEST_LIMITS
from mqproto.field_limits import FieldLimitError

log = logging.getLogger(__name__)


class ProgressReports:
    """Of one stream."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._has_warned = False

    def take(self, request: pb.PollRequest) -> None:
        """Add what the request reports."""
        try:
            REQUEST_LIMITS.check(request, ("progress",))
        except FieldLimitError as error:
            self._tell("a client", str(error))
            return
        for report in request.progress:
            who = f"{report.client_id} of group {report.group}"
            try:
                remark = self._offsets.commit(report.group, map(queue_report, report.queues))
            except RefusedError as error:
                self._tell(who, str(error))
            else:
                if remark:
                    log.debug("progress that %s reports: %s", who, remark)

    def _tell(self, who: str, sentence: str) -> None:
        log.log(
            logging.DEBUG if self._has_warned else logging.WARNING,
            "progress that %s reports is refused: %s; of this stream no more warnings",
            who,
            sentence,
        )
        self._has_warned = True
