"""dlq list, dlq show, dlq edit; and docs/reference/mqadmin.md tells the truth about all of dlq (mechanism R2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from mq_broker.embedded import EmbeddedBroker
from mq_broker.embedded.embedded_broker import find
from mqadmin.__main__ import app
from mqadmin.testing import Operator, operated
from mqclient import (
    Admin,
    BrokerRejectedError,
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from mqclient.testing.recording import send_dead_letters
from mqproto.codes import ResponseCode
from osenv.sim_clock import settle

GROUP = ("-g", "billing")
CLUSTER = ("-c", "DefaultCluster")
PAGE = (Path(__file__).parents[3] / "docs/reference/mqadmin.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## dlq\n")[2].partition("\n## ")[0]
EVERYWHERE = {"-n", "--namesrvAddr", "--json"}


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        for topic in ("orders", "refunds"):
            one("updateTopic", "-t", topic, *CLUSTER, "-r", "1", "-w", "1")
        yield one


def die(operator: Operator, *messages: Message) -> None:
    """One a second."""
    for message in messages:
        operator.run(send_dead_letters(operator.url, "billing", [message]))
        operator.advance(1)


def listed(operator: Operator, *arguments: str) -> list[dict[str, Any]]:
    outcome = operator("dlq", "list", *GROUP, *arguments, "--json")
    assert outcome.stderr == "" or outcome.exit_code == 3 or "there are more" in outcome.stderr
    letters: list[dict[str, Any]] = outcome.json["letters"]
    return letters


def body_starts(operator: Operator, *arguments: str) -> list[str]:
    return [letter["body_start"] for letter in listed(operator, *arguments)]


def shown(operator: Operator, id_: str) -> dict[str, Any]:
    (letter,) = operator("dlq", "show", *GROUP, "-i", id_, "--json").json["letters"]
    fields: dict[str, Any] = letter
    return fields


SOME = (
    Message("orders", b"one", tag="created", keys="k1"),
    Message("refunds", b"two", tag="closed", keys=["k1", "k2"]),
    Message("orders", b"three", tag="closed"),
)


class TestList:
    def test_a_row_says_what_died_and_when(self, operator: Operator) -> None:
        die(operator, Message("orders", b"x" * 50, tag="created", keys=["a", "b"]))
        head, row = operator("dlq", "list", *GROUP).rows
        assert head == ["message id", "topic", "tag", "keys", "tries", "dead since", "bytes", "body"]
        assert row[1:] == ["orders", "created", "a b", "1", "2023-11-14 22:13:20.000Z", "50", f"{'x' * 40}..."]

    @pytest.mark.parametrize(
        ("arguments", "bodies"),
        [
            ((), "one two three"),
            (("-t", "orders"), "one three"),
            (("--tag", "closed"), "two three"),
            (("--tag", "closed || created"), "one two three"),
            (("-k", "k1"), "one two"),
            (("--since", "2023-11-14T22:13:21Z"), "two three"),
            (("--until", "2023-11-14T22:13:21Z"), "one"),
            (("--contains", "o", "--tag", "closed"), "two"),
            (("-m", "2"), "one two"),
        ],
    )
    def test_filters_choose(self, operator: Operator, arguments: tuple[str, ...], bodies: str) -> None:
        die(operator, *SOME)
        assert body_starts(operator, *arguments) == bodies.split()

    def test_nothing_found_is_exit_code_3(self, operator: Operator) -> None:
        outcome = operator("dlq", "list", *GROUP)
        assert (outcome.exit_code, outcome.stdout) == (3, "")
        assert outcome.stderr == "mqadmin: group billing has no such dead letters\n"
        assert operator("dlq", "list", *GROUP, "--json").json == {
            "group": "billing",
            "there_are_more": False,
            "letters": [],
        }

    def test_it_says_when_there_are_more(self, operator: Operator) -> None:
        die(operator, *SOME)
        assert operator("dlq", "list", *GROUP, "-m", "3").stderr == ""
        outcome = operator("dlq", "list", *GROUP, "-m", "2")
        assert (outcome.exit_code, len(outcome.rows)) == (0, 3)
        assert "there are more" in outcome.stderr

    def test_a_body_that_is_no_text_is_hexadecimal_and_escapes_nothing(self, operator: Operator) -> None:
        die(operator, Message("orders", b"\xff\x00"), Message("orders", b"\x1b[31mred"))
        assert body_starts(operator) == ["ff00", "\x1b[31mred"]
        assert operator("dlq", "list", *GROUP).rows[2][-1] == r"\x1b[31mred"

    def test_what_was_edited_or_replayed_is_shown_with_all_only(self, operator: Operator) -> None:
        die(operator, *SOME)
        one, two, _ = [letter["offset_message_id"] for letter in listed(operator)]
        operator("dlq", "edit", *GROUP, "-i", one, "--body", "one, better")
        operator("dlq", "replay", *GROUP, "-i", two)
        assert body_starts(operator) == ["three", "one, better"]
        rows = operator("dlq", "list", *GROUP, "--all").rows
        assert [(row[-1], row[6]) for row in rows] == [
            *(
                ("body", "state"),
                ("one", "superseded"),
                ("two", "replayed"),
                ("three", "open"),
                ("one, better", "open"),
            ),
        ]


class TestShow:
    def test_everything_about_a_letter(self, operator: Operator) -> None:
        die(operator, Message("orders", b"body", tag="created", keys="k", properties={"region": "east"}))
        (letter,) = listed(operator)
        by_unique_id, by_position = (shown(operator, letter[name]) for name in ("message_id", "offset_message_id"))
        assert by_unique_id == by_position
        assert (by_position["body"], by_position["properties"]["region"]) == ("body", "east")
        assert (by_position["original_topic"], by_position["original_message_id"], by_position["state"]) == (
            *("orders", letter["message_id"], "open"),
        )
        (original,) = by_position["originals"]
        assert (original["queue_topic"], original["queue_offset"]) == ("orders", 0)
        rows = dict(row for row in operator("dlq", "show", *GROUP, "-i", letter["message_id"]).rows if len(row) == 2)
        assert rows["still there"] == "orders@broker-a:0 offset 0"
        assert rows["body (4 bytes)"] == "body"

    def test_it_says_when_the_topic_has_the_message_no_more(self, operator: Operator) -> None:
        die(operator, Message("orders", b"body"))
        (letter,) = listed(operator)
        operator("deleteTopic", "-t", "orders", *CLUSTER)
        assert shown(operator, letter["message_id"])["originals"] == []
        outcome = operator("dlq", "show", *GROUP, "-i", letter["message_id"])
        assert ["still there", "the index finds it no more"] in outcome.rows

    def test_without_an_index_the_rest_is_shown(self, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
        die(operator, Message("orders", b"body"))
        (letter,) = listed(operator)

        async def rejected(*_: Any) -> list[Any]:
            raise BrokerRejectedError(ResponseCode.MESSAGE_ILLEGAL, "this broker keeps no index", "broker-a")

        monkeypatch.setattr(Admin, "query_message_by_unique_key", rejected)
        assert shown(operator, letter["message_id"])["originals"] is None
        outcome = operator("dlq", "show", *GROUP, "-i", letter["message_id"])
        assert ["still there", "not known: the broker cannot look for it"] in outcome.rows

    def test_it_says_what_was_done(self, operator: Operator) -> None:
        die(operator, Message("orders", b"bad"))
        (letter,) = listed(operator)
        operator("dlq", "edit", *GROUP, "-i", letter["message_id"], "--body", "good")
        operator.advance(1)
        operator("dlq", "replay", *GROUP, "-i", letter["message_id"])
        assert [done["done"] for done in shown(operator, letter["offset_message_id"])["done"]] == ["superseded"]
        edited = shown(operator, letter["message_id"])
        assert (edited["body"], edited["state"], edited["replaces_queue_offset"]) == ("good", "replayed", 0)
        assert [(done["done"], done["at"], done["detail"]) for done in edited["done"]] == [
            ("replayed", "2023-11-14T22:13:22.000Z", "sent to %RETRY%billing@broker-a:0 offset 0")
        ]

    @pytest.mark.parametrize("command", ["show", "edit", "replay"])
    def test_an_id_of_none_is_exit_code_3(self, operator: Operator, command: str) -> None:
        die(operator, Message("orders", b"body"))
        change = ("--body", "x") if command == "edit" else ()
        outcome = operator("dlq", command, *GROUP, "-i", "nothing", *change)
        assert (outcome.exit_code, outcome.stdout) == (3, "")
        assert outcome.stderr == "mqadmin: group billing has no dead letter with the id 'nothing'\n"


class TestEdit:
    def test_every_flag_changes_what_it_names(self, operator: Operator) -> None:
        die(operator, Message("orders", b"bad", tag="t", keys="k", properties={"a": "1", "b": "2"}))
        (letter,) = listed(operator)
        changes = ("--body", "good", "--tag", "u", "--keys", "k1 k2", "--property", "c=x=y", "--remove-property", "b")
        outcome = operator("dlq", "edit", *GROUP, "-i", letter["message_id"], *changes, "--json")
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        edited = shown(operator, letter["message_id"])
        assert (edited["body"], edited["tag"], edited["keys"]) == ("good", "u", ["k1", "k2"])
        assert {name: edited["properties"].get(name) for name in "abc"} == {"a": "1", "b": None, "c": "x=y"}
        assert outcome.json["offset_message_id"] == edited["offset_message_id"]
        assert outcome.json["replaces_offset_message_id"] == letter["offset_message_id"]

    def test_a_file_is_taken_byte_by_byte(self, operator: Operator) -> None:
        die(operator, Message("orders", b"bad"))
        operator.disk.make_dirs(Path("/bodies"))
        operator.disk.open(Path("/bodies/one"), create=True).pwrite(b"\xff\x00", 0)
        (letter,) = listed(operator)
        operator("dlq", "edit", *GROUP, "-i", letter["message_id"], "--body-file", "/bodies/one")
        assert body_starts(operator) == ["ff00"]

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ((), "nothing is to be changed"),
            (("--body", "x", "--body-file", "/y"), "two bodies; give one of them (see mqadmin dlq edit --help)"),
            (("--body-file", "/none"), "/none cannot be read"),
            (("--property", "nonsense"), "'nonsense' is no property; write NAME=VALUE"),
            (("--property", "RETRY_TOPIC=x"), "'RETRY_TOPIC' belongs to the queue and cannot be edited"),
            (("--remove-property", "UNIQ_KEY"), "'UNIQ_KEY' belongs to the queue and cannot be edited"),
            (("--remove-property", "z"), "no property 'z' to remove; it has: none"),
            (("--body", ""), "the body is empty"),
        ],
    )
    def test_a_change_that_makes_no_sense_is_exit_code_2(
        self, operator: Operator, changes: tuple[str, ...], sentence: str
    ) -> None:
        die(operator, Message("orders", b"bad"))
        (letter,) = listed(operator)
        outcome = operator("dlq", "edit", *GROUP, "-i", letter["message_id"], *changes)
        assert (outcome.exit_code, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1)
        assert sentence in outcome.stderr
        assert body_starts(operator, "--all") == ["bad"]

    def test_one_that_was_replayed_or_edited_is_rejected(self, operator: Operator) -> None:
        die(operator, Message("orders", b"one"), Message("orders", b"two"))
        one, two = [letter["offset_message_id"] for letter in listed(operator)]
        operator("dlq", "edit", *GROUP, "-i", one, "--body", "better")
        operator("dlq", "replay", *GROUP, "-i", two)
        for id_, sentence in ((one, "was edited: another replaces it"), (two, "was replayed already")):
            outcome = operator("dlq", "edit", *GROUP, "-i", id_, "--body", "late")
            assert (outcome.exit_code, outcome.stderr) == (1, f"mqadmin: the dead letter {id_} {sentence}\n")

    def test_an_id_of_two_letters_is_not_enough(self, operator: Operator) -> None:
        die(operator, Message("orders", b"one"))
        (letter,) = listed(operator)
        operator("dlq", "replay", *GROUP, "-i", letter["message_id"], "--to", "topic")
        (sent,) = [
            message
            for message in operator("printMsg", "-t", "orders", "--json").json["messages"]
            if message["queue_offset"] == 1
        ]
        operator.run(kill(operator, sent["log_offset"]))
        operator.run(kill(operator, sent["log_offset"]))
        outcome = operator("dlq", "edit", *GROUP, "-i", letter["message_id"], "--body", "x")
        assert outcome.exit_code == 2
        assert f"2 dead letters have the id {letter['message_id']}; name one of them by its own: 7F" in outcome.stderr


async def kill(operator: Operator, log_offset: int) -> None:
    """The group gives up the message at this place."""
    broker = find(operator.url.removeprefix("memory://")).broker
    await broker.send_back.send_back("billing", log_offset, delay_level=-1, max_reconsume_times=0)


def dlq_commands() -> TyperGroup:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    found = group.commands["dlq"]
    assert isinstance(found, TyperGroup)
    return found


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


class TestWhy:
    def test_a_letter_says_what_its_last_listener_raised_and_which_member_had_it(self, operator: Operator) -> None:
        async def fail(_: list[MessageExt]) -> ConsumeStatus:
            raise ZeroDivisionError("amount / 0")

        async def consume() -> None:
            consumer = PushConsumer(
                "billing",
                operator.url,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                consumer_config=ConsumerConfig(max_reconsume_times=0),
                client_config=ClientConfig(instance_name="till-1"),
            )
            consumer.subscribe("orders")
            consumer.register_message_listener(fail)
            async with consumer, Producer("writers", operator.url) as producer, Admin(operator.url) as admin:
                await producer.send(Message("orders", b"one"))
                while (await admin.topic_stats("%DLQ%billing"))[0].max_offset < 2:
                    await settle()

        die(operator, Message("orders", b"before"))
        operator.run_while_time_passes(consume())
        letter = listed(operator)[-1]
        assert letter["failure"] == "ZeroDivisionError: amount / 0"
        assert letter["failed_member"].endswith("@till-1")
        rows = operator("dlq", "show", *GROUP, "-i", letter["offset_message_id"]).rows
        assert ["failure", "ZeroDivisionError: amount / 0"] in rows
        assert ["failed at", letter["failed_member"]] in rows
        assert (listed(operator)[0]["failure"], listed(operator)[0]["failed_member"]) == (None, None)


class TestGroups:
    def test_without_a_group_every_group_that_has_letters_is_counted(self, operator: Operator) -> None:
        none = operator("dlq", "list")
        assert (none.exit_code, none.stderr) == (3, "mqadmin: no group has such dead letters\n")
        die(operator, Message("orders", b"one"), Message("orders", b"two"))
        (group,) = operator("dlq", "list", "--json").json["groups"]
        assert (group["group"], group["letter_count"], group["there_are_more"]) == (GROUP[1], 2, False)
        assert operator("dlq", "list", "-m", "1").rows[1][:2] == [GROUP[1], "1+"]


class TestReadme:
    def test_the_table_has_the_flags_that_the_parser_takes(self) -> None:
        told: dict[str, set[str]] = {command: set() for command in dlq_commands().commands}
        for command, flags in re.findall(r"^\| dlq (\w+) \| `([^`]+)` \|", SECTION, re.MULTILINE):
            told[command] |= set(flags.split())
        taken = {
            name: {flag for parameter in command.params for flag in parameter.opts if flag.startswith("-")} - EVERYWHERE
            for name, command in dlq_commands().commands.items()
        }
        assert told == taken

    @pytest.mark.parametrize("command", ["list", "show", "edit", "replay"])
    def test_a_document_has_the_fields_that_are_written_down(self, operator: Operator, command: str) -> None:
        die(operator, Message("orders", b"one"), Message("orders", b"two"))
        one, two = [letter["message_id"] for letter in listed(operator)]
        operator("dlq", "replay", *GROUP, "-i", two)
        arguments = {"show": ("-i", two), "edit": ("-i", one, "--body", "x"), "replay": ("-i", one)}.get(command, ())
        document = operator("dlq", command, *GROUP, *arguments, "--json").json
        ((_, text),) = re.findall(
            rf"^\| (dlq {command}) \| (`(?:group|letters|message_id)`.+) \|$", SECTION, re.MULTILINE
        )
        (shared,) = re.findall(r"^- letter's fields: (.+(?:\n  .+)*)", SECTION, re.MULTILINE)
        (message,) = re.findall(r"^- message's fields: (.+(?:\n  .+)*)", PAGE, re.MULTILINE)
        fields = named(text) | (named(shared) | named(message) if "letter's fields" in text else set())
        fields |= {f"{field}_ms" for field in fields if field.endswith("_at") or field == "at"}
        if "without" in text:
            fields -= named(text.partition("without")[2])
        assert fields_of(document) == fields

    def test_what_it_shows_is_what_is_printed(self, operator: Operator) -> None:
        """The story of the section, told again: everything but the ids is as written."""
        block = re.findall(r"```\n(\$ mqadmin dlq list.+?)```", SECTION, re.DOTALL)
        assert len(block) == 1
        die(
            operator,
            Message("orders", b'{"order": 17, "amount": "12,50"}', tag="paid", keys="order-17"),
            Message("orders", b'{"order": 18, "amount": "3,00"}', tag="paid", keys="order-18"),
        )
        ids: dict[str, str] = {}
        for letter, written in zip(listed(operator), re.findall(r"^7F\w{30}", block[0], re.MULTILINE), strict=False):
            ids[written] = letter["message_id"]
        for step in block[0].split("$ mqadmin ")[1:]:
            call, _, output = step.partition("\n")
            for written, real in ids.items():
                call, output = call.replace(written, real), output.replace(written, real)
            arguments = [part.strip("'") for part in re.findall(r"'[^']*'|\S+", call)]
            assert operator(*arguments).stdout == output.rstrip("\n") + "\n", call


def fields_of(document: Any) -> set[str]:
    """Every field of the document and of what is in it, but for the application's properties."""
    if isinstance(document, list):
        return set().union(*map(fields_of, document))
    if not isinstance(document, dict):
        return set()
    return set(document).union(*(fields_of(value) for name, value in document.items() if name != "properties"))
