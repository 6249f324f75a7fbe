"""Consumer groups: their settings, how far they are, and where they go on (mechanisms L13, C23).

updateSubGroup, deleteSubGroup, consumerProgress, resetOffsetByTime, resetOffsetByOffset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from mqadmin.errors import confirm
from mqadmin.options import NO_VALUE, AsJson, BrokerAddress, Cluster, Group, NameServers, Switch, Topic, Yes, is_true
from mqadmin.output import (
    ALLOWED,
    Table,
    iso_time,
    offset_or_none,
    parse_time,
    show,
    show_table,
    time_fields,
    time_text,
)
from mqadmin.world import Answers, World, ask_each, broker_fields, broker_names_of, brokers_of, require_one_target
from mqclient import Admin, MessageQueue
from mqclient.admin import (
    ClusterBroker,
    ConsumeStats,
    OffsetChange,
    QueueConsumeStats,
    SubscriptionGroupConfig,
)

PANEL = "Groups"
QUEUE_END = -1  # as a time: behind the last message of each queue
NOW = "now"

commands = typer.Typer()

ConsumeEnable = Annotated[Switch | None, typer.Option("-s", "--consumeEnable", help="Whether members may pull.")]
BroadcastEnable = Annotated[
    Switch | None, typer.Option("-d", "--consumeBroadcastEnable", help="Whether members may join as broadcasting.")
]
RetryQueues = Annotated[
    int | None, typer.Option("-q", "--retryQueueNums", metavar="N", help="Queues of the retry topic; 0: no retries.")
]
RetryTimes = Annotated[
    int | None, typer.Option("-r", "--retryMaxTimes", metavar="N", help="Tries before a message is a dead letter.")
]
DifferentSubscriptions = Annotated[
    Switch | None,
    typer.Option("--differentSubscriptions", help="Whether members may subscribe differently, for a while."),
]
RemoveOffset = Annotated[
    Switch, typer.Option("-r", "--removeOffset", help="Whether to forget its offsets and its retry topic too.")
]
Change = tuple[SubscriptionGroupConfig, str]  # the group as it is now, and what was done


@commands.command("updateSubGroup", rich_help_panel=PANEL)
def update_sub_group(
    context: typer.Context,
    *,
    group: Group,
    name_servers: NameServers,
    broker_address: BrokerAddress = None,
    cluster: Cluster = None,
    consume_enable: ConsumeEnable = None,
    broadcast_enable: BroadcastEnable = None,
    retry_queues: RetryQueues = None,
    retry_times: RetryTimes = None,
    different_subscriptions: DifferentSubscriptions = None,
    as_json: AsJson = False,
) -> None:
    """Create a consumer group, or change it; what is not named stays as it is."""
    require_one_target(broker_address, cluster)
    named: dict[str, Any] = {
        "consume_enable": is_true(consume_enable),
        "consume_broadcast_enable": is_true(broadcast_enable),
        "retry_queue_count": retry_queues,
        "retry_max_times": retry_times,
        "different_subscriptions_allowed": is_true(different_subscriptions),
    }
    wanted = {name: value for name, value in named.items() if value is not None}

    async def question(admin: Admin) -> Answers[Change]:
        brokers = await brokers_of(admin, broker_address=broker_address, cluster=cluster)
        return await ask_each(brokers, lambda broker: _change(admin, broker, group, wanted))

    answers = World.of(context).ask(name_servers, question)
    document = {
        "group": group,
        "brokers": [
            {**broker_fields(broker), **_settings(config), "outcome": outcome}
            for broker, (config, outcome) in answers.given
        ],
        "failed": answers.failures(),
    }
    table = Table(
        ("broker", "group", "may pull", "may broadcast", "tries", "retry queues", "may differ", "outcome"),
        [
            (broker.broker_name or broker.address, group, *_settings(config).values(), outcome)
            for broker, (config, outcome) in answers.given
        ],
    )
    show(document, *([table] if answers.given else []), as_json=as_json)
    answers.end()


async def _change(admin: Admin, broker: ClusterBroker, group: str, wanted: Mapping[str, Any]) -> Change:
    """Set what is wanted, and leave the rest as it is."""
    groups = await admin.subscription_groups(broker.address)
    known = next((one for one in groups if one.group == group), None)
    config = replace(known or SubscriptionGroupConfig(group), **wanted)
    await admin.update_subscription_group(config, broker_address=broker.address)
    return config, ("created" if known is None else "changed" if config != known else "unchanged")


def _settings(config: SubscriptionGroupConfig) -> dict[str, Any]:
    """Everything but the name, in the order of the table."""
    return {
        "consume_enable": config.consume_enable,
        "consume_broadcast_enable": config.consume_broadcast_enable,
        "retry_max_times": config.retry_max_times,
        "retry_queue_count": config.retry_queue_count,
        "different_subscriptions_allowed": config.different_subscriptions_allowed,
    }


@commands.command("deleteSubGroup", rich_help_panel=PANEL)
def delete_sub_group(
    context: typer.Context,
    *,
    group: Group,
    name_servers: NameServers,
    broker_address: BrokerAddress = None,
    cluster: Cluster = None,
    remove_offset: RemoveOffset = "false",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a consumer group that has no active members."""
    require_one_target(broker_address, cluster)
    clean_offsets = remove_offset == "true"
    what = "with its offsets" if clean_offsets else "but not its offsets"
    confirm(f"Delete group {group} {what} on {broker_address or cluster}?", yes=yes)

    async def question(admin: Admin) -> None:
        await admin.delete_subscription_group(
            group, clean_offsets=clean_offsets, cluster_name=cluster, broker_address=broker_address
        )

    World.of(context).ask(name_servers, question)
    deleted = {
        "group": group,
        "cluster_name": cluster,
        "broker_address": broker_address,
        "offsets_removed": clean_offsets,
    }
    table = Table(("group", "deleted from", "offsets removed"), [(group, broker_address or cluster, clean_offsets)])
    show(deleted, table, as_json=as_json)


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
    """The lag of consumer groups: of all groups, or of one queue by queue."""
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
        footer=("", f"diff total: {stats.lag}", f"members: {', '.join(stats.client_ids) or 'none'}"),
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


