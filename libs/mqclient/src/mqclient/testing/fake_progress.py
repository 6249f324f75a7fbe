"""What a fake broker knows of its consumers: how far they are, and who has locked what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqproto.names import RETRY_PREFIX
from osenv import Clock

Key = tuple[str, str, int]  # group, topic, queue id

LOCK_EXPIRY_S = 60.0


@dataclass
class FakeProgress:
    """By group and queue. The attributes are the test's to read and to set."""

    offsets: dict[Key, int] = field(default_factory=dict)
    finished: defaultdict[Key, set[int]] = field(default_factory=lambda: defaultdict(set))  # beyond the offset
    versions: defaultdict[Key, int] = field(default_factory=lambda: defaultdict(int))
    commits: list[broker_pb.UpdateConsumerOffsetRequest] = field(default_factory=list)
    reports: list[broker_pb.GroupProgress] = field(default_factory=list)

    def set(self, key: Key, offset: int) -> None:
        """As an operator does."""
        self.offsets[key] = offset
        self.finished[key].clear()
        self.versions[key] += 1

    def copy_from(self, other: FakeProgress) -> None:
        """Know what the other one knows, as master and slave tell each other: the higher version, then the larger."""
        for key, offset in other.offsets.items():
            mine, theirs = self.versions[key], other.versions[key]
            if theirs > mine or (theirs == mine and offset > self.offsets.get(key, -1)):
                self.offsets[key], self.versions[key] = offset, theirs
                self.finished[key] = set(other.finished[key])

    def query(
        self, request: broker_pb.QueryConsumerOffsetRequest, limits: tuple[int, int], at_time: Callable[[int], int]
    ) -> broker_pb.QueryConsumerOffsetResponse:
        """`limits` are the queue's first and next offset, `at_time` searches it."""
        key = (request.group, request.queue.topic, request.queue.queue_id)
        if key not in self.offsets:
            if not request.HasField("begin"):
                return broker_pb.QueryConsumerOffsetResponse(code=common_pb.QUERY_NOT_FOUND)
            where = request.begin.where
            if request.queue.topic.startswith(RETRY_PREFIX) or where == broker_pb.CONSUME_FROM_FIRST_OFFSET:
                self.offsets[key] = limits[0]
            elif where == broker_pb.CONSUME_FROM_LAST_OFFSET:
                self.offsets[key] = limits[1]
            else:
                self.offsets[key] = at_time(request.begin.timestamp_ms)
        now = self._now(key)
        return broker_pb.QueryConsumerOffsetResponse(offset=now.offset, finished=now.finished, version=now.version)

    def update(self, request: broker_pb.UpdateConsumerOffsetRequest) -> broker_pb.UpdateConsumerOffsetResponse:
        self.commits.append(request)
        for one in request.queues:
            if request.set:
                self.set((request.group, one.topic, one.queue_id), one.offset)
            else:
                self._join(request.group, one)
        return broker_pb.UpdateConsumerOffsetResponse(
            queues=[self._now((request.group, one.topic, one.queue_id)) for one in request.queues]
        )

    def report(self, progress: broker_pb.GroupProgress) -> None:
        self.reports.append(progress)
        for one in progress.queues:
            self._join(progress.group, one)

    def _join(self, group: str, one: broker_pb.QueueProgress) -> None:
        key = (group, one.topic, one.queue_id)
        if one.version != self.versions[key]:
            return
        finished = self.finished[key]
        for gap in one.finished:
            finished.update(range(gap.begin, gap.end))
        offset = max(one.offset, self.offsets.get(key, 0))
        while offset in finished:
            offset += 1
        self.finished[key] = {beyond for beyond in finished if beyond > offset}
        self.offsets[key] = offset

    def _now(self, key: Key) -> broker_pb.QueueProgress:
        return broker_pb.QueueProgress(
            topic=key[1],
            queue_id=key[2],
            offset=self.offsets.get(key, 0),
            finished=[broker_pb.OffsetRange(begin=one, end=one + 1) for one in sorted(self.finished[key])],
            version=self.versions[key],
        )


class FakeLocks:
    """Who holds which queue; `refused` are not given to anybody."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[Key, tuple[str, float]] = {}
        self.requests: list[broker_pb.LockQueuesRequest] = []
        self.refused: set[Key] = set()

    def holder(self, group: str, topic: str, queue_id: int) -> str | None:
        """The client id, unless its lock has run out."""
        client_id, expires = self._held.get((group, topic, queue_id), ("", 0.0))
        return client_id if expires > self._clock.monotonic() else None

    def lock(self, request: broker_pb.LockQueuesRequest) -> broker_pb.LockQueuesResponse:
        self.requests.append(request)
        answer = broker_pb.LockQueuesResponse()
        for queue in request.queues:
            key = (request.group, queue.topic, queue.queue_id)
            if key not in self.refused and self.holder(*key) in {None, request.client_id}:
                self._held[key] = (request.client_id, self._clock.monotonic() + LOCK_EXPIRY_S)
                answer.locked.append(queue)
        return answer

    def unlock(self, request: broker_pb.UnlockQueuesRequest) -> broker_pb.UnlockQueuesResponse:
        for queue in request.queues:
            key = (request.group, queue.topic, queue.queue_id)
            if self.holder(*key) == request.client_id:
                del self._held[key]
        return broker_pb.UnlockQueuesResponse()
