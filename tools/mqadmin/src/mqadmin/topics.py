"""topicList, topicRoute, topicStatus: the topics as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mqadmin.errors import say
from mqadmin.options import NO_VALUE, AsJson, Cluster, NameServers, Topic
from mqadmin.output import Table, show
from mqadmin.targets import broker_names_of, brokers_of
from mqadmin.times import time_fields, time_text
from mqadmin.world import World
from mqclient import Admin, BrokerRefusedError, ClusterBroker, QueueStats, TopicRoute
from mqproto.codes import ResponseCode
from mqproto.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS

commands = typer.Typer()
PANEL = "Topics"

ClusterModel = Annotated[
    bool, typer.Option("-c", "--clusterModel", metavar=NO_VALUE, help="With clusters and the groups that read.")
]
Sizes = Annotated[
    bool, typer.Option("-s", "--sizes", metavar=NO_VALUE, help="With messages and about how many bytes, largest first.")
]
SystemToo = Annotated[bool, typer.Option("-a", "--all", metavar=NO_VALUE, help="Also system topics.")]
ListFormat = Annotated[bool, typer.Option("-l", "--list", metavar=NO_VALUE, help="The table; it is the default.")]


@commands.command("topicList", rich_help_panel=PANEL)
def topic_list(
    context: typer.Context,
    *,
    name_servers: NameServers,
    cluster_model: ClusterModel = False,
    sizes: Sizes = False,
    show_all: SystemToo = False,
    as_json: AsJson = False,
) -> None:
    """The names of the application's topics; with -a also those that the queue makes for itself and for groups."""
    if cluster_model and sizes:
        raise typer.BadParameter("-c asks for clusters and groups and -s for sizes; choose one")
    world = World.of(context)
    if sizes:
        _show_sizes(world.ask(name_servers, _topics_with_sizes), show_all=show_all, as_json=as_json)
        return
    if cluster_model:
        rows = world.ask(name_servers, _topics_with_clusters)
        fields = ("cluster_name", "topic", "consumer_groups")
        document = {"topics": [{**dict(zip(fields, row, strict=True)), "system": _is_system(row[1])} for row in rows]}
        table = Table(
            ("cluster", "topic", "consumer group"),
            [
                (cluster, topic, group)
                for cluster, topic, groups in rows
                if show_all or not _is_system(topic)
                for group in groups or [""]
            ],
        )
        show(document, table, as_json=as_json)
        return
    topics = world.ask(name_servers, lambda admin: admin.topic_list())
    if as_json:
        show({"topics": [{"topic": topic, "system": _is_system(topic)} for topic in topics]}, as_json=True)
        return
    shown = [topic for topic in topics if show_all or not _is_system(topic)]
    typer.echo("".join(f"{topic}\n" for topic in shown), nl=False)  # bare, for `while read topic`
    if len(shown) < len(topics):
        say(f"{len(topics) - len(shown)} system topics (of the queue and of groups) are left out; -a shows them")


def _show_sizes(rows: Sequence[tuple[str, int, int]], *, show_all: bool, as_json: bool) -> None:
    fields = ("topic", "message_count", "about_bytes")
    document = {"topics": [{**dict(zip(fields, row, strict=True)), "system": _is_system(row[0])} for row in rows]}
    shown = [row for row in rows if show_all or not _is_system(row[0])]
    show(document, Table(("topic", "messages", "about bytes"), shown), as_json=as_json)


