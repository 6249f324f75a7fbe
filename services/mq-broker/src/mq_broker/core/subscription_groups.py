"""The consumer groups that this broker knows, and their settings (mechanisms N9, N11).

Invariants: a group's name is legal; RocketMQ's tools group is always there, is never written down, and cannot be
changed or deleted. When a group was deleted with its offsets, what comes after it begins with more resets than they had
(`Progress`), so that no broker that hears of the deletion late brings them back, and it gets nothing that waited
in the log before the deletion to be tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mq_broker.core import documents as tables
from mq_broker.core.limits import AUTO_CREATED_GROUPS_MAX, GROUP_COUNT_MAX, CountLimits, Creations
from mq_broker.core.topics import QUEUE_COUNT_MAX
from mqproto.names import TOOLS_CONSUMER_GROUP, check_group

RETRY_MAX_TIMES = 16  # mechanism R1
WHICH_BROKER_WHEN_CONSUME_SLOWLY = 1  # RocketMQ's (mechanism H3)
BROKER_ID_MAX = (1 << 31) - 1
GROUP_LIMITS = CountLimits(
    "group", GROUP_COUNT_MAX, "subscriptionGroupCountMax", AUTO_CREATED_GROUPS_MAX, "autoCreatedGroupsPerClient"
)


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """One consumer group, with RocketMQ's settings and defaults (its SubscriptionGroupConfig).

    Without `consume_enable` its members get nothing; without `consume_broadcast_enable` they get nothing while they
    consume by broadcasting. `retry_queue_count` 0: what is given back is not tried again. With
    `different_subscriptions_allowed`, which RocketMQ does not have, members need not be alike (mechanism C4). Its
    members read from the broker with the id `broker_id`; those that are far behind from
    `which_broker_when_consume_slowly`.
    """

    group: str
    retry_max_times: int = RETRY_MAX_TIMES
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_count: int = 1
    different_subscriptions_allowed: bool = False
    broker_id: int = 0
    which_broker_when_consume_slowly: int = WHICH_BROKER_WHEN_CONSUME_SLOWLY


FIRST_RESETS, BEGUN_AT = "firstResets", "begunAt"
_TOOLS = SubscriptionGroup(TOOLS_CONSUMER_GROUP)


class SubscriptionGroups:
    """All groups by name."""

    def __init__(self, *, auto_create: bool) -> None:
        self._groups: dict[str, SubscriptionGroup] = {}
        self._first_resets: dict[str, int] = {}
        self._begun_at: dict[str, int] = {}
        self.creations = Creations(GROUP_LIMITS)
        self._auto_create = auto_create
        self.follows: Callable[[], bool] = lambda: (
            False
        )  # whether another broker alone makes groups, and this one hears
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

    def get_or_create(self, group: str, client: str = "") -> SubscriptionGroup | None:
        """The group, made for `client` when that is allowed; a replica makes none and serves it as if it were there.

        Raises IllegalNameError, TooManyError.
        """
        known = self.get(group)
        if known is None and self._auto_create:
            check_group(group)
            known = SubscriptionGroup(group)
            if not self.follows():
                self.creations.check(len(self._groups), client)
                self.put(known)
                self.creations.made(client)
        return known

    def update(self, config: SubscriptionGroup) -> None:
        """Create or change a group for an operator. Raises ValueError with what is allowed; then nothing changed."""
        self.check_update(config)
        self.put(config)

    def check_update(self, config: SubscriptionGroup) -> None:
        """Raise ValueError, with what is allowed, unless an operator may create or change the group like this."""
        check_group(config.group)
        check_changeable(config.group)
        if config.retry_max_times < 0:
            raise ValueError(f"{config.retry_max_times} tries; allowed are 0 (a dead letter at once) and more")
        if not 0 <= config.retry_queue_count <= QUEUE_COUNT_MAX:
            raise ValueError(f"{config.retry_queue_count} retry queues; allowed are 0 to {QUEUE_COUNT_MAX}")
        for broker_id in (config.broker_id, config.which_broker_when_consume_slowly):
            if not 0 <= broker_id <= BROKER_ID_MAX:
                raise ValueError(f"broker id {broker_id}; allowed are 0 (the master) to {BROKER_ID_MAX}")
        if config.group not in self._groups:
            self.creations.check_total(len(self._groups))

    def delete(self, group: str) -> None:
        """Forget the group, if it is there. Raises ValueError for the tools group."""
        check_changeable(group)
        if self._groups.pop(group, None) is not None:
            self.data_version += 1

    def first_resets(self, group: str) -> int:
        """How many resets the group's first offsets have; those with fewer were forgotten with an earlier group."""
        return self._first_resets.get(group, 0)

    def begun_anew(self) -> list[str]:
        """Every group whose offsets were ever forgotten; it may be there again."""
        return list(self._first_resets)

    def forget_offsets(self, group: str, first_resets: int, log_offset: int) -> None:
        """The group's offsets are forgotten for good, by the record there; those that come have so many resets."""
        if first_resets > self.first_resets(group):
            self._first_resets[group] = first_resets
            self._begun_at[group] = log_offset
            self.data_version += 1

    def is_past(self, group: str, log_offset: int) -> bool:
        """Whether what was stored there for the group was deleted with it: a group of the name has begun anew since."""
        return log_offset < self._begun_at.get(group, 0)

    def clamp(self, log_end: int) -> None:
        """After a lost tail: what comes from now on belongs to the groups that there are."""
        for group, begun_at in self._begun_at.items():
            if begun_at > log_end:
                self._begun_at[group] = log_end
                self.data_version += 1

    def take_over(self, document: dict[str, Any]) -> bool:
        """From now on the groups are those of another broker's document; whether that has changed anything.

        Raises KeyError, TypeError or ValueError when it is not of that form; then nothing has changed.
        """
        groups, first_resets = groups_of(document), reset_numbers_of(document, FIRST_RESETS)
        begun_at = reset_numbers_of(document, BEGUN_AT)
        if (groups, first_resets, begun_at) == (self._groups, self._first_resets, self._begun_at):
            return False
        self._groups, self._first_resets, self._begun_at = groups, first_resets, begun_at
        self.data_version += 1
        return True

    def put(self, config: SubscriptionGroup) -> None:
        """The group is like this."""
        if self._groups.get(config.group) != config:
            self._groups[config.group] = config
            self.data_version += 1

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's subscriptionGroup.json, with a field of our own that RocketMQ passes over."""
        return self.frozen()()

    def frozen(self) -> Callable[[], dict[str, Any]]:
        """What makes the document of this moment, also in another thread."""
        groups, counter = dict(self._groups), self.data_version
        numbers = {FIRST_RESETS: dict(self._first_resets), BEGUN_AT: dict(self._begun_at)}
        return lambda: _document(groups, numbers, counter)

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what subscriptionGroup.json says. Raises KeyError, TypeError, ValueError if not of that form."""
        groups, first_resets = groups_of(document), reset_numbers_of(document, FIRST_RESETS)
        begun_at = reset_numbers_of(document, BEGUN_AT)
        self.data_version = int(tables.table(document, "dataVersion")["counter"])
        self._groups, self._first_resets, self._begun_at = groups, first_resets, begun_at


def _document(groups: dict[str, SubscriptionGroup], numbers: dict[str, dict[str, int]], counter: int) -> dict[str, Any]:
    return {
        "dataVersion": {"counter": counter},
        **{name: dict(sorted(table.items())) for name, table in numbers.items()},
        "subscriptionGroupTable": {name: entry_of(group) for name, group in sorted(groups.items())},
    }


def entry_of(group: SubscriptionGroup) -> dict[str, Any]:
    """The group as subscriptionGroup.json has it."""
    return {
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": group.consume_broadcast_enable,
        "consumeEnable": group.consume_enable,
        "differentSubscriptionsAllowed": group.different_subscriptions_allowed,
        "groupName": group.group,
        "retryMaxTimes": group.retry_max_times,
        "retryQueueNums": group.retry_queue_count,
        "whichBrokerWhenConsumeSlowly": group.which_broker_when_consume_slowly,
    }


def groups_of(document: dict[str, Any]) -> dict[str, SubscriptionGroup]:
    """The groups of subscriptionGroup.json by name. Raises KeyError or TypeError when it is not of that form."""
    found = tables.table(document, "subscriptionGroupTable")
    return {name: group_of(name, tables.table(found, name)) for name in found if name != TOOLS_CONSUMER_GROUP}


def reset_numbers_of(document: dict[str, Any], name: str) -> dict[str, int]:
    """A number for each group that was deleted with its offsets: FIRST_RESETS, the resets with which it begins anew;
    BEGUN_AT, the log offset of its deletion. Raises TypeError or ValueError when it is not of that form.
    """
    if name not in document:
        return {}  # RocketMQ's, or an earlier version's
    return {group: int(number) for group, number in tables.table(document, name).items()}


def group_of(name: str, entry: dict[str, Any]) -> SubscriptionGroup:
    """The inverse of `entry_of`, also for older entries. Raises KeyError when it is not of that form."""
    return SubscriptionGroup(
        name,
        entry["retryMaxTimes"],
        entry["consumeEnable"],
        entry.get("consumeBroadcastEnable", True),  # not in the first version of this file
        entry["retryQueueNums"],
        entry.get("differentSubscriptionsAllowed", False),  # not in older ones, nor in RocketMQ's
        entry.get("brokerId", 0),
        entry.get("whichBrokerWhenConsumeSlowly", WHICH_BROKER_WHEN_CONSUME_SLOWLY),
    )


def check_changeable(group: str) -> None:
    """Raise ValueError for a group that is not the operator's."""
    if group == TOOLS_CONSUMER_GROUP:
        raise ValueError(f"the group {group!r} belongs to the queue itself and cannot be changed or deleted")
