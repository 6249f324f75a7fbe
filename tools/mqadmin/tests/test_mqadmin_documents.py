"""The JSON documents are those of docs/reference/mqadmin.md: every field that is written there, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqadmin.testing import Operator, operated, operated_pair, started_consumer

PAGE = (Path(__file__).parents[3] / "docs/reference/mqadmin.md").read_text(encoding="utf-8").partition("\n## JSON\n")[2]
CLUSTER = ("-c", "DefaultCluster")
SHARED = ("broker's fields", "level's fields", "message's fields", "member's fields")
OPAQUE = {"config", "properties", "addresses", "damaged"}  # maps and lists with shapes of their own

# The command as docs/reference/mqadmin.md names it, and a call of it.
CALLS: list[tuple[str, tuple[str, ...]]] = [
    ("updateTopic", ("updateTopic", "-t", "orders", *CLUSTER)),
    ("updateTopicPerm", ("updateTopicPerm", "-t", "orders", *CLUSTER, "-p", "6")),
    ("topicList", ("topicList", "-c")),
    ("topicList -s", ("topicList", "-s")),
    ("topicRoute", ("topicRoute", "-t", "orders")),
    ("topicStatus", ("topicStatus", "-t", "orders")),
    ("clusterList", ("clusterList",)),
    ("brokerStatus", ("brokerStatus", *CLUSTER)),
    ("delayStatus", ("delayStatus",)),
    ("brokerConfig", ("brokerConfig", *CLUSTER)),
    ("backup", ("backup", "-b", "broker-a", "-d", "/backups/one")),
    ("restore", ("restore", "-d", "/backups/made", "-s", "/restored")),
    ("updateSubGroup", ("updateSubGroup", "-g", "readers", *CLUSTER)),
    ("consumerProgress", ("consumerProgress",)),
    ("consumerProgress -g", ("consumerProgress", "-g", "readers")),
    ("resetOffsetByTime", ("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "0")),
    (
        "resetOffsetByOffset",
        ("resetOffsetByOffset", "-g", "readers", "-t", "orders", "-b", "broker-a", "-i", "0", "-o", "0"),
    ),
    ("consumerConnection", ("consumerConnection", "-g", "living")),
    ("consumerStatus", ("consumerStatus", "-g", "living")),
    (
        "consumeMessageDirectly",
        ("consumeMessageDirectly", "-g", "living", "-d", "127.0.0.1@one", "-i", "7F00000100002A9F0000000000000125"),
    ),
    ("queryMsgByKey", ("queryMsgByKey", "-t", "orders", "-k", "k")),
    ("printMsg", ("printMsg", "-t", "orders")),
    ("consumeMessage", ("consumeMessage", "-t", "orders")),
    ("sendMessage", ("sendMessage", "-t", "orders", "-p", "x")),
    ("rescheduleMessage", ("rescheduleMessage", "-t", "orders", "-k", "later", "--delayMs", "9000")),
    ("recallMessage", ("recallMessage", "-t", "orders", "-k", "later")),
    ("explain", ("explain", "k")),
    ("deleteSubGroup", ("deleteSubGroup", "-g", "readers", *CLUSTER)),
    ("deleteTopic", ("deleteTopic", "-t", "orders", *CLUSTER)),
]

PAIR_CALLS: list[tuple[str, tuple[str, ...]]] = [
    ("haStatus", ("haStatus",)),
    ("switchMaster", ("switchMaster", "-b", "broker-a", "--to", "1")),
]


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        one("updateTopic", "-t", "orders", *CLUSTER)
        one("sendMessage", "-t", "orders", "-p", "x", "-k", "k")
        one("sendMessage", "-t", "orders", "-p", "x", "-k", "later", "--delayMs", "60000")
        one("updateSubGroup", "-g", "readers", *CLUSTER)
        one("backup", "-b", "broker-a", "-d", "/backups/made")
        one("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "now")
        member = one.run(started_consumer(one.url, "living"))
        yield one
        one.run(member.shutdown())


def named(text: str) -> set[str]:
    """The fields that a text of docs/reference/mqadmin.md names."""
    return set(re.findall(r"`([a-z0-9_]+)`", text))


def shared_fields(whose: str) -> set[str]:
    """What one of SHARED stands for."""
    (line,) = re.findall(rf"^- {whose}: (.+(?:\n  .+)*)", PAGE, re.MULTILINE)
    return named(line)


def documented(command: str) -> set[str]:
    (row,) = [
        cells for cells in re.findall(r"^\| (.+?) \| (.+) \|$", PAGE, re.MULTILINE) if command in cells[0].split(", ")
    ]
    text = row[1]
    fields = named(text)
    for whose in SHARED:
        fields |= shared_fields(whose) if whose in text else set()
    return fields | {f"{field}_ms" for field in fields if field.endswith("_at") or field == "at"}


def fields_of(document: Any) -> set[str]:
    """Every field of the document and of what is in it."""
    if isinstance(document, list):
        return set().union(*map(fields_of, document))
    if not isinstance(document, dict):
        return set()
    inner = [fields_of(value) for name, value in document.items() if name not in OPAQUE]
    return set(document).union(*inner)


@pytest.mark.parametrize(("command", "call"), CALLS, ids=[command for command, _ in CALLS])
def test_a_document_has_the_fields_that_are_written_down(
    operator: Operator, command: str, call: tuple[str, ...]
) -> None:
    outcome = operator(*call, "--json")
    assert outcome.exit_code == 0
    assert fields_of(outcome.json) == documented(command)


@pytest.mark.parametrize(("command", "call"), PAIR_CALLS, ids=[command for command, _ in PAIR_CALLS])
def test_a_document_of_a_pair_has_the_fields_that_are_written_down(command: str, call: tuple[str, ...]) -> None:
    with operated_pair() as (operator, _, _):
        outcome = operator(*call, "--json")
    assert outcome.exit_code == 0
    assert fields_of(outcome.json) == documented(command)


def test_every_document_that_is_written_down_was_looked_at() -> None:
    commands = {
        name for names, _ in re.findall(r"^\| (.+?) \| (.+) \|$", PAGE, re.MULTILINE) for name in names.split(", ")
    }
    by_id = {"queryMsgById", "queryMsgByUniqueKey"}  # in one row with queryMsgByKey
    assert commands - {"command", "---"} - by_id == {command for command, _ in [*CALLS, *PAIR_CALLS]}
