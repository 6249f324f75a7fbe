"""updateTopic, updateTopicPerm, deleteTopic (MISSION N11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from mqadmin.asking_back import confirm
from mqadmin.options import AsJson, BrokerAddress, Cluster, NameServers, Topic, Yes
from mqadmin.output import Table, show
from mqadmin.targets import Answers, ask_each, broker_fields, brokers_of, require_one_target
from mqadmin.topics import PANEL, perm_text
from mqadmin.world import World
from mqclient import Admin, ClusterBroker, NoRouteError, TopicConfig
from mqproto.codes import Permission

commands = typer.Typer()

QUEUES_DEFAULT = 8  # RocketMQ's mqadmin makes a topic with 8 queues of each kind (the output in article 002)

ReadQueues = Annotated[
    int | None, typer.Option("-r", "--readQueueNums", metavar="N", help="Read queues; 8 for a new topic.")
]
WriteQueues = Annotated[
    int | None, typer.Option("-w", "--writeQueueNums", metavar="N", help="Write queues; 8 for a new topic.")
]
PERM_HELP = "4 read, 2 write, 6 both"
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
    """Change who may use a topic that is there: readers, writers, or both."""
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
