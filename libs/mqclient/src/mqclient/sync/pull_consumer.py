"""A pull consumer without `await` (MISSION C5)."""

from __future__ import annotations

from mqclient.consumer.pull_consumer import PullConsumer
from mqclient.sync.faces import Face, at_once, blocking, made_like


class SyncPullConsumer(Face[PullConsumer]):
    """Every call of PullConsumer, for any number of threads."""

    @made_like(PullConsumer)
    def __init__(self, inner: PullConsumer) -> None:
        super().__init__(inner)

    assign = at_once(PullConsumer.assign)
    commit = blocking(PullConsumer.commit)
    commit_all = blocking(PullConsumer.commit_all)
    committed = blocking(PullConsumer.committed)
    fetch_subscribe_message_queues = blocking(PullConsumer.fetch_subscribe_message_queues)
    max_offset = blocking(PullConsumer.max_offset)
    min_offset = blocking(PullConsumer.min_offset)
    pause = at_once(PullConsumer.pause)
    poll = blocking(PullConsumer.poll)
    position = at_once(PullConsumer.position)
    pull = blocking(PullConsumer.pull)
    pull_frame = blocking(PullConsumer.pull_frame)
    reset = blocking(PullConsumer.reset)
    resume = at_once(PullConsumer.resume)
    search_offset = blocking(PullConsumer.search_offset)
    seek = at_once(PullConsumer.seek)
    seek_to_begin = blocking(PullConsumer.seek_to_begin)
    seek_to_end = blocking(PullConsumer.seek_to_end)
    seek_to_time = blocking(PullConsumer.seek_to_time)
