"""The consumer groups that this broker knows (MISSION N9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mq_broker.core import documents as tables
from mqproto.names import check_group

RETRY_MAX_TIMES = 16  # MISSION R1


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """One consumer group."""

    group: str
    retry_max_times: int = RETRY_MAX_TIMES


class SubscriptionGroups:
    """All groups by name."""

    def __init__(self, *, auto_create: bool) -> None:
        self._groups: dict[str, SubscriptionGroup] = {}
        self._auto_create = auto_create
        self.data_version = 0

    def get_or_create(self, group: str) -> SubscriptionGroup | None:
        """The group, made when that is allowed. Raises IllegalNameError."""
        known = self._groups.get(group)
        if known is None and self._auto_create:
            check_group(group)
            known = self._groups[group] = SubscriptionGroup(group)
            self.data_version += 1
        return known

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's subscriptionGroup.json."""
        table = {
            name: {
                "groupName": name,
                "consumeEnable": True,
                "retryMaxTimes": group.retry_max_times,
                "retryQueueNums": 1,
            }
            for name, group in sorted(self._groups.items())
        }
        return {"dataVersion": {"counter": self.data_version}, "subscriptionGroupTable": table}

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what subscriptionGroup.json says. Raises KeyError or TypeError if not of that form."""
        found = tables.table(document, "subscriptionGroupTable")
        for name in found:
            entry = tables.table(found, name)
            self._groups[name] = SubscriptionGroup(name, entry["retryMaxTimes"])
        self.data_version = int(tables.table(document, "dataVersion")["counter"])
