"""dlq replay: who gets a dead letter again, how fast, and what is told when it ends early (mechanism R2)."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import typer

from mq_broker.embedded import EmbeddedBroker
from mqadmin.dlq_replay import Pace
from mqadmin.testing import Operator, Outcome, operated
from mqclient import (
    Admin,
    BrokerUnavailableError,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageRejectedError,
    PushConsumer,
    SendResult,
)
from mqclient.admin import DeadLetter
from mqclient.testing import RecordingListener
from mqclient.testing.recording import open_bodies, send_dead_letters, stored_bodies
from mqproto.codes import ResponseCode
from mqproto.names import retry_topic
from osenv import SimClock

GROUP = ("-g", "billing")
RETRY = retry_topic("billing")


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        for topic in ("orders", "refunds"):
            one("updateTopic", "-t", topic, "-c", "DefaultCluster", "-r", "1", "-w", "1")
        yield one


def die(operator: Operator, *bodies: str, topic: str = "orders") -> None:
    messages = [Message(topic, body.encode()) for body in bodies]
    operator.run(send_dead_letters(operator.url, "billing", messages))


def replay(operator: Operator, *arguments: str) -> Outcome:
    return operator("dlq", "replay", *GROUP, *arguments)


def asked(operator: Operator, topic: str) -> list[str]:
    """The bodies that the topic holds."""

    async def read() -> list[bytes]:
        async with Admin(operator.url) as admin:
            return await stored_bodies(admin, topic)

    return [body.decode() for body in operator.run(read())]


def still_open(operator: Operator) -> list[str]:
    async def read() -> list[bytes]:
        async with Admin(operator.url) as admin:
            return await open_bodies(admin, "billing")

    return [body.decode() for body in operator.run(read())]


class TestWhoGetsIt:
    @pytest.mark.mechanism("R2")
    def test_its_group_consumes_it_under_its_own_topic_and_no_other_does(self, operator: Operator) -> None:
        die(operator, "one")
        listeners = {"billing": RecordingListener(), "bystanders": RecordingListener()}

        async def consume() -> list[list[MessageExt]]:
            for group, listener in listeners.items():
                consumer = PushConsumer(
                    group, operator.url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
                )
                consumer.subscribe("refunds")
                consumer.register_message_listener(listener)
                consumers.append(consumer)
                await consumer.start()
            async with asyncio.timeout(20):
                while not listeners["billing"].bodies:
                    await operator.clock.advance(0.5)
            await operator.clock.advance(60)
            for consumer in consumers:
                await consumer.shutdown()
            return listeners["billing"].batches

        consumers: list[PushConsumer] = []
        assert replay(operator, "--everything").exit_code == 0
        ((message,),) = operator.run(consume())
        assert (message.topic, message.body, message.reconsume_times) == ("orders", b"one", 0)
        assert listeners["bystanders"].bodies == []

    def test_to_the_topic_is_said_to_be_for_every_group(self, operator: Operator) -> None:
        die(operator, "one")
        outcome = replay(operator, "--everything", "--to", "topic")
        assert outcome.stdout.splitlines()[-1].endswith(
            "to the topics that they were sent to first, for every group that reads them"
        )
        assert (asked(operator, "orders"), asked(operator, RETRY)) == (["one", "one"], [])

    @pytest.mark.parametrize(
        ("arguments", "bodies"),
        [
            (("-t", "refunds"), ["two"]),
            (("--contains", "o", "-t", "orders"), ["one"]),
            (("--everything",), ["one", "three", "two"]),
            (("--until", "2023-11-14T22:13:21Z"), ["one", "three"]),
        ],
    )
    def test_a_filter_chooses(self, operator: Operator, arguments: tuple[str, ...], bodies: list[str]) -> None:
        die(operator, "one", "three")
        operator.advance(1)
        die(operator, "two", topic="refunds")
        assert replay(operator, *arguments).exit_code == 0
        assert asked(operator, RETRY) == bodies

    def test_several_ids(self, operator: Operator) -> None:
        die(operator, "one", "two", "three")
        letters = operator("dlq", "list", *GROUP, "--json").json["letters"]
        ids = (letters[2]["message_id"], letters[0]["offset_message_id"])
        assert replay(operator, *[part for id_ in ids for part in ("-i", id_)]).exit_code == 0
        assert sorted(asked(operator, RETRY)) == ["one", "three"]

    @pytest.mark.parametrize("arguments", [(), ("-i", "x", "--everything"), ("--everything", "-t", "orders")])
    def test_which_ones_has_to_be_said_in_one_way(self, operator: Operator, arguments: tuple[str, ...]) -> None:
        outcome = replay(operator, *arguments)
        assert outcome.exit_code == 2
        assert "specify exactly one of: -i, a filter" in outcome.stderr
        assert outcome.stderr.endswith("(see mqadmin dlq replay --help)\n")


class TestOnce:
    def test_a_dry_run_changes_nothing(self, operator: Operator) -> None:
        die(operator, "one", "two")
        outcome = replay(operator, "--everything", "--dry-run")
        assert outcome.exit_code == 0
        assert outcome.stdout.count("  orders  would be replayed\n") == 2
        assert outcome.stdout.endswith(
            "2 dead letters of group billing would be replayed, to group billing alone; nothing was sent\n"
        )
        document = replay(operator, "--everything", "--dry-run", "--json").json
        assert [(letter["outcome"], letter["sent_to"]) for letter in document["letters"]] == [
            ("would be replayed", None)
        ] * 2
        assert (asked(operator, RETRY), still_open(operator)) == ([], ["one", "two"])
        assert RETRY not in operator("topicList").stdout

    def test_a_second_time_needs_again(self, operator: Operator) -> None:
        die(operator, "one")
        (letter,) = operator("dlq", "list", *GROUP, "--json").json["letters"]
        id_ = letter["message_id"]
        assert replay(operator, "-i", id_).exit_code == 0
        outcome = replay(operator, "-i", id_)
        assert (outcome.exit_code, outcome.stdout) == (1, "")
        assert outcome.stderr == f"mqadmin: the dead letter {id_} was replayed already; --again sends it all the same\n"
        assert replay(operator, "--everything").exit_code == 3
        assert asked(operator, RETRY) == ["one"]
        assert replay(operator, "-i", id_, "--again").exit_code == 0
        assert replay(operator, "--everything", "--again").exit_code == 0
        assert asked(operator, RETRY) == ["one"] * 3

    def test_one_that_was_edited_goes_again_only_by_its_own_id(self, operator: Operator) -> None:
        die(operator, "bad")
        (letter,) = operator("dlq", "list", *GROUP, "--json").json["letters"]
        operator("dlq", "edit", *GROUP, "-i", letter["message_id"], "--body", "good")
        assert replay(operator, "-i", letter["offset_message_id"]).exit_code == 1
        assert replay(operator, "--everything", "--again").exit_code == 0
        assert asked(operator, RETRY) == ["good"]
        assert replay(operator, "-i", letter["offset_message_id"], "--again").exit_code == 0
        assert asked(operator, RETRY) == ["good", "bad"]

    def test_one_wrong_id_and_nothing_is_sent(self, operator: Operator) -> None:
        die(operator, "one")
        (letter,) = operator("dlq", "list", *GROUP, "--json").json["letters"]
        assert replay(operator, "-i", letter["message_id"], "-i", "wrong").exit_code == 3
        assert still_open(operator) == ["one"]


class TestConfirmation:
    @pytest.fixture
    def questions(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What a person at the terminal is asked; the answer is no."""
        found: list[str] = []

        class Terminal:
            stdin = type("Stdin", (), {"isatty": staticmethod(lambda: True)})
            exit = staticmethod(sys.exit)

        def no(question: str, **_: Any) -> bool:
            found.append(question)
            return False

        monkeypatch.setattr("mqadmin.errors.sys", Terminal)
        monkeypatch.setattr(typer, "confirm", no)
        return found

    def test_more_than_one_is_asked_for(self, operator: Operator, questions: list[str]) -> None:
        die(operator, "one", "two")
        outcome = replay(operator, "--everything")
        assert (outcome.exit_code, outcome.stderr) == (1, "mqadmin: nothing was changed\n")
        assert questions == ["Replay 2 dead letters of group billing, to group billing alone?"]
        assert still_open(operator) == ["one", "two"]

    @pytest.mark.parametrize(
        "arguments", [("--everything", "-y"), ("--contains", "one"), ("--everything", "--dry-run")]
    )
    def test_one_alone_and_a_dry_run_are_not(
        self, operator: Operator, questions: list[str], arguments: tuple[str, ...]
    ) -> None:
        die(operator, "one", "two")
        assert replay(operator, *arguments).exit_code == 0
        assert questions == []


