"""tx list, tx show, tx commit, tx rollback; and docs/reference/mqadmin.md tells the truth about them.

Mechanism T10.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from mq_broker.core.transactions import TransactionOptions
from mq_broker.embedded import EmbeddedBroker
from mq_broker.embedded.embedded_broker import find
from mqadmin.__main__ import app
from mqadmin.testing import Operator, operated
from mqclient import LocalTransactionState, Message, TransactionProducer
from mqclient.testing import RecordingTransactionListener

PAGE = (Path(__file__).parents[3] / "docs/reference/mqadmin.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## tx\n")[2].partition("\n## ")[0]
EVERYWHERE = {"-n", "--namesrvAddr", "--json"}
UNKNOW = LocalTransactionState.UNKNOW
FIRST = Message("orders", b'{"order": 17, "amount": "12,50"}', tag="paid", keys="order-17")
SECOND = Message("orders", b'{"order": 18, "amount": "3,00"}', tag="paid", keys="order-18")


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    checks = TransactionOptions(check_interval_ms=1_000, immunity_ms=0, check_times_max=2)
    with operated(EmbeddedBroker(request.node.name, transactions=checks)) as one:
        one("updateTopic", "-t", "orders", "-c", "DefaultCluster", "-r", "1", "-w", "1")
        yield one


def prepare(operator: Operator, message: Message, *, seconds: int = 0) -> str:
    """A half message whose producer never knows, and lives for so long; returns its id. After 4 s it is parked."""

    async def send() -> str:
        listener = RecordingTransactionListener(UNKNOW, UNKNOW)
        async with TransactionProducer("shop", operator.url, transaction_listener=listener) as producer:
            sent = await producer.send_message_in_transaction(message)
            for _ in range(seconds):
                await operator.clock.advance(1)
        return sent.transaction_id

    return operator.run(send())


def story(operator: Operator) -> list[str]:
    """A parked transaction, and a prepared one."""
    return [prepare(operator, FIRST, seconds=4), prepare(operator, SECOND)]


def listed(operator: Operator, *arguments: str) -> list[str]:
    document = operator("tx", "list", *arguments, "--json").json
    return [one["transaction_id"] for one in document["transactions"]]


def bodies(operator: Operator) -> list[str]:
    return [message["body"] for message in operator("printMsg", "-t", "orders", "--json").json["messages"]]


class TestList:
    @pytest.mark.parametrize(
        ("arguments", "wanted"),
        [
            ((), [0, 1]),
            (("--phase", "parked"), [0]),
            (("--phase", "prepared"), [1]),
            (("-g", "shop"), [0, 1]),
            (("-m", "1"), [0]),
        ],
    )
    def test_filters_choose(self, operator: Operator, arguments: tuple[str, ...], wanted: list[int]) -> None:
        ids = story(operator)
        assert listed(operator, *arguments) == [ids[number] for number in wanted]

    def test_it_says_that_there_are_more(self, operator: Operator) -> None:
        story(operator)
        outcome = operator("tx", "list", "-m", "1")
        assert outcome.exit_code == 0
        assert outcome.stderr == "mqadmin: there are more; these 1 are the oldest. -m takes up to 2000\n"
        assert operator("tx", "list", "-m", "2").stderr == ""

    @pytest.mark.parametrize("arguments", [(), ("-g", "nobody"), ("--phase", "parked")])
    def test_nothing_is_exit_code_3(self, operator: Operator, arguments: tuple[str, ...]) -> None:
        if arguments:
            prepare(operator, FIRST)
        outcome = operator("tx", "list", *arguments)
        assert (outcome.exit_code, outcome.stdout) == (3, "")
        assert outcome.stderr == "mqadmin: no such transaction is open or parked\n"
        empty = operator("tx", "list", *arguments, "--json")
        assert (empty.exit_code, empty.json) == (3, {"there_are_more": False, "transactions": []})


class TestDecisions:
    @pytest.mark.mechanism("T10")
    @pytest.mark.parametrize("number", [0, 1])
    def test_a_commit_delivers_and_a_second_word_changes_nothing(self, operator: Operator, number: int) -> None:
        id_ = story(operator)[number]
        outcome = operator("tx", "commit", "-i", id_)
        assert (outcome.exit_code, outcome.rows) == (0, [["transaction id", "phase"], [id_, "committed"]])
        assert operator("tx", "commit", "-i", id_).exit_code == 0
        late = operator("tx", "rollback", "-i", id_)
        assert (late.exit_code, late.rows[1]) == (1, [id_, "committed"])
        assert late.stderr == f"mqadmin: transaction {id_} had been committed before, and stays so\n"
        assert bodies(operator) == [(FIRST, SECOND)[number].body.decode()]

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_roll_back_gives_the_message_up(self, operator: Operator, number: int) -> None:
        id_ = story(operator)[number]
        assert operator("tx", "rollback", "-i", id_, "--json").json == {"transaction_id": id_, "phase": "rolled_back"}
        late = operator("tx", "commit", "-i", id_)
        assert (late.exit_code, late.rows[1]) == (1, [id_, "rolled back"])
        assert bodies(operator) == []
        assert operator("tx", "show", "-i", id_).rows[1:] == [
            ["transaction id", id_],
            ["phase", "rolled back"],
            ["broker", "broker-a"],
        ]

    @pytest.mark.parametrize("command", ["show", "commit", "rollback"])
    def test_an_unknown_transaction_is_exit_code_3(self, operator: Operator, command: str) -> None:
        outcome = operator("tx", command, "-i", "nothing")
        assert (outcome.exit_code, outcome.stdout) == (3, "")
        assert "no transaction 'nothing' is open or was closed of late" in outcome.stderr

    @pytest.mark.parametrize(
        ("command", "question"),
        [
            ("commit", "Deliver the message of transaction {}? This cannot be undone."),
            ("rollback", "Give the message of transaction {} up for good?"),
        ],
    )
    def test_a_person_at_a_terminal_is_asked_and_may_say_no(
        self, operator: Operator, command: str, question: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []

        class Terminal:
            stdin = type("Stdin", (), {"isatty": staticmethod(lambda: True)})
            exit = staticmethod(sys.exit)

        def no(what: str, **_: Any) -> bool:
            asked.append(what)
            return False

        monkeypatch.setattr("mqadmin.errors.sys", Terminal)
        monkeypatch.setattr(typer, "confirm", no)
        id_ = prepare(operator, FIRST)
        outcome = operator("tx", command, "-i", id_)
        assert (outcome.exit_code, outcome.stderr) == (1, "mqadmin: nothing was changed\n")
        assert asked == [question.format(id_)]
        assert listed(operator) == [id_]
        assert operator("tx", command, "-i", id_, "-y").exit_code == 0
        assert len(asked) == 1


def test_a_message_that_cannot_be_read_is_said_so(operator: Operator) -> None:
    id_ = prepare(operator, FIRST)
    broker = find(operator.url.removeprefix("memory://")).broker

    async def unreadable(log_offset: int) -> object:
        raise ValueError(f"the record at offset {log_offset} is damaged")

    broker.store.reader.read_record = unreadable  # type: ignore[assignment,method-assign]
    assert listed(operator) == [id_]
    outcome = operator("tx", "show", "-i", id_)
    assert outcome.exit_code == 0
    assert re.fullmatch(r"the record at offset \d+ is damaged", dict(outcome.rows[1:])["message"])
    outcome = operator("tx", "commit", "-i", id_)
    assert (outcome.exit_code, "is damaged" in outcome.stderr) == (1, True)
    assert operator("tx", "rollback", "-i", id_).exit_code == 0


def test_without_a_sub_command_it_says_what_there_is(operator: Operator) -> None:
    outcome = operator("tx")
    assert outcome.exit_code == 0
    assert all(command in outcome.stdout for command in ("list", "show", "commit", "rollback"))


def commands() -> TyperGroup:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    found = group.commands["tx"]
    assert isinstance(found, TyperGroup)
    return found


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


def fields_of(document: Any) -> set[str]:
    """Every field of the document and of what is in it, but for the application's properties."""
    if isinstance(document, list):
        return set().union(*map(fields_of, document))
    if not isinstance(document, dict):
        return set()
    return set(document).union(*(fields_of(value) for name, value in document.items() if name != "properties"))


