"""updateSubGroup, deleteSubGroup: consumer groups and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from mqadmin.asking_back import confirm
from mqadmin.options import AsJson, BrokerAddress, Cluster, Group, NameServers, Switch, Yes, is_true
from mqadmin.output import Table, show
from mqadmin.targets import Answers, ask_each, broker_fields, brokers_of, require_one_target
from mqadmin.world import World
from mqclient import Admin, ClusterBroker, SubscriptionGroupConfig

commands = typer.Typer()
PANEL = "Groups"

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
    """Delete a consumer group that has no living members."""
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
