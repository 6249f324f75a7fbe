"""Consumer groups made, changed and deleted for an operator (MISSION N9, N11).

Invariant: each change is one record of the log (store/changes.py): it has happened wholly or not at all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.limits import RefusedError, first_few
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups, check_changeable
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.refusals import require_master
from mq_broker.processor.sessions import Sessions
from mq_broker.processor.topic_administration import TopicAdministration
from mq_broker.store.changes import Change
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode
from mqproto.names import retry_topic

log = logging.getLogger(__name__)


def require_known(group: str, groups: SubscriptionGroups, offsets: ConsumerOffsets) -> None:
    """Raise RefusedError for a group that has neither settings nor an offset here.

    A group that was made by itself a moment before a crash may have its offsets only.
    """
    if groups.get(group) is None and not offsets.topics_of(group):
        raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group!r} does not exist")


@dataclass
class GroupAdministration:
    """The processor of what an operator does with consumer groups."""

    store: MessageStore
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    sessions: Sessions
    topics: TopicAdministration

    def recover(self) -> None:
        """Bring everything in line with the deletions that subscriptionGroup.json and the log tell of."""
        self.groups.clamp(self.store.log_end)
        for group in self.groups.begun_anew():
            self.offsets.forget_before(group)

    async def update(self, config: SubscriptionGroup) -> None:
        """Create or change a group; as durable as an acknowledged message on return. Raises RefusedError."""
        require_master(self.store)
        try:
            self.groups.check_update(config)
        except ValueError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        topics = self._retry_topic(config)
        said = self.topics.changing.changes.groups_said.get(config.group)
        is_so = self.groups.get(config.group) == config == said and not topics
        await self.topics.changing.make(None if is_so else Change(topics=topics, groups={config.group: config}))

    async def delete(self, group: str, *, clean_offsets: bool) -> None:
        """Forget the group's settings; with `clean_offsets` its offsets too, and what waited to be tried again.

        As durable as an acknowledged message on return. Its dead letters stay. Raises RefusedError.
        """
        require_master(self.store)
        try:
            check_changeable(group)
        except ValueError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        try:
            require_known(group, self.groups, self.offsets)
        except RefusedError:
            await self.topics.changing.make()  # gone, perhaps, by a deletion that is not everywhere yet
            raise
        if members := self.sessions.members.consumer_ids(group):
            sentence = f"group {group!r} has living members: {first_few(members, ', ')}; stop them first"
            raise RefusedError(ResponseCode.NO_PERMISSION, sentence)
        log.warning("group %s is deleted%s", group, " with its offsets" if clean_offsets else "")
        change = Change(groups={group: None})
        if clean_offsets:  # a later group of this name begins anew: it must not get what this one had to try again
            retries = retry_topic(group)
            change = replace(
                change,
                topics={retries: None},
                deleted_below={retries: self.topics.next_offsets(retries)},
                first_resets={group: self.offsets.resets_after(group)},
            )
        await self.topics.changing.make(change)

    def _retry_topic(self, config: SubscriptionGroup) -> dict[str, TopicConfig]:
        """The group's retry topic as it has to become, if it is there and has too few queues."""
        known, count = self.topics.topics.get(retry_topic(config.group)), max(1, config.retry_queue_count)
        if known is None or known.queue_count >= count:
            return {}
        return {known.topic: replace(known, read_queue_count=count, write_queue_count=count)}
