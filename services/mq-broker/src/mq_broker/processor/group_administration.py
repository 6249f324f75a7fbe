"""Consumer groups made, changed and deleted for an operator (MISSION N9, N11).

Invariant: what a call has answered survives every crash; a deletion that was cut short can be asked for again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.refusals import RefusedError, first_few
from mq_broker.core.state_names import CONSUMER_OFFSETS, SUBSCRIPTION_GROUPS
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups, check_changeable
from mq_broker.processor.long_polling import LongPolling
from mq_broker.processor.refusals import require_master
from mq_broker.processor.sessions import Sessions
from mq_broker.processor.topic_administration import TopicAdministration
from mq_broker.store.message_store import MessageStore
from mq_broker.store.uninterrupted import uninterrupted
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
    long_polling: LongPolling
    topics: TopicAdministration

    async def update(self, config: SubscriptionGroup) -> None:
        """Create or change a group; durable on return. Raises RefusedError, OSError."""
        require_master(self.store)
        try:
            self.groups.update(config)
        except ValueError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        if self.topics.topics.get(retry_topic(config.group)) is not None:
            self.sessions.ensure_retry_topic(config)
        if not (config.consume_enable and config.consume_broadcast_enable):
            self.long_polling.answer_all(lambda query: query.group == config.group)
        await self.store.persist(SUBSCRIPTION_GROUPS)

    async def delete(self, group: str, *, clean_offsets: bool) -> None:
        """Forget the group's settings; with `clean_offsets` its offsets too, and what waited to be tried again.

        Durable on return. Its dead letters stay. Raises RefusedError, OSError.
        """
        require_master(self.store)
        try:
            check_changeable(group)
        except ValueError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        try:
            require_known(group, self.groups, self.offsets)
        except RefusedError:
            await self.store.persist(SUBSCRIPTION_GROUPS)  # gone, perhaps, by a deletion that the disk would not take
            raise
        if members := self.sessions.members.consumer_ids(group):
            sentence = f"group {group!r} has living members: {first_few(members, ', ')}; stop them first"
            raise RefusedError(ResponseCode.NO_PERMISSION, sentence)
        log.warning("group %s is deleted%s", group, " with its offsets" if clean_offsets else "")
        await uninterrupted(self._delete(group, clean_offsets=clean_offsets))

    async def _delete(self, group: str, *, clean_offsets: bool) -> None:
        if clean_offsets:
            await self._clean(group)
        self.groups.delete(group)
        await self.store.persist(SUBSCRIPTION_GROUPS)

    async def _clean(self, group: str) -> None:
        """A later group of this name begins anew: it must not get what this one had to try again."""
        if self.topics.topics.get(retry_topic(group)) is not None:
            await self.topics.delete(retry_topic(group))
        self.groups.forget_offsets(group, self.offsets.resets_after(group))
        self.offsets.forget_group(group)
        await self.store.persist(CONSUMER_OFFSETS)
