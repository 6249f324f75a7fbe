"""What an operator has changed, as one record of the log in `rmq_sys_changes` (store/FORMAT.md; ADR 104).

Invariants: a change says how things are after it, so that applying it once more changes nothing; what a later version
adds to the body is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mq_broker.core import documents as tables
from mq_broker.core import subscription_groups, topics
from mq_broker.core.batches import Batch
from mq_broker.core.progress import Progress
from mq_broker.core.rewrite import single_record_batch
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.core.topics import TopicConfig
from mqproto.names import CHANGES_TOPIC
from mqproto.record import Record, encode_record, pack_ip

NO_ADDRESS = pack_ip("0.0.0.0")  # noqa: S104 - the broker itself, and no host, has written the record

Reset = tuple[str, str, int, Progress]  # group, topic, queue id, and where the group goes on


@dataclass(frozen=True, slots=True)
class Change:
    """Topics and groups as they are now, None for those that are deleted.

    Of a deleted topic `deleted_below` has the next number of each of its queues, of a group that was deleted with its
    offsets `first_resets` the resets with which a group of the name begins anew.
    """

    topics: Mapping[str, TopicConfig | None] = field(default_factory=dict)
    deleted_below: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    groups: Mapping[str, SubscriptionGroup | None] = field(default_factory=dict)
    first_resets: Mapping[str, int] = field(default_factory=dict)
    resets: tuple[Reset, ...] = ()


def change_batch(change: Change, now_ms: int) -> Batch:
    """The change's record."""
    body: dict[str, Any] = {
        "topics": {name: config and topics.entry_of(config) for name, config in change.topics.items()},
        "deletedBelow": change.deleted_below,
        "groups": {name: config and subscription_groups.entry_of(config) for name, config in change.groups.items()},
        "firstResets": change.first_resets,
        "resets": _reset_table(change.resets),
    }
    data = encode_record(
        topic=CHANGES_TOPIC.encode(),
        body=json.dumps({name: value for name, value in body.items() if value}).encode(),
        properties=b"",
        queue_id=0,
        born_timestamp_ms=now_ms,
        born_ip=NO_ADDRESS,
    )
    return single_record_batch(CHANGES_TOPIC, 0, data, 0)


def change_of(record: Record) -> Change:
    """The inverse. Raises ValueError when the body is not of that form."""
    try:
        body = json.loads(record.body)
        topic_entries, groups = _optional(body, "topics"), _optional(body, "groups")
        below = _optional(body, "deletedBelow")
        return Change(
            {name: entry and topics.topic_of(name, entry) for name, entry in topic_entries.items()},
            {name: {int(one): int(offset) for one, offset in tables.table(below, name).items()} for name in below},
            {name: entry and subscription_groups.group_of(name, entry) for name, entry in groups.items()},
            {name: int(resets) for name, resets in _optional(body, "firstResets").items()},
            tuple(
                (group, topic, int(queue_id), Progress(int(offset), (), int(version)))
                for group, topics_of_group in _optional(body, "resets").items()
                for topic, queues in topics_of_group.items()
                for queue_id, (offset, version) in queues.items()
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the body of the change at log offset {record.log_offset}: {error!r}") from None


def _reset_table(resets: Sequence[Reset]) -> dict[str, dict[str, dict[int, tuple[int, int]]]]:
    """By group, topic and queue id: a request may name 16,384 queues, and all of them are one record."""
    table: dict[str, dict[str, dict[int, tuple[int, int]]]] = {}
    for group, topic, queue_id, progress in resets:
        table.setdefault(group, {}).setdefault(topic, {})[queue_id] = progress.offset, progress.version
    return table


def _optional(body: Any, name: str) -> dict[str, Any]:
    return tables.table({name: {}} | body, name)