class TestRate:
    async def test_steps_are_evenly_spread_and_a_late_one_is_not_made_up_for(self) -> None:
        clock, times = SimClock(), []

        async def steps() -> None:
            pace = Pace(clock, 2)
            for late_s in (0, 0, 3, 0, 0):
                await pace.wait()
                times.append(clock.monotonic() - begin)
                await clock.sleep(late_s)

        begin = clock.monotonic()
        running = asyncio.create_task(steps())
        async with asyncio.timeout(20):
            while not running.done():
                await clock.advance(0.125)
        assert times == [0, 0.5, 1, 4, 4.5]

    def test_no_more_than_so_many_a_second(self, operator: Operator) -> None:
        die(operator, *"abcd")
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(replay, operator, "--everything", "--rate", "2")
            while not running.done():
                operator.advance(0.1)
        assert running.result().exit_code == 0
        messages = operator("printMsg", "-t", RETRY, "--json").json["messages"]
        times = [message["stored_at_ms"] for message in messages]
        assert len(times) == 4
        assert all(later - earlier >= 500 for earlier, later in pairwise(times))

    def test_ctrl_c_says_how_far_it_came(self, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
        die(operator, *"abcd")
        run, asks = operator.run, []

        def interrupted(coroutine: Coroutine[Any, Any, Any]) -> Any:
            """The second question ends as by Ctrl-C in asyncio.run, when two letters have gone."""
            asks.append(coroutine)
            if len(asks) != 2:
                return run(coroutine)
            ended = threading.Event()

            async def watched() -> None:
                try:
                    await coroutine
                finally:
                    ended.set()

            running = asyncio.run_coroutine_threadsafe(watched(), operator.loop)
            monkeypatch.setattr(operator, "run", run)
            while len(asked(operator, RETRY)) < 2:
                operator.advance(0.25)
            running.cancel()
            assert ended.wait(20)
            raise KeyboardInterrupt

        monkeypatch.setattr(operator, "run", interrupted)
        outcome = replay(operator, "--everything", "--rate", "1")
        monkeypatch.setattr(operator, "run", run)
        assert outcome.exit_code == 130
        assert outcome.stderr.startswith(
            "mqadmin: interrupted: 2 of 4 dead letters of group billing replayed, to group"
        )
        assert outcome.stdout.count("replayed  to") == 2
        assert still_open(operator) == ["c", "d"]


class TestErrors:
    def fail_at(self, monkeypatch: pytest.MonkeyPatch, body: bytes, error: Exception) -> None:
        replay_dead_letter = Admin.replay_dead_letter

        async def failing(admin: Admin, letter: DeadLetter, **options: Any) -> SendResult:
            if letter.message.body == body:
                raise error
            return await replay_dead_letter(admin, letter, **options)

        monkeypatch.setattr(Admin, "replay_dead_letter", failing)

    def test_one_that_is_rejected_does_not_hold_up_the_others(
        self, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        die(operator, "one", "two", "three")
        self.fail_at(monkeypatch, b"two", MessageRejectedError("too large now"))
        outcome = replay(operator, "--everything")
        assert outcome.exit_code == 1
        assert "  orders  refused  too large now\n" in outcome.stdout
        assert "2 of 3 dead letters of group billing replayed, to group billing alone; 1 rejected" in outcome.stdout
        assert still_open(operator) == ["two"]

    def test_a_broker_in_trouble_ends_it(self, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
        die(operator, "one", "two", "three")
        self.fail_at(monkeypatch, b"two", BrokerUnavailableError(ResponseCode.SYSTEM_BUSY, "disk full", "broker-a"))
        outcome = replay(operator, "--everything", "--json")
        assert outcome.exit_code == 1
        assert [letter["outcome"] for letter in outcome.json["letters"]] == ["replayed"]
        first, second = outcome.stderr.splitlines()
        assert first.startswith("mqadmin: given up: 1 of 3 dead letters")
        assert second == "mqadmin: broker broker-a answered SYSTEM_BUSY: disk full"
        assert still_open(operator) == ["two", "three"]

    def test_a_topic_that_may_not_be_written_is_told_for_each(self, operator: Operator) -> None:
        die(operator, "one")
        operator("updateTopicPerm", "-t", "orders", "-c", "DefaultCluster", "-p", "4")
        outcome = replay(operator, "--everything", "--to", "topic")
        assert outcome.exit_code == 1
        assert still_open(operator) == ["one"]
