"""mqadmin as an operator runs it: a process of its own, against name servers and brokers that are processes too."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hourglass_local.cluster import Cluster
from hourglass_local.waiting import eventually
from mqclient import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    PushConsumer,
    TransactionListener,
    TransactionProducer,
)

CLUSTER_NAME = "DefaultCluster"
SHORT_DELAYS = " ".join(["1s"] * 18)
TIMEOUT_S = 30
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")

pytestmark = pytest.mark.processes


class Shell:
    """Runs mqadmin as a process that finds the name servers in its environment."""

    def __init__(self, cluster: Cluster) -> None:
        self._environment = os.environ | {"NAMESRV_ADDR": ";".join(cluster.name_server_addresses), "TERM": "xterm"}
        self._environment.pop("NO_COLOR", None)

    async def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; neither is a terminal."""
        process = await asyncio.create_subprocess_exec(
            *self._command(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment | environment,
        )
        async with asyncio.timeout(TIMEOUT_S):
            stdout, stderr = await process.communicate()
        assert process.returncode is not None
        return process.returncode, stdout.decode(), stderr.decode()

    async def json(self, *arguments: str) -> Any:
        code, stdout, stderr = await self.run(*arguments, "--json")
        assert (code, stderr) == (0, "")
        return json.loads(stdout)

    async def on_a_terminal(self, *arguments: str, typed: str = "", **environment: str) -> tuple[int, bytes]:
        """Exit code and all that appeared, with a person at the keyboard."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, typed.encode())
            process = await asyncio.create_subprocess_exec(
                *self._command(arguments),
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=self._environment | environment,
            )
            async with asyncio.timeout(TIMEOUT_S):
                code = await process.wait()
            return code, os.read(ours, 1 << 16)
        finally:
            os.close(ours)
            os.close(theirs)

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """A process that goes on, with its output as a pipe."""
        return await asyncio.create_subprocess_exec(
            *self._command(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environment
        )

    @staticmethod
    def _command(arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "mqadmin", *arguments]


class Committing(TransactionListener):
    async def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


@asynccontextmanager
async def operated(folder: Path, *, brokers: int = 2) -> AsyncIterator[tuple[Cluster, Shell]]:
    """Name server and brokers with a topic of two queues each."""
    async with Cluster(folder, orders=False, brokers=brokers, delay_levels=SHORT_DELAYS) as cluster:
        await cluster.wait_registered()
        shell = Shell(cluster)
        await shell.json("updateTopic", "-t", "orders", "-c", CLUSTER_NAME, "-r", "2", "-w", "2")
        yield cluster, shell
        stopped = await cluster.stop()
        assert (stopped.killed, stopped.failed, stopped.leftover) == ((), (), ())


@asynccontextmanager
async def consumer(cluster: Cluster, group: str, status: ConsumeStatus) -> AsyncIterator[PushConsumer]:
    """A member of the group that answers `status` to everything and gives up after its first retry."""

    async def listen(_: list[MessageExt]) -> ConsumeStatus:
        return status

    made = PushConsumer(
        group,
        cluster.url,
        client_config=ClientConfig(instance_name=group),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consumer_config=ConsumerConfig(max_reconsume_times=1),
    )
    made.subscribe("orders")
    made.register_message_listener(listen)
    await made.start()
    try:
        yield made
    finally:
        await made.shutdown()


async def test_the_life_of_messages_on_two_brokers_is_told(tmp_path: Path) -> None:
    async with operated(tmp_path) as (cluster, shell):
        async with TransactionProducer("shop", cluster.url, transaction_listener=Committing()) as producer:
            await producer.send_message_in_transaction(Message("orders", b"created", tag="created", keys="order-17"))
        for broker in ("broker-a", "broker-b"):
            sent = ("sendMessage", "-t", "orders", "-p", "close", "-k", "order-17", "-c", "close", "-b", broker)
            assert (await shell.json(*sent, "--delayLevel", "16"))["send_status"] == "SEND_OK"

        async def kinds() -> dict[str, list[list[str]]]:
            """By tag, the kinds of each message's events."""
            told: dict[str, list[list[str]]] = {}
            for message in (await shell.json("explain", "order-17"))["messages"]:
                told.setdefault(message["tag"], []).append([event["kind"] for event in message["events"]])
            return told

        async with consumer(cluster, "bad", ConsumeStatus.RECONSUME_LATER):

            async def all_is_over() -> bool:
                return all(steps[-1] == "dead" for lives in (await kinds()).values() for steps in lives)

            await eventually(all_is_over, TIMEOUT_S, "every message is dead")
        assert await kinds() == {
            "created": [["half", "committed", "retried", "delivered", "dead"]],
            "close": [["waiting", "delivered", "retried", "delivered", "dead"]] * 2,
        }
        (created, *_) = (await shell.json("explain", "order-17"))["messages"]
        assert all(event["late_ms"] >= 0 for event in created["events"] if event["kind"] == "delivered")
        progress = await shell.json("consumerProgress", "-g", "bad")
        assert progress["client_ids"] == []
        assert {queue["topic"] for queue in progress["queues"]} == {"orders", "%RETRY%bad"}
        dead = await shell.json("printMsg", "-t", "%DLQ%bad")
        assert sorted(message["body"] for message in dead["messages"]) == ["close", "close", "created"]


@pytest.mark.mechanism("N11", "Q2")
async def test_a_day_of_an_operator(tmp_path: Path) -> None:
    async with operated(tmp_path) as (cluster, shell):
        names = ["broker-a", "broker-b"]
        route = await shell.json("topicRoute", "-t", "orders")
        assert [(one["broker_name"], one["addresses"]) for one in route["brokers"]] == [
            (name, {"0": address}) for name, address in zip(names, cluster.broker_addresses, strict=True)
        ]
        (tmp_path / "body").write_bytes(bytes(range(256)))
        sent = await shell.json("sendMessage", "-t", "orders", "-p", f"@{tmp_path / 'body'}", "-k", "k", "-b", names[1])
        (found,) = (await shell.json("queryMsgByKey", "-t", "orders", "-k", "k"))["messages"]
        assert (found["body"], found["body_encoding"]) == (bytes(range(256)).hex(), "hex")
        (viewed,) = (await shell.json("queryMsgById", "-i", sent["offset_message_id"]))["messages"]
        assert viewed == found
        assert found["broker_name"] == "broker-b"
        status = await shell.json("topicStatus", "-t", "orders")
        assert sum(queue["message_count"] for queue in status["queues"]) == 1
        changed = await shell.json("updateTopicPerm", "-t", "orders", "-b", cluster.broker_addresses[0], "-p", "4")
        assert [broker["perm"] for broker in changed["brokers"]] == [4]
        assert [one["perm"] for one in (await shell.json("topicRoute", "-t", "orders"))["brokers"]] == [4, 6]
        configured = (await shell.json("brokerConfig", "-c", CLUSTER_NAME))["brokers"]
        assert [broker["config"]["brokerName"] for broker in configured] == names
        await shell.json("updateSubGroup", "-g", "readers", "-c", CLUSTER_NAME, "-r", "3")
        moved = await shell.json("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "0")
        assert [queue["offset"] for queue in moved["queues"]] == [0] * 4
        assert [group["lag"] for group in (await shell.json("consumerProgress"))["groups"]] == [1]
        assert await shell.run("deleteSubGroup", "-g", "readers", "-c", CLUSTER_NAME, "-r", "true") == (
            0,
            f"group    deleted from    offsets removed\nreaders  {CLUSTER_NAME}  yes\n",
            "",
        )
        await shell.json("deleteTopic", "-t", "orders", "-c", CLUSTER_NAME)
        assert "orders" not in (await shell.run("topicList"))[1].splitlines()


async def test_a_broker_that_has_died_is_shown_and_is_exit_code_1(tmp_path: Path) -> None:
    async with operated(tmp_path) as (cluster, shell):
        await cluster.brokers[1].kill()
        async with Admin(cluster.url) as admin:

            async def has_left() -> bool:
                return "broker-b" not in {broker.broker_name for broker in await admin.cluster_list()}

            # The name server drops a broken session at once; until then it names a broker that does not answer.
            code, stdout, stderr = await shell.run("clusterList")
            assert code == ("no answer" in stdout)
            assert ("mqadmin: broker-b: " in stderr) == bool(code)
            await eventually(has_left, TIMEOUT_S, "broker-b has left")
        code, stdout, _ = await shell.run("clusterList")
        assert (code, "broker-b" in stdout) == (0, False)
        address = cluster.broker_addresses[1]
        code, stdout, stderr = await shell.run("brokerStatus", "-b", address, "--json")
        assert (code, json.loads(stdout)["brokers"]) == (1, [])
        assert stderr.startswith(f"mqadmin: {address}: ")
        assert (json.loads(stdout)["failed"][0]["broker_address"], stderr.count("\n")) == (address, 1)


async def test_a_terminal_gets_colours_its_width_and_a_question(tmp_path: Path) -> None:
    async with operated(tmp_path, brokers=1) as (_, shell):
        _, plain, _ = await shell.run("topicStatus", "-t", "orders")
        assert "\x1b" not in plain
        code, shown = await shell.on_a_terminal("topicStatus", "-t", "orders", COLUMNS="40")
        assert code == 0
        assert COLOUR.search(shown)
        assert max(len(line) for line in COLOUR.sub(b"", shown).decode().splitlines()) <= 40
        _, shown = await shell.on_a_terminal("topicStatus", "-t", "orders", NO_COLOR="1")
        assert b"broker-a" in shown
        assert b"\x1b" not in shown

        delete = ("deleteTopic", "-t", "orders", "-c", CLUSTER_NAME)
        code, shown = await shell.on_a_terminal(*delete, typed="n\n")
        assert code == 1
        assert b"Delete topic orders with all its messages on DefaultCluster? [y/N]" in shown
        assert b"mqadmin: nothing was changed" in shown
        assert "orders" in (await shell.run("topicList"))[1].splitlines()
        code, _ = await shell.on_a_terminal(*delete, typed="y\n")
        assert code == 0
        assert "orders" not in (await shell.run("topicList"))[1].splitlines()
        await shell.json("updateTopic", "-t", "orders", "-c", CLUSTER_NAME)
        code, shown = await shell.on_a_terminal(*delete, "-y")
        assert (code, b"[y/N]" in shown) == (0, False)


async def test_it_ends_quietly_when_its_reader_ends_and_when_it_is_interrupted(tmp_path: Path) -> None:
    async with operated(tmp_path, brokers=1) as (_, shell):
        repeating = await shell.start("clusterList", "-i", "1")
        assert repeating.stdout
        assert repeating.stderr
        async with asyncio.timeout(TIMEOUT_S):
            assert (await repeating.stdout.readline()).startswith(b"cluster")
            repeating.send_signal(signal.SIGINT)
            assert await repeating.wait() == 130
        assert await repeating.stderr.read() == b""
        read, write = os.pipe()
        os.close(read)
        closed = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqadmin", "--help"), stdout=write, stderr=subprocess.PIPE
        )
        os.close(write)
        async with asyncio.timeout(TIMEOUT_S):
            _, stderr = await closed.communicate()
        assert b"Traceback" not in stderr


async def test_a_shell_can_complete_commands_and_flags(tmp_path: Path) -> None:
    async def completed(words: str) -> set[str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqadmin"),
            stdout=subprocess.PIPE,
            env=os.environ
            | {"_MQADMIN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
        )
        stdout, _ = await process.communicate()
        return set(stdout.decode().split())

    assert await completed("mqadmin topic") == {"topicList", "topicRoute", "topicStatus"}
    assert await completed("mqadmin updateTopic --read") == {"--readQueueNums"}
    assert await completed("mqadmin updateSubGroup -s ") == {"true", "false"}
