"""consumerProgress: how far groups are (MISSION L13)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mqadmin.groups import PANEL
from mqadmin.options import AsJson, Cluster, NameServers
from mqadmin.output import Table, offset_or_none, show
from mqadmin.targets import broker_names_of, brokers_of
from mqadmin.times import time_fields, time_text
from mqadmin.world import World
from mqclient import Admin, ConsumeStats, QueueConsumeStats

commands = typer.Typer()

OneGroup = Annotated[
    str | None, typer.Option("-g", "--groupName", metavar="GROUP", help="Queue by queue; without it all groups.")
]
OneTopic = Annotated[str | None, typer.Option("-t", "--topicName", metavar="TOPIC", help="With -g: only this topic.")]


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
        ("topic", "broker", "queue", "broker offset", "consumer offset", "diff", "finished beyond", "last consumed"),
        [
            (
                one.queue.topic,
                one.queue.broker_name,
                one.queue.queue_id,
                one.broker_offset,
                offset_or_none(one.consumer_offset),
                one.lag,
                one.finished_beyond,
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
        "consumer_offset": offset_or_none(stats.consumer_offset),
        "lag": stats.lag,
        "finished_beyond": stats.finished_beyond,
        **time_fields("last_consumed_stored_at", stats.last_timestamp_ms),
    }