ResetGroup = Annotated[str, typer.Option("-g", "--group", metavar="GROUP", help="The consumer group.")]
Timestamp = Annotated[
    str, typer.Option("-s", "--timestamp", metavar="TIME", help=f"Where to go on: {ALLOWED}. now: behind everything.")
]
Force = Annotated[Switch, typer.Option("-f", "--force", help="false: offsets only move back.")]
BrokerName = Annotated[str, typer.Option("-b", "--brokerName", metavar="NAME", help="The broker of the queue.")]
QueueId = Annotated[int, typer.Option("-i", "--queueId", metavar="N", min=0, help="The queue.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", metavar=NO_VALUE, help="Show what would change, and change nothing.")
]
Offset = Annotated[int, typer.Option("-o", "--offset", metavar="N", min=0, help="The next message to be consumed.")]


@commands.command("resetOffsetByTime", rich_help_panel=PANEL)
def reset_offset_by_time(
    context: typer.Context,
    *,
    group: ResetGroup,
    topic: Topic,
    timestamp: Timestamp,
    name_servers: NameServers,
    force: Force = "true",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Reset a group's offsets to the first messages that were stored at a time or after it.

    Shows before it asks how many messages each queue delivers again or skips. A script has to answer too, or give -y.
    """
    world = World.of(context)
    is_end = timestamp.strip() == NOW
    timestamp_ms = QUEUE_END if is_end else parse_time(timestamp, world.clock.wall_ms())
    where = "behind the last message" if is_end else f"at {time_text(timestamp_ms)}"
    document = {
        "group": group,
        "topic": topic,
        "timestamp": None if is_end else iso_time(timestamp_ms),
        "timestamp_ms": None if is_end else timestamp_ms,
    }
    if dry_run or not yes:
        changes = world.ask(
            name_servers, lambda admin: admin.preview_reset_by_time(group, topic, timestamp_ms, force=force == "true")
        )
        if dry_run:
            _show_changes({**document, "dry_run": True}, changes, as_json=as_json)
            return
        show_table(_changes_table(changes), err=True)
        again, skipped = (
            sum(counts) for counts in zip((0, 0), *map(_again_and_skipped, changes.values()), strict=False)
        )
        confirm(
            f"Let group {group} go on {where} in every queue of {topic}, which delivers {again} messages again"
            f" and skips {skipped}?",
            yes=yes,
            scripts_too=True,
        )
    changes = world.ask(
        name_servers, lambda admin: admin.reset_offset_by_time(group, topic, timestamp_ms, force=force == "true")
    )
    _show_changes(document, changes, as_json=as_json)


@commands.command("resetOffsetByOffset", rich_help_panel=PANEL)
def reset_offset_by_offset(
    context: typer.Context,
    *,
    group: ResetGroup,
    topic: Topic,
    broker_name: BrokerName,
    queue_id: QueueId,
    offset: Offset,
    name_servers: NameServers,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Reset a group's offset in one queue, forward as well as back."""
    queue = MessageQueue(topic, broker_name, queue_id)
    confirm(f"Let group {group} go on at offset {offset} in queue {queue_id} of {topic} on {broker_name}?", yes=yes)
    changes = World.of(context).ask(name_servers, lambda admin: admin.reset_offset_by_queue(group, {queue: offset}))
    _show_changes({"group": group, "topic": topic}, changes, as_json=as_json)


def _show_changes(document: Mapping[str, Any], changes: Mapping[MessageQueue, OffsetChange], *, as_json: bool) -> None:
    queues = [
        {
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "offset_before": offset_or_none(change.before),
            "offset": change.now,
            **dict(zip(("delivered_again", "skipped"), _again_and_skipped(change), strict=True)),
        }
        for queue, change in sorted(changes.items())
    ]
    show({**document, "queues": queues}, _changes_table(changes), as_json=as_json)


def _changes_table(changes: Mapping[MessageQueue, OffsetChange]) -> Table:
    return Table(
        ("broker", "queue", "offset before", "offset now", "again", "skipped"),
        [
            (
                queue.broker_name,
                queue.queue_id,
                offset_or_none(change.before),
                change.now,
                *_again_and_skipped(change),
            )
            for queue, change in sorted(changes.items())
        ],
    )


def _again_and_skipped(change: OffsetChange) -> tuple[int, int]:
    """How many messages of a queue are delivered again, and how many are skipped; 0 without an offset."""
    if change.before < 0:
        return 0, 0
    return max(0, change.before - change.now), max(0, change.now - change.before)
