"""From errors to one sentence on stderr and an exit code; a traceback is left to errors that nobody expected."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from mqadmin import exits
from mqadmin.refusals import REFUSED
from mqclient import (
    BrokerRejectedError,
    IllegalArgumentError,
    IllegalGroupError,
    MessageRejectedError,
    MQClientError,
    UnknownTransportError,
)
from mqproto.codes import ResponseCode

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
            code = exits.USAGE
        except typer.Abort:
            say("given up")
            code = exits.FAILED
        sys.exit(code or exits.OK)


def exit_code_of(error: Exception) -> int:
    """What the process ends with after an error of the client or of the operating system."""
    if isinstance(error, BrokerRejectedError) and error.code == ResponseCode.QUERY_NOT_FOUND:
        return exits.NOT_FOUND
    return exits.USAGE if isinstance(error, SENSELESS) else exits.FAILED


def say(sentence: str) -> None:
    """One line for the person at the terminal, away from the output."""
    typer.echo(f"mqadmin: {' '.join(sentence.split())}", err=True)


def _usage_sentence(error: typer.TyperException) -> str:
    """What is wrong with the command line, and where to read on."""
    context = getattr(error, "ctx", None)
    command = context.command_path.partition(" ")[2] if context is not None else ""  # such as `dlq list`
    flag = getattr(error, "option_name", "")
    if (command, flag) in REFUSED:
        return f"{command} does not take {flag}: {REFUSED[command, flag]}"
    is_own = isinstance(error, typer.BadParameter) and getattr(error, "param", None) is None
    sentence = error.message if is_own else error.format_message().rstrip(".")
    return f"{sentence} (see mqadmin {f'{command} ' if command else ''}--help)"
