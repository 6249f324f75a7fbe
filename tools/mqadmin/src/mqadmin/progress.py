"""consumerProgress, resetOffsetByTime: how far groups are, and where they go on (MISSION L13)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mqadmin.asking_back import confirm
from mqadmin.groups import PANEL
from mqadmin.options import AsJson, Cluster, NameServers, Switch, Topic, Yes
from mqadmin.output import Table, show
from mqadmin.targets import broker_names_of, brokers_of
from mqadmin.times import ALLOWED, iso_time, parse_time, time_fields, time_text
from mqadmin.world import World
from mqclient import Admin, ConsumeStats, QueueConsumeStats

commands = typer.Typer()
QUEUE_END = -1  # as a time: behind the last message of each queue
NOW = "now"

OneGroup = Annotated[
    str | None, typer.Option("-g", "--groupName", metavar="GROUP", help="Queue by queue; without it all groups.")
]
OneTopic = Annotated[str | None, typer.Option("-t", "--topicName", metavar="TOPIC", help="With -g: only this topic.")]
ResetGroup = Annotated[str, typer.Option("-g", "--group", metavar="GROUP", help="The consumer group.")]
Timestamp = Annotated[
    str, typer.Option("-s", "--timestamp", metavar="TIME", help=f"Where to go on: {ALLOWED}. now: behind everything.")
]
Force = Annotated[Switch, typer.Option("-f", "--force", help="false: offsets only move back.")]


@commands.command("consumerProgress", rich_help_panel=PANEL)
def consumer_progress(
    context: typer.Context,
    *,
    name_servers: NameServers,
    group: OneGroup = None,
    topic: OneTopic = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """How far consumer groups are behind: all of them, or one queue by queue."""
    if topic is not None and group is None:
        raise typer.BadParameter("-t chooses a topic of one group: name the group with -g")
    world = World.of(context)
    if group is None:
        _show_groups(world.ask(name_servers, lambda admin: _all_groups(admin, cluster)), as_json=as_json)
    else:
        stats = world.ask(name_servers, lambda admin: _one_group(admin, group, topic, cluster))
        _show_group(stats, as_json=as_json)


async def _all_groups(admin: Admin, cluster: str | None) -> list[ConsumeStats]:
    """Every group that a broker has, by name."""
    brokers = await brokers_of(admin, cluster=cluster)
    groups = {one.group for broker in brokers for one in await admin.subscription_groups(broker.address)}
    return [await _one_group(admin, group, None, cluster) for group in sorted(groups)]


async def _one_group(admin: Admin, group: str, topic: str | None, cluster: str | None) -> ConsumeStats:
    stats = await admin.consume_stats(group, topic)
    names = await broker_names_of(admin, cluster)
    queues = tuple(one for one in stats.queues if names is None or one.queue.broker_name in names)
    return ConsumeStats(group, queues, stats.client_ids)


def _show_groups(groups: list[ConsumeStats], *, as_json: bool) -> None:
    document = {
        "groups": [
            {
                "group": stats.group,
                "member_count": len(stats.client_ids),
                "topics": sorted({one.queue.topic for one in stats.queues}),
                "lag": stats.lag,
            }
            for stats in groups
        ]
    }
    table = Table(
        ("group", "members", "topics", "queues", "diff total"),
        [
            (
                stats.group,
                len(stats.client_ids),
                len({one.queue.topic for one in stats.queues}),
                len(stats.queues),
                stats.lag,
            )
            for stats in groups
        ],
    )
    show(document, table, as_json=as_json)


def _show_group(stats: ConsumeStats, *, as_json: bool) -> None:
    document = {
        "group": stats.group,
        "client_ids": list(stats.client_ids),
        "lag": stats.lag,
        "queues": [_queue_fields(one) for one in stats.queues],
    }
    table = Table(
        ("topic", "broker", "queue", "broker offset", "consumer offset", "diff", "last consumed"),
        [
            (
                one.queue.topic,
                one.queue.broker_name,
                one.queue.queue_id,
                one.broker_offset,
                _offset(one.consumer_offset),
                one.lag,
                time_text(one.last_timestamp_ms),
            )
            for one in stats.queues
        ],
        footer=("", f"diff total: {stats.lag}", f"members: {', '.join(stats.client_ids) or 'none lives'}"),
    )
    show(document, table, as_json=as_json)


def _queue_fields(stats: QueueConsumeStats) -> dict[str, Any]:
    return {
        "topic": stats.queue.topic,
        "broker_name": stats.queue.broker_name,
        "queue_id": stats.queue.queue_id,
        "broker_offset": stats.broker_offset,
        "consumer_offset": _offset(stats.consumer_offset),
        "lag": stats.lag,
        **time_fields("last_consumed_stored_at", stats.last_timestamp_ms),
    }


def _offset(offset: int) -> int | None:
    """None for a group that has never committed one."""
    return None if offset < 0 else offset


@commands.command("resetOffsetByTime", rich_help_panel=PANEL)
def reset_offset_by_time(
    context: typer.Context,
    *,
    group: ResetGroup,
    topic: Topic,
    timestamp: Timestamp,
    name_servers: NameServers,
    force: Force = "true",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a group go on elsewhere: at the first message that was stored at a time or after it."""
    world = World.of(context)
    is_end = timestamp.strip() == NOW
    timestamp_ms = QUEUE_END if is_end else parse_time(timestamp, world.clock.wall_ms())
    where = "behind the last message" if is_end else f"at {time_text(timestamp_ms)}"
    confirm(f"Let group {group} go on {where} in every queue of {topic}?", yes=yes)
    changes = world.ask(
        name_servers, lambda admin: admin.reset_offset_by_time(group, topic, timestamp_ms, force=force == "true")
    )
    document = {
        "group": group,
        "topic": topic,
        "timestamp": None if is_end else iso_time(timestamp_ms),
        "timestamp_ms": None if is_end else timestamp_ms,
        "queues": [
            {
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id,
                "offset_before": _offset(change.before),
                "offset": change.now,
            }
            for queue, change in sorted(changes.items())
        ],
    }
    table = Table(
        ("broker", "queue", "offset before", "offset now"),
        [
            (queue.broker_name, queue.queue_id, _offset(change.before), change.now)
            for queue, change in sorted(changes.items())
        ],
    )
    show(document, table, as_json=as_json)
