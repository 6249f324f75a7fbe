"""The consumer groups that this broker knows, and their settings (MISSION N9, N11).

Invariants: a group's name is legal; RocketMQ's tools group is always there, is never written down, and cannot be
changed or deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mq_broker.core import documents as tables
from mq_broker.core.topics import QUEUE_COUNT_MAX
from mqproto.names import TOOLS_CONSUMER_GROUP, check_group

RETRY_MAX_TIMES = 16  # MISSION R1


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """One consumer group, with RocketMQ's settings and defaults (its SubscriptionGroupConfig).

    Without `consume_enable` its members get nothing; without `consume_broadcast_enable` they get nothing while they
    consume by broadcasting. `retry_queue_count` 0: what is given back is not tried again. With
    `different_subscriptions_allowed`, which RocketMQ does not have, members need not be alike (MISSION C4).
    """

    group: str
    retry_max_times: int = RETRY_MAX_TIMES
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_count: int = 1
    different_subscriptions_allowed: bool = False


_TOOLS = SubscriptionGroup(TOOLS_CONSUMER_GROUP)


class SubscriptionGroups:
    """All groups by name."""

    def __init__(self, *, auto_create: bool) -> None:
        self._groups: dict[str, SubscriptionGroup] = {}
        self._auto_create = auto_create
        self.data_version = 0

    def reconfigure(self, *, auto_create: bool) -> None:
        """Make groups on demand from now on, or not any more; those that are there stay."""
        self._auto_create = auto_create

    def get(self, group: str) -> SubscriptionGroup | None:
        """The group, when it is there."""
        return _TOOLS if group == TOOLS_CONSUMER_GROUP else self._groups.get(group)

    def all(self) -> list[SubscriptionGroup]:
        """Every group by name, without RocketMQ's tools group."""
        return [self._groups[name] for name in sorted(self._groups)]

    def get_or_create(self, group: str) -> SubscriptionGroup | None:
        """The group, made when that is allowed. Raises IllegalNameError."""
        known = self.get(group)
        if known is None and self._auto_create:
            check_group(group)
            known = self._put(SubscriptionGroup(group))
        return known

    def update(self, config: SubscriptionGroup) -> None:
        """Create or change a group for an operator. Raises ValueError with what is allowed; then nothing changed."""
        check_group(config.group)
        check_changeable(config.group)
        if config.retry_max_times < 0:
            raise ValueError(f"{config.retry_max_times} tries; allowed are 0 (a dead letter at once) and more")
        if not 0 <= config.retry_queue_count <= QUEUE_COUNT_MAX:
            raise ValueError(f"{config.retry_queue_count} retry queues; allowed are 0 to {QUEUE_COUNT_MAX}")
        self._put(config)

    def delete(self, group: str) -> None:
        """Forget the group, if it is there. Raises ValueError for the tools group."""
        check_changeable(group)
        if self._groups.pop(group, None) is not None:
            self.data_version += 1

    def _put(self, config: SubscriptionGroup) -> SubscriptionGroup:
        if self._groups.get(config.group) != config:
            self._groups[config.group] = config
            self.data_version += 1
        return config

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's subscriptionGroup.json, with a field of our own that RocketMQ passes over."""
        table = {
            group.group: {
                "consumeBroadcastEnable": group.consume_broadcast_enable,
                "consumeEnable": group.consume_enable,
                "differentSubscriptionsAllowed": group.different_subscriptions_allowed,
                "groupName": group.group,
                "retryMaxTimes": group.retry_max_times,
                "retryQueueNums": group.retry_queue_count,
            }
            for group in self.all()
        }
        return {"dataVersion": {"counter": self.data_version}, "subscriptionGroupTable": table}

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what subscriptionGroup.json says. Raises KeyError or TypeError if not of that form."""
        found = tables.table(document, "subscriptionGroupTable")
        for name in found:
            entry = tables.table(found, name)
            if name != TOOLS_CONSUMER_GROUP:
                self._groups[name] = SubscriptionGroup(
                    name,
                    entry["retryMaxTimes"],
                    entry["consumeEnable"],
                    entry.get("consumeBroadcastEnable", True),  # not in the first version of this file
                    entry["retryQueueNums"],
                    entry.get("differentSubscriptionsAllowed", False),  # not in older ones, nor in RocketMQ's
                )
        self.data_version = int(tables.table(document, "dataVersion")["counter"])


def check_changeable(group: str) -> None:
    """Raise ValueError for a group that is not the operator's."""
    if group == TOOLS_CONSUMER_GROUP:
        raise ValueError(f"the group {group!r} belongs to the queue itself and cannot be changed or deleted")
