"""What the members of groups report on one Poll stream, beside their polls (MISSION C21).

Invariant: a report has no answer unless it is left out because somebody has set the offset anew: then the member hears
at once what the broker has. No report ends the stream; what is wrong with one goes to the log, as a warning the first
time.
"""

from __future__ import annotations

import logging

from hourglass.mq.v1 import broker_service_pb2 as pb
from mq_broker.core.limits import LEFT_OUT_TOLD_BYTES_MAX
from mq_broker.core.refusals import RefusedError
from mq_broker.processor.offsets import Offsets
from mq_broker.rpc.conversions import queue_progress, queue_reports
from mq_broker.rpc.request_limits import REQUEST_LIMITS
from mqproto.grpc_options import FieldLimitError

log = logging.getLogger(__name__)


class ProgressReports:
    """Of one stream."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._has_warned = False

    def take(self, request: pb.PollRequest) -> pb.PollResponse | None:
        """Add what the request reports. Returns what the member has to hear."""
        try:
            REQUEST_LIMITS.check(request, ("progress",))
        except FieldLimitError as error:
            self._tell("a client", str(error))
            return None
        told = pb.PollResponse()
        for report in request.progress:
            who = f"{report.client_id} of group {report.group}"
            try:
                reports = queue_reports(report.group, report.queues, self._offsets)
                remark = self._offsets.commit(report.group, reports)
            except RefusedError as error:
                self._tell(who, str(error))
            else:
                if remark:
                    log.debug("progress that %s reports: %s", who, remark)
                    self._add_left_out(report, told)
        return told if told.left_out else None

    def _add_left_out(self, report: pb.GroupProgress, told: pb.PollResponse) -> None:
        """What the broker has of those queues whose version is another one."""
        size, queues = 0, list[pb.QueueProgress]()
        for one in report.queues:
            known = self._offsets.query(report.group, one.topic, one.queue_id)
            if known is not None and known.version != one.version:
                queues.append(queue_progress(one.topic, one.queue_id, known, self._offsets.log_needed))
                size += queues[-1].ByteSize()
                if size > LEFT_OUT_TOLD_BYTES_MAX:
                    break
        told.left_out.append(pb.GroupProgress(group=report.group, client_id=report.client_id, queues=queues))

    def _tell(self, who: str, sentence: str) -> None:
        log.log(
            logging.DEBUG if self._has_warned else logging.WARNING,
            "progress that %s reports is refused: %s; of this stream no more warnings",
            who,
            sentence,
        )
        self._has_warned = True
