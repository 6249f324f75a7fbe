"""topicList, topicRoute, topicStatus, updateTopic, updateTopicPerm, deleteTopic (mechanism N11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from mqadmin.errors import confirm, say
from mqadmin.options import NO_VALUE, AsJson, BrokerAddress, Cluster, NameServers, Topic, Yes
from mqadmin.output import Table, show, time_fields, time_text
from mqadmin.world import Answers, World, ask_each, broker_fields, broker_names_of, brokers_of, require_one_target
from mqclient import Admin, BrokerUnavailableError, NoRouteError, TopicRoute
from mqclient.admin import ClusterBroker, QueueStats, TopicConfig
from mqproto.codes import Permission, ResponseCode
from mqproto.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS

PANEL = "Topics"
QUEUES_DEFAULT = 8  # RocketMQ's mqadmin makes a topic with 8 queues of each kind
PERM_HELP = "4 read, 2 write, 6 both"

commands = typer.Typer()

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
        except BrokerUnavailableError as error:
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
    """The offsets of each queue of a topic."""

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


ReadQueues = Annotated[
    int | None, typer.Option("-r", "--readQueueNums", metavar="N", help="Read queues; 8 for a new topic.")
]
WriteQueues = Annotated[
    int | None, typer.Option("-w", "--writeQueueNums", metavar="N", help="Write queues; 8 for a new topic.")
]
Perm = Annotated[int, typer.Option("-p", "--perm", metavar="2|4|6", help=f"{PERM_HELP}.")]
PermOrDefault = Annotated[
    int | None, typer.Option("-p", "--perm", metavar="2|4|6", help=f"{PERM_HELP}; 6 for a new topic.")
]
Change = tuple[TopicConfig, str]  # the topic as it is now, and what was done


@commands.command("updateTopic", rich_help_panel=PANEL)
def update_topic(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    broker_address: BrokerAddress = None,
    cluster: Cluster = None,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    perm: PermOrDefault = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic, or change it; what is not named stays as it is."""
    require_one_target(broker_address, cluster)
    named: dict[str, Any] = {"read_queue_count": read_queues, "write_queue_count": write_queues, "perm": perm}
    wanted = {name: value for name, value in named.items() if value is not None}

    async def question(admin: Admin) -> Answers[Change]:
        async def step(broker: ClusterBroker) -> Change:
            known = await _config(admin, topic, broker)
            before = known or TopicConfig(topic, QUEUES_DEFAULT, QUEUES_DEFAULT, Permission.READ_WRITE)
            config = replace(before, **wanted)
            await admin.update_topic(
                topic,
                read_queue_count=config.read_queue_count,
                write_queue_count=config.write_queue_count,
                perm=config.perm,
                broker_address=broker.address,
            )
            return config, ("created" if known is None else "changed" if config != known else "unchanged")

        return await ask_each(await brokers_of(admin, broker_address=broker_address, cluster=cluster), step)

    _show_changes(topic, World.of(context).ask(name_servers, question), as_json=as_json)


@commands.command("updateTopicPerm", rich_help_panel=PANEL)
def update_topic_perm(
    context: typer.Context,
    *,
    topic: Topic,
    perm: Perm,
    name_servers: NameServers,
    broker_address: BrokerAddress = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Change the permissions of an existing topic: read, write, or both."""
    require_one_target(broker_address, cluster)

    async def question(admin: Admin) -> Answers[Change]:
        async def step(broker: ClusterBroker) -> Change | None:
            before = await _config(admin, topic, broker)
            if before is None:
                return None
            await admin.update_topic_perm(topic, perm, broker_address=broker.address)
            after = replace(before, perm=perm)
            return after, ("unchanged" if after == before else "changed")

        answers = await ask_each(await brokers_of(admin, broker_address=broker_address, cluster=cluster), step)
        given = [(broker, change) for broker, change in answers.given if change is not None]
        if not given and not answers.failed:
            raise NoRouteError(f"no broker of {broker_address or cluster} has the topic {topic!r}")
        return Answers(given, answers.failed)

    _show_changes(topic, World.of(context).ask(name_servers, question), as_json=as_json)


async def _config(admin: Admin, topic: str, broker: ClusterBroker) -> TopicConfig | None:
    return next((config for config in await admin.topic_configs(broker.address) if config.topic == topic), None)


def _show_changes(topic: str, answers: Answers[Change], *, as_json: bool) -> None:
    """Each broker's topic as it is now. Raises typer.Exit when a broker has failed."""
    document = {
        "topic": topic,
        "brokers": [
            {
                **broker_fields(broker),
                "read_queue_count": config.read_queue_count,
                "write_queue_count": config.write_queue_count,
                "perm": config.perm,
                "outcome": outcome,
            }
            for broker, (config, outcome) in answers.given
        ],
        "failed": answers.failures(),
    }
    table = Table(
        ("broker", "address", "topic", "read queues", "write queues", "perm", "outcome"),
        [
            (
                broker.broker_name,
                broker.address,
                topic,
                config.read_queue_count,
                config.write_queue_count,
                perm_text(config.perm),
                outcome,
            )
            for broker, (config, outcome) in answers.given
        ],
    )
    show(document, *([table] if answers.given else []), as_json=as_json)
    answers.end()


@commands.command("deleteTopic", rich_help_panel=PANEL)
def delete_topic(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    broker_address: BrokerAddress = None,
    cluster: Cluster = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with its messages and the groups' offsets in it."""
    require_one_target(broker_address, cluster)
    confirm(f"Delete topic {topic} with all its messages on {broker_address or cluster}?", yes=yes)

    async def question(admin: Admin) -> None:
        await admin.delete_topic(topic, cluster_name=cluster, broker_address=broker_address)

    World.of(context).ask(name_servers, question)
    deleted = {"topic": topic, "cluster_name": cluster, "broker_address": broker_address}
    show(deleted, Table(("topic", "deleted from"), [(topic, broker_address or cluster)]), as_json=as_json)