class TestReadme:
    def test_the_table_has_the_flags_that_the_parser_takes(self) -> None:
        told: dict[str, set[str]] = {command: set() for command in commands().commands}
        for command, flags in re.findall(r"^\| tx (\w+) \| `(-[^`]+)` \|", SECTION, re.MULTILINE):
            told[command] |= set(flags.split())
        taken = {
            name: {flag for parameter in command.params for flag in parameter.opts if flag.startswith("-")} - EVERYWHERE
            for name, command in commands().commands.items()
        }
        assert told == taken

    @pytest.mark.parametrize("command", ["list", "show", "commit", "rollback"])
    def test_a_document_has_the_fields_that_are_written_down(self, operator: Operator, command: str) -> None:
        id_ = prepare(operator, FIRST)
        document = operator("tx", command, *(() if command == "list" else ("-i", id_)), "--json").json
        ((_, text),) = re.findall(rf"^\| (tx {command}) \| ((?:`[a-z]|transaction's).+) \|$", SECTION, re.MULTILINE)
        (shared,) = re.findall(r"^- transaction's fields: (.+(?:\n  .+)*)", SECTION, re.MULTILINE)
        fields = named(text) | (named(shared) if "transaction's fields" in text else set())
        assert fields_of(document) == fields | {f"{field}_ms" for field in fields if field.endswith("_at")}

    def test_what_it_shows_is_what_is_printed(self, operator: Operator) -> None:
        """The story of the section, told again: everything but the ids is as written."""
        (block,) = re.findall(r"```\n(\$ mqadmin tx list.+?)```", SECTION, re.DOTALL)
        ids = dict(zip(re.findall(r"^7F\w{30}", block, re.MULTILINE), story(operator), strict=False))
        assert len(ids) == 2
        for step in block.split("$ mqadmin ")[1:]:
            call, _, output = step.partition("\n")
            for written, real in ids.items():
                call, output = call.replace(written, real), output.replace(written, real)
            assert operator(*call.split()).stdout == output.rstrip("\n") + "\n", call
