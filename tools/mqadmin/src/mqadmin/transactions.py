"""tx list, tx show, tx commit, tx rollback: undecided transactions (mechanism T10)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from mqadmin.errors import EXIT_FAILED, EXIT_NOT_FOUND, confirm, say
from mqadmin.messages import KNOWN_PROPERTIES, MESSAGES_DEFAULT, MESSAGES_MAX
from mqadmin.options import AsJson, NameServers, Yes
from mqadmin.output import HEX, Table, body_text, show, time_fields, time_text
from mqadmin.world import World
from mqclient import MessageExt
from mqclient.admin import TransactionDetails, TransactionInfo, TransactionPhase

commands = typer.Typer(help="Undecided transactions: list, show, commit, roll back.")


class Phase(Enum):
    """What can be listed."""

    PREPARED = "prepared"
    PARKED = "parked"


OfGroup = Annotated[str | None, typer.Option("-g", "--groupName", metavar="GROUP", help="Only of this producer group.")]
OfPhase = Annotated[Phase | None, typer.Option("--phase", help="Only open ones, or only parked ones.")]
MaxNum = Annotated[
    int, typer.Option("-m", "--maxNum", metavar="N", min=1, max=MESSAGES_MAX, help="The oldest, at most N.")
]
TransactionId = Annotated[
    str, typer.Option("-i", "--msgId", metavar="ID", help="The transaction's id: its message's unique id.")
]


@commands.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@commands.command("list")
def list_transactions(
    context: typer.Context,
    *,
    name_servers: NameServers,
    group: OfGroup = None,
    phase: OfPhase = None,
    max_transactions: MaxNum = MESSAGES_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """The transactions that are open, or were parked and are not decided, the oldest first."""
    found = World.of(context).ask(
        name_servers,
        lambda admin: admin.list_transactions(
            phase=None if phase is None else TransactionPhase[phase.name],
            producer_group=group or "",
            max_transactions=max_transactions,
        ),
    )
    document = {
        "there_are_more": found.truncated,
        "transactions": [transaction_fields(one) for one in found.transactions],
    }
    show(document, *([_table(found.transactions)] if found.transactions else []), as_json=as_json)
    if found.truncated:
        say(f"there are more; these {max_transactions} are the oldest. -m takes up to {MESSAGES_MAX}")
    if not found.transactions:
        say("no such transaction is open or parked")
        raise typer.Exit(EXIT_NOT_FOUND)


@commands.command("show")
def show_transaction(
    context: typer.Context, *, transaction_id: TransactionId, name_servers: NameServers, as_json: AsJson = False
) -> None:
    """Everything about a transaction, and its message as it would be delivered."""
    details = World.of(context).ask(name_servers, lambda admin: admin.transaction(transaction_id))
    message = details.message
    document = {
        **transaction_fields(details.info),
        "message": None if message is None else _message_fields(message),
        "remark": details.remark or None,
    }
    show(document, _details_table(details), as_json=as_json)


@commands.command("commit")
def commit_transaction(
    context: typer.Context,
    *,
    transaction_id: TransactionId,
    name_servers: NameServers,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Deliver the message of a transaction that is open or parked."""
    confirm(f"Deliver the message of transaction {transaction_id}? This cannot be undone.", yes=yes)
    _decide(context, name_servers, transaction_id, commit=True, as_json=as_json)


@commands.command("rollback")
def roll_back_transaction(
    context: typer.Context,
    *,
    transaction_id: TransactionId,
    name_servers: NameServers,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give the message of a transaction up that is open or parked."""
    confirm(f"Give the message of transaction {transaction_id} up for good?", yes=yes)
    _decide(context, name_servers, transaction_id, commit=False, as_json=as_json)


def _decide(context: typer.Context, name_servers: str, transaction_id: str, *, commit: bool, as_json: bool) -> None:
    """Raises typer.Exit with a sentence when the transaction had ended the other way."""
    phase = World.of(context).ask(name_servers, lambda admin: admin.decide_transaction(transaction_id, commit=commit))
    document = {"transaction_id": transaction_id, "phase": phase.name.lower()}
    show(document, Table(("transaction id", "phase"), [(transaction_id, phase_text(phase))]), as_json=as_json)
    if phase is not (TransactionPhase.COMMITTED if commit else TransactionPhase.ROLLED_BACK):
        say(f"transaction {transaction_id} had been {phase_text(phase)} before, and stays so")
        raise typer.Exit(EXIT_FAILED)


def phase_text(phase: TransactionPhase) -> str:
    """For people."""
    return phase.name.lower().replace("_", " ")


def transaction_fields(info: TransactionInfo) -> dict[str, Any]:
    """The transaction in a JSON document; null for what is not known of it."""
    return {
        "transaction_id": info.transaction_id,
        "phase": info.phase.name.lower(),
        "broker_name": info.broker_name,
        "group": info.producer_group or None,
        "topic": info.topic or None,
        "keys": list(info.keys),
        **time_fields("stored_at", info.store_timestamp_ms),
        "check_times": info.check_times,
        "log_offset": info.log_offset if info.producer_group else None,
    }


def _table(transactions: tuple[TransactionInfo, ...]) -> Table:
    return Table(
        ("transaction id", "phase", "group", "topic", "keys", "open since", "checks", "broker"),
        [
            (
                one.transaction_id,
                phase_text(one.phase),
                one.producer_group,
                one.topic,
                " ".join(one.keys),
                time_text(one.store_timestamp_ms),
                one.check_times,
                one.broker_name,
            )
            for one in transactions
        ],
    )


def _message_fields(message: MessageExt) -> dict[str, Any]:
    """What the message has before it has a place of its own."""
    text, encoding = body_text(message.body)
    return {
        "tag": message.tag,
        "properties": dict(message.properties),
        **time_fields("born_at", message.born_timestamp_ms),
        "body_size": len(message.body),
        "body": text,
        "body_encoding": encoding,
    }


def _details_table(details: TransactionDetails) -> Table:
    info, message = details.info, details.message
    rows = [("transaction id", info.transaction_id), ("phase", phase_text(info.phase)), ("broker", info.broker_name)]
    if info.producer_group:
        rows += [
            ("group", info.producer_group),
            ("topic", info.topic),
            ("keys", " ".join(info.keys)),
            ("open since", f"{time_text(info.store_timestamp_ms)}, newest copy at {info.log_offset}"),
            ("checks", f"{info.check_times} answered with UNKNOW"),
        ]
    if message is not None:
        text, encoding = body_text(message.body)
        own = {name: value for name, value in message.properties.items() if name not in KNOWN_PROPERTIES}
        rows += [
            ("tag", message.tag or ""),
            ("born", time_text(message.born_timestamp_ms)),
            ("properties", ", ".join(f"{name}={value}" for name, value in own.items())),
            (f"body ({'hex, ' if encoding == HEX else ''}{len(message.body)} bytes)", text),
        ]
    rows += [("message", details.remark)] if details.remark else []
    return Table(("field", "value"), rows)