async def _topics_with_sizes(admin: Admin) -> list[tuple[str, int, int]]:
    """(topic, messages, about how many bytes of the logs of all masters), the largest first."""
    rows = []
    for topic in await admin.topic_list():
        try:
            stats = await admin.topic_stats(topic)
        except BrokerRefusedError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            continue  # deleted meanwhile
        rows.append(
            (topic, sum(one.max_offset - one.min_offset for one in stats), sum(one.about_bytes for one in stats))
        )
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def _is_system(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


async def _topics_with_clusters(admin: Admin) -> list[tuple[str, str, list[str]]]:
    """(cluster, topic, groups that have an offset in it), sorted."""
    groups_of: dict[str, set[str]] = {}
    topics: set[tuple[str, str]] = set()
    groups: set[str] = set()
    for broker in await brokers_of(admin):
        topics |= {(broker.cluster_name, config.topic) for config in await admin.topic_configs(broker.address)}
        groups |= {config.group for config in await admin.subscription_groups(broker.address)}
    for group in groups:
        for queue in (await admin.consume_stats(group)).queues:
            groups_of.setdefault(queue.queue.topic, set()).add(group)
    return [(cluster, topic, sorted(groups_of.get(topic, ()))) for cluster, topic in sorted(topics)]


@commands.command("topicRoute", rich_help_panel=PANEL)
def topic_route(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    list_format: ListFormat = False,
    as_json: AsJson = False,
) -> None:
    """Where the queues of a topic are."""
    if list_format and as_json:
        raise typer.BadParameter("-l asks for the table and --json for a document; choose one")

    async def question(admin: Admin) -> tuple[TopicRoute, list[ClusterBroker]]:
        return await admin.topic_route(topic), await admin.cluster_list()

    route, brokers = World.of(context).ask(name_servers, question)
    clusters = {broker.broker_name: broker.cluster_name for broker in brokers}
    document = {
        "topic": topic,
        "brokers": [
            {
                "cluster_name": clusters.get(queues.broker_name),
                "broker_name": queues.broker_name,
                "addresses": {str(id_): address for id_, address in sorted(_addresses(route, queues.broker_name))},
                "read_queue_count": queues.read_queue_count,
                "write_queue_count": queues.write_queue_count,
                "perm": queues.perm,
            }
            for queues in route.queues
        ],
    }
    table = Table(
        ("cluster", "broker", "addresses", "read queues", "write queues", "perm"),
        [
            (
                clusters.get(queues.broker_name),
                queues.broker_name,
                ", ".join(f"{id_}: {address}" for id_, address in sorted(_addresses(route, queues.broker_name))),
                queues.read_queue_count,
                queues.write_queue_count,
                perm_text(queues.perm),
            )
            for queues in route.queues
        ],
    )
    show(document, table, as_json=as_json)


def _addresses(route: TopicRoute, broker_name: str) -> list[tuple[int, str]]:
    return list(route.brokers.get(broker_name, {}).items())


@commands.command("topicStatus", rich_help_panel=PANEL)
def topic_status(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """What each queue of a topic holds."""

    async def question(admin: Admin) -> list[QueueStats]:
        names = await broker_names_of(admin, cluster)
        return [one for one in await admin.topic_stats(topic) if names is None or one.queue.broker_name in names]

    stats = World.of(context).ask(name_servers, question)
    document = {"topic": topic, "queues": [_queue_fields(one) for one in stats]}
    table = Table(
        ("broker", "queue", "min offset", "max offset", "messages", "about bytes", "last stored"),
        [
            (
                one.queue.broker_name,
                one.queue.queue_id,
                one.min_offset,
                one.max_offset,
                one.max_offset - one.min_offset,
                one.about_bytes,
                time_text(one.last_update_timestamp_ms),
            )
            for one in stats
        ],
    )
    show(document, table, as_json=as_json)


def _queue_fields(stats: QueueStats) -> dict[str, Any]:
    return {
        "broker_name": stats.queue.broker_name,
        "queue_id": stats.queue.queue_id,
        "min_offset": stats.min_offset,
        "max_offset": stats.max_offset,
        "message_count": stats.max_offset - stats.min_offset,
        "about_bytes": stats.about_bytes,
        **time_fields("last_stored_at", stats.last_update_timestamp_ms),
    }


def perm_text(perm: int) -> str:
    """RocketMQ's way to write permissions: `6 RW-`, the last letter X for a template."""
    return f"{perm} {'R' if perm & 4 else '-'}{'W' if perm & 2 else '-'}{'X' if perm & 1 else '-'}"
