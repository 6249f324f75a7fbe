"""The small states of one link: documents down, what groups have finished both ways.

Invariant: what groups have finished is never told ahead of a document that was changed before it.
"""

from __future__ import annotations

from collections.abc import Callable

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.replication.frames import ProgressEntries, StateDocument
from mq_broker.core.topics import TopicTable
from mq_broker.ha.progress import ProgressIn, ProgressOut
from mq_broker.ha.states import StatesOut
from mq_broker.store.message_store import MessageStore


class Exchange:
    """One end of a link; a slave has no documents to send."""

    def __init__(
        self, store: MessageStore, topics: TopicTable, offsets: ConsumerOffsets, states: StatesOut | None
    ) -> None:
        self._store, self._topics, self._offsets, self._states = store, topics, offsets, states
        self._out = ProgressOut(offsets)
        self._in = ProgressIn(store, topics, offsets, self._out)
        self._unlisten: list[Callable[[], None]] = []

    @property
    def is_waiting(self) -> bool:
        """Whether there is something that the other side has not been sent yet."""
        return self._out.is_waiting or self._has_documents

    def needs_changes(self, needs: bool) -> None:
        """Whether the slave does not find changes of documents in the log."""
        if self._states is not None:
            self._states.needs_changes = needs

    def follows_from(self, log_offset: int) -> None:
        """The slave's log and this one are the same up to there."""
        if self._states is not None:
            self._states.follows_from = log_offset

    def on_change(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there is something more to send, but for groups: of these the next look tells."""
        self._unlisten.append(self._offsets.on_change(lambda _group, _topic, _queue_id: wake()))
        if self._states is not None:
            self._unlisten.append(self._topics.on_change(wake))

    async def documents(self) -> list[StateDocument]:
        """What the slave has to take over, to be sent before any `progress` that is taken later."""
        return [] if self._states is None else await self._states.take()

    def progress(self) -> ProgressEntries | None:
        """What groups have finished that the other side has to hear; None when there is nothing.

        Also while there are documents to be sent before: a group may have begun a topic anew of which the slave has
        still to hear the deletion.
        """
        entries = b"" if self._has_documents else self._out.take()
        return ProgressEntries(entries, self._store.log_end) if entries else None

    def merge(self, progress: ProgressEntries) -> bool:
        """Take over what the other side says. Raises ValueError; then nothing has changed.

        Returns whether a slave has to have that on disk before it takes more of the log.
        """
        return self._in.merge(progress)

    def catch_up(self) -> None:
        """The log has grown: take over what was reported ahead of it."""
        self._in.catch_up()

    def close(self) -> None:
        """The link has ended."""
        self._out.close()
        for unlisten in self._unlisten:
            unlisten()
        self._unlisten = []

    @property
    def _has_documents(self) -> bool:
        return self._states is not None and self._states.is_waiting
