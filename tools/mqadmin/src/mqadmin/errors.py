"""How a command ends that cannot go on: a sentence on stderr and an exit code, or a question before something is lost.

A traceback is left to unexpected errors. The exit codes are those of docs/reference/mqadmin.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from mqclient import (
    BrokerRejectedError,
    IllegalArgumentError,
    IllegalGroupError,
    MessageRejectedError,
    MQClientError,
    UnknownTransportError,
)
from mqproto.codes import ResponseCode

EXIT_OK = 0
EXIT_FAILED = 1  # the cluster rejected or did not answer, or the answer to a question was no
EXIT_USAGE = 2  # the command line makes no sense
EXIT_NOT_FOUND = 3  # what was looked for is not there
EXIT_INTERRUPTED = 130  # Ctrl-C; Typer ends the process with it
_NO_ATTRIBUTES = "nothing has attributes here"
_ONE_QUEUE = "all queues of the topic are reset; resetOffsetByOffset sets one of them"
_NO_UNITS = "there are no units here"
_DIRECTLY = "consumeMessageDirectly has one member consume one message"
_ALL_BROKERS = "every broker is asked for the members that it knows"

# Flags of RocketMQ's mqadmin that the parser here does not know, since none is taken and ignored: why, what to do.
REJECTED: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("updateTopic", "-a"): _NO_ATTRIBUTES,
        ("updateTopic", "-o"): "every queue keeps its order; a producer's selector chooses the queue",
        ("updateTopic", "-u"): _NO_UNITS,
        ("updateTopic", "-s"): _NO_UNITS,
        ("updateSubGroup", "-a"): "the members of a group always hear when it changes",
        ("updateSubGroup", "--attributes"): _NO_ATTRIBUTES,
        ("updateSubGroup", "-i"): "a group reads from the masters",
        ("updateSubGroup", "-m"): "where a group begins is the consumer's consume_from_where",
        ("updateSubGroup", "-o"): "whether messages are consumed in order is the consumer's choice of listener",
        ("updateSubGroup", "-p"): "retries wait by the delay levels; -r sets how many there are",
        ("updateSubGroup", "-w"): "a group reads from the masters",
        ("consumerConnection", "-b"): _ALL_BROKERS,
        (
            "consumerProgress",
            "-s",
        ): "which member has which queue is known to the members only; consumerStatus asks them",
        ("consumerStatus", "-b"): _ALL_BROKERS,
        ("consumerStatus", "-s"): "a member tells of its queues, not of its threads",
        ("resetOffsetByOffset", "-c"): "all clients take the same reset",
        ("resetOffsetByTime", "-b"): _ONE_QUEUE,
        ("resetOffsetByTime", "-c"): "all clients take the same reset",
        ("resetOffsetByTime", "-o"): _ONE_QUEUE,
        ("resetOffsetByTime", "-q"): _ONE_QUEUE,
        ("queryMsgById", "-c"): "the id names its broker",
        ("queryMsgById", "-d"): _DIRECTLY,
        ("queryMsgById", "-f"): "a body is shown as UTF-8, or as hexadecimal digits when it is none",
        ("queryMsgById", "-g"): _DIRECTLY,
        ("queryMsgById", "-s"): "a message is not sent again by its id; sendMessage sends a new one",
        ("queryMsgById", "-u"): _NO_UNITS,
        ("queryMsgByUniqueKey", "-d"): _DIRECTLY,
        ("queryMsgByUniqueKey", "-g"): _DIRECTLY,
        ("printMsg", "-l"): "there are no light queues here",
        ("sendMessage", "-m"): "traces are OpenTelemetry's; set up the exporter of the application",
        ("consumeMessage", "-g"): "it reads without a group, and moves no offset",
    }
)

SENSELESS = (IllegalArgumentError, IllegalGroupError, MessageRejectedError, UnknownTransportError)

# Words of other tools, and of operators, for what a command shows.
OTHER_WORDS = {
    "brokers": "clusterList",
    "consumers": "consumerConnection",
    "dead": "dlq list",
    "delays": "delayStatus",
    "failover": "switchMaster",
    "groups": "consumerProgress",
    "lag": "consumerProgress",
    "messages": "printMsg",
    "offsets": "consumerProgress",
    "replication": "haStatus",
    "reset": "resetOffsetByTime",
    "send": "sendMessage",
    "topics": "topicList",
    "transactions": "tx list",
}


class Commands(TyperGroup):
    """The group of all sub-commands; how each of them ends is decided here."""

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """As typer does, with a suggestion for a word that is the name of no command but of what one shows."""
        meant = OTHER_WORDS.get(arguments[0].lower()) if arguments else None
        if meant is not None and self.get_command(context, arguments[0]) is None:
            raise typer.BadParameter(f"No such command {arguments[0]!r}. Did you mean {meant!r}?", ctx=context)
        return super().resolve_command(context, arguments)

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run and end the process, whatever `standalone_mode` says."""
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except (MQClientError, OSError) as error:
            say(str(error))
            code = exit_code_of(error)
        except typer.TyperException as error:
            say(_usage_sentence(error))
            code = EXIT_USAGE
        except typer.Abort:
            say("given up")
            code = EXIT_FAILED
        sys.exit(code or EXIT_OK)


def exit_code_of(error: Exception) -> int:
    """What the process ends with after an error of the client or of the operating system."""
    if isinstance(error, BrokerRejectedError) and error.code == ResponseCode.QUERY_NOT_FOUND:
        return EXIT_NOT_FOUND
    return EXIT_USAGE if isinstance(error, SENSELESS) else EXIT_FAILED


def say(sentence: str) -> None:
    """One line for the person at the terminal, away from the output."""
    typer.echo(f"mqadmin: {' '.join(sentence.split())}", err=True)


def _usage_sentence(error: typer.TyperException) -> str:
    """What is wrong with the command line, and where to read on."""
    context = getattr(error, "ctx", None)
    command = context.command_path.partition(" ")[2] if context is not None else ""  # such as `dlq list`
    flag = getattr(error, "option_name", "")
    if (command, flag) in REJECTED:
        return f"{command} does not take {flag}: {REJECTED[command, flag]}"
    is_own = isinstance(error, typer.BadParameter) and getattr(error, "param", None) is None
    sentence = error.message if is_own else error.format_message().rstrip(".")
    return f"{sentence} (see mqadmin {f'{command} ' if command else ''}--help)"


def confirm(question: str, *, yes: bool, scripts_too: bool = False) -> None:
    """Return when it may be done: `yes`, or the answer on standard input is yes, or there is no terminal to ask at.

    With `scripts_too` a script has to answer as well. Raises typer.Exit.
    """
    if yes or not (scripts_too or sys.stdin.isatty()):
        return
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:  # standard input is at its end
        typer.echo(err=True)
        say("nothing was changed: standard input holds no answer; -y answers yes")
        raise typer.Exit(EXIT_FAILED) from None
    if not agreed:
        say("nothing was changed")
        raise typer.Exit(EXIT_FAILED)
