"""The options that several commands share, with RocketMQ's letters and long names."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from mqproto.names import parse_address_list

NAME_SERVER_VARIABLE = "NAMESRV_ADDR"  # RocketMQ's

NO_VALUE = ""  # as a metavar; Typer would show <bool>
Switch = Literal["true", "false"]  # RocketMQ's switches take a value


def is_true(switch: Switch | None) -> bool | None:
    """None for a switch that was not given."""
    return None if switch is None else switch == "true"


def queue_url(name_servers: str) -> str:
    """The client's URL for RocketMQ's `host:port;host:port`; a URL is taken as it is. Raises BadParameter."""
    if "://" in name_servers:
        return name_servers
    try:
        parse_address_list(name_servers)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return f"mq://{name_servers}"


NameServers = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrvAddr",
        envvar=NAME_SERVER_VARIABLE,
        callback=queue_url,
        metavar="HOST:PORT;...",
        help="Name servers; a URL such as mq://host:port works too.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", metavar=NO_VALUE, help="One JSON document instead of tables.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", metavar=NO_VALUE, help="Do not ask, even on a terminal.")]
Topic = Annotated[str, typer.Option("-t", "--topic", metavar="TOPIC", help="The topic.")]
Group = Annotated[str, typer.Option("-g", "--groupName", metavar="GROUP", help="The consumer group.")]
BrokerAddress = Annotated[
    str | None, typer.Option("-b", "--brokerAddr", metavar="BROKER", help="Only this broker, by its address or name.")
]
Cluster = Annotated[
    str | None, typer.Option("-c", "--clusterName", metavar="CLUSTER", help="All masters of this cluster.")
]
WholeCluster = Annotated[
    str | None,
    typer.Option("-c", "--clusterName", metavar="CLUSTER", help="All brokers of this cluster, replicas too."),
]
DelayMs = Annotated[
    int | None,
    typer.Option(
        "--delayMs", metavar="MS", min=1, help="To be delivered so many milliseconds from now; 40 days at most."
    ),
]
DeliverAt = Annotated[
    str | None,
    typer.Option("--deliverAt", metavar="TIME", help="To be delivered at this time; at once, when it has passed."),
]
Begin = Annotated[
    str | None, typer.Option("-b", "--beginTimestamp", metavar="TIME", help="Stored at this time or later.")
]
End = Annotated[str | None, typer.Option("-e", "--endTimestamp", metavar="TIME", help="Stored before this time.")]
